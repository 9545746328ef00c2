/* What the host devices (ref, cpu) share: checks of a batch and of a plan, the loss of one sample, the update rules. */
#ifndef CRUN_WORKER_DEVICE_HOST_COMMON_H
#define CRUN_WORKER_DEVICE_HOST_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/device/device.h"
#include "worker/device/mix.h"
#include "worker/program/program.h"

/* The slice that options ask for, as [*ret_first, *ret_end): the whole program, or its forward part if !training.
 * Checks batch, slice and the arenas that the slice's ops need. -EINVAL names what is wrong. */
int host_plan_slice(const struct program *p, const struct plan_options *o, int *ret_first, int *ret_end, struct err *e);

/* The ops of a plan: of a slice, or the forward and backward ones of a chunk. */
struct host_ops {
    int first, end, first_back, end_back; /* back: empty where there is no chunk */
};
int host_plan_ops(const struct program *p, const struct plan_options *o, struct host_ops *ret, struct err *e);
/* Of one run: [*first, *end). -EINVAL: a pass that the plan does not have, or a boundary that is missing. */
int host_run_ops(const struct host_ops *ops, const struct plan_options *o, const struct run_args *a, int *first,
                 int *end, struct err *e);
/* The tensors that a run of a chunk begins and ends with; -1: none. */
int host_boundary_in(const struct program_chunk *c, enum run_pass pass);
int host_boundary_out(const struct program_chunk *c, enum run_pass pass);

/* Weights are 0 or 1; labels of samples that count are classes, of tokens also -1 (only if the slice reads labels);
 * rows are there if it reads them, tokens within the vocabulary; numbers of samples if in training it drops some;
 * partners are rows of the batch or of the plan's others; shares, second labels and boxes lie within what there is. */
int host_check_batch(const struct program *p, int first_op, int end_op, const struct plan_options *o,
                     const struct batch *b, struct err *e);

/* A plan of these ops leaves OP_HEAD, forward, to its backward op, which makes the metrics on its way. */
bool host_left_to_backward(const struct program *p, const struct host_ops *ops, const struct op *head);

/* The labels of a row that counts: `share` of its target is the second's. */
struct host_target {
    int label, second;
    double share; /* 0: the label alone counts */
};

/* The label of row r, of `per` rows a sample; -1: the row does not count. */
static inline int host_label(const struct batch *b, size_t per, size_t r)
{
    return b->weights[r / per] != 0 ? b->labels[r] : -1;
}

/* The same with what it is mixed with; .label -1: the row does not count. */
static inline struct host_target host_target(const struct batch *b, size_t per, size_t r)
{
    struct host_target t = {.label = host_label(b, per, r)};
    t.share = mix_second(b, r / per, &t.second);
    return t;
}

/* Number of samples that count. */
double host_batch_count(const struct batch *b, int n);

/* r, smoothing: loss_rule.h. Add a counting sample's loss, hits (of its label) and 1 to metrics[METRIC_N]. z: logits of
 * its classes. A logit that is not a number is no hit. */
void host_xent(const struct loss_rule *r, const double *z, int classes, struct host_target t, double smoothing,
               double *metrics);

/* z becomes its gradient, times scale; plain: (softmax(z) - target) * scale. */
void host_xent_backward(const struct loss_rule *r, double *z, int classes, struct host_target t, double smoothing,
                        double scale);
double host_largest(const double *z, int n); /* n >= 1 */

/* Of OP_ROPE: (t, d), of each position cosines of its angles, and then their sines. */
void host_turns(const struct program *p, const struct op *op, float *table);

#define HOST_LARGE ((size_t)4 << 20) /* bytes; whole huge pages */

/* plan_options.room, of a large block. before: bytes of large blocks that the plan has and has not used yet. */
int host_ask_room(const struct plan_options *o, size_t before, size_t bytes, struct err *e);

/* Zeroed memory aligned to 64 bytes, freed with free(). -ENOMEM names the size. */
int host_alloc(size_t bytes, void **ret, struct err *e);
/* The same, but that a large block takes the machine's memory page by page, when it is used, where it is used. */
int host_alloc_as_used(size_t bytes, void **ret, struct err *e);

/* Address space behind which there is no memory, for plans that are never run: whoever touches it is killed. */
int host_reserve(size_t bytes, void **ret, struct err *e);
void host_unreserve(void *p, size_t bytes);

#endif
