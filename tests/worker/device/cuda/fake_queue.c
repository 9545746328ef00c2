#include "tests/worker/device/cuda/fake_queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

enum { STREAMS_MAX = 64 };

struct op {
    int refs; /* of the queue, of streams, events, graphs and later work */
    bool done, wanted;
    struct op *after[2]; /* NULL: none */
    struct work w;
};
struct gpu_stream {
    struct op *last; /* NULL: nothing was enqueued yet */
    bool captured;   /* is part of the capture */
    int node;        /* its last there, -1: none */
};
struct gpu_event {
    struct op *at;     /* NULL: never recorded, or in a capture */
    unsigned captured; /* number of the capture; 0: none */
    int node;
};

struct fake_queue {
    pthread_mutex_t lock;
    fake_run_fn *run;
    void *ctx;
    uint64_t noise;
    unsigned progress,
        stray; /* of 4: how often work runs that nobody waits for: when some is enqueued, and beside what is waited for */
    struct op **ops; /* that are not done, as they were enqueued */
    int nops, cap;
    struct gpu_stream *streams[STREAMS_MAX];
    struct gpu_graph *recording; /* NULL: no capture */
    pthread_t recorder;          /* whose it is */
    unsigned captures;
    struct err failed; /* code 0: nothing */
};

/* splitmix64 */
static unsigned below(struct fake_queue *q, unsigned n)
{
    uint64_t x = q->noise += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (unsigned)((x ^ (x >> 31)) >> 33) % n;
}

static struct op *hold(struct op *op)
{
    if (op)
        op->refs++;
    return op;
}

static void drop(struct op *op)
{
    if (!op || --op->refs > 0)
        return;
    free(op->w.own);
    free(op);
}

static void hold_at(struct op **at, struct op *op)
{
    struct op *before = *at;
    *at = hold(op);
    drop(before);
}

/* What is done holds nothing any more. */
static void let_go(struct op *op)
{
    for (int i = 0; i < 2; i++)
        hold_at(&op->after[i], NULL);
    drop(op);
}

static bool is_ready(const struct op *op)
{
    return !(op->after[0] && !op->after[0]->done) && !(op->after[1] && !op->after[1]->done);
}

static void run(struct fake_queue *q, int i)
{
    struct op *op = q->ops[i];
    struct err e = {0};
    memmove(&q->ops[i], &q->ops[i + 1], (size_t)(--q->nops - i) * sizeof(struct op *));
    const int rc = op->w.kind == WORK_JOIN || q->failed.code ? 0 : q->run(q->ctx, &op->w, &e);
    if (rc < 0) {
        q->failed = e;
        q->failed.code = rc;
    }
    op->done = true;
    let_go(op);
}

/* One of those that may run. */
static void run_one(struct fake_queue *q, bool wanted)
{
    int choice = -1;
    unsigned seen = 0;
    for (int i = 0; i < q->nops; i++)
        if ((q->ops[i]->wanted || !wanted) && is_ready(q->ops[i]) && below(q, ++seen) == 0)
            choice = i;
    if (choice >= 0)
        run(q, choice);
}

static void want(struct op *op)
{
    if (op)
        op->wanted = true;
}

static int run_until(struct fake_queue *q, struct op *last, struct err *e)
{
    for (int i = 0; i < q->nops; i++)
        q->ops[i]->wanted = false;
    want(last);
    for (int i = q->nops - 1; i >= 0; i--) { /* nothing waits for what was enqueued later */
        if (q->ops[i]->wanted) {
            want(q->ops[i]->after[0]);
            want(q->ops[i]->after[1]);
        }
    }
    while (last && !last->done)
        run_one(q, below(q, 4) >= q->stray);
    return q->failed.code ? err_set(e, q->failed.code, "%s", q->failed.text) : 0;
}

static struct op *enqueue(struct fake_queue *q, const struct work *w, struct op *first, struct op *second)
{
    struct op *op = calloc(1, sizeof *op);
    op->refs = 1;
    op->w = *w;
    op->after[0] = hold(first);
    op->after[1] = hold(second);
    if (q->nops == q->cap) {
        q->cap = q->cap ? 2 * q->cap : 64;
        q->ops = realloc(q->ops, (size_t)q->cap * sizeof *q->ops);
    }
    q->ops[q->nops++] = op;
    return op;
}

static int record(struct gpu_graph *x, const struct work *w, int first, int second)
{
    if (x->n == x->cap) {
        x->cap = x->cap ? 2 * x->cap : 64;
        x->all = realloc(x->all, (size_t)x->cap * sizeof *x->all);
    }
    x->all[x->n] = (struct node){.w = *w, .after = {first, second}};
    return x->n++;
}

