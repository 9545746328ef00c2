/* A thread that does jobs on one disk (file_thread.h), and files whose bytes wait for that thread (queued_file.h). */
#include "launcher/output/process/file_thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/net/apart.h"
#include "launcher/base/watch.h"
#include "launcher/output/process/queued_file.h"

struct file_thread {
    struct file_thread_options o;
    bool is_started;
    pthread_mutex_t lock; /* protects the following fields, up to the loop's own */
    pthread_cond_t more;
    struct file_job *first, *last; /* to do */
    struct file_job *done, *done_last;
    char at[256];        /* path of the file in work */
    int64_t since_ms;    /* since when; 0: idle */
    uint64_t lost;       /* bytes */
    struct amount waits; /* in queued files */
    int wake_fd;         /* tells the loop that jobs are done; the only descriptor of the process that the thread has */
    /* the loop's own */
    struct watch *wake;
    uv_timer_t look;
    bool is_reported; /* the hang was printed */
    int64_t reported_ms;
    uint64_t reported_lost;
};

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

/* Look, at most once a second and only while there is work, whether the disk answers. */
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

/* Start the thread. Without it this process is useless, so end it: the next one may succeed. */
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

struct queued_file {
    struct file_thread *t;
    struct file_job job; /* writes what waits, and closes */
    struct logfile_limits limits;
    char *path;
    size_t at_bytes;  /* logfile_open() */
    struct buf waits; /* bytes to be written; the lock protects this and the following */
    uint64_t gap;     /* bytes dropped after it */
    size_t in_hand;   /* bytes that the thread is writing */
    bool is_torn;     /* the last bytes that it accepted ended within a line */
    bool closes;
    /* the loop's own */
    bool is_queued;
    bool skips; /* skip until the line ends */
    /* the thread's own, between work and done */
    struct logfile file;
    int error; /* -errno, reported once */
    bool is_closed;
};

static uint64_t count_lines(const char *data, size_t n)
{
    uint64_t lines = 0;
    for (const char *at = data, *end = data + n; n > 0 && (at = memchr(at, '\n', (size_t)(end - at))); at++)
        lines++;
    return lines;
}

/* Take what waits, and the number of bytes that were dropped after it. */
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

static void count_written(struct queued_file *f, struct amount what, uint64_t lost)
{
    pthread_mutex_lock(&f->t->lock);
    f->t->waits.bytes -= what.bytes;
    f->t->waits.lines -= what.lines;
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
    const struct amount what = {data.len, count_lines(data.data, data.len)};
    if (data.len > 0)
        f->error = logfile_write(&f->file, data.data, data.len);
    if (gap > 0)
        logfile_skip(&f->file, gap);
    if (closes)
        logfile_close(&f->file);
    f->is_closed = closes;
    count_written(f, what, f->file.lost - lost - gap); /* a gap was counted when bytes were dropped */
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

struct queued_file *queued_file_create(struct file_thread *t, const char *path, size_t at_bytes,
                                       const struct logfile_limits *limits)
{
    struct queued_file *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path))) {
        free(f);
        return NULL;
    }
    f->t = t;
    f->at_bytes = at_bytes;
    f->limits = *limits;
    f->file.fd = -1;
    f->job = (struct file_job){.work = write_waiting, .done = on_written};
    return f;
}

int queued_file_open_now(struct queued_file *f, int at, struct err *e)
{
    file_thread_enter(f->t, f->path);
    return logfile_open(&f->file, at, f->at_bytes, f->path, &f->limits, e);
}

static void drop(struct queued_file *f, size_t n)
{
    f->gap += n;
    f->t->lost += n;
}

/* If the end of a line is dropped, drop its beginning, which still waits in memory, too. */
static void take_back_line(struct queued_file *f)
{
    const char *end = f->waits.len > 0 ? memrchr(f->waits.data, '\n', f->waits.len) : NULL;
    const size_t keep = end ? (size_t)(end + 1 - f->waits.data) : 0, torn = f->waits.len - keep;
    if (!end && f->is_torn) /* its beginning is written */
        return;
    f->waits.len = keep;
    f->t->waits.bytes -= torn; /* of no whole line */
    drop(f, torn);
}

/* How many of n bytes may wait: all of them, or whole lines. */
static size_t fitting(const struct queued_file *f, const char *data, size_t n)
{
    const size_t own = f->waits.len + f->in_hand;
    size_t room = own < FILE_WAITS_MAX ? FILE_WAITS_MAX - own : 0;
    const size_t all = f->t->waits.bytes < FILES_WAIT_MAX ? (size_t)(FILES_WAIT_MAX - f->t->waits.bytes) : 0;
    room = room < all ? room : all;
    if (n <= room)
        return n;
    const char *end = room > 0 ? memrchr(data, '\n', room) : NULL;
    return end ? (size_t)(end + 1 - data) : 0;
}

static void add_bytes(struct queued_file *f, const char *data, size_t n)
{
    const size_t fits = f->gap > 0 ? 0 : fitting(f, data, n);
    if (fits > 0 && buf_add(&f->waits, data, fits) == 0) {
        f->t->waits.bytes += fits;
        f->t->waits.lines += count_lines(data, fits);
    } else if (fits > 0) {
        drop(f, fits);
    }
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
    const bool full = f->waits.len + f->in_hand > FILE_WAITS_MAX / 2 || f->t->waits.bytes > FILES_WAIT_MAX / 2;
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

struct amount queued_files_waiting(struct file_thread *t)
{
    pthread_mutex_lock(&t->lock);
    const struct amount n = t->waits;
    pthread_mutex_unlock(&t->lock);
    return n;
}

uint64_t queued_files_lost(struct file_thread *t)
{
    pthread_mutex_lock(&t->lock);
    const uint64_t n = t->lost;
    pthread_mutex_unlock(&t->lock);
    return n;
}
