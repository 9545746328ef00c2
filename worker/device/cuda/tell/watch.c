/* A thread that says what a host waits for when the GPU takes long. */
#include "worker/device/cuda/tell/watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/device/cuda/gpu/gpu.h"

enum { WITHIN_MAX = 4 };

struct wait {
    const char *what;
    bool asks; /* the streams may be asked about */
    int64_t since_ms;
};

struct watch {
    struct watched c;
    int64_t period_ms;
    pthread_t thread;
    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t change;
    bool leaving;
    struct wait waits[WITHIN_MAX]; /* of the host, each within the one before */
    int nwaits;
    int64_t logged_ms;
    const char *label;
    int op;
    uint64_t run;
};

static const char *state_of(const struct watched *c, struct gpu_stream *s, struct err *e)
{
    const int rc = c->gpu->ops->stream_query(c->gpu, s, e);
    return rc == 0 ? "idle" : rc == -EAGAIN ? "busy" : e->text;
}

/* Lock held: close() waits for it. */
static void tell(struct watch *w, const struct wait *now_on, int64_t now)
{
    const struct watched *c = &w->c;
    struct err compute = {0}, copy = {0};
    w->logged_ms = now;
    log_warn("cuda", "the host has waited %lld s for %s; enqueued last: %s of op %d in run %llu",
             (long long)(now - now_on->since_ms) / 1000, now_on->what, w->label ? w->label : "nothing", w->op,
             (unsigned long long)w->run);
    if (now_on->asks)
        log_warn("cuda", "the host has waited for %s: compute stream: %s, copy stream: %s", now_on->what,
                 state_of(c, c->compute, &compute), state_of(c, c->copy, &copy));
}

static void sleep_half_a_period(struct watch *w)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + w->period_ms * 500000;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_cond_timedwait(&w->change, &w->lock, &until);
}

static void *watch(void *arg)
{
    struct watch *w = arg;
    struct err e;
    const bool attached = w->c.gpu->ops->attach(w->c.gpu, &e) == 0;
    pthread_mutex_lock(&w->lock);
    while (!w->leaving && attached) {
        const int64_t now = clock_ms();
        const int n = w->nwaits < WITHIN_MAX ? w->nwaits : WITHIN_MAX;
        const struct wait *last = n > 0 ? &w->waits[n - 1] : NULL;
        if (last && now - last->since_ms >= w->period_ms && now - w->logged_ms >= w->period_ms)
            tell(w, last, now);
        sleep_half_a_period(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int watch_open(struct watch **ret, const struct watched *c, int64_t period_ms, struct err *e)
{
    pthread_condattr_t monotonic;
    struct watch *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, -ENOMEM, "no memory for a watch");
    w->c = *c;
    w->period_ms = period_ms;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->change, &monotonic);
    const int rc = pthread_create(&w->thread, NULL, watch, w);
    if (rc) {
        free(w);
        return err_errno(e, rc, "a thread that watches the GPU");
    }
    *ret = w;
    return 0;
}

void watch_close(struct watch *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->leaving = true;
    pthread_cond_signal(&w->change);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->change);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static void begin(struct watch *w, const char *what, bool asks)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    if (w->nwaits < WITHIN_MAX)
        w->waits[w->nwaits] = (struct wait){what, asks, clock_ms()};
    w->nwaits++;
    w->logged_ms = 0;
    pthread_mutex_unlock(&w->lock);
}

void watch_wait(struct watch *w, const char *what)
{
    begin(w, what, true);
}

void watch_call(struct watch *w, const char *what)
{
    begin(w, what, false);
}

void watch_done(struct watch *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->nwaits--;
    pthread_mutex_unlock(&w->lock);
}

void watch_note(struct watch *w, const char *label, int op, uint64_t run)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->label = label;
    w->op = op;
    w->run = run;
    pthread_mutex_unlock(&w->lock);
}
