/* Device memory through page-locked memory and a host communicator, piece by piece:
 *   device --copy_out--> stage --host collective--> stage --copy_in--> device
 * on the stream of the caller, who waits. Each channel has a stage of its own, because channels are used from different
 * threads. All ranks cut alike, so pieces meet. A message has page-locked memory to itself until it is waited for. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/comm/kin.h"
#include "worker/comm/reduce.h"
#include "worker/device/device.h"

enum { STAGE_BYTES = 4 << 20, SPARE_MAX = 8 };

struct parcel { /* page-locked memory of one message */
    void *memory;
    size_t bytes;
};

struct staged {
    struct comm base;
    struct comm_ops ops; /* the name is the host's */
    struct comm *host;
    struct device *device;
    const struct device_async *async;
    char *stage[COMM_CHANNELS]; /* STAGE_BYTES; in a world of one from the first use on; control: NULL */
    pthread_mutex_t lock;       /* the rest */
    struct parcel spare[SPARE_MAX];
    int spares;
};

struct staged_request {
    struct comm_request base;
    struct comm_request *host;
    struct parcel parcel;
    void *to; /* device memory; NULL: it was sent */
    size_t bytes;
    void *stream;
};

static struct staged *self(struct comm *c)
{
    return (struct staged *)c;
}

