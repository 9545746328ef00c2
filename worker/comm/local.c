/* Collectives inside one process: a world of one, and ranks as threads (tests, and the plainest model of what a backend
 * does).
 *
 * A collective of threads has three steps, the same for all:
 *   1. arrive: every rank leaves its pointers in the channel's slots and waits until all have;
 *   2. work: rank r does slice r of the work for everybody, straight in the callers' buffers (nobody else touches that
 *      slice);
 *   3. leave: wait until all are done, because the buffers are the callers'.
 * Only step 1 can fail: a rank that has arrived waits until the last one comes, the deadline passes, somebody aborts or
 * closes. After step 1 every rank is known to be running, and step 3 ends by itself. Sums are taken in rank order. */
#include "worker/comm/comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/comm/reduce.h"

struct slot {
    const void *in;
    void *out;
};

struct channel {
    struct slot *slots; /* world */
    bool *here;         /* world: arrived in this round */
    int arrived, left;  /* of this round */
    uint64_t round;     /* rounds that all ranks have entered */
    uint64_t finished;  /* rounds that all ranks have left */
};

struct group {
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct channel channels[COMM_CHANNELS];
    int world, open;
    int failed;  /* 0 or the code that every call to come returns */
    int culprit; /* the rank that closed or aborted */
};

struct local {
    struct comm base;
    struct group *group; /* NULL in a world of one */
    int64_t timeout_ms;
    atomic_bool aborted;
};

static struct local *local_of(struct comm *c)
{
    return (struct local *)c;
}

static void group_free(struct group *g)
{
    for (int i = 0; i < COMM_CHANNELS; i++) {
        free(g->channels[i].slots);
        free(g->channels[i].here);
    }
    pthread_cond_destroy(&g->change);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static struct group *group_create(int world)
{
    struct group *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->change, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&g->lock, NULL);
    g->world = world;
    for (int i = 0; i < COMM_CHANNELS; i++) {
        g->channels[i].slots = calloc((size_t)world, sizeof *g->channels[i].slots);
        g->channels[i].here = calloc((size_t)world, sizeof *g->channels[i].here);
        if (!g->channels[i].slots || !g->channels[i].here) {
            group_free(g);
            return NULL;
        }
    }
    return g;
}

/* Lock held. The first failure is the one that counts. */
static void group_fail(struct group *g, int code, int culprit)
{
    if (g->failed == 0) {
        g->failed = code;
        g->culprit = culprit;
    }
    pthread_cond_broadcast(&g->change);
}

static int missing(const struct channel *ch, int world, int64_t timeout_ms, struct err *e)
{
    char list[256] = "";
    size_t len = 0;
    for (int r = 0; r < world; r++)
        if (!ch->here[r] && len < sizeof list - 16)
            len += (size_t)snprintf(list + len, sizeof list - len, " %d", r);
    return err_set(e, -ETIMEDOUT, "no answer within %lld ms from rank%s", (long long)timeout_ms, list);
}

/* Lock held. */
static int failure(struct local *l, struct err *e)
{
    struct group *g = l->group;
    if (atomic_load(&l->aborted))
        return err_set(e, -ECANCELED, "the communicator was aborted");
    if (g->failed == -ECONNRESET)
        return err_set(e, g->failed, "rank %d went away", g->culprit);
    if (g->failed)
        return err_set(e, g->failed, "the communicator has failed: rank %d waited too long", g->culprit);
    return 0;
}

/* Step 1. */
static int arrive(struct local *l, enum comm_channel which, const void *in, void *out, struct err *e)
{
    struct group *g = l->group;
    struct channel *ch = &g->channels[which];
    const struct timespec until = clock_timespec(clock_deadline(l->timeout_ms));
    pthread_mutex_lock(&g->lock);
    int rc = failure(l, e);
    if (rc == 0) {
        ch->slots[l->base.rank] = (struct slot){in, out};
        ch->here[l->base.rank] = true;
        uint64_t round = ch->round;
        if (++ch->arrived == g->world) {
            ch->round++;
            pthread_cond_broadcast(&g->change);
        }
        while (ch->round == round && rc == 0) {
            if (pthread_cond_timedwait(&g->change, &g->lock, &until) == ETIMEDOUT && ch->round == round) {
                rc = missing(ch, g->world, l->timeout_ms, e);
                group_fail(g, -ETIMEDOUT, l->base.rank);
            } else if (ch->round == round) {
                rc = failure(l, e);
            }
        }
    }
    pthread_mutex_unlock(&g->lock);
    return rc;
}

