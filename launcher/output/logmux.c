#include "launcher/output/logmux.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/base/pty.h"
#include "launcher/base/watch.h"
#include "launcher/output/log_conf.h"
#include "launcher/output/own_texts.h"

#define TEXT_BYTES (16u << 10) /* of one message */
#define UNHEARD_MS 3000        /* at the end: longer than that a process that lives does not look away */
#define STOPPED_MS 3000        /* likewise, for what it has to say after a stop signal */
#define WORKERS_IN_A_MESSAGE (OUTPUT_FDS_MAX / 2)

/* One that is not known to be read to its end. */
struct sent_round {
    struct sent_round *next;
    uint64_t id;
    struct output_round what;
    int n; /* workers */
    bool is_handed_over, is_ended;
    int fds[]; /* read ends: stdout and stderr of each */
};

struct asked {
    bool is_asked;
    char *path; /* of the error record, NULL: none */
    struct logmux_words words;
};

struct logmux {
    uv_loop_t *loop;
    struct logmux_options o;
    struct output_out out;
    struct watch *watch;
    int64_t pid;     /* of the process that knows everything, 0: none */
    bool is_cut_off; /* there will be none */
    bool flushes, drops, is_heard, is_flushed;
    struct sent_round *first, *last;
    uint64_t rounds;                                     /* begun so far */
    void (*opened)(void *arg, int rc, const char *text); /* NULL: nobody waits */
    void *opened_arg;
    bool root_is_open;
    struct err root_error;
    struct own_texts *texts;
    int waits_for;       /* answers */
    int writes;          /* of them: files */
    struct asked *asked; /* max_workers */
    struct output_message message;
};

static void say(struct logmux *m, enum output_word word, uint64_t round, int64_t number, const void *body, size_t n)
{
    const struct output_head head = {.word = word, .number = number, .round = round, .pid = m->pid};
    if (m->pid)
        output_send(&m->out, &head, body, n, NULL, 0);
}

/* --- crun's own words */

static void send_text(void *arg, uint64_t number, const char *bytes, size_t n)
{
    say(arg, OUTPUT_PRINT, 0, (int64_t)number, bytes, n);
}

/* Long ones in parts of whole lines. */
void logmux_print_bytes(struct logmux *m, const char *text, size_t n)
{
    while (n > 0) {
        const char *end = n > TEXT_BYTES ? memrchr(text, '\n', TEXT_BYTES) : NULL;
        const size_t part = end ? (size_t)(end + 1 - text) : n < TEXT_BYTES ? n : TEXT_BYTES;
        own_texts_add(m->texts, text, part);
        text += part;
        n -= part;
    }
}

void logmux_print_text(struct logmux *m, const char *text)
{
    logmux_print_bytes(m, text, strlen(text));
}

void logmux_print(struct logmux *m, const char *fmt, ...)
{
    char text[1024] = "crun: ";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + 6, sizeof text - 7, fmt, ap);
    va_end(ap);
    strcat(text, "\n");
    logmux_print_text(m, text);
}

/* --- rounds */

static void send_round(struct logmux *m, const struct sent_round *r)
{
    say(m, OUTPUT_ROUND, r->id, 0, &r->what, sizeof r->what);
}

static void send_streams(struct logmux *m, const struct sent_round *r)
{
    for (int i = 0; i < r->n && m->pid; i += WORKERS_IN_A_MESSAGE) {
        const int n = r->n - i < WORKERS_IN_A_MESSAGE ? r->n - i : WORKERS_IN_A_MESSAGE;
        const struct output_head head = {.word = OUTPUT_STREAMS, .n = n, .number = i, .round = r->id};
        output_send(&m->out, &head, NULL, 0, &r->fds[(ptrdiff_t)2 * i], 2 * n);
    }
    if (r->what.layout.root[0])
        say(m, OUTPUT_OPEN, r->id, 0, NULL, 0);
}

