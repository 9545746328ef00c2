#include "launcher/output/logmux.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/base/watch.h"
#include "launcher/guard/console.h"
#include "launcher/output/log_conf.h"
#include "launcher/output/log_console.h"
#include "launcher/output/log_layout.h"
#include "launcher/output/logfile.h"
#include "launcher/output/partial.h"
#include "launcher/output/sink.h"

#define LAST_READS 64

struct stream {
    struct logmux *mux;
    struct log_voice voice;
    bool shown;
    int fd; /* our end of the pipe, -1: none */
    struct logfile file;
    struct lines lines;
    struct partial partial;  /* of the line without an end, on the console */
    int64_t look_at;         /* by the loop's clock, -1: nothing of it waits */
    struct lines_tail *tail; /* NULL: stdout */
    struct watch *watch;     /* NULL: closed */
};

struct source { /* one worker */
    struct lines_tail tail;
    struct stream out, err;
};

struct logmux {
    uv_loop_t *loop;
    struct logmux_options o;
    struct log_console *console;
    struct logmux_round round;
    struct log_words words[2];  /* of the duplicate filters */
    struct logfile filtered[2]; /* stdout, stderr */
    uint64_t lost;              /* bytes that no log file took, in all */
    uint64_t read[2];           /* bytes, in all: stdout, stderr */
    bool paused;
    int n;
    struct source *sources; /* o.max_workers */
    uv_timer_t *timer;      /* lines without an end; in memory of its own: it closes later than we are freed */
    char scratch[64 << 10];
};

static struct stream *stream_of(struct logmux *m, int i)
{
    struct source *s = &m->sources[i / 2];
    return i % 2 ? &s->err : &s->out;
}

/* --- lines without an end */

static bool stream_read(struct stream *s);
static void set_paused(struct logmux *m, bool paused);

static void show_partial(struct stream *s)
{
    struct partial_text text;
    int64_t ms = -1;
    const int64_t now = (int64_t)uv_now(s->mux->loop);
    const struct buf *line = &s->lines.part;
    if (line->len > 0 && partial_check(&s->partial, line->data, line->len, now, &text, &ms))
        log_console_line(s->mux->console, &s->voice, text.text, text.n);
    s->look_at = ms < 0 ? -1 : now + ms;
}

/* What came meanwhile may be the end of the line. */
static void show_partial_if_due(struct stream *s)
{
    if (s->look_at < 0 || s->look_at > (int64_t)uv_now(s->mux->loop))
        return;
    if (!s->watch || !stream_read(s))
        show_partial(s);
}

static void arm(struct logmux *m);

static void on_timer(uv_timer_t *t)
{
    struct logmux *m = t->data;
    for (int i = 0; i < 2 * m->n; i++)
        show_partial_if_due(stream_of(m, i));
    log_console_kick(m->console);
    if (log_console_full(m->console))
        set_paused(m, true);
    arm(m);
}

/* Not while the console is behind: then nothing is read, and a line only seems to stand still. */
static void arm(struct logmux *m)
{
    int64_t next = -1;
    for (int i = 0; i < 2 * m->n && !m->paused; i++) {
        const struct stream *s = stream_of(m, i);
        if (s->look_at >= 0 && (next < 0 || s->look_at < next))
            next = s->look_at;
    }
    const int64_t now = (int64_t)uv_now(m->loop);
    if (next >= 0)
        uv_timer_start(m->timer, on_timer, next > now ? (uint64_t)(next - now) : 1, 0);
    else
        uv_timer_stop(m->timer);
}

static void grew(struct stream *s, size_t bytes)
{
    struct logmux *m = s->mux;
    s->look_at = -1;
    if (!s->shown || s->lines.part.len == 0)
        return;
    partial_grew(&s->partial, bytes, (int64_t)uv_now(m->loop));
    show_partial(s);
    if (s->look_at >= 0 && !m->paused && !uv_is_active((uv_handle_t *)m->timer))
        arm(m);
}

