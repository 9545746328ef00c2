/* The output of the workers: reads pipes, cuts lines, writes them to the console and to files (streams.h). */
#include "launcher/output/process/streams.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "common/base/err.h"
#include "launcher/base/watch.h"
#include "launcher/output/lines.h"
#include "launcher/output/log_conf.h"
#include "launcher/output/log_console.h"
#include "launcher/output/log_layout.h"
#include "launcher/output/output_wire.h"
#include "launcher/output/process/file_thread.h"
#include "launcher/output/process/partial.h"
#include "launcher/output/process/queued_file.h"
#include "launcher/output/process/round_files.h"
#include "launcher/output/sink.h"

struct stream {
    struct streams *all;
    struct log_voice voice;
    bool shown; /* on the console, by lines */
    bool live;  /* copied to our terminal byte by byte: from a worker's pty, or from a worker that is alone */
    bool held;  /* until its file has room */
    int fd;     /* our end of the pipe, -1: none */
    struct queued_file *file; /* NULL: none */
    struct lines lines;
    struct partial partial;  /* of the unfinished line, for the console */
    int64_t look_at;         /* when to look at the unfinished line, by the loop's clock; -1: none waits */
    struct lines_tail *tail; /* NULL: its lines are in no report */
    struct watch *watch;     /* NULL: closed */
};

struct source { /* one worker */
    struct lines_tail tail;
    struct stream out, err;
};

struct streams {
    uv_loop_t *loop;
    struct streams_options o;
    struct log_console *console;
    struct file_thread *files;
    int root_fd; /* of the log files; their thread's */
    uint64_t id; /* of the round, 0: none */
    struct output_round round;
    struct log_words words[2];       /* of the duplicate filters */
    struct queued_file *filtered[2]; /* stdout, stderr; NULL: none */
    struct {
        uint64_t lost, dropped, left_out;
    } before; /* what processes before this one counted */
    bool paused;
    int n;
    struct source *sources; /* o.max_workers */
    uv_timer_t timer;       /* lines without an end */
    uv_timer_t still;       /* streams that are held */
    char scratch[64 << 10];
};

static struct stream *streams_stream(struct streams *m, int i);
static struct queued_file *streams_create_file(struct streams *m, const char *path);
static void streams_note_figures(struct streams *m);
static bool stream_read(struct stream *s);
static void streams_pause(struct streams *m, bool paused);

/* --- lines without an end */

static void show_partial(struct stream *s)
{
    struct partial_text text;
    int64_t ms = -1;
    const int64_t now = (int64_t)uv_now(s->all->loop);
    const struct buf *line = &s->lines.part;
    if (line->len > 0 && partial_check(&s->partial, line->data, line->len, now, &text, &ms))
        log_console_line(s->all->console, &s->voice, text.text, text.n);
    s->look_at = ms < 0 ? -1 : now + ms;
}

/* Show an unfinished line if it is time; read first, as its end may have arrived. */
static void show_partial_if_due(struct stream *s)
{
    if (s->look_at < 0 || s->look_at > (int64_t)uv_now(s->all->loop))
        return;
    if (!s->watch || !stream_read(s))
        show_partial(s);
}

static void arm(struct streams *m);

static void on_timer(uv_timer_t *t)
{
    struct streams *m = t->data;
    for (int i = 0; i < 2 * m->n; i++)
        show_partial_if_due(streams_stream(m, i));
    log_console_kick(m->console);
    if (log_console_full(m->console))
        streams_pause(m, true);
    arm(m);
}

/* Set the timer for the next unfinished line. Not while the console is behind: nothing is read then, and lines only
 * seem unfinished. */
static void arm(struct streams *m)
{
    int64_t next = -1;
    for (int i = 0; i < 2 * m->n && !m->paused; i++) {
        const struct stream *s = streams_stream(m, i);
        if (s->look_at >= 0 && (next < 0 || s->look_at < next))
            next = s->look_at;
    }
    const int64_t now = (int64_t)uv_now(m->loop);
    if (next >= 0)
        uv_timer_start(&m->timer, on_timer, next > now ? (uint64_t)(next - now) : 1, 0);
    else
        uv_timer_stop(&m->timer);
}

