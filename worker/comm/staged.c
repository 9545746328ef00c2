/* Device memory through page-locked memory and a host communicator, piece by piece:
 *   device --copy_out--> stage --host collective--> stage --copy_in--> device
 * on the stream of the caller, who waits. Each channel has a stage of its own, because channels are used from different
 * threads. All ranks cut alike, so pieces meet. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/comm/reduce.h"
#include "worker/device/device.h"

enum { STAGE_BYTES = 4 << 20 };

struct staged {
    struct comm base;
    struct comm *host;
    struct device *device;
    const struct device_async *async;
    char *stage[COMM_CHANNELS]; /* STAGE_BYTES; NULL: control */
};

static struct staged *self(struct comm *c)
{
    return (struct staged *)c;
}

static void staged_close(struct comm *c)
{
    struct staged *s = self(c);
    for (int i = 0; i < COMM_CHANNELS; i++)
        if (s->stage[i])
            s->async->host_release(s->device, s->stage[i]);
    s->host->ops->close(s->host);
    free(s);
}

static void staged_abort(struct comm *c)
{
    struct comm *host = self(c)->host;
    host->ops->abort(host);
}

static int stage_out(struct staged *s, enum comm_channel ch, const void *from, size_t bytes, void *stream,
                     struct err *e)
{
    TRY(s->async->copy_out(s->device, stream, s->stage[ch], from, bytes, e));
    return s->async->sync(s->device, stream, e);
}

static int stage_in(struct staged *s, enum comm_channel ch, void *to, size_t bytes, void *stream, struct err *e)
{
    TRY(s->async->copy_in(s->device, stream, to, s->stage[ch], bytes, e));
    return s->async->sync(s->device, stream, e);
}

static size_t piece(size_t left, size_t most)
{
    return left < most ? left : most;
}

static int staged_all_reduce(struct comm *c, enum comm_channel ch, void *buf, size_t n, enum dtype t, enum comm_op op,
                             void *stream, struct err *e)
{
    struct staged *s = self(c);
    struct comm *host = s->host;
    if (ch == COMM_CONTROL)
        return host->ops->all_reduce(host, ch, buf, n, t, op, stream, e);
    TRY(reduce_check(t, op, e));
    const size_t elem = dtype_size(t);
    for (size_t at = 0, now; at < n; at += now) {
        char *p = (char *)buf + at * elem;
        now = piece(n - at, STAGE_BYTES / elem);
        TRY(stage_out(s, ch, p, now * elem, stream, e));
        TRY(host->ops->all_reduce(host, ch, s->stage[ch], now, t, op, NULL, e));
        TRY(stage_in(s, ch, p, now * elem, stream, e));
    }
    return 0;
}

static int staged_broadcast(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int root, void *stream,
                            struct err *e)
{
    struct staged *s = self(c);
    struct comm *host = s->host;
    if (ch == COMM_CONTROL)
        return host->ops->broadcast(host, ch, buf, bytes, root, stream, e);
    for (size_t at = 0, now; at < bytes; at += now) {
        now = piece(bytes - at, STAGE_BYTES);
        if (c->rank == root)
            TRY(stage_out(s, ch, (char *)buf + at, now, stream, e));
        TRY(host->ops->broadcast(host, ch, s->stage[ch], now, root, NULL, e));
        if (c->rank != root)
            TRY(stage_in(s, ch, (char *)buf + at, now, stream, e));
    }
    return 0;
}

/* `bytes` of every rank: in pieces that fit the stage `world` times, and once more for this rank's own. */
static int staged_all_gather(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t bytes,
                             void *stream, struct err *e)
{
    struct staged *s = self(c);
    struct comm *host = s->host;
    if (ch == COMM_CONTROL)
        return host->ops->all_gather(host, ch, in, out, bytes, stream, e);
    const size_t world = (size_t)c->world, most = STAGE_BYTES / (world + 1);
    if (most == 0)
        return err_set(e, -ENOTSUP, "a world of %d is too large to be staged", c->world);
    for (size_t at = 0, now; at < bytes; at += now) {
        now = piece(bytes - at, most);
        char *all = s->stage[ch] + now;
        TRY(stage_out(s, ch, (const char *)in + at, now, stream, e));
        TRY(host->ops->all_gather(host, ch, s->stage[ch], all, now, NULL, e));
        for (size_t r = 0; r < world; r++)
            TRY(s->async->copy_in(s->device, stream, (char *)out + r * bytes + at, all + r * now, now, e));
        TRY(s->async->sync(s->device, stream, e));
    }
    return 0;
}

static int staged_reduce_scatter(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n,
                                 enum dtype t, void *stream, struct err *e)
{
    struct staged *s = self(c);
    struct comm *host = s->host;
    if (ch == COMM_CONTROL)
        return host->ops->reduce_scatter(host, ch, in, out, n, t, stream, e);
    TRY(reduce_check(t, COMM_SUM, e));
    const size_t world = (size_t)c->world, elem = dtype_size(t), most = STAGE_BYTES / elem / (world + 1);
    if (most == 0)
        return err_set(e, -ENOTSUP, "a world of %d is too large to be staged", c->world);
    for (size_t at = 0, now; at < n; at += now) {
        now = piece(n - at, most);
        char *sum = s->stage[ch], *all = sum + now * elem;
        for (size_t r = 0; r < world; r++)
            TRY(s->async->copy_out(s->device, stream, all + r * now * elem, (const char *)in + (r * n + at) * elem,
                                   now * elem, e));
        TRY(s->async->sync(s->device, stream, e));
        TRY(host->ops->reduce_scatter(host, ch, all, sum, now, t, NULL, e));
        TRY(stage_in(s, ch, (char *)out + at * elem, now * elem, stream, e));
    }
    return 0;
}

static int staged_barrier(struct comm *c, enum comm_channel ch, struct err *e)
{
    struct comm *host = self(c)->host;
    return host->ops->barrier(host, ch, e);
}

static const struct comm_ops staged_ops = {.name = "gloo",
                                           .host_buffers = true,
                                           .close = staged_close,
                                           .abort = staged_abort,
                                           .all_reduce = staged_all_reduce,
                                           .broadcast = staged_broadcast,
                                           .all_gather = staged_all_gather,
                                           .reduce_scatter = staged_reduce_scatter,
                                           .barrier = staged_barrier};

int comm_staged(struct comm **ret, struct comm *host, struct device *d, struct err *e)
{
    struct staged *s = calloc(1, sizeof *s);
    if (!s) {
        host->ops->close(host);
        return err_set(e, -ENOMEM, "no memory for a communicator");
    }
    *s = (struct staged){
        .base = {&staged_ops, host->rank, host->world}, .host = host, .device = d, .async = d->ops->async};
    for (int i = COMM_CONTROL + 1; i < COMM_CHANNELS; i++) {
        void *p = NULL;
        int rc = s->async->host_alloc(d, STAGE_BYTES, &p, e);
        if (rc < 0) {
            staged_close(&s->base);
            return rc;
        }
        s->stage[i] = p;
    }
    *ret = &s->base;
    return 0;
}
