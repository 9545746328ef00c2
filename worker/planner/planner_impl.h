/* Inside of planner.h. */
#ifndef CRUN_WORKER_PLANNER_IMPL_H
#define CRUN_WORKER_PLANNER_IMPL_H

#include "worker/planner/hardware.h"
#include "worker/planner/measure.h"
#include "worker/planner/planner.h"

#define MIB (1024.0 * 1024)

struct planner {
    struct planner_options o;
    struct forecast_base *base;
    struct op_times *times;
    struct network network;
    struct measure measure;
    struct hardware hardware; /* of a machine that is not here */
    int *nodes;               /* (comm->world): of each rank */
    double cores;             /* of a node */
};

#endif