/* Step 3: the others are at work and will come. */
static void leave(struct local *l, enum comm_channel which)
{
    struct group *g = l->group;
    struct channel *ch = &g->channels[which];
    pthread_mutex_lock(&g->lock);
    uint64_t finished = ch->finished;
    if (++ch->left == g->world) {
        ch->left = ch->arrived = 0;
        memset(ch->here, 0, (size_t)g->world * sizeof *ch->here);
        ch->finished++;
        pthread_cond_broadcast(&g->change);
    }
    while (ch->finished == finished)
        pthread_cond_wait(&g->change, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static int alone(struct local *l, struct err *e)
{
    return atomic_load(&l->aborted) ? err_set(e, -ECANCELED, "the communicator was aborted") : 0;
}

static int local_all_reduce(struct comm *c, enum comm_channel which, void *buf, size_t n, enum dtype t, enum comm_op op,
                            void *stream, struct err *e)
{
    struct local *l = local_of(c);
    TRY(reduce_check(t, op, e));
    if (!l->group || n == 0)
        return alone(l, e);
    TRY(arrive(l, which, buf, buf, e));
    const struct slot *slots = l->group->channels[which].slots;
    size_t world = (size_t)c->world, rank = (size_t)c->rank, size = dtype_size(t);
    size_t first = n / world * rank + (rank < n % world ? rank : n % world);
    size_t count = n / world + (rank < n % world);
    enum { BLOCK = 4096 };
    const void *parts[world];
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t k = count - done < BLOCK ? count - done : BLOCK;
        for (size_t r = 0; r < world; r++)
            parts[r] = (const char *)slots[r].in + (first + done) * size;
        char *mine = (char *)slots[rank].out + (first + done) * size;
        reduce_many(mine, parts, c->world, k, t, op);
        for (size_t r = 0; r < world; r++)
            if (r != rank)
                memcpy((char *)slots[r].out + (first + done) * size, mine, k * size);
    }
    leave(l, which);
    return 0;
}

static int local_broadcast(struct comm *c, enum comm_channel which, void *buf, size_t bytes, int root, void *stream,
                           struct err *e)
{
    struct local *l = local_of(c);
    if (!l->group || bytes == 0)
        return alone(l, e);
    TRY(arrive(l, which, buf, buf, e));
    if (c->rank != root)
        memcpy(buf, l->group->channels[which].slots[root].in, bytes);
    leave(l, which);
    return 0;
}

static int local_all_gather(struct comm *c, enum comm_channel which, const void *in, void *out, size_t bytes,
                            void *stream, struct err *e)
{
    struct local *l = local_of(c);
    if (!l->group || bytes == 0) {
        TRY(alone(l, e));
        if (bytes > 0)
            memmove(out, in, bytes);
        return 0;
    }
    TRY(arrive(l, which, in, out, e));
    const struct slot *slots = l->group->channels[which].slots;
    for (int r = 0; r < c->world; r++)
        memmove((char *)out + (size_t)r * bytes, slots[r].in, bytes);
    leave(l, which);
    return 0;
}

static int local_reduce_scatter(struct comm *c, enum comm_channel which, const void *in, void *out, size_t n,
                                enum dtype t, void *stream, struct err *e)
{
    struct local *l = local_of(c);
    TRY(reduce_check(t, COMM_SUM, e));
    if (!l->group || n == 0) {
        TRY(alone(l, e));
        if (n > 0)
            memmove(out, in, n * dtype_size(t));
        return 0;
    }
    TRY(arrive(l, which, in, out, e));
    const struct slot *slots = l->group->channels[which].slots;
    const void *parts[c->world];
    for (int r = 0; r < c->world; r++)
        parts[r] = (const char *)slots[r].in + (size_t)c->rank * n * dtype_size(t);
    reduce_many(out, parts, c->world, n, t, COMM_SUM);
    leave(l, which);
    return 0;
}

static int local_barrier(struct comm *c, enum comm_channel which, struct err *e)
{
    struct local *l = local_of(c);
    if (!l->group)
        return alone(l, e);
    TRY(arrive(l, which, NULL, NULL, e));
    leave(l, which);
    return 0;
}

static void local_abort(struct comm *c)
{
    struct local *l = local_of(c);
    atomic_store(&l->aborted, true);
    if (!l->group)
        return;
    pthread_mutex_lock(&l->group->lock);
    group_fail(l->group, -ECONNRESET, c->rank);
    pthread_mutex_unlock(&l->group->lock);
}

static void local_close(struct comm *c)
{
    if (!c)
        return;
    struct local *l = local_of(c);
    struct group *g = l->group;
    if (g) {
        pthread_mutex_lock(&g->lock);
        group_fail(g, -ECONNRESET, c->rank);
        bool last = --g->open == 0;
        pthread_mutex_unlock(&g->lock);
        if (last)
            group_free(g);
    }
    free(l);
}

static int local_open_one(struct comm **ret, struct group *g, int rank, int world, int64_t timeout_ms, struct err *e)
{
    struct local *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, -ENOMEM, "no memory for a communicator");
    *l = (struct local){
        .base = {&comm_local_ops, rank, world},
        .group = g,
        .timeout_ms = timeout_ms,
    };
    *ret = &l->base;
    return 0;
}

static int local_open(struct comm **ret, const struct comm_options *o, struct err *e)
{
    if (o->world != 1)
        return err_set(e, -EINVAL, "the local collectives are for a world of 1, not of %d; between processes use gloo",
                       o->world);
    return local_open_one(ret, NULL, 0, 1, o->timeout_ms, e);
}

int comm_local_open_threads(struct comm **ret, int world, int64_t timeout_ms, struct err *e)
{
    if (world < 1 || timeout_ms <= 0)
        return err_set(e, -EINVAL, "a world of %d with a timeout of %lld ms: both must be positive", world,
                       (long long)timeout_ms);
    struct group *g = group_create(world);
    if (!g)
        return err_set(e, -ENOMEM, "no memory for a world of %d", world);
    for (int r = 0; r < world; r++) {
        int rc = local_open_one(&ret[r], g, r, world, timeout_ms, e);
        if (rc < 0) {
            if (r == 0)
                group_free(g);
            while (--r >= 0)
                local_close(ret[r]);
            return rc;
        }
        g->open++;
    }
    return 0;
}

const struct comm_ops comm_local_ops = {
    .name = "local",
    .host_buffers = true,
    .open = local_open,
    .close = local_close,
    .abort = local_abort,
    .all_reduce = local_all_reduce,
    .broadcast = local_broadcast,
    .all_gather = local_all_gather,
    .reduce_scatter = local_reduce_scatter,
    .barrier = local_barrier,
};