/* so much was read */
static void stream_grew(struct stream *s, size_t bytes)
{
    struct streams *m = s->all;
    s->look_at = -1;
    if (!s->shown || s->lines.part.len == 0)
        return;
    partial_grew(&s->partial, bytes, (int64_t)uv_now(m->loop));
    show_partial(s);
    if (s->look_at >= 0 && !m->paused && !uv_is_active((uv_handle_t *)&m->timer))
        arm(m);
}

/* A second anew for each. */
static void wait_again(struct streams *m)
{
    for (int i = 0; i < 2 * m->n; i++) {
        struct stream *s = streams_stream(m, i);
        if (s->look_at >= 0)
            s->look_at = (int64_t)uv_now(m->loop) + PARTIAL_MS;
    }
    arm(m);
}

static void stream_update_watch(struct stream *s)
{
    if (s->watch)
        watch_set(s->watch, !s->held && !((s->shown || s->live) && s->all->paused));
}

/* Stop or resume reading from workers whose output is shown; stopped while a console is behind. */
static void streams_pause(struct streams *m, bool paused)
{
    if (m->paused == paused)
        return;
    m->paused = paused;
    for (int i = 0; i < 2 * m->n; i++)
        stream_update_watch(streams_stream(m, i));
    wait_again(m);
}

/* it may be no longer */
static void streams_on_drained(void *arg)
{
    struct streams *m = arg;
    if (m->paused && !log_console_full(m->console))
        streams_pause(m, false);
    if (m->console)
        m->o.moved(m->o.arg);
}

/* --- files that are behind */

static bool is_behind(const struct stream *s)
{
    const struct queued_file *filtered = s->all->filtered[s->voice.is_err];
    return (s->file && queued_file_is_full(s->file)) || (filtered && queued_file_is_full(filtered));
}

static bool is_still(struct streams *m)
{
    return file_thread_still_ms(m->files) >= STREAMS_STILL_MS;
}

static void on_still(uv_timer_t *t);

static void stream_hold_if_behind(struct stream *s)
{
    struct streams *m = s->all;
    if (!is_behind(s) || is_still(m))
        return;
    s->held = true;
    stream_update_watch(s);
    if (!uv_is_active((uv_handle_t *)&m->still))
        uv_timer_start(&m->still, on_still, STREAMS_STILL_MS, 0);
}

/* Resume streams that were stopped for a slow file and need not be any more, or all of them. */
static void streams_release(struct streams *m, bool all)
{
    bool more = false;
    for (int i = 0; i < 2 * m->n; i++) {
        struct stream *s = streams_stream(m, i);
        if (s->held && (all || !is_behind(s))) {
            s->held = false;
            stream_update_watch(s);
        }
        more = more || s->held;
    }
    if (!more)
        uv_timer_stop(&m->still);
}

static void on_still(uv_timer_t *t)
{
    struct streams *m = t->data;
    uv_timer_start(&m->still, on_still, STREAMS_STILL_MS, 0);
    streams_release(m, is_still(m));
}

#define LAST_READS 64

static void duplicate(struct stream *s, const char *line, size_t n)
{
    struct streams *m = s->all;
    struct queued_file *f = m->filtered[s->voice.is_err];
    if (!f || !log_words_match(&m->words[s->voice.is_err], line, n))
        return;
    const struct buf *prefix = log_console_prefix(m->console, &s->voice);
    queued_file_write(f, prefix->data, prefix->len);
    queued_file_write(f, line, n);
    queued_file_write(f, "\n", 1);
}

static void on_line(void *ctx, const char *line, size_t n)
{
    struct stream *s = ctx;
    struct partial_text text = partial_last(line, n);
    if (s->tail)
        lines_tail_add(s->tail, text.text, text.n);
    duplicate(s, line, n);
    if (s->shown && partial_end(&s->partial, line, n, &text))
        log_console_line(s->all->console, &s->voice, text.text, text.n);
}

static void stream_close(struct stream *s)
{
    watch_close(s->watch);
    s->watch = NULL;
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    queued_file_close(s->file);
    s->file = NULL;
    log_voice_close(&s->voice);
}

