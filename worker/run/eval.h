/* Evaluation: every image of the held-out set once, whatever the number of ranks; sums are reduced, not averages. */
#ifndef CRUN_WORKER_EVAL_H
#define CRUN_WORKER_EVAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct comm;
struct err;
struct eval_report;
struct loader;
struct plan;
struct stage;
struct state;
struct train_config;

struct eval_result {
    double loss, top1, top5, count; /* sums over all ranks */
    double bad;
    double seconds; /* of this rank */
    bool stopped;   /* some rank wants to stop: the sums are of a part only */
};

/* How good it is, greater is better: the share that was right (of --best-by top1 or top5), or 1 / (1 + loss); of tokens
 * the reciprocal of the perplexity. */
double eval_score(const struct train_config *cfg, const struct eval_result *r);

/* Who wants to follow it: called after each batch with the sums of this rank, over the batch and so far. */
struct eval_watch {
    void *ctx;
    void (*batch)(void *ctx, int64_t done, int64_t steps, const struct eval_result *now,
                  const struct eval_result *so_far);
};

struct eval_options {
    struct state *state;
    struct plan *plan;     /* not training, of the loader's share */
    struct stage *stage;   /* instead of a plan: of a pipeline */
    struct loader *loader; /* NULL: another stage loads */
    size_t rows;           /* of a batch */
    int64_t steps;         /* of the loader's epoch */
    struct comm *comm;     /* of all ranks */
    struct comm *stages;   /* of the pipeline; NULL: there is none */
    bool (*stop)(void);
    const struct eval_watch *watch; /* NULL: nobody */
    struct eval_report *report;     /* notes what is said of each picture; of a plan alone. NULL: nothing does */
};

/* All ranks. The stages of a pipeline tell one another what they have counted, and whether to stop, every few batches:
 * the watch is called then. Where none of the first images can be decoded it ends after these: count is 0. */
int evaluate(const struct eval_options *o, struct eval_result *ret, struct err *e);

#endif
