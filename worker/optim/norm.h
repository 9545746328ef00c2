/* Norms over arenas of which each rank has sums of its own part only. */
#ifndef CRUN_WORKER_OPTIM_NORM_H
#define CRUN_WORKER_OPTIM_NORM_H

#include <stddef.h>

#include "worker/parallel/ownership.h"

struct err;
struct state;

/* *sum += squares of those of an arena's elements [first, end) that this rank saves (`saved` of its pieces): over all
 * ranks of its stage each element counts once. arena: of parameters or gradients, which a says. count: METRIC_COUNT;
 * 0: of gradients nothing is added. Gradients are divided by the device's loss scale (guard()), so this comes before
 * judge(), which may change it. */
int norm_add_squares(struct state *s, const void *arena, enum ownership_arena a, size_t first, size_t end, double count,
                     double *sum, struct err *e);

#endif
