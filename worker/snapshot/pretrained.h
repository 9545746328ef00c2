/* Weights from elsewhere as a run's initial ones, or to predict with. */
#ifndef CRUN_WORKER_PRETRAINED_H
#define CRUN_WORKER_PRETRAINED_H

#include <stdbool.h>

struct comm;
struct err;
struct state;
struct weights;

/* Parameters and running statistics of the state by their names, from any floating-point type; averages begin with
 * them. other_classes: a last layer for another number of classes keeps its initial value, with a warning in the log.
 * ERR_MISMATCH names a tensor that is missing or has another shape; tensors that the model does not have are ignored,
 * with a warning each. num_batches_tracked may be missing. */
int pretrained_apply(struct state *s, struct weights *w, const char *path, bool other_classes, struct err *e);

/* All ranks: rank 0 reads path (see weights.h), the others get the result. -ECANCELED there: rank 0 failed and says
 * why. */
int pretrained_load(struct state *s, struct comm *c, const char *path, struct err *e);

#endif