static void close_pipes(struct sent_round *r)
{
    for (int i = 0; i < 2 * r->n; i++)
        close(r->fds[i]);
    r->n = 0;
}

static void drop_first_round(struct logmux *m)
{
    struct sent_round *r = m->first;
    m->first = r->next;
    if (!m->first)
        m->last = NULL;
    close_pipes(r);
    free(r);
}

static void forget_words(struct logmux *m)
{
    for (int i = 0; i < m->o.max_workers; i++) {
        free(m->asked[i].path);
        lines_tail_free(&m->asked[i].words.tail);
        m->asked[i] = (struct asked){.is_asked = false};
    }
    m->waits_for = m->writes;
}

void logmux_begin_round(struct logmux *m, const struct logmux_round *round)
{
    struct sent_round *r = calloc(1, sizeof *r + 2 * (size_t)m->o.max_workers * sizeof *r->fds);
    forget_words(m);
    if (!r) /* logmux_add() says so */
        return;
    if (m->o.layout->root[0])
        log_layout_name_round(m->o.layout, round->round, round->restarts);
    r->id = ++m->rounds;
    r->what = (struct output_round){.names = *round, .layout = *m->o.layout};
    if (m->last)
        m->last->next = r;
    else
        m->first = r;
    m->last = r;
    send_round(m, r);
}

static struct sent_round *current(const struct logmux *m)
{
    return m->last && m->last->id == m->rounds && !m->last->is_ended ? m->last : NULL;
}

/* A terminal for both streams; what stands for stderr is at its end. */
static int add_pty(struct sent_round *r, int local, int ret_fds[2], struct err *e)
{
    int none[2];
    TRY(pty_open(&r->fds[(ptrdiff_t)2 * local], &ret_fds[0], e));
    ret_fds[1] = fcntl(ret_fds[0], F_DUPFD_CLOEXEC, 3);
    if (ret_fds[1] < 0 || pipe2(none, O_CLOEXEC) < 0) {
        const int why = errno;
        close(r->fds[(ptrdiff_t)2 * local]);
        close(ret_fds[0]);
        if (ret_fds[1] >= 0)
            close(ret_fds[1]);
        ret_fds[0] = ret_fds[1] = -1;
        return err_errno(e, why, "cannot make a terminal for local rank %d", local);
    }
    close(none[1]);
    r->fds[(ptrdiff_t)2 * local + 1] = none[0];
    r->n = local + 1;
    return 0;
}

int logmux_pty(const struct logmux *m, int local)
{
    const struct sent_round *r = current(m);
    return r && local < r->n ? fcntl(r->fds[(ptrdiff_t)2 * local], F_DUPFD_CLOEXEC, 3) : -1;
}

int logmux_add(struct logmux *m, int local, int ret_fds[2], struct err *e)
{
    struct sent_round *r = current(m);
    int out[2], error[2];
    if (!r)
        return err_errno(e, ENOMEM, "output of the workers");
    assert(local == r->n && local < m->o.max_workers);
    if (log_conf_has_pty(m->o.conf, r->what.names.rank_base + local))
        return add_pty(r, local, ret_fds, e);
    if (pipe2(out, O_CLOEXEC) < 0)
        return err_errno(e, errno, "cannot make a pipe for local rank %d", local);
    if (pipe2(error, O_CLOEXEC) < 0) {
        const int why = errno;
        close(out[0]);
        close(out[1]);
        return err_errno(e, why, "cannot make a pipe for local rank %d", local);
    }
    r->fds[(ptrdiff_t)2 * local] = out[0];
    r->fds[(ptrdiff_t)2 * local + 1] = error[0];
    r->n = local + 1;
    ret_fds[0] = out[1];
    ret_fds[1] = error[1];
    return 0;
}

bool logmux_open_files(struct logmux *m, void (*opened)(void *arg, int rc, const char *text), void *arg)
{
    struct sent_round *r = current(m);
    r->is_handed_over = true;
    send_streams(m, r);
    m->opened = m->o.layout->root[0] ? opened : NULL;
    m->opened_arg = arg;
    return m->opened;
}