static void staged_close(struct comm *c)
{
    struct staged *s = self(c);
    comm_kin_end(c);
    for (int i = 0; i < COMM_CHANNELS; i++)
        if (s->stage[i])
            s->async->host_release(s->device, s->stage[i]);
    for (int i = 0; i < s->spares; i++)
        s->async->host_release(s->device, s->spare[i].memory);
    s->host->ops->close(s->host);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static void staged_abort(struct comm *c)
{
    struct comm *host = self(c)->host;
    host->ops->abort(host);
    comm_kin_abort(c);
}

/* --- collectives */

static int need_stage(struct staged *s, enum comm_channel ch, struct err *e)
{
    void *p = NULL;
    if (s->stage[ch])
        return 0;
    TRY(s->async->host_alloc(s->device, STAGE_BYTES, &p, e));
    s->stage[ch] = p;
    return 0;
}

static int copy_out(struct staged *s, void *to, const void *from, size_t bytes, void *stream, struct err *e)
{
    TRY(s->async->copy_out(s->device, stream, to, from, bytes, e));
    return s->async->sync(s->device, stream, e);
}

static int copy_in(struct staged *s, void *to, const void *from, size_t bytes, void *stream, struct err *e)
{
    TRY(s->async->copy_in(s->device, stream, to, from, bytes, e));
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
    TRY(need_stage(s, ch, e));
    const size_t elem = dtype_size(t);
    for (size_t at = 0, now; at < n; at += now) {
        char *p = (char *)buf + at * elem;
        now = piece(n - at, STAGE_BYTES / elem);
        TRY(copy_out(s, s->stage[ch], p, now * elem, stream, e));
        TRY(host->ops->all_reduce(host, ch, s->stage[ch], now, t, op, NULL, e));
        TRY(copy_in(s, p, s->stage[ch], now * elem, stream, e));
    }
    return 0;
}

static int staged_reduce(struct comm *c, enum comm_channel ch, const void *in, void *out, size_t n, enum dtype t,
                         enum comm_op op, int root, void *stream, struct err *e)
{
    struct staged *s = self(c);
    struct comm *host = s->host;
    if (ch == COMM_CONTROL)
        return host->ops->reduce(host, ch, in, out, n, t, op, root, stream, e);
    TRY(reduce_check(t, op, e));
    TRY(need_stage(s, ch, e));
    const size_t elem = dtype_size(t);
    for (size_t at = 0, now; at < n; at += now) {
        now = piece(n - at, STAGE_BYTES / elem);
        TRY(copy_out(s, s->stage[ch], (const char *)in + at * elem, now * elem, stream, e));
        TRY(host->ops->reduce(host, ch, s->stage[ch], s->stage[ch], now, t, op, root, NULL, e));
        if (c->rank == root)
            TRY(copy_in(s, (char *)out + at * elem, s->stage[ch], now * elem, stream, e));
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
    TRY(need_stage(s, ch, e));
    for (size_t at = 0, now; at < bytes; at += now) {
        now = piece(bytes - at, STAGE_BYTES);
        if (c->rank == root)
            TRY(copy_out(s, s->stage[ch], (char *)buf + at, now, stream, e));
        TRY(host->ops->broadcast(host, ch, s->stage[ch], now, root, NULL, e));
        if (c->rank != root)
            TRY(copy_in(s, (char *)buf + at, s->stage[ch], now, stream, e));
    }
    return 0;
}

static size_t largest(const size_t *parts, int n)
{
    size_t most = 0;
    for (int r = 0; r < n; r++)
        most = parts[r] > most ? parts[r] : most;
    return most;
}

/* What is left of each part at `at`, at most `most`. */
static void pieces(const size_t *parts, int n, size_t at, size_t most, size_t *ret)
{
    for (int r = 0; r < n; r++)
        ret[r] = parts[r] > at ? piece(parts[r] - at, most) : 0;
}

static int too_large(const struct comm *c, struct err *e)
{
    return err_set(e, -ENOTSUP, "a world of %d is too large to be staged", c->world);
}

/* In pieces that fit the stage `world` times, and once more for this rank's own. */
static int staged_all_gather_v(struct comm *c, enum comm_channel ch, const void *in, void *out, const size_t *bytes,
                               void *stream, struct err *e)
{
    struct staged *s = self(c);
    struct comm *host = s->host;
    if (ch == COMM_CONTROL)
        return host->ops->all_gather_v(host, ch, in, out, bytes, stream, e);
    const size_t most = STAGE_BYTES / ((size_t)c->world + 1), end = largest(bytes, c->world);
    size_t now[c->world];
    if (most == 0)
        return too_large(c, e);
    TRY(need_stage(s, ch, e));
    for (size_t at = 0; at < end; at += most) {
        pieces(bytes, c->world, at, most, now);
        char *mine = s->stage[ch], *all = mine + now[c->rank], *to = out;
        if (now[c->rank] > 0)
            TRY(copy_out(s, mine, (const char *)in + at, now[c->rank], stream, e));
        TRY(host->ops->all_gather_v(host, ch, mine, all, now, NULL, e));
        for (int r = 0; r < c->world; r++) {
            if (now[r] > 0)
                TRY(s->async->copy_in(s->device, stream, to + at, all, now[r], e));
            to += bytes[r];
            all += now[r];
        }
        TRY(s->async->sync(s->device, stream, e));
    }
    return 0;
}

static int staged_reduce_scatter_v(struct comm *c, enum comm_channel ch, const void *in, void *out,
                                   const size_t *counts, enum dtype t, enum comm_op op, void *stream, struct err *e)
{
    struct staged *s = self(c);
    struct comm *host = s->host;
    if (ch == COMM_CONTROL)
        return host->ops->reduce_scatter_v(host, ch, in, out, counts, t, op, stream, e);
    TRY(reduce_check(t, op, e));
    const size_t elem = dtype_size(t), most = STAGE_BYTES / elem / ((size_t)c->world + 1);
    const size_t end = largest(counts, c->world);
    size_t now[c->world];
    if (most == 0)
        return too_large(c, e);
    TRY(need_stage(s, ch, e));
    for (size_t at = 0; at < end; at += most) {
        pieces(counts, c->world, at, most, now);
        char *sum = s->stage[ch], *all = sum + now[c->rank] * elem, *to = all;
        const char *from = in;
        for (int r = 0; r < c->world; r++) {
            if (now[r] > 0)
                TRY(s->async->copy_out(s->device, stream, to, from + at * elem, now[r] * elem, e));
            from += counts[r] * elem;
            to += now[r] * elem;
        }
        TRY(s->async->sync(s->device, stream, e));
        TRY(host->ops->reduce_scatter_v(host, ch, all, sum, now, t, op, NULL, e));
        if (now[c->rank] > 0)
            TRY(copy_in(s, (char *)out + at * elem, sum, now[c->rank] * elem, stream, e));
    }
    return 0;
}

static int staged_barrier(struct comm *c, enum comm_channel ch, struct err *e)
{
    struct comm *host = self(c)->host;
    return host->ops->barrier(host, ch, e);
}

/* --- messages */

/* A spare one that is large enough, or a new one. */
static int parcel_take(struct staged *s, size_t bytes, struct parcel *ret, struct err *e)
{
    *ret = (struct parcel){.bytes = bytes};
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->spares && !ret->memory; i++)
        if (s->spare[i].bytes >= bytes) {
            *ret = s->spare[i];
            s->spare[i] = s->spare[--s->spares];
        }
    pthread_mutex_unlock(&s->lock);
    return ret->memory ? 0 : s->async->host_alloc(s->device, bytes, &ret->memory, e);
}

/* Kept for the next message, in place of the smallest one. */
static void parcel_give(struct staged *s, struct parcel p)
{
    pthread_mutex_lock(&s->lock);
    if (s->spares < SPARE_MAX) {
        s->spare[s->spares++] = p;
        p.memory = NULL;
    }
    for (int i = 0; p.memory && i < s->spares; i++)
        if (s->spare[i].bytes < p.bytes) {
            const struct parcel small = s->spare[i];
            s->spare[i] = p;
            p = small;
        }
    pthread_mutex_unlock(&s->lock);
    if (p.memory)
        s->async->host_release(s->device, p.memory);
}

static int request_create(struct staged *s, size_t bytes, void *stream, struct staged_request **ret, struct err *e)
{
    struct staged_request *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, -ENOMEM, "no memory for a message");
    *r = (struct staged_request){.base = {.comm = &s->base}, .bytes = bytes, .stream = stream};
    int rc = parcel_take(s, bytes, &r->parcel, e);
    if (rc < 0)
        free(r);
    else
        *ret = r;
    return rc;
}

