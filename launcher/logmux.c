#include "launcher/logmux.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/path.h"
#include "launcher/console.h"
#include "launcher/sink.h"
#include "launcher/watch.h"

#define LAST_READS 64

struct stream {
    struct logmux *mux;
    struct sink *sink;
    int fd, file; /* our end of the pipe, the log file; -1: none */
    struct lines lines;
    struct lines_tail *tail; /* NULL: stdout */
    const char *prefix;
    struct watch *watch; /* NULL: closed */
};

struct source { /* one worker */
    char prefix[96];
    struct lines_tail tail;
    struct stream out, err;
};

struct logmux {
    uv_loop_t *loop;
    struct logmux_options o;
    struct sink sinks[2];    /* stdout, stderr */
    struct sink *console[2]; /* both the first where they are one file: lines must not cut into each other */
    char *round_dir;
    bool paused;
    int n;
    struct source *sources; /* o.max_workers */
    char scratch[64 << 10];
};

static struct stream *stream_of(struct logmux *m, int i)
{
    struct source *s = &m->sources[i / 2];
    return i % 2 ? &s->err : &s->out;
}

/* Read from the workers unless a console is behind. */
static void set_paused(struct logmux *m, bool paused)
{
    if (m->paused == paused)
        return;
    m->paused = paused;
    for (int i = 0; i < 2 * m->n; i++) {
        struct stream *s = stream_of(m, i);
        if (s->watch)
            watch_set(s->watch, !paused);
    }
}

static void on_drained(void *arg)
{
    struct logmux *m = arg;
    if (m->paused && !sink_full(m->console[0]) && !sink_full(m->console[1]))
        set_paused(m, false);
}

