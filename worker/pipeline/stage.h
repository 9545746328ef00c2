/* One stage of a pipeline at work: its chunks of the model, the messages to and from its neighbours, sets of
 * activations.
 *
 *   stage_share_batch()   labels, weights, numbers and mixes of a step's samples, from the first stage on to the last
 *   stage_train()         action after action as pipeline.h says: what it needs is received ahead, in the order of
 *                         pipeline_asks(); a result is sent while the next action runs
 *                           forward    boundary in -> run -> boundary out, activations stay in set m % sets
 *                           backward   gradient in -> run on that set, gradients are added up -> gradient out
 *   ddp_wait()            the stage's gradients, statistics and metrics are summed over its batch group
 *   stage_share_metrics() loss, hits and counts of the last stage reach all
 *
 * Activations travel on COMM_STATISTICS and gradients of them on COMM_GRADIENTS of the stages' communicator, which
 * carries little else there; where messages are enqueued on streams (nccl), of communicators of two neighbours each:
 * the calls of one communicator happen one after another, and what a stage waits for must not hold up what it sends.
 * With recompute a chunk keeps what it was given instead of what it made of it: one set of activations, which the
 * forward pass fills again before a backward pass if another micro-batch has been there since.
 *
 * Memory of a chunk is what a message takes times the buffers: 2 to receive activations (recompute: one for each
 * micro-batch that is live and one more), 2 to receive gradients, more of both where more are asked for at once
 * (pipeline_asked(): interleaved), 2 to send each. */
#ifndef CRUN_WORKER_STAGE_H
#define CRUN_WORKER_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/device/device.h"
#include "worker/pipeline/pipeline.h"

struct comm;
struct ddp;
struct err;
struct ownership;
struct program;
struct residency;
struct stage;

/* Who wants to know what was done when, times as clock_ns(): waited until start, ran until end. */
struct stage_watch {
    void *ctx;
    void (*did)(void *ctx, const struct pipeline_action *a, int64_t waited_ns, int64_t start_ns, int64_t end_ns);
};

struct stage_options {
    struct pipeline order; /* checked */
    int index;             /* of this stage */
    struct comm *comm;     /* of the stages: rank = stage. NULL: a forecast, which must not run */
    /* of this stage and the one before it, and behind it (groups.h), where messages are enqueued on streams; NULL: comm
     * is used for all */
    struct comm *before, *behind;
    struct device *device;
    const struct program *program; /* of the stage: order.chunks chunks */
    const struct ownership *own;   /* of this rank */
    struct ddp *ddp;               /* NULL: a forecast */
    struct plan_options plan;      /* of a micro-batch; chunk and sets are filled in */
    bool recompute;
};

/* All is borrowed. */
int stage_open(struct stage **ret, const struct stage_options *o, struct err *e);
/* Waits for what was sent, which an abort of the communicator ends; NULL allowed. */
void stage_close(struct stage *g);

/* Borrowed until stage_close(). Before a step. */
void stage_set_watch(struct stage *g, const struct stage_watch *w);

/* On the first stage: *b's labels, weights, numbers and mixes of n samples go on; on the others they take the place of
 * what is in *b, borrowed until the next call. Samples of class `ignored` go as they are. */
int stage_share_batch(struct stage *g, struct batch *b, size_t n, struct err *e);

/* All micro-batches of a step. all: as for one run over all of them, its batch (micro_batches * N) rows; pass, set,
 * boundary, accumulate and hooks are the stage's. Gradients of the last micro-batch are reduced as they become
 * final, or (ddp_each_part()) those of each; ddp_wait() follows. */
int stage_train(struct stage *g, const struct run_args *all, struct err *e);

/* One batch of N rows through all stages, forward alone (a plan that is not training). */
int stage_evaluate(struct stage *g, const struct run_args *batch, struct err *e);

/* m[METRIC_N] of this stage become those of the model: what the last stage counts, and sums of wishes. */
int stage_share_metrics(struct stage *g, double *m, struct err *e);
/* The same where they are on a device with streams: what it computes from now on sees them. */
int stage_sum_metrics(struct stage *g, float *metrics, struct err *e);

void stage_memory(const struct stage *g, struct plan_memory *ret); /* of plans, and messages among the activations */

/* Where parameters come and go (residency.h): elements of others that are here at once, at most; and each piece that a
 * step gathers, as often as it does. */
size_t stage_gathered(const struct stage *g);
const struct residency *stage_needs(const struct stage *g, int chunk, bool backward); /* NULL: they do not */
void stage_each_gather(const struct stage *g, void (*gather)(void *ctx, int piece), void *ctx);

/* Bytes that a step sends to other stages, and in how many messages. */
struct stage_traffic {
    int64_t bytes;
    int messages;
};
struct stage_traffic stage_traffic(const struct stage *g);
size_t stage_message(const struct stage *g, int chunk, bool backward); /* bytes that a pass sends; 0: none */
enum { STAGE_MESSAGES_OUT = 2 }; /* of a way, on their way: a pass waits for the one before them */

#endif