static void request_free(struct staged_request *r)
{
    parcel_give(self(r->base.comm), r->parcel);
    free(r);
}

static int staged_isend(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                        struct comm_request **ret, struct err *e)
{
    struct staged *s = self(c);
    struct comm *host = s->host;
    struct staged_request *r;
    if (ch == COMM_CONTROL || bytes == 0)
        return host->ops->isend(host, ch, buf, bytes, peer, stream, ret, e);
    TRY(request_create(s, bytes, stream, &r, e));
    int rc = copy_out(s, r->parcel.memory, buf, bytes, stream, e);
    if (rc == 0)
        rc = host->ops->isend(host, ch, r->parcel.memory, bytes, peer, NULL, &r->host, e);
    if (rc < 0)
        request_free(r);
    else
        *ret = &r->base;
    return rc;
}

static int staged_irecv(struct comm *c, enum comm_channel ch, void *buf, size_t bytes, int peer, void *stream,
                        struct comm_request **ret, struct err *e)
{
    struct staged *s = self(c);
    struct comm *host = s->host;
    struct staged_request *r;
    if (ch == COMM_CONTROL || bytes == 0)
        return host->ops->irecv(host, ch, buf, bytes, peer, stream, ret, e);
    TRY(request_create(s, bytes, stream, &r, e));
    r->to = buf;
    int rc = host->ops->irecv(host, ch, r->parcel.memory, bytes, peer, NULL, &r->host, e);
    if (rc < 0)
        request_free(r);
    else
        *ret = &r->base;
    return rc;
}

static int staged_wait(struct comm_request *base, struct err *e)
{
    struct staged_request *r = (struct staged_request *)base;
    int rc = comm_wait(r->host, e);
    if (rc == 0 && r->to)
        rc = copy_in(self(base->comm), r->to, r->parcel.memory, r->bytes, r->stream, e);
    request_free(r);
    return rc;
}

static int staged_send(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                       struct err *e)
{
    struct staged *s = self(c);
    struct comm *host = s->host;
    struct parcel p;
    if (ch == COMM_CONTROL || bytes == 0)
        return host->ops->send(host, ch, buf, bytes, peer, stream, e);
    TRY(parcel_take(s, bytes, &p, e));
    int rc = copy_out(s, p.memory, buf, bytes, stream, e);
    if (rc == 0)
        rc = host->ops->send(host, ch, p.memory, bytes, peer, NULL, e);
    parcel_give(s, p);
    return rc;
}

static int64_t staged_sent(const struct comm *c, enum comm_channel ch)
{
    return comm_sent(((const struct staged *)c)->host, ch);
}

static const struct comm_ops staged_ops = {.host_buffers = true,
                                           .close = staged_close,
                                           .abort = staged_abort,
                                           .all_reduce = staged_all_reduce,
                                           .reduce = staged_reduce,
                                           .broadcast = staged_broadcast,
                                           .all_gather = comm_all_gather_equal,
                                           .all_gather_v = staged_all_gather_v,
                                           .reduce_scatter = comm_reduce_scatter_equal,
                                           .reduce_scatter_v = staged_reduce_scatter_v,
                                           .barrier = staged_barrier,
                                           .isend = staged_isend,
                                           .irecv = staged_irecv,
                                           .wait = staged_wait,
                                           .send = staged_send,
                                           .sent = staged_sent};

int comm_staged(struct comm **ret, struct comm *host, struct device *d, struct err *e)
{
    struct staged *s = calloc(1, sizeof *s);
    if (!s) {
        host->ops->close(host);
        return err_set(e, -ENOMEM, "no memory for a communicator");
    }
    *s = (struct staged){.base = {.ops = &s->ops, .rank = host->rank, .world = host->world},
                         .ops = staged_ops,
                         .host = host,
                         .device = d,
                         .async = d->ops->async};
    s->ops.name = host->ops->name;
    pthread_mutex_init(&s->lock, NULL);
    int rc = 0;
    for (int i = COMM_CONTROL + 1; rc == 0 && host->world > 1 && i < COMM_CHANNELS; i++)
        rc = need_stage(s, (enum comm_channel)i, e);
    if (rc < 0)
        staged_close(&s->base);
    else
        *ret = &s->base;
    return rc;
}