int logmux_create(struct logmux **ret, uv_loop_t *loop, const struct logmux_options *o, struct err *e)
{
    struct logmux *m = calloc(1, sizeof *m);
    if (!m || !(m->sources = calloc((size_t)o->max_workers, sizeof *m->sources))) {
        free(m);
        return err_errno(e, ENOMEM, "output of %d workers", o->max_workers);
    }
    m->loop = loop;
    m->o = *o;
    struct stat a, b;
    bool same =
        fstat(STDOUT_FILENO, &a) == 0 && fstat(STDERR_FILENO, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    sink_open(&m->sinks[0], loop, STDOUT_FILENO, on_drained, m);
    m->console[0] = m->console[1] = &m->sinks[0];
    if (!same) {
        sink_open(&m->sinks[1], loop, STDERR_FILENO, on_drained, m);
        m->console[1] = &m->sinks[1];
    }
    *ret = m;
    return 0;
}

int logmux_begin_round(struct logmux *m, uint64_t round, struct err *e)
{
    assert(m->n == 0);
    if (!m->o.dir)
        return 0;
    free(m->round_dir);
    m->round_dir = NULL;
    if (asprintf(&m->round_dir, "%s/round-%llu", m->o.dir, (unsigned long long)round) < 0)
        return err_errno(e, ENOMEM, "log folder");
    return path_make_dirs(m->round_dir, e);
}

static int open_file(struct logmux *m, int rank, const char *suffix, int *ret, struct err *e)
{
    char path[4096];
    *ret = -1;
    if (!m->round_dir)
        return 0;
    snprintf(path, sizeof path, "%s/rank-%d.%s", m->round_dir, rank, suffix);
    *ret = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return *ret < 0 ? err_set(e, ERR_OUTPUT, "cannot write the log file %s: %s", path, strerror(errno)) : 0;
}

static void on_line(void *ctx, const char *line, size_t n)
{
    struct stream *s = ctx;
    if (s->tail)
        lines_tail_add(s->tail, line, n);
    sink_add(s->sink, s->prefix, strlen(s->prefix));
    sink_add(s->sink, line, n);
    sink_add(s->sink, "\n", 1);
}

static void write_file(struct stream *s, const char *data, size_t n)
{
    while (s->file >= 0 && n > 0) {
        ssize_t w = write(s->file, data, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0) { /* a full disk must not end training */
            logmux_say(s->mux, "a log file of %scannot be written (%s); only the console shows its output now",
                       s->prefix, strerror(errno));
            close(s->file);
            s->file = -1;
            return;
        }
        data += w;
        n -= (size_t)w;
    }
}

static void stream_close(struct stream *s)
{
    watch_close(s->watch);
    s->watch = NULL;
    if (s->fd >= 0)
        close(s->fd);
    if (s->file >= 0)
        close(s->file);
    s->fd = s->file = -1;
}

/* One read. Returns false when there is nothing more now, or ever. */
static bool stream_read(struct stream *s)
{
    struct logmux *m = s->mux;
    ssize_t n = read(s->fd, m->scratch, sizeof m->scratch);
    if (n < 0)
        return errno == EINTR;
    if (n > 0) {
        write_file(s, m->scratch, (size_t)n);
        lines_feed(&s->lines, m->scratch, (size_t)n, on_line, s);
        return true;
    }
    watch_close(s->watch); /* end-of-file would be readable for ever */
    s->watch = NULL;
    return false;
}

static void on_readable(void *arg)
{
    struct stream *s = arg;
    stream_read(s);
    sink_kick(s->sink);
    if (sink_full(s->sink))
        set_paused(s->mux, true);
}

static int stream_open(struct stream *s, struct logmux *m, int rank, bool is_err, int *ret_fd, struct err *e)
{
    int ends[2];
    s->mux = m;
    s->sink = m->console[is_err];
    lines_init(&s->lines);
    TRY(open_file(m, rank, is_err ? "err" : "out", &s->file, e));
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_errno(e, errno, "cannot make a pipe for rank %d", rank);
    s->fd = ends[0]; /* the watch makes it non-blocking; the worker's end has flags of its own */
    int rc = watch_open(&s->watch, m->loop, s->fd, UV_READABLE, on_readable, s, e);
    if (rc < 0) {
        close(ends[1]);
        return rc;
    }
    watch_set(s->watch, !m->paused);
    *ret_fd = ends[1];
    return 0;
}

int logmux_add(struct logmux *m, int local, int rank, int ret_fds[2], struct err *e)
{
    struct source *s = &m->sources[local];
    assert(local == m->n && local < m->o.max_workers);
    lines_tail_free(&s->tail);
    memset(s, 0, sizeof *s);
    s->out.fd = s->out.file = s->err.fd = s->err.file = -1;
    if (m->o.prefix)
        snprintf(s->prefix, sizeof s->prefix, "[%s%d]: ", m->o.role, local);
    s->out.prefix = s->err.prefix = s->prefix;
    s->err.tail = &s->tail;
    m->n++;
    TRY(stream_open(&s->out, m, rank, false, &ret_fds[0], e));
    int rc = stream_open(&s->err, m, rank, true, &ret_fds[1], e);
    if (rc < 0)
        close(ret_fds[0]);
    return rc;
}

void logmux_end_round(struct logmux *m)
{
    for (int i = 0; i < 2 * m->n; i++) {
        struct stream *s = stream_of(m, i);
        /* Bounded: a descriptor handed to a process outside the tree could be written for ever. A pipe holds 1 MiB at most. */
        for (int reads = 0; s->watch && reads < LAST_READS && stream_read(s); reads++)
            sink_kick(s->sink);
        lines_finish(&s->lines, on_line, s);
        stream_close(s);
    }
    m->n = 0;
    sink_kick(m->console[0]);
    sink_kick(m->console[1]);
}

const struct lines_tail *logmux_tail(const struct logmux *m, int local)
{
    return &m->sources[local].tail;
}

void logmux_say_bytes(struct logmux *m, const char *text, size_t n)
{
    sink_add(m->console[1], text, n);
    sink_kick(m->console[1]);
}

void logmux_say_text(struct logmux *m, const char *text)
{
    logmux_say_bytes(m, text, strlen(text));
}

void logmux_say(struct logmux *m, const char *fmt, ...)
{
    char text[1024] = "crun: ";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + 6, sizeof text - 7, fmt, ap);
    va_end(ap);
    strcat(text, "\n");
    logmux_say_text(m, text);
}

void logmux_flush(struct logmux *m, int64_t timeout_ms, const int stop_fds[2])
{
    const int64_t deadline = clock_deadline(timeout_ms);
    for (int i = 0; i < 2; i++) {
        struct sink *s = m->console[i];
        sink_flush(s, deadline, stop_fds);
        if (s->dropped > 0 && s->error != EPIPE && s == &m->sinks[i]) /* `crun ... | head` is no news */
            console_try("crun: %llu bytes for %s were lost: %s\n", (unsigned long long)s->dropped,
                        i == 0 ? "stdout" : "stderr", strerror(s->error));
    }
}

void logmux_destroy(struct logmux *m)
{
    if (!m)
        return;
    sink_close(&m->sinks[0]);
    if (m->console[1] == &m->sinks[1])
        sink_close(&m->sinks[1]);
    for (int i = 0; i < m->o.max_workers; i++)
        lines_tail_free(&m->sources[i].tail);
    free(m->sources);
    free(m->round_dir);
    free(m);
}
