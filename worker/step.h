/* One training step: the page that everything else serves. */
#ifndef CRUN_WORKER_STEP_H
#define CRUN_WORKER_STEP_H

#include <stddef.h>
#include <stdint.h>

struct ddp;
struct device;
struct err;
struct loader;
struct plan;
struct program;
struct state;

/* A run of the arenas with one weight decay. */
struct decay_slice {
    size_t first, n;
    double weight_decay;
};

struct step {
    struct state *state; /* all borrowed */
    struct loader *loader;
    struct plan *plan;
    struct ddp *ddp;
    double momentum;
    double bn_momentum; /* weight of this step's statistics in the running ones */
    struct decay_slice *slices;
    int nslices;
};

struct step_result { /* sums over the global batch, equal on all ranks */
    double loss, top1, top5, count;
    double stop;               /* ranks that want to stop */
    double bad;                /* samples that could not be decoded */
    int64_t wait_ns, total_ns; /* of this rank */
};

/* Merge parameters of equal decay into slices. *ret is malloc'ed. */
int step_slices(const struct program *p, double weight_decay, struct decay_slice **ret, int *ret_n, struct err *e);

/* Next batch, forward, backward with the all-reduce beside it, update. stop: this rank wants to stop after the step.
 * Returns 0; ERR_DIVERGED if the loss is not a number (nothing is updated then); the errors of loader, device and collectives. */
int train_step(struct step *t, double lr, int stop, struct step_result *ret, struct err *e);

#endif
