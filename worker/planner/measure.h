/* What a prediction is made of, measured by the ranks that are here: operations, copies, updates, images loaded; and
 * transfers of the communicator. All ranks call these together, and what they put down is rank 0's. */
#ifndef CRUN_WORKER_MEASURE_H
#define CRUN_WORKER_MEASURE_H

#include <stdbool.h>

#include "worker/planner/network.h"
#include "worker/planner/op_times.h"

struct comm;
struct comm_options;
struct err;
struct forecast_base;
struct session;

struct measure {
    struct op_times *times;
    struct forecast_base *base;
    struct comm *comm; /* of all ranks that are here; NULL: one, alone */
    int computing;     /* ranks of this node that compute side by side (planner_measures()) */
    int place;         /* env_contract_place() */
    const int *nodes;  /* (comm->world): the node of each rank */
};

/* Is it this one of the ranks that compute? The others wait meanwhile. */
bool measure_computes(const struct measure *m);

/* copy, page, update, load (rank_step.h). */
int measure_numbers(struct measure *m, struct err *e);

/* The operations of a session's program, where they are not known. */
int measure_session(struct measure *m, const struct session *s, struct err *e);

/* Links between two ranks of one node and, where there are several nodes, of two; o: as m->comm was opened. What cannot
 * be measured here stays as it is in *n. */
int measure_network(struct measure *m, const struct comm_options *o, struct network *n, struct err *e);

/* Rank 0's times and links become everybody's. */
int measure_share(struct measure *m, struct network *n, struct err *e);

#endif