/* A second anew for each. */
static void wait_again(struct logmux *m)
{
    for (int i = 0; i < 2 * m->n; i++) {
        struct stream *s = stream_of(m, i);
        if (s->look_at >= 0)
            s->look_at = (int64_t)uv_now(m->loop) + PARTIAL_MS;
    }
    arm(m);
}

/* Read from the workers whose lines are shown, unless a console is behind. */
static void set_paused(struct logmux *m, bool paused)
{
    if (m->paused == paused)
        return;
    m->paused = paused;
    for (int i = 0; i < 2 * m->n; i++) {
        struct stream *s = stream_of(m, i);
        if (s->watch && s->shown)
            watch_set(s->watch, !paused);
    }
    wait_again(m);
}

static void on_drained(void *arg)
{
    struct logmux *m = arg;
    if (m->paused && !log_console_full(m->console))
        set_paused(m, false);
}

static struct log_voice *voice_of(void *arg, int local, bool is_err)
{
    struct logmux *m = arg;
    return local < m->n ? &stream_of(m, 2 * local + is_err)->voice : NULL;
}

int logmux_create(struct logmux **ret, uv_loop_t *loop, const struct logmux_options *o, struct err *e)
{
    struct logmux *m = calloc(1, sizeof *m);
    if (!m || !(m->sources = calloc((size_t)o->max_workers, sizeof *m->sources)) ||
        !(m->timer = calloc(1, sizeof *m->timer))) {
        free(m ? m->sources : NULL);
        free(m);
        return err_errno(e, ENOMEM, "output of %d workers", o->max_workers);
    }
    uv_timer_init(loop, m->timer);
    m->timer->data = m;
    m->loop = loop;
    m->o = *o;
    m->filtered[0].fd = m->filtered[1].fd = -1;
    const struct log_console_options console = {
        .conf = o->conf, .max_workers = o->max_workers, .voice = voice_of, .drained = on_drained, .arg = m};
    int rc = log_console_create(&m->console, loop, &console, e);
    if (rc == 0 && (log_words_split(o->conf->out_filters, &m->words[0]) < 0 ||
                    log_words_split(o->conf->err_filters, &m->words[1]) < 0))
        rc = err_errno(e, ENOMEM, "filters of output");
    if (rc < 0) {
        logmux_destroy(m);
        return rc;
    }
    *ret = m;
    return 0;
}

/* --- files */

static int open_file(struct logmux *m, struct logfile *f, const char *path, struct err *e)
{
    const struct log_conf *c = m->o.conf;
    const struct logfile_limits limits = {c->rotate_bytes, c->rotate_keep, c->max_bytes};
    return logfile_open(f, path, &limits, e);
}

static int open_filtered(struct logmux *m, struct err *e)
{
    char path[LOG_PATH_MAX];
    for (int i = 0; i < 2; i++)
        if (m->o.layout->root[0] && m->words[i].v[0])
            TRY(open_file(m, &m->filtered[i],
                          log_layout_filtered(m->o.layout, m->round.group_rank, i ? LOG_FILE_ERR : LOG_FILE_OUT, path),
                          e));
    return 0;
}

int logmux_begin_round(struct logmux *m, const struct logmux_round *round, struct err *e)
{
    assert(m->n == 0);
    m->round = *round;
    log_console_begin_round(m->console, round->rank_base);
    TRY(log_layout_begin_round(m->o.layout, round->round, round->restarts, e));
    return open_filtered(m, e);
}

/* A full disk must not end training. */
static void write_file(struct logmux *m, struct logfile *f, const char *data, size_t n)
{
    const int rc = logfile_write(f, data, n);
    if (rc < 0)
        logmux_print(m, "the log file %s is incomplete from here on: %s", f->path, strerror(-rc));
}

static void close_file(struct logmux *m, struct logfile *f)
{
    logfile_close(f);
    m->lost += f->lost;
    f->lost = 0;
}

/* --- reading */