/* Read once. Returns false when there is nothing more now, or for good. */
static bool stream_read(struct stream *s)
{
    struct streams *m = s->all;
    ssize_t n = read(s->fd, m->scratch, sizeof m->scratch);
    if (n < 0 && errno != EIO) /* EIO is the end of a terminal */
        return errno == EINTR;
    if (n > 0) {
        atomic_fetch_add(&m->o.page->bytes[s->voice.is_err], (uint64_t)n);
        if (s->file)
            queued_file_write(s->file, m->scratch, (size_t)n);
        if (s->live)
            log_console_as_it_comes(m->console, s->voice.is_err, m->scratch, (size_t)n);
        if (s->shown || s->tail || m->filtered[0])
            lines_feed(&s->lines, m->scratch, (size_t)n, on_line, s);
        stream_grew(s, (size_t)n);
        return true;
    }
    watch_close(s->watch); /* end-of-file would be readable for ever */
    s->watch = NULL;
    return false;
}

static void on_readable(void *arg)
{
    struct stream *s = arg;
    struct streams *m = s->all;
    stream_read(s);
    stream_hold_if_behind(s);
    log_console_kick(m->console);
    if (log_console_full(m->console))
        streams_pause(m, true);
    streams_note_figures(m);
}

/* Is the output of one worker passed on byte by byte? Then no lines need to be kept apart, and a progress bar can
 * move in place. */
static bool is_alone(const struct streams *m)
{
    const struct log_conf *c = m->o.conf;
    return m->o.max_workers == 1 && !c->prefix && !log_conf_asks_for_lines(c);
}

static int open_routes(struct stream *s, int local, struct err *e)
{
    struct streams *m = s->all;
    const struct logmux_round *names = &m->round.names;
    char path[LOG_PATH_MAX];
    const bool is_err = s->voice.is_err;
    const int rank = names->rank_base + local;
    const struct log_routes routes = log_conf_routes(m->o.conf, local, rank);
    const int bit = is_err ? LOG_ERR : LOG_OUT;
    s->live = (routes.console & bit) && isatty(is_err ? STDERR_FILENO : STDOUT_FILENO) &&
              (is_alone(m) || (!is_err && log_conf_has_pty(m->o.conf, rank)));
    s->shown = (routes.console & bit) && !s->live;
    if (routes.file & bit)
        s->file = streams_create_file(
            m, log_layout_path(&m->round.layout, local, rank, is_err ? LOG_FILE_ERR : LOG_FILE_OUT, path));
    s->voice.names = (struct log_prefix_values){.role_name = m->o.role,
                                                .host = m->o.host,
                                                .stream = is_err ? "stderr" : "stdout",
                                                .run_id = m->o.run_id,
                                                .time = "",
                                                .local_rank = local,
                                                .rank = rank,
                                                .rank_in_role = names->role_base + local,
                                                .group_rank = names->group_rank,
                                                .round = names->round};
    return log_voice_open(m->console, &s->voice, e);
}

static int stream_open(struct stream *s, int local, int fd, struct err *e)
{
    struct streams *m = s->all;
    s->fd = fd; /* the watch makes our end non-blocking; the worker's end has flags of its own */
    TRY(open_routes(s, local, e));
    TRY(watch_open(&s->watch, m->loop, s->fd, UV_READABLE, on_readable, s, e));
    stream_update_watch(s);
    return 0;
}

/* Initialise. tail: keeps its last lines for the report; NULL: not needed. */
static void stream_init(struct stream *s, struct streams *m, bool is_err, struct lines_tail *tail)
{
    memset(s, 0, sizeof *s);
    s->all = m;
    s->fd = -1;
    s->voice.is_err = is_err;
    s->tail = tail;
    s->look_at = -1;
    lines_init(&s->lines);
    partial_init(&s->partial);
}

/* Read the rest, but not for ever: a process outside the tree that was given the descriptor could go on writing. A
 * pipe holds 1 MiB at most. */
static void stream_read_rest(struct stream *s)
{
    for (int reads = 0; s->watch && reads < LAST_READS && stream_read(s); reads++)
        log_console_kick(s->all->console);
}

