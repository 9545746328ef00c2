/* Inside of measure.h; measure*.c only. */
#ifndef CRUN_WORKER_MEASURE_IMPL_H
#define CRUN_WORKER_MEASURE_IMPL_H

#include "worker/planner/measure.h"

int measure_meet(void *measure, struct err *e); /* of all ranks that are here */

double measure_own_seconds(void);        /* processor time of this thread: a busy machine does not blur it */
double measure_process_seconds(void);    /* of all threads */
double measure_middle(double *v, int n); /* sorts them */

#endif
