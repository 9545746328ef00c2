/* Which ranks can give what a rank of a layout keeps, where some ranks have lost it. Pure.
 *
 * Whole pieces (ownership.h) are on all ranks of their group, a part of a piece that is cut on its owner and, if there
 * is one, its second owner. here[members]: who has what it keeps. */
#ifndef CRUN_WORKER_STATE_HOLDERS_H
#define CRUN_WORKER_STATE_HOLDERS_H

#include <stdbool.h>

#include "worker/parallel/layout.h"

struct err;

/* The rank that gives the whole piece of a group, or part `part` of it, which is that member's own; distance: to its
 * second owner (layout_second_distance()). -1: nobody can. */
int holders_of_whole(const struct layout_ranks *g, const bool *here);
int holders_of_part(const struct layout_ranks *g, int distance, int part, const bool *here);

/* Is everything there that the ranks of the layout keep? -ENODATA says what is not. */
int holders_check(const struct layout *l, const bool *here, struct err *e);

#endif
