/* The agent's connection to the output process: set-up, crun's own texts, events, the end (logmux.h). */
#include "launcher/output/logmux_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "launcher/base/watch.h"
#include "launcher/output/event_lines.h"
#include "launcher/output/own_texts.h"

#define TEXT_BYTES (16u << 10) /* of one message */
#define UNHEARD_MS 3000        /* ms at the end: an output process that is alive answers sooner */
#define STOPPED_MS 3000        /* ms for its last output after a stop signal */

/* Replace the process; the next one gets everything again. */
static void replace_process(struct logmux *m)
{
    if (m->given_up == m->pid)
        return;
    m->given_up = m->pid;
    kill((pid_t)m->pid, SIGKILL);
    logmux_print(m, "no memory to keep a message for the output process (pid %lld): another has to take over",
                 (long long)m->pid);
}

void logmux_send(struct logmux *m, const struct output_head *head, const void *body, size_t n, const int *fds,
                 int n_fds)
{
    if (output_send(&m->out, head, body, n, fds, n_fds) < 0)
        replace_process(m);
}

void logmux_say(struct logmux *m, enum output_word word, uint64_t round, int64_t number, const void *body, size_t n)
{
    const struct output_head head = {.word = word, .number = number, .round = round, .pid = m->pid};
    if (m->pid)
        logmux_send(m, &head, body, n, NULL, 0);
}

/* --- crun's own words */

static void send_text(void *arg, uint64_t number, const char *bytes, size_t n)
{
    logmux_say(arg, OUTPUT_PRINT, 0, (int64_t)number, bytes, n);
}

/* Print a text; a long one in parts, each of whole lines. */
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

void logmux_add_event(struct logmux *m, const char *line, size_t n)
{
    if (m->lines)
        event_lines_add(m->lines, line, n);
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
                                       .run_id = m->o.run_id,
                                       .scratch = m->o.scratch,
                                       .event_log = m->o.event_log,
                                       .notice_file = m->o.notice_file};
    struct buf body;
    buf_init(&body, OUTPUT_BODY_MAX);
    const int rc = output_setup_pack(&setup, &body);
    logmux_say(m, OUTPUT_SETUP, 0, 0, body.data, body.len);
    buf_free(&body);
    return rc;
}

/* A new process is up: send it everything. */
static void on_hello(struct logmux *m, int64_t pid)
{
    const bool is_first = m->pid == 0;
    output_out_forget(&m->out);
    m->waits_for -= m->writes; /* the files that it was asked to write are lost with it */
    m->writes = 0;
    if (!is_first)
        print_taken_over(m, pid);
    m->pid = pid;
    send_setup(m);
    logmux_send_rounds(m);
    own_texts_send_again(m->texts);
    if (m->lines)
        event_lines_send_again(m->lines);
    if (m->flushes)
        logmux_say(m, OUTPUT_FLUSH, 0, 0, NULL, 0);
    if (m->drops)
        logmux_say(m, OUTPUT_DROP, 0, 0, NULL, 0);
}

/* The guardian cannot start an output process. SIGPIPE ends workers that write, which is better than waiting for
 * ever. */
static void on_cut_off(struct logmux *m)
{
    watch_close(m->watch);
    m->watch = NULL;
    m->pid = 0;
    m->is_cut_off = m->is_flushed = true;
    output_out_forget(&m->out);
    logmux_drop_rounds(m);
    own_texts_go_round(m->texts, true);
}

static void on_message(struct logmux *m)
{
    const struct output_message *a = &m->message;
    if (a->head.word != OUTPUT_HELLO && a->head.pid != m->pid) /* from a process that is gone */
        return;
    switch ((enum output_word)a->head.word) {
    case OUTPUT_HELLO:
        on_hello(m, a->head.pid);
        break;
    case OUTPUT_OPENED:
        logmux_on_opened(m, a);
        break;
    case OUTPUT_ENDED:
        logmux_on_ended(m, a->head.round);
        break;
    case OUTPUT_TAIL:
        logmux_on_tail(m, a);
        break;
    case OUTPUT_RECORD:
        logmux_on_record(m, a);
        break;
    case OUTPUT_WROTE:
        logmux_on_wrote(m, a);
        break;
    case OUTPUT_EVENTS:
        m->events_are_open = true;
        if (a->head.number < 0)
            err_set(&m->events_error, (int)a->head.number, "%s", a->body);
        break;
    case OUTPUT_NOTICE:
        m->o.noticed(m->o.arg);
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

/* Wait until *done, the deadline, or one of stop_fds is readable. */
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

void logmux_greet(struct logmux *m)
{
    if (!m->pid && !m->is_cut_off)
        on_readable(m);
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

static int wait_until_open(struct logmux *m, const bool *is_open, const struct err *error, struct err *e)
{
    static const int nobody[2] = {-1, -1};
    wait_for(m, is_open, clock_deadline(LOGMUX_OPEN_MS), nobody);
    return error->code ? err_set(e, error->code, "%s", error->text) : 0;
}

static void send_event(void *arg, uint64_t number, const char *line, size_t n)
{
    logmux_say(arg, OUTPUT_EVENT, 0, (int64_t)number, line, n);
}

static int open_events(struct logmux *m, struct err *e)
{
    if (!m->o.event_log)
        return 0;
    m->lines = event_lines_create(m->o.page, send_event, m);
    if (!m->lines)
        return err_errno(e, ENOMEM, "event log");
    return wait_until_open(m, &m->events_are_open, &m->events_error, e);
}

int logmux_create(struct logmux **ret, uv_loop_t *loop, const struct logmux_options *o, struct err *e)
{
    struct logmux *m = malloc(sizeof *m);
    if (m)
        memset(m, 0, offsetof(struct logmux, message) + offsetof(struct output_message, body)); /* which is big */
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
    if (o->layout->torchrun && o->layout->root[0])
        TRY(wait_until_open(m, &m->root_is_open, &m->root_error, e));
    return open_events(m, e);
}

/* Flush at the end; do not wait for an output process that does not answer. */
void logmux_flush(struct logmux *m, int64_t timeout_ms, const int stop_fds[2])
{
    static const int nobody[2] = {-1, -1};
    const int64_t deadline = clock_deadline(timeout_ms);
    m->flushes = true;
    logmux_say(m, OUTPUT_FLUSH, 0, 0, NULL, 0);
    const bool is_heard = wait_for(m, &m->is_heard, clock_deadline(UNHEARD_MS), nobody);
    if (is_heard && !wait_for(m, &m->is_flushed, deadline, stop_fds)) {
        m->drops = true;
        logmux_say(m, OUTPUT_DROP, 0, 0, NULL, 0);
        wait_for(m, &m->is_flushed, clock_deadline(STOPPED_MS), nobody);
    }
    own_texts_go_round(m->texts, false);
}

void logmux_destroy(struct logmux *m)
{
    if (!m)
        return;
    shutdown(m->o.fd, SHUT_WR); /* tells the output process to end, while we go on */
    logmux_drop_rounds(m);
    event_lines_destroy(m->lines);
    own_texts_destroy(m->texts);
    logmux_forget_words(m);
    watch_close(m->watch);
    output_out_close(&m->out);
    free(m->asked);
    free(m);
}
