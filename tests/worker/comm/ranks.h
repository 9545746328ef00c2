/* Ranks as threads for tests of collectives: opens a world, runs a function on every rank, joins. */
#ifndef CRUN_TESTS_RANKS_H
#define CRUN_TESTS_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/comm/known.h"

#define RANKS_MAX 9

struct ranks {
    int world;
    struct comm *comm[RANKS_MAX];
    int rc[RANKS_MAX]; /* what the function returned */
    struct err err[RANKS_MAX];
    int64_t took_ms[RANKS_MAX];
};

/* backend: "local" or "gloo". Prints and aborts if the world cannot be opened. */
void ranks_open(struct ranks *w, const char *backend, int world, int64_t timeout_ms);
void ranks_close(struct ranks *w); /* those that are still open */

typedef int rank_fn(struct comm *c, int rank, void *arg, struct err *e);
void ranks_run(struct ranks *w, rank_fn *fn, void *arg); /* every rank in a thread of its own; joins */

/* A rank_fn: a call whose result is known, over buffers of its own; -EIO: elements are wrong. */
struct ranks_call {
    struct known k; /* rank and world are filled in */
    enum comm_channel ch;
    void *stream;
};
int ranks_known(struct comm *c, int rank, void *arg, struct err *e);

bool ranks_have(const char *backend); /* is it part of this build? */

#endif
