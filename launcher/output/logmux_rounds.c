/* The rounds that the agent has sent to the output process: their pipes, and what is known of each (logmux.h). */
#include "launcher/output/logmux_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/base/pty.h"
#include "launcher/output/log_conf.h"

#define WORKERS_IN_A_MESSAGE (OUTPUT_FDS_MAX / 2)

static void send_round(struct logmux *m, const struct sent_round *r)
{
    logmux_say(m, OUTPUT_ROUND, r->id, 0, &r->what, sizeof r->what);
}

/* Send the pipes. If no file has to be opened, report that first: workers wait for it. */
static void send_streams(struct logmux *m, const struct sent_round *r)
{
    const bool has_files = r->what.layout.root[0];
    if (m->opened && !has_files)
        logmux_say(m, OUTPUT_OPEN, r->id, 0, NULL, 0);
    for (int i = 0; i < r->n && m->pid; i += WORKERS_IN_A_MESSAGE) {
        const int n = r->n - i < WORKERS_IN_A_MESSAGE ? r->n - i : WORKERS_IN_A_MESSAGE;
        const struct output_head head = {.word = OUTPUT_STREAMS, .n = n, .number = i, .round = r->id};
        logmux_send(m, &head, NULL, 0, &r->fds[(ptrdiff_t)2 * i], 2 * n);
    }
    if (has_files)
        logmux_say(m, OUTPUT_OPEN, r->id, 0, NULL, 0);
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

void logmux_begin_round(struct logmux *m, const struct logmux_round *round)
{
    struct sent_round *r = calloc(1, sizeof *r + 2 * (size_t)m->o.max_workers * sizeof *r->fds);
    logmux_forget_words(m);
    if (!r) /* logmux_add() reports it */
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

void logmux_go_on(struct logmux *m)
{
    logmux_forget_words(m);
}

static struct sent_round *current(const struct logmux *m)
{
    return m->last && m->last->id == m->rounds && !m->last->is_ended ? m->last : NULL;
}

/* Make a pty for both streams; the pipe that stands for stderr is at its end. */
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
    const bool waits = m->o.layout->root[0] || (m->o.scratch && !atomic_load(&m->o.page->scratch));
    m->opened = waits ? opened : NULL;
    m->opened_arg = arg;
    r->is_handed_over = true;
    send_streams(m, r);
    return waits;
}

void logmux_note_launch(struct logmux *m)
{
    atomic_store(&m->o.page->launched, m->rounds);
}

static void send_end(struct logmux *m, const struct sent_round *r)
{
    logmux_say(m, OUTPUT_END, r->id, 0, NULL, 0);
}

void logmux_end_round(struct logmux *m)
{
    struct sent_round *r = current(m);
    m->opened = NULL;
    if (!r)
        return;
    if (!r->is_handed_over) /* it was never given to workers; its pipes are empty */
        close_pipes(r);
    r->is_ended = true;
    send_end(m, r);
}

void logmux_on_ended(struct logmux *m, uint64_t id)
{
    while (m->first && m->first->id <= id && m->first->is_ended)
        drop_first_round(m);
}

void logmux_on_opened(struct logmux *m, const struct output_message *a)
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

void logmux_send_rounds(struct logmux *m)
{
    for (const struct sent_round *r = m->first; r; r = r->next) {
        send_round(m, r);
        if (r->is_handed_over)
            send_streams(m, r);
        if (r == m->last)
            logmux_send_questions(m);
        if (r->is_ended)
            send_end(m, r);
    }
}

void logmux_drop_rounds(struct logmux *m)
{
    while (m->first)
        drop_first_round(m);
}
