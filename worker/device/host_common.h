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

/* The loss of a row over parts of its logits (program/split.h). z: logits of classes [first, first + n), n >= 1;
 * classes: of all ranks together. What is left out where metrics are NULL is what others count. dz may be z. */
void host_xent_top(const double *z, int n, int first, const double label[LABEL_N], double top[TOP_N]);
void host_xent_sums(const double *z, int n, int first, const double top[TOP_N], double sums[SUMS_N]);
void host_xent_parts(const double sums[SUMS_N], const double top[TOP_N], int classes, double smoothing,
                     double lse[LSE_N], double *metrics);
void host_xent_parts_backward(const double *z, int n, int first, const double lse[LSE_N], int classes, double smoothing,
                              double scale, double *dz);

/* Zeroed memory aligned to 64 bytes, freed with free(). -ENOMEM names the size. */
int host_alloc(size_t bytes, void **ret, struct err *e);

#endif