/* Read the rest, and pass on a last line without a newline. */
static void stream_finish(struct stream *s)
{
    stream_read_rest(s);
    lines_finish(&s->lines, on_line, s);
}

/* Stream i of 2 * m->n: stdout and stderr of each worker in turn. */
static struct stream *streams_stream(struct streams *m, int i)
{
    struct source *s = &m->sources[i / 2];
    return i % 2 ? &s->err : &s->out;
}

/* Write the figures into the page, for readers of it and for a later output process. */
static void streams_note_figures(struct streams *m)
{
    uint64_t waiting = queued_files_waiting(m->files).bytes, dropped = m->before.dropped;
    for (int i = 0; i < 2; i++) {
        const struct sink *s = log_console_sink(m->console, i);
        waiting += s ? s->queue.len - s->written : 0;
        dropped += s ? s->dropped : 0;
    }
    atomic_store(&m->o.page->waiting, waiting);
    atomic_store(&m->o.page->dropped, dropped);
    atomic_store(&m->o.page->lost, m->before.lost + queued_files_lost(m->files));
    atomic_store(&m->o.page->left_out, m->before.left_out + log_console_left_out(m->console));
}

static void on_files_moved(void *arg)
{
    struct streams *m = arg;
    streams_release(m, false);
    streams_note_figures(m);
    m->o.moved(m->o.arg);
}

static void print_text(void *arg, const char *text)
{
    streams_print(arg, "%s", text);
}

static struct log_voice *voice_of(void *arg, int local, bool is_err)
{
    struct streams *m = arg;
    return local < m->n ? &streams_stream(m, 2 * local + is_err)->voice : NULL;
}

int streams_create(struct streams **ret, uv_loop_t *loop, const struct streams_options *o, struct err *e)
{
    struct streams *m = calloc(1, sizeof *m);
    if (m)
        m->root_fd = -1;
    if (!m || !(m->sources = calloc((size_t)o->max_workers, sizeof *m->sources)))
        return err_errno(e, ENOMEM, "output of %d workers", o->max_workers);
    uv_timer_init(loop, &m->timer);
    uv_timer_init(loop, &m->still);
    m->timer.data = m->still.data = m;
    m->loop = loop;
    m->o = *o;
    m->before.lost = atomic_load(&o->page->lost);
    m->before.dropped = atomic_load(&o->page->dropped);
    m->before.left_out = atomic_load(&o->page->left_out);
    const struct log_console_options console = {
        .conf = o->conf, .max_workers = o->max_workers, .voice = voice_of, .drained = streams_on_drained, .arg = m};
    TRY(log_console_create(&m->console, loop, &console, e));
    if (log_words_split(o->conf->out_filters, &m->words[0]) < 0 ||
        log_words_split(o->conf->err_filters, &m->words[1]) < 0)
        return err_errno(e, ENOMEM, "filters of output");
    *ret = m;
    const struct file_thread_options files = {.disk = "the disk of the log files",
                                              .meanwhile = "what workers write there waits in memory, 1 MiB of each "
                                                           "stream, and is dropped and counted beyond that",
                                              .print = print_text,
                                              .moved = on_files_moved,
                                              .arg = m};
    return file_thread_create(&m->files, loop, &files, e);
}

/* --- files */

static struct queued_file *streams_create_file(struct streams *m, const char *path)
{
    const struct log_conf *c = m->o.conf;
    const struct logfile_limits limits = {c->rotate_bytes, c->rotate_keep, c->max_bytes};
    return queued_file_create(m->files, path, log_layout_root_bytes(&m->round.layout), &limits);
}

static void create_filtered(struct streams *m)
{
    char path[LOG_PATH_MAX];
    for (int i = 0; i < 2; i++)
        if (m->round.layout.root[0] && m->words[i].v[0])
            m->filtered[i] = streams_create_file(m, log_layout_filtered(&m->round.layout, m->round.names.group_rank,
                                                                        i ? LOG_FILE_ERR : LOG_FILE_OUT, path));
}

static struct round_files round_files_of(struct streams *m, const struct log_layout *layout)
{
    return (struct round_files){.thread = m->files,
                                .page = m->o.page,
                                .layout = *layout,
                                .id = m->id,
                                .workers = m->n,
                                .rank_base = m->round.names.rank_base,
                                .root_fd = &m->root_fd,
                                .opened = m->o.opened,
                                .arg = m->o.arg};
}

