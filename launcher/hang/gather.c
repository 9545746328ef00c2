/* Looks at several processes in threads that may block, and collects the results (gather.h). */
#include "launcher/hang/gather.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/net/apart.h"
#include "launcher/hang/stacks.h"

#define TOP_BYTES 4096
#define EXIT_WAIT_S 1

struct gather {
    pthread_mutex_t lock; /* protects the next three */
    int holders;          /* threads, plus the loop while it has the handle; the last one frees it */
    int threads;
    bool dropped;
    bool started;
    atomic_bool cancel;
    atomic_int next;
    uv_async_t all_done;
    struct gather_options o;
    int n;
    struct gathered v[];
};

static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t none_runs = PTHREAD_COND_INITIALIZER;
static int running; /* threads */

static void count(int change)
{
    pthread_mutex_lock(&count_lock);
    running += change;
    if (running == 0)
        pthread_cond_broadcast(&none_runs);
    pthread_mutex_unlock(&count_lock);
}

int gather_threads(void)
{
    pthread_mutex_lock(&count_lock);
    const int n = running;
    pthread_mutex_unlock(&count_lock);
    return n;
}

void gather_wait(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += EXIT_WAIT_S;
    pthread_mutex_lock(&count_lock);
    while (running > 0 && pthread_cond_timedwait(&none_runs, &count_lock, &end) == 0)
        ;
    pthread_mutex_unlock(&count_lock);
}

struct gather *gather_new(int n)
{
    struct gather *g = calloc(1, sizeof *g + (size_t)n * sizeof g->v[0]);
    if (!g)
        return NULL;
    pthread_mutex_init(&g->lock, NULL);
    g->n = n;
    return g;
}

struct gathered *gather_at(struct gather *g, int i)
{
    return &g->v[i];
}

int gather_count(const struct gather *g)
{
    return g->n;
}

void gather_shorten(struct gather *g, int n)
{
    g->n = n;
}

static void destroy(struct gather *g)
{
    for (int i = 0; i < g->n; i++) {
        free(g->v[i].head);
        free(g->v[i].path);
        free(g->v[i].top);
        if (g->v[i].more)
            g->v[i].free_more(g->v[i].more);
        buf_free(&g->v[i].text);
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static void collect_stacks(struct gathered *v, const atomic_bool *cancel)
{
    char top[TOP_BYTES] = "";
    struct err e = {0};
    const struct stacks_request q = {
        .head = v->head ? v->head : "", .pid = v->pid, .top = top, .top_cap = sizeof top, .cancel = cancel};
    if (stacks_collect(&q, &v->text, &e) < 0)
        snprintf(v->why, sizeof v->why, "%.255s", e.text);
    v->top = top[0] ? strdup(top) : NULL;
}

static void *run(void *arg)
{
    struct gather *g = arg;
    int i;
    while (!atomic_load(&g->cancel) && (i = atomic_fetch_add(&g->next, 1)) < g->n) {
        g->o.look(&g->v[i], &g->cancel);
        atomic_store(&g->v[i].done, true);
    }
    pthread_mutex_lock(&g->lock);
    if (--g->threads == 0 && !g->dropped)
        uv_async_send(&g->all_done);
    const bool last = --g->holders == 0;
    pthread_mutex_unlock(&g->lock);
    if (last)
        destroy(g);
    count(-1);
    return NULL;
}

static int start_thread(struct gather *g)
{
    pthread_mutex_lock(&g->lock);
    count(+1);
    const int error = apart_start(run, g, 0);
    if (error)
        count(-1);
    g->threads += !error;
    g->holders += !error;
    pthread_mutex_unlock(&g->lock);
    return error;
}

static void on_all_done(uv_async_t *a)
{
    struct gather *g = container_of(a, struct gather, all_done);
    pthread_mutex_lock(&g->lock); /* wait until the last thread has released it */
    const bool is_done = g->threads == 0 && !g->dropped;
    pthread_mutex_unlock(&g->lock);
    if (is_done)
        g->o.done(g->o.arg);
}

int gather_start(struct gather *g, const struct gather_options *o, struct err *e)
{
    int error = 0;
    g->o = *o;
    g->o.look = o->look ? o->look : collect_stacks;
    if (uv_async_init(o->loop, &g->all_done, on_all_done) < 0)
        return err_errno(e, EMFILE, "threads that look at processes");
    g->started = true;
    g->holders = 1;
    for (int i = 0; i < o->threads && i < g->n && !error; i++)
        error = start_thread(g);
    if (g->n == 0)
        uv_async_send(&g->all_done);
    return error && g->threads == 0 ? err_errno(e, error, "threads that look at processes") : 0;
}

static void on_closed(uv_handle_t *h)
{
    struct gather *g = container_of((uv_async_t *)h, struct gather, all_done);
    pthread_mutex_lock(&g->lock);
    const bool last = --g->holders == 0;
    pthread_mutex_unlock(&g->lock);
    if (last)
        destroy(g);
}

void gather_drop(struct gather *g)
{
    if (!g)
        return;
    if (!g->started) {
        destroy(g);
        return;
    }
    atomic_store(&g->cancel, true);
    pthread_mutex_lock(&g->lock);
    g->dropped = true;
    pthread_mutex_unlock(&g->lock);
    uv_close((uv_handle_t *)&g->all_done, on_closed);
}
