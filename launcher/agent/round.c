/* A round on this node, from the news of it to the moment when nobody of it is left.
 *
 * AGENT_DO_SPAWN comes with the news of a round: round_begin() goes down the table of parts, the last of which start
 * the workers and watch them. The callbacks of the group (workers/group.h) then tell what becomes of the workers:
 *   - started: every exec is through. The table is gone down again;
 *   - ended: one worker did, well or badly, which is an event of the agent (AGENT_WORKER_ENDED);
 *   - gone: nobody is left and all output is read. The table is gone up, and AGENT_GONE posted: the next round may
 *     come.
 * Workers that are held outlive it, and with them their output and their cgroup: the next round goes on with these.
 * What fails on the way down ends the round for this node (AGENT_SPAWN_FAILED); workers that were started by then are
 * cleared away as in any round, so the way up is always gone. */
#include "launcher/agent/round_internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/crun/crun_page.h"
#include "common/job/exitcode.h"
#include "launcher/agent/effects.h"
#include "launcher/agent/member.h"
#include "launcher/agent/run.h"
#include "launcher/agent/signals.h"
#include "launcher/agent/stragglers.h"
#include "launcher/agent/worker_setup.h"
#include "launcher/base/program.h"
#include "launcher/config/config.h"
#include "launcher/hang/hang_watch.h"
#include "launcher/observe/events.h"
#include "launcher/observe/timeline.h"
#include "launcher/output/logmux.h"
#include "launcher/report/failure_report.h"

const struct rdzv_news *round_news(const struct run *r)
{
    return &r->round->news;
}

bool round_has_own_output(const struct run *r)
{
    return r->round->output == r->round->news.round;
}

int round_previous_base(const struct run *r)
{
    return r->round->previous_base;
}

bool round_is_started(const struct run *r)
{
    return r->round->times.spawned;
}

bool round_is_unstarted(const struct run *r)
{
    return r->round->unstarted;
}

int round_restarts(const struct run *r)
{
    const struct rdzv_news *end = member_end(r);
    return end->kind == RDZV_NEWS_END ? end->restart_count : r->round->news.restart_count;
}

/* --- starting */

/* They may go on without this node. A node that hosts takes the job along when it goes. */
static bool are_enough_others(const struct run *r)
{
    return r->round->news.group_world > r->config->nnodes.min && !member_hosts(r);
}

static void post_spawn_failed(struct run *r, int code, const char *text)
{
    struct agent_event ev = {.kind = AGENT_SPAWN_FAILED,
                             .cause = {.exit_code = code, .rank = -1, .fatal = !are_enough_others(r)}};
    const bool alone = r->config->home.kind == HOME_LOCAL;
    snprintf(ev.cause.text, sizeof ev.cause.text, "%.180s%s%.60s", text, alone ? "" : ", reported by ",
             alone ? "" : r->host);
    if (!r->config->cannot.code) /* that was said at the start */
        logmux_print(r->mux, "%s", text);
    r->round->unstarted = true;
    run_post(r, &ev);
}

void round_give_up(struct run *r)
{
    post_spawn_failed(r, r->config->cannot.code, r->config->cannot.text);
    run_pump(r);
}

void round_begin(struct run *r, const struct rdzv_news *news)
{
    struct err e = {0};
    struct round *d = r->round;
    int rc = 0;
    d->previous_base = d->news.round ? d->news.rank_base : -1;
    d->news = *news;
    d->unstarted = false;
    if (r->config->cannot.code) {
        post_spawn_failed(r, r->config->cannot.code, r->config->cannot.text);
        return;
    }
    for (const struct round_part *p = round_parts; p < round_parts + round_parts_n && rc == 0; p++) {
        if (p->begin && (rc = p->begin(r, news, &e)) < 0)
            log_debug("agent", "round %llu cannot begin: %s", (unsigned long long)news->round, p->name);
    }
    if (rc < 0)
        post_spawn_failed(r, rc == ERR_OUTPUT ? EXIT_CANT_CREATE : EXIT_UNAVAILABLE, e.text);
}

/* --- what the workers report */

static void on_started(void *arg)
{
    struct run *r = arg;
    const int64_t now_ns = clock_ns();
    if (r->round->unstarted)
        return;
    for (const struct round_part *p = round_parts; p < round_parts + round_parts_n; p++)
        if (p->started)
            p->started(r, now_ns);
}

static void on_progressed(void *arg, int64_t first_step_ns)
{
    struct run *r = arg;
    r->round->times.first_step = first_step_ns;
    hang_watch_progressed(r->hang);
    stragglers_progressed(r);
    member_note_progress(r);
    if (r->round->times.spawned)
        round_print_times(r);
}

static void on_unstarted(void *arg, int local, int error)
{
    struct run *r = arg;
    char text[512];
    if (error < 0)
        snprintf(text, sizeof text, "a worker cannot be bound to its cores (--numa-binding): %s", strerror(-error));
    else if (error == ENOENT)
        snprintf(text, sizeof text, "program '%s' cannot be executed: it, or the interpreter it names, is not found",
                 r->program->path);
    else
        snprintf(text, sizeof text, "program '%s' cannot be executed: %s", r->program->path, strerror(error));
    if (r->round->unstarted) /* every worker fails the same way: reported once */
        return;
    post_spawn_failed(r, error < 0 ? EXIT_UNAVAILABLE : error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXEC, text);
    run_pump(r);
}

/* A log folder or file that cannot be written, or a worker that could not be made once these were there. */
static void on_failed(void *arg, int rc, const char *text)
{
    struct run *r = arg;
    if (r->round->unstarted)
        return;
    post_spawn_failed(r, rc == ERR_OUTPUT ? EXIT_CANT_CREATE : EXIT_UNAVAILABLE, text);
    run_pump(r);
}