void logmux_note_launch(struct logmux *m)
{
    atomic_store(&m->o.page->launched, m->rounds);
}

static void send_end(struct logmux *m, const struct sent_round *r)
{
    say(m, OUTPUT_END, r->id, 0, NULL, 0);
}

void logmux_end_round(struct logmux *m)
{
    struct sent_round *r = current(m);
    m->opened = NULL;
    if (!r)
        return;
    if (!r->is_handed_over) /* it never came to workers; their pipes hold nothing */
        close_pipes(r);
    r->is_ended = true;
    send_end(m, r);
}

static void on_round_ended(struct logmux *m, uint64_t id)
{
    while (m->first && m->first->id <= id && m->first->is_ended)
        drop_first_round(m);
}

static void on_opened(struct logmux *m, const struct output_message *a)
{
    void (*opened)(void *arg, int rc, const char *text) = m->opened;
    if (a->head.round == 0) {
        m->root_is_open = true;
        if (a->head.number < 0)
            err_set(&m->root_error, (int)a->head.number, "%s", a->body);
    } else if (opened && a->head.round == m->rounds) {
        m->opened = NULL;
        opened(m->opened_arg, (int)a->head.number, a->body);
    }
}

/* --- last words */

static void send_question(struct logmux *m, int local)
{
    const char *path = m->asked[local].path;
    say(m, OUTPUT_TELL, m->rounds, local, path, path ? strlen(path) : 0);
}

void logmux_ask(struct logmux *m, int local, const char *record)
{
    struct asked *a = &m->asked[local];
    if (a->is_asked)
        return;
    a->is_asked = true;
    a->path = record ? strdup(record) : NULL;
    m->waits_for += 2;
    send_question(m, local);
}

static struct asked *asked_of(struct logmux *m, const struct output_head *h)
{
    if (h->round != m->rounds || h->number < 0 || h->number >= m->o.max_workers)
        return NULL;
    return m->asked[h->number].is_asked ? &m->asked[h->number] : NULL;
}

static void on_tail(struct logmux *m, const struct output_message *a)
{
    struct asked *q = asked_of(m, &a->head);
    if (!q || q->words.has_tail)
        return;
    lines_tail_set(&q->words.tail, a->body, a->n);
    q->words.has_tail = true;
    m->waits_for--;
}

static void on_record(struct logmux *m, const struct output_message *a)
{
    struct asked *q = asked_of(m, &a->head);
    if (!q || q->words.has_record)
        return;
    q->words.has_record = true;
    q->words.found_record = a->head.n == 1 && a->n == sizeof q->words.record;
    if (q->words.found_record)
        memcpy(&q->words.record, a->body, sizeof q->words.record);
    m->waits_for--;
}

void logmux_write_file(struct logmux *m, const char *path, const char *text, size_t n)
{
    const size_t named = strlen(path) + 1, most = OUTPUT_BODY_MAX - named;
    struct output_head head = {.word = OUTPUT_WRITE};
    struct buf body;
    buf_init(&body, OUTPUT_BODY_MAX);
    for (size_t at = 0; !head.n && m->pid && named < OUTPUT_BODY_MAX; at += most) {
        const size_t part = n - at < most ? n - at : most;
        head.n = at + part == n;
        buf_clear(&body);
        if (buf_add(&body, path, named) == 0 && buf_add(&body, text + at, part) == 0)
            output_send(&m->out, &head, body.data, body.len, NULL, 0);
    }
    m->waits_for += head.n;
    m->writes += head.n;
    buf_free(&body);
}

static void on_wrote(struct logmux *m, const struct output_message *a)
{
    if (a->n > 0)
        logmux_print(m, "%s", a->body);
    m->waits_for -= m->writes > 0;
    m->writes -= m->writes > 0;
}

