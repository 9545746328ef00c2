/* trainer plan, where something has to be measured: this process becomes some ranks of the run on this node, as many as
 * measure operations (planner_measures()), and two at least, so that there is a link. Other hardware is not measured:
 * one rank does it all. */
#ifndef CRUN_WORKER_CLI_PLAN_RANKS_H
#define CRUN_WORKER_CLI_PLAN_RANKS_H

#include "worker/planner/hardware.h"
#include "worker/planner/planner.h"

struct err;

struct plan_ranks {
    const struct train_config *cfg;
    int world, local_world;     /* of the run */
    int hardware;               /* enum hardware_id of its machines; -1: this one, which is measured */
    int rank;                   /* of this process among those that measure */
    struct train_config chosen; /* as cfg, or what --auto-parallel chose */
    struct planner_choice choice;
    struct prediction step; /* of the chosen one */
    struct network network;
    struct hardware machine; /* where hardware is not -1 */
};

/* Before any thread is started. Returns in every rank with r->rank, and in the parent of several, with -1 there, after
 * all have ended: *ret_code is what to exit with. */
int plan_ranks_start(struct plan_ranks *r, int *ret_code, struct err *e);

/* In every rank: the rest of *r. On failure of all alike rank 0 is the one to say so. */
int plan_ranks_measure(struct plan_ranks *r, struct err *e);
void plan_ranks_finish(struct plan_ranks *r);

#endif
