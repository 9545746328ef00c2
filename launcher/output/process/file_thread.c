/* A thread that does jobs on one disk, and the sentence when that hangs (file_thread.h). */
#include "launcher/output/process/file_thread_internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/net/apart.h"
#include "launcher/base/watch.h"

#define STACK_BYTES (256u << 10) /* paths of logfile.c, several of them */

static atomic_int jobs; /* of all threads, not done yet */

/* --- the thread */

static struct file_job *take(struct file_thread *t)
{
    struct file_job *job;
    while (!(job = t->first))
        pthread_cond_wait(&t->more, &t->lock);
    t->first = job->next;
    if (!t->first)
        t->last = NULL;
    return job;
}

static void put_done(struct file_thread *t, struct file_job *job)
{
    job->next = NULL;
    if (t->done_last)
        t->done_last->next = job;
    else
        t->done = job;
    t->done_last = job;
}

static void *run_thread(void *arg)
{
    struct file_thread *t = arg;
    apart_keep(&t->wake_fd, 1);
    pthread_mutex_lock(&t->lock);
    for (;;) {
        struct file_job *job = take(t);
        t->since_ms = clock_ms();
        pthread_mutex_unlock(&t->lock);
        job->work(job);
        atomic_fetch_sub(&jobs, 1);
        pthread_mutex_lock(&t->lock);
        t->since_ms = t->first ? clock_ms() : 0;
        put_done(t, job);
        pthread_mutex_unlock(&t->lock); /* whoever is woken wants it at once */
        eventfd_write(t->wake_fd, 1);
        pthread_mutex_lock(&t->lock);
    }
    return NULL;
}

/* --- the loop's side */

static void look_again(struct file_thread *t);

static void tell_hang(struct file_thread *t)
{
    char text[512];
    pthread_mutex_lock(&t->lock);
    const int64_t since = t->since_ms;
    t->reported_lost = t->lost;
    snprintf(text, sizeof text, "%s has not answered for %d ms (%s): %s", t->o.disk, FILE_PATIENCE_MS, t->at,
             t->o.meanwhile);
    pthread_mutex_unlock(&t->lock);
    t->reported_ms = since;
    t->is_reported = true;
    t->o.print(t->o.arg, text);
}

static void tell_return(struct file_thread *t)
{
    char text[256];
    pthread_mutex_lock(&t->lock);
    const uint64_t lost = t->lost - t->reported_lost;
    pthread_mutex_unlock(&t->lock);
    t->is_reported = false;
    snprintf(text, sizeof text, "%s answers again after %.1f s; %llu bytes were dropped", t->o.disk,
             (double)(clock_ms() - t->reported_ms) / 1000, (unsigned long long)lost);
    t->o.print(t->o.arg, text);
}

/* Once a second at most, and only while there is something to do. */
static void on_look(uv_timer_t *timer)
{
    struct file_thread *t = timer->data;
    if (!t->is_reported && file_thread_still_ms(t) >= FILE_PATIENCE_MS)
        tell_hang(t);
    look_again(t);
}

static void look_again(struct file_thread *t)
{
    const int64_t left = FILE_PATIENCE_MS - file_thread_still_ms(t);
    if (!file_thread_is_idle(t) && !t->is_reported)
        uv_timer_start(&t->look, on_look, left > 0 ? (uint64_t)left : 1, 0);
}

static void on_wake(void *arg)
{
    struct file_thread *t = arg;
    eventfd_t ignored;
    eventfd_read(t->wake_fd, &ignored);
    pthread_mutex_lock(&t->lock);
    struct file_job *job = t->done;
    t->done = t->done_last = NULL;
    pthread_mutex_unlock(&t->lock);
    if (job && t->is_reported)
        tell_return(t);
    while (job) {
        struct file_job *next = job->next;
        if (job->done)
            job->done(job);
        job = next;
    }
    if (!uv_is_active((uv_handle_t *)&t->look))
        look_again(t);
    t->o.moved(t->o.arg);
}

int file_thread_create(struct file_thread **ret, uv_loop_t *loop, const struct file_thread_options *o, struct err *e)
{
    struct file_thread *t = calloc(1, sizeof *t);
    if (!t)
        return err_errno(e, ENOMEM, "%s", o->disk);
    t->o = *o;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->more, NULL);
    uv_timer_init(loop, &t->look);
    t->look.data = t;
    *ret = t;
    t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->wake_fd < 0)
        return err_errno(e, errno, "eventfd");
    TRY(watch_open(&t->wake, loop, t->wake_fd, UV_READABLE, on_wake, t, e));
    watch_set(t->wake, true);
    return 0;
}

static void append(struct file_thread *t, struct file_job *job)
{
    job->next = NULL;
    if (t->last)
        t->last->next = job;
    else
        t->first = job;
    t->last = job;
    if (t->since_ms == 0)
        t->since_ms = clock_ms();
}

/* Without a thread the process cannot do what it is for; the next one may be able to. */
static void be_started(struct file_thread *t)
{
    struct err e;
    if (t->is_started)
        return;
    const int rc = apart_start(run_thread, t, STACK_BYTES);
    t->is_started = true;
    if (rc == 0)
        return;
    err_start(&e, rc, "no thread for %s", t->o.disk);
    t->o.print(t->o.arg, e.text);
    _exit(1);
}

void file_thread_add(struct file_thread *t, struct file_job *job)
{
    be_started(t);
    atomic_fetch_add(&jobs, 1);
    pthread_mutex_lock(&t->lock);
    append(t, job);
    pthread_mutex_unlock(&t->lock);
    pthread_cond_signal(&t->more);
    if (!uv_is_active((uv_handle_t *)&t->look))
        look_again(t);
}

bool file_threads_are_idle(void)
{
    return atomic_load(&jobs) == 0;
}

bool file_thread_is_idle(struct file_thread *t)
{
    pthread_mutex_lock(&t->lock);
    const bool idle = t->since_ms == 0 && !t->first && !t->done;
    pthread_mutex_unlock(&t->lock);
    return idle;
}

int64_t file_thread_still_ms(struct file_thread *t)
{
    pthread_mutex_lock(&t->lock);
    const int64_t since = t->since_ms;
    pthread_mutex_unlock(&t->lock);
    return since ? clock_ms() - since : 0;
}

const char *file_thread_at(struct file_thread *t, char *out, size_t cap)
{
    pthread_mutex_lock(&t->lock);
    snprintf(out, cap, "%s", t->at);
    pthread_mutex_unlock(&t->lock);
    return out;
}

void file_thread_enter(struct file_thread *t, const char *path)
{
    pthread_mutex_lock(&t->lock);
    snprintf(t->at, sizeof t->at, "%s", path);
    t->since_ms = clock_ms();
    pthread_mutex_unlock(&t->lock);
}