/* The signal that ended a worker which has crun's terminal, if it was for crun as well; 0: none. The worker may die of
 * a key or of the terminal's end, or say so by its code, as shells and scripts do. A code alone proves nothing (129 is
 * git's usage error): crun itself must have got the signal, or be about to, as news of the worker's end may come first.
 * So it may at a SIGTERM to the shell's whole job (kill %1); but of that a worker may also be the only aim. */
static int typed_end(const struct run *r, const struct failure_worker *w)
{
    const int signo = ending_code(w->ending) - 128;
    if (!group_has_terminal(r->group, (int)(w - group_workers(r->group))))
        return 0;
    if (signo == SIGINT || signo == SIGQUIT || signo == SIGHUP)
        return w->ending.signaled || signals_came(r, signo) ? signo : 0;
    return signo == SIGTERM && signals_is_on_its_way(r, SIGTERM) ? signo : 0;
}

/* Every worker of the job has said that its part is done (crun_done()), or ended well. */
static bool all_are_done(const struct run *r)
{
    const struct failure_worker *w = group_workers(r->group);
    for (int i = 0; i < r->agent.slots; i++) {
        struct crun_page *p = group_page(r->group, i);
        const bool ended_well = w[i].ended && ending_code(w[i].ending) == EXIT_OK;
        if (!ended_well && !(p && atomic_load(&p->done)))
            return false;
    }
    return r->config->nnodes.max == 1;
}

static void on_ended(void *arg, int local, int64_t woken)
{
    struct run *r = arg;
    const struct failure_worker *w = &group_workers(r->group)[local];
    struct agent_event ev = {.kind = AGENT_WORKER_ENDED,
                             .cause = {.exit_code = ending_code(w->ending), .rank = w->rank},
                             .was_held = group_is_held(r->group, local)};
    ev.signo = typed_end(r, w);
    const bool all_done = all_are_done(r);
    ev.cause.fatal = all_done || stops_fatal(&r->config->stops, ev.cause.exit_code);
    char text[ENDING_TEXT_MAX];
    const bool alone = r->config->home.kind == HOME_LOCAL;
    snprintf(ev.cause.text, sizeof ev.cause.text, "rank %d%s%s %s", w->rank, alone ? "" : " on ", alone ? "" : r->host,
             ending_text(w->ending, text, sizeof text));
    log_info("agent", "worker ended: %s pid=%d", ev.cause.text, (int)w->pid);
    if (w->ending.oom)
        failure_report_note_memory(r->failures, group_workers(r->group), r->agent.slots);
    failure_report_note(r->failures, w);
    events_exited(r->events, w, !r->round->times.spawned && !r->round->unstarted);
    if (r->agent.state == AGENT_RUNNING && !ev.signo && ev.cause.exit_code != EXIT_OK &&
        ev.cause.exit_code != EXIT_REQUEUE) {
        round_break(r, woken, ev.cause.text);
        if (all_done)
            logmux_print(r->mux, "rank %d ended after the functions of all ranks had returned: no restart", w->rank);
    }
    run_post(r, &ev);
    run_pump(r);
}

static void on_held(void *arg)
{
    struct run *r = arg;
    run_post(r, &(struct agent_event){.kind = AGENT_HELD});
    run_pump(r);
}

static void on_gone(void *arg)
{
    struct run *r = arg;
    const int64_t now_ns = clock_ns();
    for (int i = round_parts_n; i-- > 0;)
        if (round_parts[i].gone)
            round_parts[i].gone(r, now_ns);
    run_post(r, &(struct agent_event){.kind = AGENT_GONE});
    run_pump(r);
}

static void on_unkillable(void *arg, const char *who)
{
    struct run *r = arg;
    logmux_print(r->mux, "still there %g s after SIGKILL: %s; the kernel does not end them, and crun exits",
                 r->config->stops.kill, who);
    run_post(r, &(struct agent_event){.kind = AGENT_UNKILLABLE});
    run_pump(r);
}

const struct group_events round_events = {
    .started = on_started,
    .unstarted = on_unstarted,
    .failed = on_failed,
    .ended = on_ended,
    .progressed = on_progressed,
    .held = on_held,
    .gone = on_gone,
    .unkillable = on_unkillable,
    .make_error_path = worker_setup_error_path,
    .make_env = worker_setup_env,
    .make_argv = worker_setup_argv,
    .make_round = worker_setup_round,
};

/* --- the end */

void round_print_stopped(struct run *r, const char *why)
{
    const struct failure_worker *w = group_workers(r->group);
    char text[ENDING_TEXT_MAX], line[512];
    size_t n = (size_t)snprintf(line, sizeof line, "%s", why);
    const char *before = "; not in good order: ";
    for (int i = 0; r->round->news.round && i < r->agent.slots && n < sizeof line; i++) {
        const int code = ending_code(w[i].ending);
        if (!w[i].ended || agent_obeyed(&r->agent, code))
            continue;
        n += (size_t)snprintf(line + n, sizeof line - n, "%srank %d %s", before, w[i].rank,
                              ending_text(w[i].ending, text, sizeof text));
        before = ", ";
    }
    logmux_print(r->mux, "%s", line);
}

int round_open(struct run *r, struct err *e)
{
    r->round = calloc(1, sizeof *r->round);
    return r->round ? 0 : err_errno(e, ENOMEM, "agent");
}

void round_close(struct run *r)
{
    free(r->round);
    r->round = NULL;
}
