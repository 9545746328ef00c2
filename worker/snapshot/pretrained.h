/* Weights from elsewhere as a run's initial ones, or to predict with. */
#ifndef CRUN_WORKER_PRETRAINED_H
#define CRUN_WORKER_PRETRAINED_H

#include <stdbool.h>

struct comm;
struct err;
struct state;
struct weights;

/* Parameters and running statistics of the state by their names, from any floating-point type; averages begin with
 * them. What stands before most of the model's names in the file ("module.", "backbone.") is left out.
 * other_classes: a last layer that is missing, or is for another number of classes, keeps its initial value, with a
 * warning in the log; else it is refused. ERR_MISMATCH names a tensor that is missing or has
 * another shape, or is of a layer that the model has not but for its number (weights_is_larger); others that the model
 * does not have are left out, with one warning for all. num_batches_tracked may be missing. ERR_CORRUPT: a tensor is
 * not finite. */
int pretrained_apply(struct state *s, struct weights *w, const char *path, bool other_classes, struct err *e);

/* All ranks: rank 0 reads path (and part: see weights.h), the others get the result. -ECANCELED there: rank 0 failed
 * and says why. */
int pretrained_load(struct state *s, struct comm *c, const char *path, const char *part, bool other_classes,
                    struct err *e);

#endif
