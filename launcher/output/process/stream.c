/* One stream of a worker: from its pipe into lines, its file and the console. */
#include "launcher/output/process/streams_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "launcher/base/watch.h"
#include "launcher/output/log_conf.h"
#include "launcher/output/log_layout.h"
#include "launcher/output/process/queued_file.h"
#include "launcher/output/sink.h"

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

void stream_close(struct stream *s)
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

/* One read. Returns false when there is nothing more now, or ever. */
bool stream_read(struct stream *s)
{
    struct streams *m = s->all;
    ssize_t n = read(s->fd, m->scratch, sizeof m->scratch);
    if (n < 0 && errno != EIO) /* that is the end of a terminal */
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

/* Nobody's lines are to be kept apart, and a progress bar may move in place. */
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

int stream_open(struct stream *s, int local, int fd, struct err *e)
{
    struct streams *m = s->all;
    s->fd = fd; /* the watch makes it non-blocking; the worker's end has flags of its own */
    TRY(open_routes(s, local, e));
    TRY(watch_open(&s->watch, m->loop, s->fd, UV_READABLE, on_readable, s, e));
    stream_update_watch(s);
    return 0;
}

void stream_init(struct stream *s, struct streams *m, bool is_err, struct lines_tail *tail)
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

/* Bounded: a descriptor handed to a process outside the tree could be written for ever. A pipe holds 1 MiB at most. */
void stream_read_rest(struct stream *s)
{
    for (int reads = 0; s->watch && reads < LAST_READS && stream_read(s); reads++)
        log_console_kick(s->all->console);
}

void stream_finish(struct stream *s)
{
    stream_read_rest(s);
    lines_finish(&s->lines, on_line, s);
}