static void duplicate(struct stream *s, const char *line, size_t n)
{
    struct logmux *m = s->mux;
    struct logfile *f = &m->filtered[s->voice.is_err];
    if (!f->path || !log_words_match(&m->words[s->voice.is_err], line, n))
        return;
    const struct buf *prefix = log_console_prefix(m->console, &s->voice);
    write_file(m, f, prefix->data, prefix->len);
    write_file(m, f, line, n);
    write_file(m, f, "\n", 1);
}

static void on_line(void *ctx, const char *line, size_t n)
{
    struct stream *s = ctx;
    struct partial_text text = partial_last(line, n);
    if (s->tail)
        lines_tail_add(s->tail, text.text, text.n);
    duplicate(s, line, n);
    if (s->shown && partial_end(&s->partial, line, n, &text))
        log_console_line(s->mux->console, &s->voice, text.text, text.n);
}

static void stream_close(struct stream *s)
{
    watch_close(s->watch);
    s->watch = NULL;
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    close_file(s->mux, &s->file);
    log_voice_close(&s->voice);
}

/* One read. Returns false when there is nothing more now, or ever. */
static bool stream_read(struct stream *s)
{
    struct logmux *m = s->mux;
    ssize_t n = read(s->fd, m->scratch, sizeof m->scratch);
    if (n < 0)
        return errno == EINTR;
    if (n > 0) {
        m->read[s->voice.is_err] += (uint64_t)n;
        write_file(m, &s->file, m->scratch, (size_t)n);
        if (s->shown || s->tail || m->filtered[0].path)
            lines_feed(&s->lines, m->scratch, (size_t)n, on_line, s);
        grew(s, (size_t)n);
        return true;
    }
    watch_close(s->watch); /* end-of-file would be readable for ever */
    s->watch = NULL;
    return false;
}

static void on_readable(void *arg)
{
    struct stream *s = arg;
    struct logmux *m = s->mux;
    stream_read(s);
    log_console_kick(m->console);
    if (log_console_full(m->console))
        set_paused(m, true);
}

/* --- workers */

static int open_routes(struct stream *s, int local, int rank, struct err *e)
{
    struct logmux *m = s->mux;
    char path[LOG_PATH_MAX];
    const bool is_err = s->voice.is_err;
    const struct log_routes routes = log_conf_routes(m->o.conf, local, rank);
    const int bit = is_err ? LOG_ERR : LOG_OUT;
    s->shown = routes.console & bit;
    if (routes.file & bit)
        TRY(open_file(m, &s->file,
                      log_layout_path(m->o.layout, local, rank, is_err ? LOG_FILE_ERR : LOG_FILE_OUT, path), e));
    s->voice.names = (struct log_prefix_values){.role_name = m->o.role,
                                                .host = m->o.host,
                                                .stream = is_err ? "stderr" : "stdout",
                                                .run_id = m->o.run_id,
                                                .time = "",
                                                .local_rank = local,
                                                .rank = rank,
                                                .rank_in_role = m->round.role_base + local,
                                                .group_rank = m->round.group_rank,
                                                .round = m->round.round};
    return log_voice_open(m->console, &s->voice, s->shown, e);
}

static int stream_open(struct stream *s, int local, int rank, int *ret_fd, struct err *e)
{
    struct logmux *m = s->mux;
    int ends[2];
    TRY(open_routes(s, local, rank, e));
    if (pipe2(ends, O_CLOEXEC) < 0)
        return err_errno(e, errno, "cannot make a pipe for rank %d", rank);
    s->fd = ends[0]; /* the watch makes it non-blocking; the worker's end has flags of its own */
    int rc = watch_open(&s->watch, m->loop, s->fd, UV_READABLE, on_readable, s, e);
    if (rc < 0) {
        close(ends[1]);
        return rc;
    }
    watch_set(s->watch, !s->shown || !m->paused);
    *ret_fd = ends[1];
    return 0;
}

static void stream_init(struct stream *s, struct logmux *m, struct lines_tail *tail)
{
    memset(s, 0, sizeof *s);
    s->mux = m;
    s->fd = s->file.fd = -1;
    s->voice.is_err = tail;
    s->tail = tail;
    s->look_at = -1;
    lines_init(&s->lines);
    partial_init(&s->partial);
}

