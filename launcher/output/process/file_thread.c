#include "launcher/output/process/file_thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "launcher/base/fd_room.h"

#define STACK_BYTES (256u << 10) /* paths of logfile.c, several of them */

struct file_thread {
    struct file_thread_options o;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows, up to the loop's own */
    pthread_cond_t more;
    struct file_job *first, *last; /* to do */
    struct file_job *done, *done_last;
    char at[256];     /* the file that it is at */
    int64_t since_ms; /* that it is at it; 0: idle */
    uint64_t waiting, lost;
    uv_async_t wake;
    /* the loop's own */
    uv_timer_t look;
    bool is_told; /* that it hangs */
    int64_t told_ms;
    uint64_t told_lost;
};

struct queued_file {
    struct file_thread *t;
    struct file_job job; /* writes what waits, and closes */
    struct logfile_limits limits;
    char *path;
    struct buf waits; /* to be written; under the lock, as what follows */
    uint64_t gap;     /* bytes dropped behind it */
    size_t in_hand;   /* bytes that the thread is at */
    bool is_torn;     /* what it took last ended within a line */
    bool closes;
    /* the loop's own */
    bool is_queued;
    bool skips; /* until the line ends */
    /* the thread's own, between work and done */
    struct logfile file;
    int error; /* -errno, once: it takes no more */
    bool is_closed;
};

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
    pthread_mutex_lock(&t->lock);
    for (;;) {
        struct file_job *job = take(t);
        t->since_ms = clock_ms();
        pthread_mutex_unlock(&t->lock);
        job->work(job);
        pthread_mutex_lock(&t->lock);
        t->since_ms = t->first ? clock_ms() : 0;
        put_done(t, job);
        uv_async_send(&t->wake);
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
    t->told_lost = t->lost;
    snprintf(
        text, sizeof text,
        "the disk of the log files has not answered for %d ms (%s): what workers write there waits in memory, %u KiB of each stream, and is dropped and counted beyond that",
        FILE_PATIENCE_MS, t->at, FILE_WAITS_MAX >> 10);
    pthread_mutex_unlock(&t->lock);
    t->told_ms = since;
    t->is_told = true;
    t->o.print(t->o.arg, text);
}

static void tell_return(struct file_thread *t)
{
    char text[256];
    const uint64_t lost = file_thread_lost(t) - t->told_lost;
    t->is_told = false;
    snprintf(text, sizeof text, "the disk of the log files answers again after %.1f s; %llu bytes were dropped",
             (double)(clock_ms() - t->told_ms) / 1000, (unsigned long long)lost);
    t->o.print(t->o.arg, text);
}

/* Once a second at most, and only while there is something to do. */
static void on_look(uv_timer_t *timer)
{
    struct file_thread *t = timer->data;
    if (!t->is_told && file_thread_still_ms(t) >= FILE_PATIENCE_MS)
        tell_hang(t);
    look_again(t);
}

static void look_again(struct file_thread *t)
{
    const int64_t left = FILE_PATIENCE_MS - file_thread_still_ms(t);
    if (!file_thread_is_idle(t) && !t->is_told)
        uv_timer_start(&t->look, on_look, left > 0 ? (uint64_t)left : 1, 0);
}

static void on_wake(uv_async_t *wake)
{
    struct file_thread *t = wake->data;
    pthread_mutex_lock(&t->lock);
    struct file_job *job = t->done;
    t->done = t->done_last = NULL;
    pthread_mutex_unlock(&t->lock);
    if (job && t->is_told)
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
    pthread_attr_t attr;
    sigset_t all, before;
    if (!t)
        return err_errno(e, ENOMEM, "log files");
    t->o = *o;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->more, NULL);
    uv_async_init(loop, &t->wake, on_wake);
    uv_timer_init(loop, &t->look);
    t->wake.data = t->look.data = t;
    fd_room_make();
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&t->thread, &attr, run_thread, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    *ret = t;
    return rc == 0 ? 0 : err_errno(e, rc, "a thread for the log files");
}

static void add_locked(struct file_thread *t, struct file_job *job)
{
    job->next = NULL;
    if (t->last)
        t->last->next = job;
    else
        t->first = job;
    t->last = job;
    if (t->since_ms == 0)
        t->since_ms = clock_ms();
    pthread_cond_signal(&t->more);
}

