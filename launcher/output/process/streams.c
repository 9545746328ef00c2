#include "launcher/output/process/streams_internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "launcher/output/log_conf.h"
#include "launcher/output/log_console.h"
#include "launcher/output/log_layout.h"
#include "launcher/output/process/file_thread.h"
#include "launcher/output/process/queued_file.h"
#include "launcher/output/process/round_files.h"
#include "launcher/output/sink.h"

struct stream *streams_stream(struct streams *m, int i)
{
    struct source *s = &m->sources[i / 2];
    return i % 2 ? &s->err : &s->out;
}

/* For whoever looks at the page, and for the process after this one. */
void streams_note_figures(struct streams *m)
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

struct queued_file *streams_create_file(struct streams *m, const char *path)
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
    if (s->lines.part.len > 0) { /* the end of it will not come */
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
