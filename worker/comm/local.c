/* Collectives inside one process: a world of one, and ranks as threads (tests, and the plainest model of what a backend
 * does).
 *
 * A collective of threads has three steps, the same for all (local_group.c has the first and the last):
 *   1. arrive: every rank leaves its pointers in the channel's slots and waits until all have;
 *   2. work: rank r does slice r of the work for everybody, straight in the callers' buffers (nobody else touches that
 *      slice);
 *   3. depart: wait until all are done, because the buffers are the callers'.
 * Only step 1 can fail: a rank that has arrived waits until the last one comes, the deadline passes, somebody aborts or
 * closes. After step 1 every rank is known to be running, and step 3 ends by itself. Sums are taken in rank order. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/kin.h"
#include "worker/comm/local_group.h"
#include "worker/comm/reduce.h"

enum { BLOCK = 4096 }; /* elements that are worked on before the next ones are looked at */

static int alone(struct local *l, struct err *e)
{
    return atomic_load(&l->aborted) ? err_set(e, -ECANCELED, "the communicator was aborted") : 0;
}

/* [first, first + count) of everybody's `in`, combined block by block; also_all: put everywhere, not in out alone. */
static void combine(struct local *l, const struct slot *slots, size_t first, size_t count, char *out, bool also_all,
                    enum dtype t, enum comm_op op)
{
    const size_t size = dtype_size(t);
    const int world = l->base.world;
    const void *parts[world];
    for (size_t done = 0; done < count; done += BLOCK) {
        const size_t k = count - done < BLOCK ? count - done : BLOCK;
        for (int r = 0; r < world; r++)
            parts[r] = (const char *)slots[r].in + (first + done) * size;
        char *mine = out + done * size;
        reduce_many(mine, parts, world, k, t, op);
        for (int r = 0; also_all && r < world; r++)
            if (r != l->base.rank)
                memcpy((char *)slots[r].out + (first + done) * size, mine, k * size);
    }
}

/* Rank r's share of n elements of work. */
static size_t share(const struct comm *c, size_t n, size_t *ret_first)
{
    const size_t world = (size_t)c->world, rank = (size_t)c->rank;
    *ret_first = n / world * rank + (rank < n % world ? rank : n % world);
    return n / world + (rank < n % world);
}

static int local_all_reduce(struct comm *c, enum comm_channel which, void *buf, size_t n, enum dtype t, enum comm_op op,
                            void *stream, struct err *e)
{
    struct local *l = local_of(c);
    size_t first, count = share(c, n, &first);
    TRY(reduce_check(t, op, e));
    if (c->world == 1 || n == 0)
        return alone(l, e);
    TRY(group_arrive(l, which, buf, buf, e));
    combine(l, l->group->channels[which].slots, first, count, (char *)buf + first * dtype_size(t), true, t, op);
    group_depart(l, which);
    return 0;
}

static int local_reduce(struct comm *c, enum comm_channel which, const void *in, void *out, size_t n, enum dtype t,
                        enum comm_op op, int root, void *stream, struct err *e)
{
    struct local *l = local_of(c);
    size_t first, count = share(c, n, &first);
    TRY(reduce_check(t, op, e));
    TRY(comm_root_check(c, root, e));
    if (n == 0)
        return alone(l, e);
    TRY(group_arrive(l, which, in, out, e));
    const struct slot *slots = l->group->channels[which].slots;
    combine(l, slots, first, count, (char *)slots[root].out + first * dtype_size(t), false, t, op);
    group_depart(l, which);
    return 0;
}

static int local_broadcast(struct comm *c, enum comm_channel which, void *buf, size_t bytes, int root, void *stream,
                           struct err *e)
{
    struct local *l = local_of(c);
    TRY(comm_root_check(c, root, e));
    if (c->world == 1 || bytes == 0)
        return alone(l, e);
    TRY(group_arrive(l, which, buf, buf, e));
    if (c->rank != root)
        memcpy(buf, l->group->channels[which].slots[root].in, bytes);
    group_depart(l, which);
    return 0;
}

static size_t sum_of(const size_t *parts, int n)
{
    size_t all = 0;
    for (int r = 0; r < n; r++)
        all += parts[r];
    return all;
}

static int local_all_gather_v(struct comm *c, enum comm_channel which, const void *in, void *out, const size_t *bytes,
                              void *stream, struct err *e)
{
    struct local *l = local_of(c);
    char *to = out;
    if (sum_of(bytes, c->world) == 0)
        return alone(l, e);
    TRY(group_arrive(l, which, in, out, e));
    const struct slot *slots = l->group->channels[which].slots;
    for (int r = 0; r < c->world; to += bytes[r++])
        if (bytes[r] > 0 && to != slots[r].in) /* others read it */
            memcpy(to, slots[r].in, bytes[r]);
    group_depart(l, which);
    return 0;
}

