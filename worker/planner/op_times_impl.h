/* Inside of op_times.h: what a measurement puts down. */
#ifndef CRUN_WORKER_OP_TIMES_IMPL_H
#define CRUN_WORKER_OP_TIMES_IMPL_H

#include "worker/planner/op_times.h"

void op_times_put_op(struct op_times *t, const struct op_load *l, int op, double seconds);
void op_times_put_boundary(struct op_times *t, const struct op_load *l, int tensor, bool in, double seconds);
void op_times_put_refresh(struct op_times *t, const struct op_load *l, const struct program_chunk *c, double seconds);

#endif
