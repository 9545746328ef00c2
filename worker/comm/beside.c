/* Two communicators as one: control messages on a host's, gradients and statistics on a device's. What fails on one
 * side ends both. */
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/comm/kin.h"

struct beside {
    struct comm base;
    struct comm_ops ops; /* name and kind are the device's */
    struct comm *control, *device;
};

static struct comm *side(struct comm *c, enum comm_channel ch)
{
    struct beside *b = (struct beside *)c;
    return ch == COMM_CONTROL ? b->control : b->device;
}

static void beside_close(struct comm *c)
{
    struct beside *b = (struct beside *)c;
    comm_kin_end(c);
    b->device->ops->close(b->device);
    b->control->ops->close(b->control);
    free(b);
}

static void beside_abort(struct comm *c)
{
    struct beside *b = (struct beside *)c;
    b->device->ops->abort(b->device);
    b->control->ops->abort(b->control);
    comm_kin_abort(c);
}

static int beside_all_reduce(struct comm *c, enum comm_channel ch, void *buf, size_t n, enum dtype t, enum comm_op op,
                             void *stream, struct err *e)
{
    struct comm *to = side(c, ch);
    return to->ops->all_reduce(to, ch, buf, n, t, op, stream, e);
}

static int beside_broadcast(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int root, void *stream,
                            struct err *e)
{
    struct comm *to = side(c, ch);
    return to->ops->broadcast(to, ch, buf, bytes, root, stream, e);
}

static int beside_all_gather_v(struct comm *c, enum comm_channel ch, const void *in, void *out, const size_t *bytes,
                               void *stream, struct err *e)
{
    struct comm *to = side(c, ch);
    return to->ops->all_gather_v(to, ch, in, out, bytes, stream, e);
}

static int beside_reduce_scatter_v(struct comm *c, enum comm_channel ch, const void *in, void *out,
                                   const size_t *counts, enum dtype t, enum comm_op op, void *stream, struct err *e)
{
    struct comm *to = side(c, ch);
    return to->ops->reduce_scatter_v(to, ch, in, out, counts, t, op, stream, e);
}

static int beside_reduce(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n, enum dtype t,
                         enum comm_op op, int root, void *stream, struct err *e)
{
    struct comm *to = side(c, ch);
    return to->ops->reduce(to, ch, in, out, n, t, op, root, stream, e);
}

/* A request is waited for where it was made. */
static int beside_isend(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                        struct comm_request **ret, struct err *e)
{
    struct comm *to = side(c, ch);
    return to->ops->isend(to, ch, buf, bytes, peer, stream, ret, e);
}

static int beside_irecv(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int peer, void *stream,
                        struct comm_request **ret, struct err *e)
{
    struct comm *to = side(c, ch);
    return to->ops->irecv(to, ch, buf, bytes, peer, stream, ret, e);
}

static int beside_send(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                       struct err *e)
{
    struct comm *to = side(c, ch);
    return to->ops->send(to, ch, buf, bytes, peer, stream, e);
}

static int beside_barrier(struct comm *c, enum comm_channel ch, struct err *e)
{
    struct comm *to = side(c, ch);
    return to->ops->barrier(to, ch, e);
}

static int beside_check(struct comm *c, struct err *e)
{
    struct comm *to = ((struct beside *)c)->device;
    return to->ops->check ? to->ops->check(to, e) : 0;
}

static void beside_lend(struct comm *c, enum comm_channel ch, void *buf, size_t bytes)
{
    struct comm *to = side(c, ch);
    if (to->ops->lend)
        to->ops->lend(to, ch, buf, bytes);
}

static void beside_reclaim(struct comm *c, enum comm_channel ch, void *buf)
{
    struct comm *to = side(c, ch);
    if (to->ops->reclaim)
        to->ops->reclaim(to, ch, buf);
}

static int64_t beside_sent(const struct comm *c, enum comm_channel ch)
{
    const struct beside *b = (const struct beside *)c;
    return comm_sent(ch == COMM_CONTROL ? b->control : b->device, ch);
}

int comm_beside(struct comm **ret, struct comm *control, struct comm *device, struct err *e)
{
    struct beside *b = calloc(1, sizeof *b);
    if (!b) {
        device->ops->close(device);
        control->ops->close(control);
        return err_set(e, -ENOMEM, "no memory for a communicator");
    }
    *b = (struct beside){.base = {.ops = &b->ops, .rank = device->rank, .world = device->world},
                         .ops = {.name = device->ops->name,
                                 .host_buffers = device->ops->host_buffers,
                                 .close = beside_close,
                                 .abort = beside_abort,
                                 .all_reduce = beside_all_reduce,
                                 .reduce = beside_reduce,
                                 .broadcast = beside_broadcast,
                                 .all_gather = comm_all_gather_equal,
                                 .all_gather_v = beside_all_gather_v,
                                 .reduce_scatter = comm_reduce_scatter_equal,
                                 .reduce_scatter_v = beside_reduce_scatter_v,
                                 .barrier = beside_barrier,
                                 .isend = beside_isend,
                                 .irecv = beside_irecv,
                                 .send = beside_send,
                                 .check = beside_check,
                                 .lend = beside_lend,
                                 .reclaim = beside_reclaim,
                                 .sent = beside_sent},
                         .control = control,
                         .device = device};
    *ret = &b->base;
    return 0;
}