struct fake_queue *fake_queue_open(uint64_t seed, bool lazy, fake_run_fn *run_work, void *ctx)
{
    struct fake_queue *q = calloc(1, sizeof *q);
    pthread_mutex_init(&q->lock, NULL);
    q->run = run_work;
    q->ctx = ctx;
    q->noise = seed;
    if (!lazy && seed % 2 == 1) {
        q->progress = below(q, 4);
        q->stray = below(q, 4);
    }
    return q;
}

void fake_queue_close(struct fake_queue *q)
{
    while (q->nops > 0)
        let_go(q->ops[--q->nops]);
    pthread_mutex_destroy(&q->lock);
    free(q->ops);
    free(q);
}

/* --- streams and events */

struct gpu_stream *fake_queue_stream(struct fake_queue *q)
{
    struct gpu_stream *s = calloc(1, sizeof *s);
    s->node = -1;
    pthread_mutex_lock(&q->lock);
    for (int i = 0; i < STREAMS_MAX; i++) {
        if (!q->streams[i]) {
            q->streams[i] = s;
            pthread_mutex_unlock(&q->lock);
            return s;
        }
    }
    abort();
}

void fake_queue_stream_close(struct fake_queue *q, struct gpu_stream *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&q->lock);
    for (int i = 0; i < STREAMS_MAX; i++)
        if (q->streams[i] == s)
            q->streams[i] = NULL;
    drop(s->last);
    pthread_mutex_unlock(&q->lock);
    free(s);
}

struct gpu_event *fake_queue_event(void)
{
    return calloc(1, sizeof(struct gpu_event));
}

void fake_queue_event_close(struct fake_queue *q, struct gpu_event *v)
{
    if (!v)
        return;
    pthread_mutex_lock(&q->lock);
    drop(v->at);
    pthread_mutex_unlock(&q->lock);
    free(v);
}

bool fake_queue_captured(const struct gpu_stream *s)
{
    return s->captured;
}

/* On a stream that is not captured, also behind `other`. */
static void append(struct fake_queue *q, struct gpu_stream *s, const struct work *w, struct op *other)
{
    hold_at(&s->last, enqueue(q, w, s->last, other));
    if (below(q, 4) < q->progress)
        run_one(q, false);
}

void fake_queue_put(struct fake_queue *q, struct gpu_stream *s, const struct work *w)
{
    pthread_mutex_lock(&q->lock);
    if (s->captured)
        s->node = record(q->recording, w, s->node, -1);
    else
        append(q, s, w, NULL);
    pthread_mutex_unlock(&q->lock);
}

void fake_queue_record(struct fake_queue *q, struct gpu_event *v, struct gpu_stream *s)
{
    pthread_mutex_lock(&q->lock);
    hold_at(&v->at, s->captured ? NULL : s->last);
    v->captured = s->captured ? q->captures : 0;
    v->node = s->node;
    pthread_mutex_unlock(&q->lock);
}

/* A stream becomes part of a capture by waiting for it, and must not wait for anything else then. */
static int wait_locked(struct fake_queue *q, const struct gpu_event *v, struct gpu_stream *s, struct err *e)
{
    static const struct work join = {.kind = WORK_JOIN};
    if (v->captured) {
        if (!q->recording || v->captured != q->captures)
            return err_set(e, -EIO, "a stream waits for an event of a capture that has ended");
        s->node = record(q->recording, &join, s->captured ? s->node : -1, v->node);
        s->captured = true;
    } else if (v->at) {
        if (s->captured)
            return err_set(e, -EIO, "a stream that is captured waits for one that is not");
        append(q, s, &join, v->at);
    }
    return 0;
}

