/* The communicators of a rank's groups (layout.h). */
#ifndef CRUN_WORKER_GROUPS_H
#define CRUN_WORKER_GROUPS_H

#include <stdbool.h>

#include "worker/parallel/layout.h"

struct comm;
struct comm_options;
struct err;
struct ownership;

/* ret[g] for each group g of the layout that others are in, and NULL for the rest, LAYOUT_ENDS where this rank's end of
 * the model ties it to the other one (ownership_ties()); `all`, of the ranks that take part, stands for every group
 * that has all of them. o: as `all` was opened. by_node: sums of gradients go node by node
 * (comm_hierarchy()), and this is the rank's; -1: straight. Ranks that take part call it together. On failure nothing
 * stays open. */
int groups_open(struct comm *ret[LAYOUT_GROUPS], struct comm *all, const struct ownership *own,
                const struct comm_options *o, int by_node, struct err *e);
/* Of a stage and the one before it (ret[0]), and behind it (ret[1]), where `stages` enqueues messages; else NULL. ring:
 * the first one is behind the last. Rank 0 of each is the one that activations come from, but for the last and the
 * first of a ring: there ranks are in order. All of `stages` call this. On failure nothing stays open. */
int groups_open_edges(struct comm *ret[2], struct comm *stages, bool ring, const struct comm_options *o, struct err *e);
void groups_close_edges(struct comm *edges[2]);

/* But not `all`. */
void groups_close(struct comm *groups[LAYOUT_GROUPS], const struct comm *all);

#endif
