/* Inside of planner.h. */
#ifndef CRUN_WORKER_PLANNER_IMPL_H
#define CRUN_WORKER_PLANNER_IMPL_H

#include "worker/planner/measure.h"
#include "worker/planner/planner.h"

#define MIB (1024.0 * 1024)

struct planner {
    struct planner_options o;
    struct forecast_base *base;
    struct op_times *times;
    struct network network;
    struct measure measure;
    int *nodes;   /* (comm->world): of each rank */
    double cores; /* of a node */
};

#endif
