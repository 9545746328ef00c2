#include "launcher/output/process/queued_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "launcher/output/process/file_thread_internal.h"

struct queued_file {
    struct file_thread *t;
    struct file_job job; /* writes what waits, and closes */
    struct logfile_limits limits;
    char *path;
    size_t at_bytes;  /* logfile_open() */
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

static uint64_t count_lines(const char *data, size_t n)
{
    uint64_t lines = 0;
    for (const char *at = data, *end = data + n; n > 0 && (at = memchr(at, '\n', (size_t)(end - at))); at++)
        lines++;
    return lines;
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
    count_written(f, what, f->file.lost - lost - gap); /* a gap was counted when it came to be */
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

/* What stands in memory of a line whose end is dropped goes with it. */
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

/* How much of n bytes may wait: all, or whole lines. */
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
