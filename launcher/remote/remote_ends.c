/* How the agents of crun -H end: which ones are stopped, which are given up, and what that means for the others and
 * for the exit code. */
#include <signal.h>
#include <stdio.h>

#include "common/job/exitcode.h"
#include "launcher/config/config.h"
#include "launcher/remote/remote_internal.h"
#include "launcher/remote/remote_wire.h"

#define LATE_MS 30000 /* ms for an agent to stop, in addition to the time that its workers may take */
#define UNBEGUN_MS 5000
#define EXIT_SSH 255

/* --- signals to the agents */

void remote_send_to_all(struct remote *m, unsigned char byte)
{
    for (int i = 0; i < m->n; i++)
        remote_control_send(&m->far[i], byte);
}

void remote_end_far(struct far *f)
{
    kill(-f->pid, SIGKILL);
    kill(f->pid, SIGKILL);
}

/* Give up agents that have not begun; why: printed for each, NULL: nothing. */
static void give_up_unbegun(struct remote *m, const char *why)
{
    for (int i = 0; i < m->n; i++) {
        struct far *f = &m->far[i];
        if (!f->pid || f->ready || f->ended || f->given_up)
            continue;
        if (why)
            remote_print_line(m, "host %s: %s", f->host->name, why);
        f->given_up = true;
        remote_end_far(f);
    }
}

static void on_late(uv_timer_t *t)
{
    struct remote *m = t->data;
    for (int i = 0; i < m->n; i++)
        if (m->far[i].pid && !m->far[i].ended) {
            remote_print_line(m, "host %s: nothing was heard of the end of its workers; crun ends without it",
                              m->far[i].host->name);
            remote_end_far(&m->far[i]);
        }
}

void remote_stop_all(struct remote *m, int signo, bool typed)
{
    remote_send_to_all(m, (unsigned char)(signo | (typed ? REMOTE_TYPED : 0)));
    if (m->stopping)
        return;
    m->stopping = true;
    if (!m->failed)
        give_up_unbegun(m, NULL);
    else /* a host that has not begun may be about to print why */
        uv_timer_start(&m->begin, remote_on_begin_late, UNBEGUN_MS, 0);
    uv_timer_start(&m->late, on_late,
                   (uint64_t)(stops_longest_ms(&m->c->stops) + (int64_t)(m->c->stops.kill * 1000) + LATE_MS), 0);
}

/* --- ends */

static int count_running(const struct remote *m, bool begun)
{
    int n = 0;
    for (int i = 0; i < m->n; i++)
        n += m->far[i].pid && !m->far[i].ended && (m->far[i].ready || (!begun && !m->far[i].given_up));
    return n;
}

/* A host dropped out, with this code, before it had joined: stop the others if too few are left. */
static void stop_if_too_few(struct remote *m, int code)
{
    const int others = count_running(m, false);
    if (others >= (m->c->nnodes_typed ? m->c->nnodes.min : m->n))
        return;
    if (!m->failed)
        m->fail_code = code;
    m->failed = true;
    if (others > 0)
        remote_stop_all(m, SIGTERM, false);
}

void remote_on_begin_late(uv_timer_t *t)
{
    struct remote *m = t->data;
    char why[96];
    if (count_running(m, false) == count_running(m, true))
        return;
    if (m->stopping) {
        give_up_unbegun(m, "crun has not begun there either");
        return;
    }
    snprintf(why, sizeof why, "crun did not begin there within %g s (join_timeout)",
             (double)config_join_timeout_ms(m->c) / 1000);
    give_up_unbegun(m, why);
    stop_if_too_few(m, EXIT_UNAVAILABLE);
}

static void judge_unbegun(struct far *f)
{
    struct remote *m = f->m;
    const char *name = f->host->name, *rsh = m->plan.shell.rsh[0];
    const bool local = m->plan.local[f->host - m->plan.hosts.v];
    char text[64];
    if (f->given_up || (m->stopping && f->ending.signaled)) /* by on_late() */
        return;
    if (!local && !f->ending.signaled && f->ending.value == EXIT_SSH)
        remote_print_line(m, "host %s cannot be reached: %s ended with exit code 255", name, rsh);
    else if (!local && !f->ending.signaled && f->ending.value == EXIT_NOT_FOUND)
        remote_print_line(m,
                          "host %s has no crun at %s (exit code 127): install it there, or name it with --remote-crun",
                          name, m->plan.shell.crun);
    else
        remote_print_line(m, "host %s: crun did not begin there: %s %s", name, local ? "it" : rsh,
                          ending_text(f->ending, text, sizeof text));
    stop_if_too_few(m, EXIT_UNAVAILABLE);
}

/* Has a host heard of a round, or of the end? Then the job does not need those that have not. */
static bool has_begun(const struct remote *m)
{
    for (int i = 0; i < m->n; i++)
        if (m->far[i].joined)
            return true;
    return false;
}

/* An agent began, but ended before it heard anything from the rendezvous: the others would wait for it. */
static void judge_unjoined(struct far *f)
{
    struct remote *m = f->m;
    char text[64];
    const int code = f->over ? ending_code(f->ending) : EXIT_UNAVAILABLE;
    if (m->stopping || has_begun(m))
        return;
    if (f->over)
        remote_print_line(m, "host %s: crun there %s before it joined the job", f->host->name,
                          ending_text(f->ending, text, sizeof text));
    stop_if_too_few(m, code ? code : EXIT_UNAVAILABLE);
}

/* Choose the exit code if hosts end with different ones: 0 means that the whole job is complete; 75, that nothing
 * failed, which another host's code overrides. */
static void merge_code(struct remote *m, int code)
{
    if (m->code == EXIT_OK || (code == EXIT_REQUEUE && m->code >= 0))
        return;
    m->code = code;
}

void remote_judge(struct far *f)
{
    struct remote *m = f->m;
    char text[64];
    m->left--;
    if (!f->ready)
        judge_unbegun(f);
    else if (!f->over && !f->lost && !f->given_up)
        remote_print_line(m, "host %s is lost: %s %s", f->host->name,
                          m->plan.local[f->host - m->plan.hosts.v] ? "its crun" : m->plan.shell.rsh[0],
                          ending_text(f->ending, text, sizeof text));
    if (f->joined && f->over && !f->lost)
        merge_code(m, ending_code(f->ending));
    else if (f->ready && !f->joined)
        judge_unjoined(f);
    if (f->over && has_begun(m) && count_running(m, true) == 0)
        give_up_unbegun(m, "crun has not begun there, and the job is over");
    remote_control_close(f);
}