const struct logmux_words *logmux_words(const struct logmux *m, int local)
{
    return m->asked[local].is_asked ? &m->asked[local].words : NULL;
}

bool logmux_has_answers(const struct logmux *m)
{
    return m->waits_for == 0 || m->is_cut_off;
}

/* --- the process */

static void print_taken_over(struct logmux *m, int64_t pid)
{
    const uint64_t waiting = atomic_exchange(&m->o.page->waiting, 0);
    logmux_print(
        m,
        "the output process (pid %lld) is gone; another took over (pid %lld); lost are %llu bytes of the workers' output that were on their way, or fewer",
        (long long)m->pid, (long long)pid, (unsigned long long)waiting);
}

static int send_setup(struct logmux *m)
{
    const struct output_setup setup = {.conf = *m->o.conf,
                                       .layout = *m->o.layout,
                                       .max_workers = m->o.max_workers,
                                       .makes_root = m->o.layout->torchrun && m->o.layout->root[0] && !m->root_is_open,
                                       .role = m->o.role,
                                       .host = m->o.host,
                                       .run_id = m->o.run_id};
    struct buf body;
    buf_init(&body, OUTPUT_BODY_MAX);
    const int rc = output_setup_pack(&setup, &body);
    say(m, OUTPUT_SETUP, 0, 0, body.data, body.len);
    buf_free(&body);
    return rc;
}

/* It knows nothing: tell it all. */
static void on_hello(struct logmux *m, int64_t pid)
{
    const bool is_first = m->pid == 0;
    output_out_forget(&m->out);
    m->waits_for -= m->writes; /* what it was to write is gone with it */
    m->writes = 0;
    if (!is_first)
        print_taken_over(m, pid);
    m->pid = pid;
    send_setup(m);
    for (struct sent_round *r = m->first; r; r = r->next) {
        send_round(m, r);
        if (r->is_handed_over)
            send_streams(m, r);
        if (r == m->last)
            for (int i = 0; i < m->o.max_workers && m->waits_for > 0; i++)
                if (m->asked[i].is_asked && !(m->asked[i].words.has_tail && m->asked[i].words.has_record))
                    send_question(m, i);
        if (r->is_ended)
            send_end(m, r);
    }
    own_texts_send_again(m->texts);
    if (m->flushes)
        say(m, OUTPUT_FLUSH, 0, 0, NULL, 0);
    if (m->drops)
        say(m, OUTPUT_DROP, 0, 0, NULL, 0);
}

/* The guardian cannot start one. Workers that write are ended by SIGPIPE: that is better than to wait for ever. */
static void on_cut_off(struct logmux *m)
{
    watch_close(m->watch);
    m->watch = NULL;
    m->pid = 0;
    m->is_cut_off = m->is_flushed = true;
    output_out_forget(&m->out);
    while (m->first)
        drop_first_round(m);
    own_texts_go_round(m->texts, true);
}

static void on_message(struct logmux *m)
{
    const struct output_message *a = &m->message;
    if (a->head.word != OUTPUT_HELLO && a->head.pid != m->pid) /* of one that is gone */
        return;
    switch ((enum output_word)a->head.word) {
    case OUTPUT_HELLO:
        on_hello(m, a->head.pid);
        break;
    case OUTPUT_OPENED:
        on_opened(m, a);
        break;
    case OUTPUT_ENDED:
        on_round_ended(m, a->head.round);
        break;
    case OUTPUT_TAIL:
        on_tail(m, a);
        break;
    case OUTPUT_RECORD:
        on_record(m, a);
        break;
    case OUTPUT_WROTE:
        on_wrote(m, a);
        break;
    case OUTPUT_HEARD:
        m->is_heard = true;
        break;
    case OUTPUT_FLUSHED:
        m->is_flushed = true;
        break;
    default:
        break;
    }
}