void streams_make_root(struct streams *m, const struct log_layout *layout)
{
    const struct round_files root = round_files_of(m, layout);
    round_files_open(&root, NULL, 0);
}

void streams_open_files(struct streams *m)
{
    const struct round_files round = round_files_of(m, &m->round.layout);
    struct queued_file **files = calloc(2 * (size_t)m->n + 2, sizeof *files);
    int n = 0;
    const int rc = files ? 0 : ERR_OUTPUT;
    if (!files || !m->round.layout.root[0]) {
        free(files);
        m->o.opened(m->o.arg, m->id, rc, rc < 0 ? "no memory to open the log files" : "");
        return;
    }
    for (int i = 0; i < 2; i++)
        if (m->filtered[i])
            files[n++] = m->filtered[i];
    for (int i = 0; i < 2 * m->n; i++)
        if (streams_stream(m, i)->file)
            files[n++] = streams_stream(m, i)->file;
    round_files_open(&round, files, n);
    free(files);
}

void streams_begin_round(struct streams *m, uint64_t id, const struct output_round *round)
{
    assert(m->n == 0);
    m->id = id;
    m->round = *round;
    create_filtered(m);
}

/* --- workers */

int streams_add(struct streams *m, int local, const int fds[2], struct err *e)
{
    struct source *s = &m->sources[local];
    assert(local == m->n && local < m->o.max_workers);
    const bool has_pty =
        log_conf_has_pty(m->o.conf, m->round.names.rank_base + local); /* both streams are `out` then */
    lines_tail_free(&s->tail);
    stream_init(&s->out, m, false, has_pty ? &s->tail : NULL);
    stream_init(&s->err, m, true, has_pty ? NULL : &s->tail);
    m->n++;
    const int rc = stream_open(&s->out, local, fds[0], e), rc_err = stream_open(&s->err, local, fds[1], e);
    return rc < 0 ? rc : rc_err;
}

void streams_end_round(struct streams *m)
{
    for (int i = 0; i < 2 * m->n; i++) {
        struct stream *s = streams_stream(m, i);
        stream_finish(s);
    }
    log_console_end_round(m->console);
    for (int i = 0; i < 2 * m->n; i++)
        stream_close(streams_stream(m, i));
    for (int i = 0; i < 2; i++) {
        queued_file_close(m->filtered[i]);
        m->filtered[i] = NULL;
    }
    uv_timer_stop(&m->timer);
    uv_timer_stop(&m->still);
    m->n = 0;
    m->id = 0;
    streams_note_figures(m);
}

uint64_t streams_round(const struct streams *m)
{
    return m->id;
}

bool streams_at_end(const struct streams *m)
{
    for (int i = 0; i < m->n; i++)
        if (m->sources[i].out.watch || m->sources[i].err.watch)
            return false;
    return true;
}

size_t streams_copy_tail(struct streams *m, int local, char out[LINES_TAIL_BYTES])
{
    struct lines_tail tail = {0};
    char bytes[LINES_TAIL_BYTES];
    if (local < 0 || local >= m->n)
        return 0;
    struct source *w = &m->sources[local];
    struct stream *s = w->out.tail ? &w->out : &w->err;
    stream_read_rest(s);
    lines_tail_set(&tail, bytes, lines_tail_copy(&w->tail, bytes));
    if (s->lines.part.len > 0) { /* its end will not come */
        const struct partial_text last = partial_last(s->lines.part.data, s->lines.part.len);
        lines_tail_add(&tail, last.text, last.n);
    }
    const size_t n = lines_tail_copy(&tail, out);
    lines_tail_free(&tail);
    return n;
}

struct file_thread *streams_files(struct streams *m)
{
    return m->files;
}

int *streams_root_fd(struct streams *m)
{
    return &m->root_fd;
}

struct log_console *streams_console(struct streams *m)
{
    return m->console;
}

void streams_print(struct streams *m, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_console_vprint(m->console, fmt, ap);
    va_end(ap);
}
