/* What the host devices (ref, cpu) share: checks of a batch and of a plan, the loss of one sample, the update rules. */
#ifndef CRUN_WORKER_DEVICE_HOST_COMMON_H
#define CRUN_WORKER_DEVICE_HOST_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/device/device.h"
#include "worker/program/program.h"

/* The slice that options ask for, as [*ret_first, *ret_end): the whole program, or its forward part if !training.
 * Checks batch, slice and the arenas that the slice's ops need. -EINVAL names what is wrong. */
int host_plan_slice(const struct program *p, const struct plan_options *o, int *ret_first, int *ret_end, struct err *e);

/* What an op reads of the parameters; false: nothing. */
bool host_reads(const struct program *p, const struct op *op, struct plan_range *ret);

/* Weights are 0 or 1; labels of samples that count are classes (only if the slice reads labels); images are there if it
 * has OP_INPUT. */
int host_check_batch(const struct program *p, int first_op, int end_op, const struct batch *b, int n, struct err *e);

/* Number of samples that count. */
double host_batch_count(const struct batch *b, int n);

/* The target of a sample: (1 - smoothing) * onehot(label) + smoothing / classes.
 * Add a counting sample's loss, hits and 1 to metrics[METRIC_N]. z: logits of its classes. A logit that is not a number
 * is no hit. */
void host_xent(const double *z, int classes, int label, double smoothing, double *metrics);

/* dz = (softmax(z) - target) * scale. dz may be z. */
void host_xent_backward(const double *z, int classes, int label, double smoothing, double scale, double *dz);

/* Zeroed memory aligned to 64 bytes, freed with free(). -ENOMEM names the size. */
int host_alloc(size_t bytes, void **ret, struct err *e);

/* Address space behind which there is no memory, for plans that are never run: whoever touches it is killed. */
int host_reserve(size_t bytes, void **ret, struct err *e);
void host_unreserve(void *p, size_t bytes);

#endif
