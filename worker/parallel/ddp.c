/* Who does what: the training thread moves `complete` forward (buckets that may go), the communication thread takes
 * buckets complete > taken in order, reduces them without the lock and counts `done`. An error stops the communication
 * thread for good: the communicator is unusable after it, and a rank that left out one bucket and sent the next would
 * sum wrong slices. Where collectives are enqueued on a stream there is no thread: buckets are enqueued as they become
 * complete. */
#include "worker/parallel/ddp.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/parallel/ddp_impl.h"

static void tell_watch(const struct ddp *d, int bucket, bool own_thread, int64_t start_ns, int64_t took_ns)
{
    if (d->watch)
        d->watch->reduced(d->watch->ctx, bucket, own_thread, start_ns, start_ns + took_ns);
}

static void *communicate(void *arg)
{
    struct ddp *d = arg;
    struct err attach = {0};
    int attached = d->async ? d->async->attach(d->device, &attach) : 0;
    pthread_mutex_lock(&d->lock);
    if (attached < 0) {
        d->failed = attach;
        d->failed.code = attached;
    }
    while (!d->failed.code) {
        /* No deadline: woken by the training thread, when it asks for something or leaves. */
        while (d->served == d->asked && !d->leaving)
            pthread_cond_wait(&d->change, &d->lock);
        if (d->leaving)
            break; /* what has not begun is not wanted */
        const struct ddp_job job = d->jobs[d->njobs - (size_t)(d->asked - d->served)];
        pthread_mutex_unlock(&d->lock);
        struct err e = {0};
        int64_t start = clock_ns();
        int rc = job.to ? ddp_gather_piece(d, job.piece, job.mine, job.to, &e)
                        : ddp_reduce_bucket(d, job.piece, d->side, &e);
        int64_t took = clock_ns() - start;
        tell_watch(d, job.to ? DDP_WATCH_GATHER : job.piece, true, start, took);
        pthread_mutex_lock(&d->lock);
        d->stats.comm_ns += took;
        if (rc < 0) {
            d->failed = e;
            d->failed.code = rc;
            pthread_cond_broadcast(&d->change);
            break;
        }
        d->served++;
        d->done += job.to ? 0 : 1;
        pthread_cond_broadcast(&d->change);
    }
    pthread_cond_broadcast(&d->change);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

int ddp_fork(struct ddp *d, struct err *e)
{
    return d->async ? d->async->order(d->device, d->async->compute(d->device), d->side, e) : 0;
}

int ddp_join(struct ddp *d, struct err *e)
{
    return d->async ? d->async->order(d->device, d->side, d->async->compute(d->device), e) : 0;
}

int ddp_settle(struct ddp *d, struct err *e)
{
    if (!d->waits)
        return 0;
    TRY(d->async->sync(d->device, d->async->compute(d->device), e));
    return ddp_check(d, e);
}

int ddp_end(struct ddp *d, struct err *e)
{
    TRY(ddp_join(d, e));
    return ddp_settle(d, e);
}

/* With the lock. Jobs that are done make room when all are. */
static int ask(struct ddp *d, struct ddp_job job, struct err *e)
{
    if (d->served == d->asked)
        d->njobs = 0;
    TRY(ARRAY_GROW(d->jobs, d->cap_jobs, d->njobs + 1, "collectives", e));
    d->jobs[d->njobs++] = job;
    d->asked++;
    pthread_cond_broadcast(&d->change);
    return 0;
}

bool ddp_blocks(const struct ddp *d)
{
    return d->has_thread;
}

/* Where collectives are enqueued: behind the buckets that were enqueued so far. */
static int fetch_now(struct ddp *d, const struct ddp_fetch *f, struct err *e)
{
    TRY(ddp_gather_piece(d, f->piece, f->mine, f->to, e));
    return d->async->mark(d->device, f->event, d->side, e);
}

int ddp_fetch(struct ddp *d, const struct ddp_fetch *f, uint64_t *ticket, struct err *e)
{
    TRY(ddp_fork(d, e));
    if (!d->has_thread) {
        *ticket = 1;
        return fetch_now(d, f, e);
    }
    pthread_mutex_lock(&d->lock);
    int rc = ask(d, (struct ddp_job){f->piece, f->mine, f->to}, e);
    *ticket = d->asked;
    pthread_mutex_unlock(&d->lock);
    return rc;
}

int ddp_fetched(struct ddp *d, uint64_t ticket, struct err *e)
{
    const int64_t start = clock_ns();
    pthread_mutex_lock(&d->lock);
    /* No deadline of its own: every collective has one. */
    while (d->has_thread && d->served < ticket && !d->failed.code)
        pthread_cond_wait(&d->change, &d->lock);
    int rc = d->failed.code ? err_set(e, d->failed.code, "%s", d->failed.text) : 0;
    d->stats.exposed_ns += clock_ns() - start;
    pthread_mutex_unlock(&d->lock);
    return rc;
}

/* Buckets below k may go. */
static int release(struct ddp *d, int k, struct err *e)
{
    struct err fork = {0};
    int rc = ddp_fork(d, &fork);
    pthread_mutex_lock(&d->lock);
    if (rc < 0 && !d->failed.code) {
        d->failed = fork;
        d->failed.code = rc;
    }
    while (!d->has_thread && d->done < k && !d->failed.code) {
        rc = ddp_reduce_bucket(d, d->done, d->async ? d->side : d->stream, &d->failed);
        if (rc == 0)
            d->done++;
        else
            d->failed.code = rc;
    }
    while (d->has_thread && d->complete < k && !d->failed.code) {
        rc = ask(d, (struct ddp_job){.piece = d->complete}, &d->failed);
        d->complete += rc == 0;
        d->failed.code = rc;
    }
    d->complete = k > d->complete ? k : d->complete;
    if (d->failed.code)
        rc = err_set(e, d->failed.code, "%s", d->failed.text);
    pthread_mutex_unlock(&d->lock);
    return rc;
}

/* Backward is not to be more than the window ahead. No deadline of its own: each bucket's collective has one. */
static void hold_back(struct ddp *d, size_t end)
{
    pthread_mutex_lock(&d->lock);
    while (d->has_thread && !d->failed.code && d->done < d->complete && d->done < d->own->nbuckets &&
           end - d->own->pieces[d->done].first > d->window)
        pthread_cond_wait(&d->change, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

static int on_ready(void *ctx, size_t first, size_t end, void *stream, struct err *e)
{
    struct ddp *d = ctx;
    if (!d->active || first >= d->own->n_train)
        return 0; /* the tail goes at the end */
    if (first < d->ready_to)
        return err_set(e, -EINVAL, "gradients [%zu, %zu) became ready after those up to %zu: expected ascending order",
                       first, end, d->ready_to);
    if (d->ready_to == 0 && !d->async)
        d->stats.first_ns = clock_ns(); /* this thread alone reads it */
    d->ready_to = end;
    d->stream = stream;
    int k = d->complete; /* only this thread writes it */
    while (k < d->buckets - 1 && d->own->pieces[k].end <= end)
        k++;
    if (k > d->complete)
        TRY(release(d, k, e));
    if (d->sheds)
        hold_back(d, end);
    return 0;
}

/* What has been enqueued since the run began is in the graph, the way back to the compute stream included. */
static int on_captured(void *ctx, void *stream, struct err *e)
{
    struct ddp *d = ctx;
    (void)stream;
    if (!d->active)
        return 0;
    d->captured = d->done;
    return d->captured > 0 ? ddp_join(d, e) : 0; /* a stream that was not forked has nothing to join */
}

static int on_replayed(void *ctx, void *stream, struct err *e)
{
    struct ddp *d = ctx;
    (void)stream;
    (void)e;
    if (!d->active)
        return 0;
    pthread_mutex_lock(&d->lock);
    d->complete = d->done = d->captured;
    pthread_mutex_unlock(&d->lock);
    return 0;
}

static void on_dropped(void *ctx)
{
    struct ddp *d = ctx;
    pthread_mutex_lock(&d->lock);
    d->complete = d->done = d->captured = 0;
    d->ready_to = 0;
    pthread_mutex_unlock(&d->lock);
}

static int on_all_sum(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    struct ddp *d = ctx;
    int64_t start = clock_ns();
    struct comm *c = ddp_group(d, LAYOUT_BATCH);
    int rc = c->ops->all_reduce(c, COMM_STATISTICS, buf, n, t, COMM_SUM, stream, e);
    int64_t took = clock_ns() - start;
    tell_watch(d, DDP_WATCH_STATISTICS, false, start, took);
    pthread_mutex_lock(&d->lock);
    d->stats.statistics_ns += took;
    pthread_mutex_unlock(&d->lock);
    return rc;
}

/* Lend memory to every communicator that gradients go over, or take it back. */
static void tell_comms(struct ddp *d, void *buf, size_t bytes, bool lend)
{
    static const enum layout_group groups[] = {LAYOUT_BATCH, LAYOUT_DATA};
    for (int i = 0; i < 2; i++) {
        struct comm *c = ddp_group(d, groups[i]);
        if (!c || (i > 0 && c == ddp_group(d, groups[0])))
            continue;
        if (lend && c->ops->lend)
            c->ops->lend(c, COMM_GRADIENTS, buf, bytes);
        else if (!lend && c->ops->reclaim)
            c->ops->reclaim(c, COMM_GRADIENTS, buf);
    }
}

static int alloc_half(struct ddp *d, size_t n, struct err *e)
{
    void *p = NULL;
    if (d->device)
        TRY(d->device->ops->alloc(d->device, n * sizeof *d->half, &p, e));
    else if (!(p = calloc(n, sizeof *d->half)))
        return err_set(e, -ENOMEM, "no memory for a bucket of %zu halves", n);
    d->half = p;
    tell_comms(d, p, n * sizeof *d->half, true);
    return 0;
}

static int plan(struct ddp *d, struct err *e)
{
    const struct ownership *own = d->own;
    const bool rides = own->nbuckets > 0 && own->pieces[own->nbuckets - 1].group == LAYOUT_BATCH &&
                       own->pieces[own->nbuckets - 1].part == 0;
    d->stats.buckets = d->buckets = own->nbuckets + (d->n_tail > 0 && !rides);
    d->sheds = ownership_is_cut(own, OWNERSHIP_GRADIENTS) && !d->async;
    d->window = ownership_window(own);
    return d->wire == DT_F16 || d->wire == DT_BF16 ? alloc_half(d, ownership_largest_piece(own), e) : 0;
}

static int start_thread(struct ddp *d, struct err *e)
{
    int rc = pthread_create(&d->thread, NULL, communicate, d);
    d->has_thread = rc == 0;
    return rc ? err_errno(e, rc, "communication thread") : 0;
}

/* With others. */
static int open_groups(struct ddp *d, const struct ddp_options *o, struct err *e)
{
    const bool blocks = ddp_group(d, LAYOUT_BATCH)->ops->host_buffers;
    d->hooks.ready = on_ready;
    d->hooks.all_sum = d->idle.all_sum = o->sync_bn ? on_all_sum : NULL;
    d->hooks.captured = on_captured;
    d->hooks.replayed = on_replayed;
    d->hooks.dropped = on_dropped;
    d->hooks.on_host = blocks;
    d->idle.on_host = blocks && o->sync_bn;
    if (d->async)
        TRY(d->async->open(d->device, &d->side, e));
    TRY(plan(d, e));
    tell_comms(d, d->reduce, (d->own->n_train + d->n_tail) * dtype_size(d->real), true);
    return blocks ? start_thread(d, e) : 0;
}

/* Every group that a piece is summed over has its communicator, of its size. */
static int check_groups(const struct ddp *d, struct err *e)
{
    for (int k = 0; k <= d->own->npieces; k++) {
        const struct ownership_piece *p = &d->own->pieces[k];
        const int have = d->groups[p->group] ? d->groups[p->group]->world : 1;
        if (have != p->ranks)
            return err_set(e, -EINVAL, "a communicator of %d for gradients that %d ranks sum", have, p->ranks);
        if (p->tied && !ddp_group(d, LAYOUT_ENDS))
            return err_set(e, -EINVAL, "no communicator for gradients that two stages sum");
    }
    return 0;
}

int ddp_create(struct ddp **ret, struct comm *const groups[LAYOUT_GROUPS], const struct ownership *own, void *reduce,
               size_t n_tail, enum dtype real, const struct ddp_options *o, struct err *e)
{
    struct ddp *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(e, -ENOMEM, "no memory for data parallelism");
    memcpy(d->groups, groups, sizeof d->groups);
    d->own = own;
    d->reduce = reduce;
    d->n_tail = n_tail;
    d->real = real;
    d->wire = o->wire;
    d->hooks.ctx = d->idle.ctx = d;
    if (o->device && o->device->ops->async) {
        d->device = o->device;
        d->async = o->device->ops->async;
        d->waits = o->waits;
    }
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->change, NULL);
    int rc = check_groups(d, e);
    if (rc == 0 && ddp_group(d, LAYOUT_BATCH))
        rc = open_groups(d, o, e);
    if (rc < 0) {
        ddp_destroy(d);
        return rc;
    }
    *ret = d;
    return 0;
}

/* Collectives may know both buffers by their addresses, which mean something else once they are freed. */
static void reclaim(struct ddp *d)
{
    void *const lent[] = {d->half, d->reduce};
    const struct comm *c = ddp_group(d, LAYOUT_BATCH);
    if (!c || !c->ops->reclaim)
        return;
    if (d->side)
        (void)d->async->sync(d->device, d->side, NULL); /* what fails has ended, too */
    for (int i = 0; i < 2; i++)
        if (lent[i])
            tell_comms(d, lent[i], 0, false);
}

static void release_memory(const struct ddp *d, void *p)
{
    if (d->device && p)
        d->device->ops->release(d->device, p);
    else
        free(p);
}

void ddp_destroy(struct ddp *d)
{
    if (!d)
        return;
    if (d->has_thread) {
        pthread_mutex_lock(&d->lock);
        d->leaving = true;
        pthread_cond_broadcast(&d->change);
        pthread_mutex_unlock(&d->lock);
        pthread_join(d->thread, NULL);
    }
    pthread_cond_destroy(&d->change);
    pthread_mutex_destroy(&d->lock);
    reclaim(d);
    if (d->side)
        d->async->close(d->device, d->side);
    release_memory(d, d->half);
    free(d->kept);
    free(d->jobs);
    free(d);
}

void ddp_set_watch(struct ddp *d, const struct ddp_watch *w)
{
    d->watch = w;
}

const struct run_hooks *ddp_hooks(struct ddp *d)
{
    return &d->hooks;
}

const struct run_hooks *ddp_idle_hooks(struct ddp *d)
{
    return &d->idle;
}

void ddp_hold_tail(struct ddp *d, bool hold)
{
    d->tail_apart = true;
    d->tail_stays = hold;
}

void ddp_begin(struct ddp *d, bool reduce)
{
    d->active = reduce && ddp_group(d, LAYOUT_BATCH);
    d->ready_to = 0;
    pthread_mutex_lock(&d->lock);
    d->complete = d->done = 0; /* ddp_wait() saw all of them done, or the communication thread end with an error */
    pthread_mutex_unlock(&d->lock);
}

int ddp_wait(struct ddp *d, struct err *e)
{
    if (!d->active)
        return 0;
    d->active = false;
    int64_t start = clock_ns();
    (void)release(d, d->buckets, NULL); /* reported below */
    pthread_mutex_lock(&d->lock);
    /* No deadline of its own: every bucket's collective has one. */
    while (d->done < d->buckets && !d->failed.code)
        pthread_cond_wait(&d->change, &d->lock);
    d->stats.exposed_ns += clock_ns() - start;
    int rc = d->failed.code ? err_set(e, d->failed.code, "%s", d->failed.text) : 0;
    pthread_mutex_unlock(&d->lock);
    return rc < 0 ? rc : ddp_end(d, e);
}

int ddp_check(struct ddp *d, struct err *e)
{
    for (int g = 0; g < LAYOUT_GROUPS; g++)
        if (d->groups[g] && d->groups[g]->ops->check)
            TRY(d->groups[g]->ops->check(d->groups[g], e));
    return 0;
}

void ddp_stats(const struct ddp *d, struct ddp_stats *ret)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&d->lock; /* logically const */
    pthread_mutex_lock(lock);
    *ret = d->stats;
    pthread_mutex_unlock(lock);
}
