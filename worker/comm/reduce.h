/* Element-wise reduction of one array into another: the arithmetic of every host backend. */
#ifndef CRUN_WORKER_COMM_REDUCE_H
#define CRUN_WORKER_COMM_REDUCE_H

#include <stddef.h>

#include "worker/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* acc[i] = acc[i] op in[i]. The two do not overlap. Halves are added in fp32 and rounded once. */
typedef void reduce_fn(void *acc, const void *in, size_t n);

/* NULL for a type that is not reduced. */
reduce_fn *reduce_find(enum dtype t, enum comm_op op);

/* out[i] = parts[0][i] op parts[1][i] op ... in this order; sums of halves stay in fp32 until the end. out may be one
 * of the parts. t is a type that reduce_find() knows; count >= 1. */
void reduce_many(void *out, const void *const *parts, int count, size_t n, enum dtype t, enum comm_op op);

/* 0, or -EINVAL naming the type. */
int reduce_check(enum dtype t, enum comm_op op, struct err *e);

#ifdef __cplusplus
}
#endif

#endif
