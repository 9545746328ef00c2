/* Evaluation: every image of the held-out set once, whatever the number of ranks; sums are reduced, not averages. */
#ifndef CRUN_WORKER_EVAL_H
#define CRUN_WORKER_EVAL_H

#include <stdbool.h>
#include <stdint.h>

struct comm;
struct err;
struct loader;
struct plan;
struct state;

struct eval_result {
    double loss, top1, top5, count; /* sums over all ranks */
    double bad;
    double seconds; /* of this rank */
    bool stopped;   /* some rank wants to stop: the sums are of a part only */
};

/* Who wants to follow it: called after each batch with the sums of this rank, over the batch and so far. */
struct eval_watch {
    void *ctx;
    void (*batch)(void *ctx, int64_t done, int64_t steps, const struct eval_result *now,
                  const struct eval_result *so_far);
};

/* plan: not training, of the loader's share. steps: of this loader's epoch. watch: NULL for nobody. All ranks. */
int evaluate(struct state *s, struct plan *plan, struct loader *l, int64_t steps, struct comm *c, bool (*stop)(void),
             const struct eval_watch *watch, struct eval_result *ret, struct err *e);

#endif