static int local_reduce_scatter_v(struct comm *c, enum comm_channel which, const void *in, void *out,
                                  const size_t *counts, enum dtype t, enum comm_op op, void *stream, struct err *e)
{
    struct local *l = local_of(c);
    TRY(reduce_check(t, op, e));
    if (sum_of(counts, c->world) == 0)
        return alone(l, e);
    TRY(group_arrive(l, which, in, out, e));
    combine(l, l->group->channels[which].slots, sum_of(counts, c->rank), counts[c->rank], out, false, t, op);
    group_depart(l, which);
    return 0;
}

static int local_barrier(struct comm *c, enum comm_channel which, struct err *e)
{
    struct local *l = local_of(c);
    if (c->world == 1)
        return alone(l, e);
    TRY(group_arrive(l, which, NULL, NULL, e));
    group_depart(l, which);
    return 0;
}

static void local_abort(struct comm *c)
{
    struct local *l = local_of(c);
    atomic_store(&l->aborted, true);
    pthread_mutex_lock(&l->group->lock);
    group_fail(l->group, -ECONNRESET, c->rank);
    pthread_mutex_unlock(&l->group->lock);
    comm_kin_abort(c);
}

static void local_close(struct comm *c)
{
    if (!c)
        return;
    comm_kin_end(c);
    group_leave(local_of(c)->group, c->rank);
    free(c);
}

/* Takes a place in g over, also on failure. */
static int open_one(struct comm **ret, struct group *g, int rank, int64_t timeout_ms, struct err *e)
{
    struct local *l = calloc(1, sizeof *l);
    if (!l) {
        group_leave(g, rank);
        return err_set(e, -ENOMEM, "no memory for a communicator");
    }
    *l = (struct local){
        .base = {.ops = &comm_local_ops, .rank = rank, .world = g->world}, .group = g, .timeout_ms = timeout_ms};
    *ret = &l->base;
    return 0;
}

static int create(struct group **ret, int world, struct err *e)
{
    *ret = group_create(world);
    return *ret ? 0 : err_set(e, -ENOMEM, "no memory for a world of %d", world);
}

/* The first rank of a group of threads makes what they share, and tells the others where it is. */
static int meet(struct group **ret, const struct comm_options *o, struct err *e)
{
    struct comm *to = o->through;
    if (o->rank != 0)
        return comm_recv(to, COMM_CONTROL, ret, sizeof(struct group *), o->ranks[0], NULL, e);
    TRY(create(ret, o->world, e));
    int rc = 0;
    for (int r = 1; r < o->world; r++) {
        struct comm_request *sent = NULL;
        if (rc == 0)
            rc = to->ops->isend(to, COMM_CONTROL, ret, sizeof(struct group *), o->ranks[r], NULL, &sent, e);
        if (rc == 0)
            rc = comm_wait(sent, e);
        if (rc < 0)
            group_leave(*ret, r);
    }
    if (rc < 0)
        group_leave(*ret, 0);
    return rc;
}

static int local_open(struct comm **ret, const struct comm_options *o, struct err *e)
{
    const bool threads = o->through && strcmp(o->through->ops->name, comm_local_ops.name) == 0;
    struct group *g;
    if (o->world != 1 && !threads)
        return err_set(e, -EINVAL, "the local collectives are for a world of 1, not of %d; between processes use gloo",
                       o->world);
    TRY(o->world == 1 ? create(&g, 1, e) : meet(&g, o, e));
    return open_one(ret, g, o->rank, o->timeout_ms, e);
}

int comm_local_open_threads(struct comm **ret, int world, int64_t timeout_ms, struct err *e)
{
    struct group *g;
    int rc = 0;
    if (world < 1 || timeout_ms <= 0)
        return err_set(e, -EINVAL, "a world of %d with a timeout of %lld ms: both must be positive", world,
                       (long long)timeout_ms);
    TRY(create(&g, world, e));
    for (int r = 0; r < world; r++) {
        ret[r] = NULL;
        if (rc < 0)
            group_leave(g, r);
        else
            rc = open_one(&ret[r], g, r, timeout_ms, e);
        if (rc == 0)
            rc = comm_kin_begin(ret[r], 0, e);
    }
    for (int r = 0; rc < 0 && r < world; r++)
        local_close(ret[r]);
    return rc;
}

const struct comm_ops comm_local_ops = {
    .name = "local",
    .host_buffers = true,
    .open = local_open,
    .close = local_close,
    .abort = local_abort,
    .all_reduce = local_all_reduce,
    .reduce = local_reduce,
    .broadcast = local_broadcast,
    .all_gather = comm_all_gather_equal,
    .all_gather_v = local_all_gather_v,
    .reduce_scatter = comm_reduce_scatter_equal,
    .reduce_scatter_v = local_reduce_scatter_v,
    .barrier = local_barrier,
    .isend = local_isend,
    .irecv = local_irecv,
    .wait = local_wait,
    .send = local_send,
};
