/* Carries out what plans ask of a tensor group, over a communicator. */
#include "worker/parallel/group_calls.h"

#include "worker/comm/comm.h"
#include "worker/device/device.h"

static int gather(void *ctx, const void *in, void *out, size_t n, enum dtype t, void *stream, struct err *e)
{
    struct comm *c = ctx;
    return c->ops->all_gather(c, COMM_STATISTICS, in, out, n * dtype_size(t), stream, e);
}

static int scatter(void *ctx, const void *in, void *out, size_t n, enum dtype t, void *stream, struct err *e)
{
    struct comm *c = ctx;
    return c->ops->reduce_scatter(c, COMM_STATISTICS, in, out, n, t, COMM_SUM, stream, e);
}

static int sum(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    struct comm *c = ctx;
    return c->ops->all_reduce(c, COMM_STATISTICS, buf, n, t, COMM_SUM, stream, e);
}

static int max(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    struct comm *c = ctx;
    return c->ops->all_reduce(c, COMM_STATISTICS, buf, n, t, COMM_MAX, stream, e);
}

void group_calls(struct plan_group *ret, struct comm *c)
{
    *ret = (struct plan_group){.ctx = c,
                               .on_host = c->ops->host_buffers,
                               .ranks = c->world,
                               .index = c->rank,
                               .gather = gather,
                               .scatter = scatter,
                               .sum = sum,
                               .max = max};
}
