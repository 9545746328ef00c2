/* Saving the call stacks of workers that hang (hang_watch.h). */
#include "launcher/hang/hang_watch_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/buf.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/net/apart.h"
#include "launcher/hang/stacks.h"
#include "launcher/output/log_layout.h"
#include "launcher/output/logmux.h"

#define SAVE_MS 5000 /* for the stacks; then the round ends without the rest */
#define TOP_BYTES 4096
#define EXIT_WAIT_S 1

struct saved {
    int rank;
    pid_t pid;
    char path[LOG_PATH_MAX + 64], head[640];
    struct buf text;
    char why[256]; /* there is none; "": there is */
};

/* Of its own, and in a thread of its own: it waits for tools, may hang in the kernel with the process it looks at, and
 * may outlive the round and crun's loop. */
struct save {
    pthread_mutex_t lock;     /* of the next two */
    struct hang_watch *watch; /* NULL: nobody waits for it any more */
    bool done;
    atomic_bool cancel;
    char top[TOP_BYTES]; /* of the rank that is blamed */
    int rank, n;
    struct saved v[];
};

static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t none_runs = PTHREAD_COND_INITIALIZER;
static int running; /* threads that save */

static void count(int change)
{
    pthread_mutex_lock(&count_lock);
    running += change;
    if (running == 0)
        pthread_cond_broadcast(&none_runs);
    pthread_mutex_unlock(&count_lock);
}

/* Its tool is killed meanwhile. One that hangs in the kernel is not waited for. */
void hang_wait_for_threads(void)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += EXIT_WAIT_S;
    pthread_mutex_lock(&count_lock);
    while (running > 0 && pthread_cond_timedwait(&none_runs, &count_lock, &end) == 0)
        ;
    pthread_mutex_unlock(&count_lock);
}

static void free_save(struct save *s)
{
    for (int i = 0; i < s->n; i++)
        buf_free(&s->v[i].text);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* The last of thread and loop frees it. */
static void *save_thread(void *arg)
{
    struct save *s = arg;
    for (int i = 0; i < s->n && !atomic_load(&s->cancel); i++) {
        struct saved *v = &s->v[i];
        struct err e = {0};
        const bool blamed = v->rank == s->rank;
        const struct stacks_request q = {.head = v->head,
                                         .pid = v->pid,
                                         .top = blamed ? s->top : NULL,
                                         .top_cap = sizeof s->top,
                                         .cancel = &s->cancel};
        v->why[0] = '\0';
        if (stacks_collect(&q, &v->text, &e) < 0)
            snprintf(v->why, sizeof v->why, "%.255s", e.text);
    }
    pthread_mutex_lock(&s->lock);
    const bool awaited = s->watch;
    s->done = true;
    if (awaited)
        uv_async_send(&s->watch->saved);
    pthread_mutex_unlock(&s->lock);
    if (!awaited)
        free_save(s);
    count(-1);
    return NULL;
}

/* By the output process, for the disk may hang. */
static void write_saved(struct hang_watch *w, const struct save *s)
{
    for (int i = 0; i < s->n; i++)
        if (!s->v[i].why[0])
            logmux_write_log(w->o.mux, s->v[i].path, s->v[i].text.data, s->v[i].text.len);
}

static void print_saved(struct hang_watch *w, const struct save *s)
{
    const struct saved *good = NULL, *bad = NULL;
    int files = 0;
    for (int i = 0; i < s->n; i++)
        if (s->v[i].why[0]) {
            bad = bad ? bad : &s->v[i];
        } else {
            files++;
            good = good && good->rank == s->rank ? good : &s->v[i];
        }
    if (s->top[0]) {
        logmux_print(w->o.mux, "rank %d, main thread:", s->rank);
        logmux_print_text(w->o.mux, s->top);
    }
    if (good)
        logmux_print(w->o.mux, "what all threads of %d workers were doing: %s%s%s", files, good->path,
                     files > 1 ? " and beside it" : "",
                     w->o.keeps_stacks ? "" : " (until crun ends; --log-dir keeps it)");
    if (bad)
        logmux_print(w->o.mux, "what the threads of rank %d were doing is not known: %s", bad->rank, bad->why);
}

void hang_on_saved(uv_async_t *a)
{
    struct hang_watch *w = container_of(a, struct hang_watch, saved);
    struct save *s = w->save;
    if (!s) /* it was abandoned meanwhile */
        return;
    pthread_mutex_lock(&s->lock); /* until the thread has let go of it */
    const bool done = s->done;
    pthread_mutex_unlock(&s->lock);
    if (!done)
        return;
    w->save = NULL;
    write_saved(w, s);
    print_saved(w, s);
    free_save(s);
    hang_tell(w);
}

/* The thread goes on by itself, and its result is of no use any more. */
void hang_abandon_save(struct hang_watch *w)
{
    struct save *s = w->save;
    if (!s)
        return;
    w->save = NULL;
    atomic_store(&s->cancel, true);
    pthread_mutex_lock(&s->lock);
    const bool done = s->done;
    s->watch = NULL;
    pthread_mutex_unlock(&s->lock);
    if (done)
        free_save(s);
}

static void on_save_late(uv_timer_t *t)
{
    struct hang_watch *w = container_of(t, struct hang_watch, timer);
    logmux_print(w->o.mux, "the stacks of all threads were not saved within %d s; going on", SAVE_MS / 1000);
    hang_abandon_save(w);
    hang_tell(w);
}

static int start_thread(struct save *s)
{
    count(+1);
    const int error = apart_start(save_thread, s, 0);
    if (error)
        count(-1);
    return -error;
}

/* False: there is nowhere to save anything. */
bool hang_save_stacks(struct hang_watch *w)
{
    struct save *s = calloc(1, sizeof *s + (size_t)w->n * sizeof s->v[0]);
    if (!s)
        return false;
    pthread_mutex_init(&s->lock, NULL);
    s->watch = w;
    s->rank = w->verdict.rank;
    hang_read_workers(w);
    for (int i = 0; i < w->n; i++) {
        struct saved *v = &s->v[s->n];
        const struct hang_worker *k = &w->workers[i];
        if (k->gone || !w->o.stacks_path(w->o.arg, k->rank, v->path, sizeof v->path))
            continue;
        v->rank = k->rank;
        v->pid = k->pid;
        snprintf(v->head, sizeof v->head, "rank %d: %s", k->rank, w->verdict.text);
        snprintf(v->why, sizeof v->why, "no time was left");
        if (v->rank == s->rank) { /* first, as time may run out */
            const struct saved first = s->v[0];
            s->v[0] = *v;
            *v = first;
        }
        s->n++;
    }
    w->save = s;
    if (s->n == 0 || start_thread(s) < 0) {
        w->save = NULL;
        free_save(s);
        return false;
    }
    uv_timer_start(&w->timer, on_save_late, SAVE_MS, 0);
    return true;
}
