#include "launcher/hang/hang_watch.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "launcher/hang/stacks.h"
#include "launcher/output/log_layout.h"
#include "launcher/output/logmux.h"

#define LATE_NS INT64_C(1000000000) /* a look that comes so late says that we were stopped, or the whole machine was */
#define SAVE_MS 5000                /* for the stacks; then the round ends without the rest */
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

struct hang_watch {
    struct hang_watch_options o;
    struct hang hang;
    struct hang_worker *workers;
    int n;
    uv_timer_t timer;
    uv_async_t saved; /* a save is done */
    int open_handles;
    int64_t planned_ns; /* of the next look, 0: none */
    bool said_mute, was_traced;
    struct save *save; /* under way */
    struct hang_verdict verdict;
};

static void on_look(uv_timer_t *t);

static void read_workers(struct hang_watch *w)
{
    for (int i = 0; i < w->n; i++) {
        w->workers[i] = (struct hang_worker){0};
        w->o.read_worker(w->o.arg, i, &w->workers[i]);
    }
}

/* --- crun's own stops */

static _Atomic int64_t continued_ns; /* a handler has no argument */

static void on_continue(int signo)
{
    const int saved = errno;
    atomic_store(&continued_ns, clock_ns());
    errno = saved;
}

static void excuse_own_stops(struct hang_watch *w, int64_t now)
{
    const int64_t continued = atomic_load(&continued_ns);
    if (w->planned_ns && now - w->planned_ns > LATE_NS)
        hang_excuse(&w->hang, now);
    else if (continued > w->hang.excused_ns)
        hang_excuse(&w->hang, continued);
}

/* --- saving stacks */

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
static void wait_for_threads(void)
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
            logmux_write_file(w->o.mux, s->v[i].path, s->v[i].text.data, s->v[i].text.len);
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

static void end_round(struct hang_watch *w)
{
    uv_timer_stop(&w->timer);
    w->o.hung(w->o.arg, &w->verdict);
}

static void on_saved(uv_async_t *a)
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
    end_round(w);
}

/* The thread goes on by itself, and its result is of no use any more. */
static void abandon(struct hang_watch *w)
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
    abandon(w);
    end_round(w);
}

static int start_thread(struct save *s)
{
    pthread_t thread;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    count(+1);
    const int error = pthread_create(&thread, &attr, save_thread, s);
    pthread_attr_destroy(&attr);
    if (error)
        count(-1);
    return -error;
}

/* False: there is nowhere to save anything. */
static bool save_stacks(struct hang_watch *w)
{
    struct save *s = calloc(1, sizeof *s + (size_t)w->n * sizeof s->v[0]);
    if (!s)
        return false;
    pthread_mutex_init(&s->lock, NULL);
    s->watch = w;
    s->rank = w->verdict.rank;
    read_workers(w);
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

/* --- looking */

/* Those that waited for one in a debugger have a fresh time from the moment it is seen without. */
static void read_processes(struct hang_watch *w, int64_t now)
{
    bool traced = false;
    for (int i = 0; i < w->n; i++) {
        struct hang_worker *k = &w->workers[i];
        if (!k->gone && !stacks_look(k->pid, &k->stopped, &k->traced))
            k->gone = true;
        traced = traced || (!k->gone && k->traced);
    }
    if (traced || w->was_traced)
        hang_excuse(&w->hang, now);
    w->was_traced = traced;
}

static void plan(struct hang_watch *w, int64_t now)
{
    w->planned_ns = hang_next(&w->hang, now, w->workers, w->n);
    const int64_t wait = w->planned_ns > now ? w->planned_ns - now : 0;
    uv_update_time(w->o.loop);
    uv_timer_start(&w->timer, on_look, (uint64_t)(wait / 1000000 + 1), 0);
}

static void end_hang(struct hang_watch *w, int64_t now)
{
    logmux_print(w->o.mux, "%s", w->verdict.text);
    w->o.found(w->o.arg, now, &w->verdict);
    if (!save_stacks(w))
        end_round(w);
}

static bool any_attached(const struct hang_watch *w)
{
    for (int i = 0; i < w->n; i++)
        if (w->workers[i].page && atomic_load(&w->workers[i].page->attached))
            return true;
    return false;
}

static void warn_if_unattached(struct hang_watch *w, int64_t now)
{
    const int64_t fixed = w->hang.o.fixed_ns;
    if (!fixed || w->said_mute || now - w->hang.round_ns < fixed || any_attached(w))
        return;
    w->said_mute = true;
    logmux_print(
        w->o.mux,
        "--hang-timeout %g has no effect: no worker has called crun_init() of libcrun, so nobody knows whether "
        "they go on",
        (double)fixed / 1e9);
}

static void on_look(uv_timer_t *t)
{
    struct hang_watch *w = container_of(t, struct hang_watch, timer);
    const int64_t now = clock_ns();
    if (!w->o.is_running(w->o.arg))
        return;
    read_workers(w);
    excuse_own_stops(w, now);
    warn_if_unattached(w, now);
    if (hang_due(&w->hang, now, w->workers, w->n)) {
        read_processes(w, now);
        if (hang_judge(&w->hang, now, w->workers, w->n, &w->verdict)) {
            end_hang(w, now);
            return;
        }
    }
    plan(w, now);
}

/* --- life */

int hang_watch_open(struct hang_watch **ret, const struct hang_watch_options *o, struct err *e)
{
    *ret = NULL;
    if (o->hang.off)
        return 0;
    struct hang_watch *w = calloc(1, sizeof *w);
    if (!w || !(w->workers = calloc((size_t)o->workers, sizeof *w->workers))) {
        free(w);
        return err_errno(e, ENOMEM, "hang detection");
    }
    w->o = *o;
    w->n = o->workers;
    hang_init(&w->hang, &o->hang);
    uv_timer_init(o->loop, &w->timer);
    uv_async_init(o->loop, &w->saved, on_saved);
    w->open_handles = 2;
    struct sigaction a = {.sa_handler = on_continue, .sa_flags = SA_RESTART};
    sigaction(SIGCONT, &a, NULL);
    *ret = w;
    return 0;
}

void hang_watch_begin_round(struct hang_watch *w)
{
    if (!w)
        return;
    const int64_t now = clock_ns();
    hang_begin_round(&w->hang, now);
    read_workers(w);
    plan(w, now);
}

const char *hang_watch_text(const struct hang_watch *w)
{
    return w ? w->verdict.text : "";
}

void hang_watch_progressed(struct hang_watch *w)
{
    if (!w || w->save || !w->o.is_running(w->o.arg))
        return;
    read_workers(w);
    plan(w, clock_ns());
}

void hang_watch_end_round(struct hang_watch *w)
{
    if (!w)
        return;
    abandon(w);
    uv_timer_stop(&w->timer);
    w->planned_ns = 0;
    read_workers(w);
    hang_end_round(&w->hang, w->workers, w->n);
}

static void on_closed(uv_handle_t *h)
{
    struct hang_watch *w = h->data;
    if (--w->open_handles > 0)
        return;
    free(w->workers);
    free(w);
}

void hang_watch_close(struct hang_watch *w)
{
    if (!w)
        return;
    abandon(w);
    wait_for_threads();
    w->timer.data = w->saved.data = w;
    uv_close((uv_handle_t *)&w->timer, on_closed);
    uv_close((uv_handle_t *)&w->saved, on_closed);
}