void file_thread_add(struct file_thread *t, struct file_job *job)
{
    pthread_mutex_lock(&t->lock);
    add_locked(t, job);
    pthread_mutex_unlock(&t->lock);
    if (!uv_is_active((uv_handle_t *)&t->look))
        look_again(t);
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

uint64_t file_thread_waiting(struct file_thread *t)
{
    pthread_mutex_lock(&t->lock);
    const uint64_t n = t->waiting;
    pthread_mutex_unlock(&t->lock);
    return n;
}

uint64_t file_thread_lost(struct file_thread *t)
{
    pthread_mutex_lock(&t->lock);
    const uint64_t n = t->lost;
    pthread_mutex_unlock(&t->lock);
    return n;
}

/* --- a file */

void file_thread_enter(struct file_thread *t, const char *path)
{
    pthread_mutex_lock(&t->lock);
    snprintf(t->at, sizeof t->at, "%s", path);
    t->since_ms = clock_ms();
    pthread_mutex_unlock(&t->lock);
}

/* What waited, and how much was dropped behind it. */
static struct buf take_waiting(struct queued_file *f, uint64_t *ret_gap, bool *ret_closes)
{
    struct file_thread *t = f->t;
    pthread_mutex_lock(&t->lock);
    struct buf data = f->waits;
    buf_init(&f->waits, 0);
    f->in_hand = data.len;
    if (data.len > 0)
        f->is_torn = data.data[data.len - 1] != '\n';
    *ret_gap = f->gap;
    if (f->gap > 0)
        f->is_torn = false;
    f->gap = 0;
    *ret_closes = f->closes;
    pthread_mutex_unlock(&t->lock);
    return data;
}

static void count_written(struct queued_file *f, size_t bytes, uint64_t lost)
{
    pthread_mutex_lock(&f->t->lock);
    f->t->waiting -= bytes;
    f->t->lost += lost;
    f->in_hand = 0;
    pthread_mutex_unlock(&f->t->lock);
}

static void write_waiting(struct file_job *job)
{
    struct queued_file *f = container_of(job, struct queued_file, job);
    const uint64_t lost = f->file.lost;
    uint64_t gap;
    bool closes;
    file_thread_enter(f->t, f->path);
    struct buf data = take_waiting(f, &gap, &closes);
    if (data.len > 0)
        f->error = logfile_write(&f->file, data.data, data.len);
    if (gap > 0)
        logfile_skip(&f->file, gap);
    if (closes)
        logfile_close(&f->file);
    f->is_closed = closes;
    count_written(f, data.len, f->file.lost - lost - gap); /* a gap was counted when it came to be */
    buf_free(&data);
}

static void add_file(struct queued_file *f)
{
    if (!f->is_queued)
        file_thread_add(f->t, &f->job);
    f->is_queued = true;
}

static void free_file(struct queued_file *f)
{
    buf_free(&f->waits);
    free(f->path);
    free(f);
}

/* A full disk must not end training. */
static void tell_error(struct queued_file *f)
{
    char text[4600];
    snprintf(text, sizeof text, "the log file %s is incomplete from here on: %s", f->path, strerror(-f->error));
    f->error = 0;
    f->t->o.print(f->t->o.arg, text);
}

static void on_written(struct file_job *job)
{
    struct queued_file *f = container_of(job, struct queued_file, job);
    f->is_queued = false;
    if (f->error)
        tell_error(f);
    if (f->is_closed) {
        free_file(f);
        return;
    }
    pthread_mutex_lock(&f->t->lock);
    const bool more = f->waits.len > 0 || f->gap > 0 || f->closes;
    pthread_mutex_unlock(&f->t->lock);
    if (more)
        add_file(f);
}

struct queued_file *queued_file_create(struct file_thread *t, const char *path, const struct logfile_limits *limits)
{
    struct queued_file *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path))) {
        free(f);
        return NULL;
    }
    f->t = t;
    f->limits = *limits;
    f->file.fd = -1;
    f->job = (struct file_job){.work = write_waiting, .done = on_written};
    return f;
}

int queued_file_open_now(struct queued_file *f, struct err *e)
{
    file_thread_enter(f->t, f->path);
    return logfile_open(&f->file, f->path, &f->limits, e);
}

static void drop(struct queued_file *f, size_t n)
{
    f->gap += n;
    f->t->lost += n;
}

/* What stands in memory of a line whose end is dropped goes with it. */
static void take_back_line(struct queued_file *f)
{
    const char *end = f->waits.len > 0 ? memrchr(f->waits.data, '\n', f->waits.len) : NULL;
    const size_t keep = end ? (size_t)(end + 1 - f->waits.data) : 0, torn = f->waits.len - keep;
    if (!end && f->is_torn) /* its beginning is written */
        return;
    f->waits.len = keep;
    f->t->waiting -= torn;
    drop(f, torn);
}

/* How much of n bytes may wait: all, or whole lines. */
static size_t fitting(const struct queued_file *f, const char *data, size_t n)
{
    const size_t own = f->waits.len + f->in_hand;
    size_t room = own < FILE_WAITS_MAX ? FILE_WAITS_MAX - own : 0;
    const size_t all = f->t->waiting < FILES_WAIT_MAX ? (size_t)(FILES_WAIT_MAX - f->t->waiting) : 0;
    room = room < all ? room : all;
    if (n <= room)
        return n;
    const char *end = room > 0 ? memrchr(data, '\n', room) : NULL;
    return end ? (size_t)(end + 1 - data) : 0;
}

static void add_bytes(struct queued_file *f, const char *data, size_t n)
{
    const size_t fits = f->gap > 0 ? 0 : fitting(f, data, n);
    if (fits > 0 && buf_add(&f->waits, data, fits) == 0)
        f->t->waiting += fits;
    else if (fits > 0)
        drop(f, fits);
    if (fits == n)
        return;
    if (fits == 0 && f->gap == 0)
        take_back_line(f);
    drop(f, n - fits);
    f->skips = data[n - 1] != '\n';
}

void queued_file_write(struct queued_file *f, const char *data, size_t n)
{
    pthread_mutex_lock(&f->t->lock);
    if (f->skips && n > 0) {
        const char *end = memchr(data, '\n', n);
        const size_t part = end ? (size_t)(end + 1 - data) : n;
        drop(f, part);
        f->skips = !end;
        data += part;
        n -= part;
    }
    if (n > 0)
        add_bytes(f, data, n);
    pthread_mutex_unlock(&f->t->lock);
    add_file(f);
}

bool queued_file_is_full(const struct queued_file *f)
{
    pthread_mutex_lock(&f->t->lock);
    const bool full = f->waits.len + f->in_hand > FILE_WAITS_MAX / 2 || f->t->waiting > FILES_WAIT_MAX / 2;
    pthread_mutex_unlock(&f->t->lock);
    return full;
}

void queued_file_close(struct queued_file *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->t->lock);
    f->closes = true;
    pthread_mutex_unlock(&f->t->lock);
    add_file(f);
}
