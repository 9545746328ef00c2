/* The optimizer: what happens to the state once gradients are sums over all ranks. A parameter's weight decay and trust
 * come from its slice of the arenas; a step is then
 *
 *   agree         LARS, LAMB of tensors that ranks hold parts of: their norms
 *   update        params, momentum, second (n_train) from reduce[0, n_train)
 *   update_stats  running statistics of batch norm (n_stats) from the reduce[n_train, n_train + n_stats) of the step
 *   round         where there are no master weights: what was written becomes halves again
 *   gather        where moments are cut, each rank has updated what it owns: all get all of it, unless parameters are
 *                 cut, too, and gathered while they are read (parallel/residency.h)
 *   blend         moving averages of params and stats
 *
 * Of frozen parameters and fixed statistics nothing is touched.
 *
 * all of it by loops over slices, on the device. */
#ifndef CRUN_WORKER_OPTIM_UPDATE_H
#define CRUN_WORKER_OPTIM_UPDATE_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/device/device.h"
#include "worker/program/program.h"

struct ddp;
struct err;
struct ownership;
struct precision;
struct program;
struct state;

struct optimizer {
    enum update_rule rule;
    double momentum, beta2, eps;
    double weight_decay, trust;  /* of matrices and filters */
    bool decay_vectors;          /* weight decay of biases and batch norm, too */
    const char *no_decay;        /* patterns (patterns.h) of parameters without; NULL: none */
    const char *lr_mul;          /* patterns, and factors of the rate; NULL: none */
    double layer_decay;          /* of the rate, from each layer to the one before (layers.h); 1: none */
    const struct program *model; /* borrowed: the whole, whose layers they are */
    double clip_norm;            /* 0: never clipped */
    double ema; /* share of the old average that a step keeps, once optimizer_kept() has come so far; 0: no average */
    /* > 0: averages move after the first step of each epoch and every so many steps behind it, and keep `ema`. Of the
     * first `ema_copied` steps of the run, and of the one behind them, they are copies. */
    int64_t ema_every, ema_copied, epoch; /* epoch: steps of one */
    bool weighted;                        /* classes have weights: their mean is over the sum of these */
    bool sum_losses;                      /* gradients are of the sum of losses, not of their mean */
    double bn_momentum;                   /* weight of a step's statistics in the running ones */
    struct update_slice *slices;
    int *whole;      /* (nslices): of which slice of the whole arena it is a part, counted alike on all ranks */
    double *factors; /* (nslices): of the rate; NULL: all are 1 */
    int nslices, nwhole;
    double *rates; /* (nslices): what the next update multiplies their rates by, where optimizer_agree() says so */
};

/* The metric that sums of gradients are divided by. */
static inline enum metric optimizer_divisor(const struct optimizer *o)
{
    return o->sum_losses ? METRIC_ONE : o->weighted ? METRIC_WEIGHT : METRIC_COUNT;
}

/* Set slices, anew where there are some, of what this rank updates: parameters that are updated alike and lie side by
 * side share one; LARS and LAMB have one a tensor. */
int optimizer_slice(struct optimizer *o, const struct program *p, const struct ownership *own, struct err *e);
void optimizer_finish(struct optimizer *o);

/* O3 has no master weights: round them, the moments and (half_bn) statistics as an update leaves them. Else nothing. */
int optimizer_round(struct state *s, const struct precision *p, struct err *e);

/* s->norm = L2 norm of the gradient: of sums that the loss's grad_scale multiplied. All ranks. */
int optimizer_norm(const struct optimizer *o, struct state *s, struct ddp *d, double grad_scale, struct err *e);

/* Before an update: what it needs to know of other ranks' sums and parameters. count: as optimizer_update(). With
 * clipping, s->norm has the norm. All ranks. */
int optimizer_agree(const struct optimizer *o, struct state *s, struct ddp *d, double grad_scale, int64_t count,
                    struct err *e);

/* One update of all that this rank updates; count: which one of Adam's this is, from 1. With clipping, s->norm has the
 * norm of the sums. Takes no other rank. */
int optimizer_update(const struct optimizer *o, struct state *s, const struct precision *p, double lr,
                     double grad_scale, int64_t count, struct err *e);

/* The share of the old average that step n of the run (from 1) keeps; 1: it stays as it is. Without ema_every
 * min(ema, (1 + n) / (10 + n)), as TensorFlow's ExponentialMovingAverage with num_updates: with `ema` alone an average
 * of 10,000 steps would be that of the initial weights for as long. With it as torchvision's references do. */
double optimizer_kept(const struct optimizer *o, int64_t n);

/* After it: what others have updated comes, and averages follow. steps: of the run so far, this one and those that were
 * skipped included. All ranks. */
int optimizer_spread(const struct optimizer *o, struct state *s, struct ddp *d, int64_t steps, struct err *e);

#endif