static void on_readable(void *arg)
{
    struct logmux *m = arg;
    int rc;
    while ((rc = output_receive(m->o.fd, &m->message)) > 0) {
        on_message(m);
        output_drop_fds(&m->message);
    }
    if (rc < 0)
        on_cut_off(m);
}

/* Until done, the deadline, or one of stop_fds is readable. */
static bool wait_for(struct logmux *m, const bool *done, int64_t deadline, const int stop_fds[2])
{
    while (!*done && !m->is_cut_off) {
        struct pollfd p[3] = {{.fd = m->o.fd, .events = (short)(POLLIN | (m->out.first ? POLLOUT : 0))},
                              {.fd = stop_fds[0], .events = POLLIN},
                              {.fd = stop_fds[1], .events = POLLIN}};
        const int left = clock_left(deadline), n = poll(p, 3, left);
        if ((n > 0 && (p[1].revents || p[2].revents)) || (left == 0 && n == 0))
            return false;
        if (p[0].revents & POLLOUT)
            output_out_pump(&m->out);
        if (p[0].revents & (POLLIN | POLLHUP | POLLERR))
            on_readable(m);
    }
    return *done;
}

void logmux_figures(const struct logmux *m, struct logmux_figures *ret)
{
    const struct output_page *p = m->o.page;
    *ret = (struct logmux_figures){.bytes = {atomic_load(&p->bytes[0]), atomic_load(&p->bytes[1])},
                                   .lost = atomic_load(&p->lost),
                                   .left_out = atomic_load(&p->left_out),
                                   .dropped = atomic_load(&p->dropped)};
}

/* --- life */

static int wait_for_root(struct logmux *m, struct err *e)
{
    static const int nobody[2] = {-1, -1};
    wait_for(m, &m->root_is_open, clock_deadline(LOGMUX_OPEN_MS), nobody);
    if (m->root_error.code)
        return err_set(e, m->root_error.code, "%s", m->root_error.text);
    return 0;
}

int logmux_create(struct logmux **ret, uv_loop_t *loop, const struct logmux_options *o, struct err *e)
{
    struct logmux *m = calloc(1, sizeof *m);
    if (!m || !(m->asked = calloc((size_t)o->max_workers, sizeof *m->asked)) ||
        !(m->texts = own_texts_create(loop, o->page, send_text, m))) {
        free(m ? m->asked : NULL);
        free(m);
        return err_errno(e, ENOMEM, "output of %d workers", o->max_workers);
    }
    m->loop = loop;
    m->o = *o;
    *ret = m;
    TRY(output_out_open(&m->out, loop, o->fd, e));
    TRY(watch_open(&m->watch, loop, o->fd, UV_READABLE, on_readable, m, e));
    watch_set(m->watch, true);
    return o->layout->torchrun && o->layout->root[0] ? wait_for_root(m, e) : 0;
}

/* A process that does not listen is not waited for. */
void logmux_flush(struct logmux *m, int64_t timeout_ms, const int stop_fds[2])
{
    static const int nobody[2] = {-1, -1};
    const int64_t deadline = clock_deadline(timeout_ms);
    m->flushes = true;
    say(m, OUTPUT_FLUSH, 0, 0, NULL, 0);
    const bool is_heard = wait_for(m, &m->is_heard, clock_deadline(UNHEARD_MS), nobody);
    if (is_heard && !wait_for(m, &m->is_flushed, deadline, stop_fds)) {
        m->drops = true;
        say(m, OUTPUT_DROP, 0, 0, NULL, 0);
        wait_for(m, &m->is_flushed, clock_deadline(STOPPED_MS), nobody);
    }
    own_texts_go_round(m->texts, false);
}

void logmux_destroy(struct logmux *m)
{
    if (!m)
        return;
    while (m->first)
        drop_first_round(m);
    own_texts_destroy(m->texts);
    forget_words(m);
    watch_close(m->watch);
    output_out_close(&m->out);
    free(m->asked);
    free(m);
}
