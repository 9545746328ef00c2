/* --drill-corrupt: a bit flips in what one rank holds, as it would in bad memory; or a number becomes none. */
#ifndef CRUN_WORKER_DRILL_H
#define CRUN_WORKER_DRILL_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/config/config.h"

struct err;
struct state;

/* Before a run begins: its rank is one of the world's. ERR_USAGE. */
int drill_check(const struct drill *d, int world, struct err *e);

/* At this moment of step `step`: before it begins (sums false), or when its sums are there. A drill is over once it has
 * been done: d->what is none then. */
int drill_at(struct drill *d, struct state *s, int rank, int64_t step, bool sums, struct err *e);

#endif
