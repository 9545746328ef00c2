/* Inside of stage.h; stage*.c only: a stage, its chunks of the model and the memory of their messages. stage_open.c
 * makes it, stage.c works with it, stage_numbers.c tells what it takes. */
#ifndef CRUN_WORKER_STAGE_IMPL_H
#define CRUN_WORKER_STAGE_IMPL_H

#include <stddef.h>
#include <stdint.h>

#include "worker/pipeline/mail.h"
#include "worker/pipeline/stage.h"
#include "worker/program/program.h"

enum { FORWARD, BACKWARD, WAYS };
enum { AHEAD = STAGE_MESSAGES_OUT }; /* messages of a way that have memory of their own */

/* What comes in for a chunk, either way: micro-batch m at m % n. */
struct inbox {
    struct mail *mail;
    int n;
    int open; /* micro-batches below: their memory may be used again */
    size_t bytes;
};

struct chunk {
    struct plan *plan;
    struct residency *needs[WAYS]; /* of its parameters, where these come and go; else NULL */
    int sets;
    struct inbox in[WAYS];
    size_t out_bytes[WAYS];
    int holds; /* recompute: the micro-batch whose activations are there; -1: none */
};

struct stage {
    struct stage_options o;
    const struct stage_watch *watch; /* NULL: nobody */
    struct chunk *chunks;            /* (o.order.chunks) */
    struct lane from[WAYS], to[WAYS];
    struct mail out[WAYS][AHEAD];
    size_t out_most[WAYS]; /* bytes of each */
    int turn[WAYS];
    struct pipeline_ask *asks; /* (nasks) what a step receives */
    int nasks;
    int asked;   /* of those, in this step */
    void *rows;  /* labels, then weights of a step's samples, as they travel */
    size_t room; /* bytes */
};

/* Does a chunk have a backward pass? One below all that is trained has none. */
static inline bool goes_back(const struct stage *g, int chunk)
{
    return g->o.program->chunks[chunk].end_back > g->o.program->chunks[chunk].first_back;
}

static inline int way_of(const struct pipeline_action *a)
{
    return a->backward ? BACKWARD : FORWARD;
}

#endif