int logmux_add(struct logmux *m, int local, int rank, int ret_fds[2], struct err *e)
{
    struct source *s = &m->sources[local];
    assert(local == m->n && local < m->o.max_workers);
    lines_tail_free(&s->tail);
    stream_init(&s->out, m, NULL);
    stream_init(&s->err, m, &s->tail);
    m->n++;
    TRY(log_layout_begin_worker(m->o.layout, local, e));
    TRY(stream_open(&s->out, local, rank, &ret_fds[0], e));
    int rc = stream_open(&s->err, local, rank, &ret_fds[1], e);
    if (rc < 0)
        close(ret_fds[0]);
    return rc;
}

void logmux_end_round(struct logmux *m)
{
    for (int i = 0; i < 2 * m->n; i++) {
        struct stream *s = stream_of(m, i);
        /* Bounded: a descriptor handed to a process outside the tree could be written for ever. A pipe holds 1 MiB at
         * most. */
        for (int reads = 0; s->watch && reads < LAST_READS && stream_read(s); reads++)
            log_console_kick(m->console);
        lines_finish(&s->lines, on_line, s);
    }
    log_console_end_round(m->console);
    for (int i = 0; i < 2 * m->n; i++)
        stream_close(stream_of(m, i));
    for (int i = 0; i < 2; i++)
        close_file(m, &m->filtered[i]);
    uv_timer_stop(m->timer);
    m->n = 0;
}

const struct lines_tail *logmux_tail(const struct logmux *m, int local)
{
    return &m->sources[local].tail;
}

void logmux_figures(const struct logmux *m, struct logmux_figures *ret)
{
    *ret = (struct logmux_figures){.bytes = {m->read[0], m->read[1]},
                                   .lost = m->lost + m->filtered[0].lost + m->filtered[1].lost,
                                   .left_out = log_console_left_out(m->console)};
    for (int i = 0; i < m->n; i++)
        ret->lost += m->sources[i].out.file.lost + m->sources[i].err.file.lost;
    for (int i = 0; i < 2; i++) {
        const struct sink *s = log_console_sink(m->console, i);
        ret->dropped += s ? s->dropped : 0;
    }
}

/* --- crun's own words */

void logmux_print_bytes(struct logmux *m, const char *text, size_t n)
{
    log_console_print(m->console, text, n);
}

void logmux_print_text(struct logmux *m, const char *text)
{
    logmux_print_bytes(m, text, strlen(text));
}

void logmux_print(struct logmux *m, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_console_vprint(m->console, fmt, ap);
    va_end(ap);
}

void logmux_flush(struct logmux *m, int64_t timeout_ms, const int stop_fds[2])
{
    const int64_t deadline = clock_deadline(timeout_ms);
    if (m->lost > 0)
        logmux_print(m, "%llu bytes of the workers' output are missing in the log files", (unsigned long long)m->lost);
    for (int i = 0; i < 2; i++) {
        struct sink *s = log_console_sink(m->console, i);
        if (!s)
            continue;
        sink_flush(s, deadline, stop_fds);
        if (s->dropped > 0 && s->error != EPIPE) /* `crun ... | head` is no news */
            console_try("crun: %llu bytes for %s were lost: %s\n", (unsigned long long)s->dropped,
                        i == 0 ? "stdout" : "stderr", strerror(s->error));
    }
}

static void on_timer_closed(uv_handle_t *h)
{
    free(h);
}

void logmux_destroy(struct logmux *m)
{
    if (!m)
        return;
    uv_close((uv_handle_t *)m->timer, on_timer_closed);
    log_console_destroy(m->console);
    for (int i = 0; i < m->o.max_workers; i++)
        lines_tail_free(&m->sources[i].tail);
    for (int i = 0; i < 2; i++)
        log_words_free(&m->words[i]);
    free(m->sources);
    free(m);
}