int fake_queue_wait(struct fake_queue *q, struct gpu_event *v, struct gpu_stream *s, struct err *e)
{
    pthread_mutex_lock(&q->lock);
    const int rc = wait_locked(q, v, s, e);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

/* --- the host waits */

int fake_queue_sync(struct fake_queue *q, struct gpu_stream *s, struct err *e)
{
    pthread_mutex_lock(&q->lock);
    const int rc = run_until(q, s->last, e);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

int fake_queue_sync_event(struct fake_queue *q, struct gpu_event *v, struct err *e)
{
    pthread_mutex_lock(&q->lock);
    const int rc = v->captured ? err_set(e, -EIO, "the host waits for an event of a capture") : run_until(q, v->at, e);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

int fake_queue_finish(struct fake_queue *q, struct err *e)
{
    pthread_mutex_lock(&q->lock);
    while (q->nops > 0)
        run_one(q, false);
    const int rc = run_until(q, NULL, e);
    pthread_mutex_unlock(&q->lock);
    return rc;
}

int fake_queue_run_ahead(struct fake_queue *q, enum work_kind kind)
{
    int n = 0;
    pthread_mutex_lock(&q->lock);
    for (int i = 0; i < q->nops;) {
        if (q->ops[i]->w.kind == kind && is_ready(q->ops[i])) {
            run(q, i);
            n++;
        } else {
            i++;
        }
    }
    pthread_mutex_unlock(&q->lock);
    return n;
}

bool fake_queue_happened(struct fake_queue *q, const struct gpu_event *v)
{
    pthread_mutex_lock(&q->lock);
    const bool r = !v->at || v->at->done;
    pthread_mutex_unlock(&q->lock);
    return r;
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

bool fake_queue_uses(struct fake_queue *q, const void *host, size_t bytes)
{
    bool r = false;
    pthread_mutex_lock(&q->lock);
    for (int i = 0; i < q->nops; i++) {
        const struct work *w = &q->ops[i]->w;
        r |= w->bytes > 0 && (overlap(w->to, w->bytes, host, bytes) || overlap(w->from, w->bytes, host, bytes));
    }
    pthread_mutex_unlock(&q->lock);
    return r;
}

/* --- graphs */

bool fake_queue_capturing(struct fake_queue *q, const struct gpu_stream *s)
{
    pthread_mutex_lock(&q->lock);
    const bool r = q->recording && (pthread_equal(q->recorder, pthread_self()) || (s && s->captured));
    pthread_mutex_unlock(&q->lock);
    return r;
}

void fake_queue_capture_begin(struct fake_queue *q, struct gpu_stream *s)
{
    pthread_mutex_lock(&q->lock);
    if (q->recording)
        abort();
    q->recording = calloc(1, sizeof *q->recording);
    q->recorder = pthread_self();
    q->captures++;
    s->captured = true;
    pthread_mutex_unlock(&q->lock);
}

/* Is all of it behind its last part? */
static bool joined(const struct gpu_graph *x)
{
    bool *seen = calloc((size_t)x->n + 1, sizeof *seen), all = true;
    if (x->last >= 0)
        seen[x->last] = true;
    for (int i = x->n - 1; i >= 0; i--) {
        all &= seen[i];
        for (int k = 0; k < 2; k++)
            if (seen[i] && x->all[i].after[k] >= 0)
                seen[x->all[i].after[k]] = true;
    }
    free(seen);
    return all;
}

int fake_queue_capture_end(struct fake_queue *q, struct gpu_stream *s, struct gpu_graph **ret, struct err *e)
{
    pthread_mutex_lock(&q->lock);
    struct gpu_graph *x = q->recording;
    x->last = s->node;
    q->recording = NULL;
    for (int i = 0; i < STREAMS_MAX; i++) {
        if (q->streams[i]) {
            q->streams[i]->captured = false;
            q->streams[i]->node = -1;
        }
    }
    pthread_mutex_unlock(&q->lock);
    *ret = x;
    return joined(x) ? 0 : err_set(e, -EIO, "the capture ends without the streams that it began");
}

static struct op *at_or(struct op *const *all, int i, struct op *root)
{
    return i >= 0 ? all[i] : root;
}

void fake_queue_launch(struct fake_queue *q, struct gpu_graph *x, struct gpu_stream *s)
{
    static const struct work join = {.kind = WORK_JOIN};
    struct op **all = calloc((size_t)x->n + 1, sizeof *all);
    pthread_mutex_lock(&q->lock);
    struct op *root = enqueue(q, &join, s->last, x->running);
    for (int i = 0; i < x->n; i++)
        all[i] = enqueue(q, &x->all[i].w, at_or(all, x->all[i].after[0], root), at_or(all, x->all[i].after[1], root));
    hold_at(&s->last, at_or(all, x->last, root));
    hold_at(&x->running, s->last);
    while (q->nops > 0 && below(q, 4) < q->progress)
        run_one(q, false);
    pthread_mutex_unlock(&q->lock);
    free(all);
}

void fake_queue_graph_close(struct fake_queue *q, struct gpu_graph *x)
{
    if (!x)
        return;
    pthread_mutex_lock(&q->lock);
    drop(x->running);
    pthread_mutex_unlock(&q->lock);
    free(x->all);
    free(x);
}
