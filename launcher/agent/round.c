/* A round on this node: its parts, its workers, and what they report (round.h). */
#include "launcher/agent/round.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/crun/crun_page.h"
#include "common/job/exitcode.h"
#include "common/rdzv/machine/rdzv.h"
#include "launcher/agent/effects.h"
#include "launcher/agent/hangs.h"
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
#include "launcher/workers/group.h"

struct round {
    struct rdzv_news news;  /* news of the current round */
    uint64_t output;        /* number of the round whose pipes and folders are in use */
    int previous_base;      /* rank of our first worker in the round before, -1: none */
    struct timeline times;  /* times of the restart that began it */
    struct timeline broken; /* the times of the next restart, once a worker of this round has failed */
    uint64_t kept;          /* the newest state that a worker of the round before kept (crun_keeps()), + 1; 0: none */
    /* the workers of the broken round used libcrun, so the line of times waits for the first step */
    bool wait_first_step;
    /* the workers of the broken round met at the store: without wait_first_step the line waits for that */
    bool wait_met;
    bool unstarted; /* the round's workers cannot be started, and that has been printed */
};

struct round_part {
    const char *name;
    int (*begin)(struct run *r, const struct rdzv_news *news, struct err *e); /* < 0: the round cannot begin */
    void (*started)(struct run *r, int64_t now_ns);                           /* all workers execute their program */
    void (*gone)(struct run *r, int64_t now_ns);                              /* no process of it is left */
};

/* --- the times of a restart */

void round_break(struct run *r, int64_t woken_ns, const char *cause)
{
    struct timeline *t = &r->round->broken;
    const bool window = r->config->restart_window > 0;
    *t = (struct timeline){.woken = woken_ns, .max_restarts = window ? -1 : (int)r->config->max_restarts};
    snprintf(t->cause, sizeof t->cause, "%.*s", (int)sizeof t->cause - 1, cause);
}

void round_note_detected(struct run *r)
{
    r->round->broken.detected = clock_ns();
}

void round_print_times(struct run *r)
{
    struct timeline *t = &r->round->times;
    char text[TIMELINE_TEXT_MAX];
    if (t->pending && t->spawned) {
        logmux_print(r->mux, "%s", timeline_text(t, text, sizeof text));
        events_restart(r->events, t);
    }
    t->pending = false;
}

/* --- the state that workers keep in memory */

/* The newest state that a worker keeps, + 1; 0: none. */
static uint64_t furthest_state(const struct run *r, bool of_held)
{
    uint64_t found = 0;
    for (int i = 0; i < r->agent.slots; i++) {
        struct crun_page *p = group_page(r->group, i);
        const uint64_t keeps = p && (!of_held || group_is_held(r->group, i)) ? atomic_load(&p->keeps) : 0;
        found = keeps > found ? keeps : found;
    }
    return found;
}

/* Warn if the state that workers kept in memory is lost. Only for a job of one node: otherwise another node may have
 * it. */
static int begin_state(struct run *r, const struct rdzv_news *news, struct err *e)
{
    const uint64_t before = r->round->kept;
    if (before && r->config->nnodes.max == 1 && news->why == RDZV_WHY_FAILURE && furthest_state(r, true) < before)
        logmux_print(r->mux, "the state of step %" PRIu64 " is lost: no worker that kept it in memory is left",
                     before - 1);
    return 0;
}

static void end_state(struct run *r, int64_t now_ns)
{
    r->round->kept = furthest_state(r, false);
}

/* --- the parts of a round */

static int begin_events(struct run *r, const struct rdzv_news *news, struct err *e)
{
    events_round(r->events, news);
    return 0;
}

static void start_events(struct run *r, int64_t now_ns)
{
    events_started(r->events, group_workers(r->group), r->agent.slots);
}

static void end_events(struct run *r, int64_t now_ns)
{
    events_gone(r->events);
}

static int begin_times(struct run *r, const struct rdzv_news *news, struct err *e)
{
    struct round *d = r->round;
    d->times = d->broken;
    d->times.restart = news->restart_count;
    d->times.round = clock_ns();
    d->times.kept = group_held(r->group);
    d->times.pending = news->why == RDZV_WHY_FAILURE && d->times.woken; /* a newcomer broke nothing */
    d->broken = (struct timeline){0};
    return 0;
}

/* Is a part of the line of times still to come? */
static bool is_awaited(const struct round *d)
{
    if (d->wait_first_step)
        return !d->times.first_step;
    return d->wait_met && d->news.group_rank == 0 && !d->times.met;
}

static void start_times(struct run *r, int64_t now_ns)
{
    r->round->times.spawned = now_ns;
    if (!is_awaited(r->round))
        round_print_times(r);
}

void round_note_met(void *run, size_t readers)
{
    struct run *r = run;
    struct round *d = r->round;
    if (d->times.met || d->news.group_rank != 0 || readers + 1 < (size_t)d->news.world_size)
        return;
    d->times.met = clock_ns();
    if (d->times.spawned && !is_awaited(d))
        round_print_times(r);
}

static void end_times(struct run *r, int64_t now_ns)
{
    round_print_times(r); /* the first step never came */
    r->round->wait_first_step = group_attached(r->group);
    r->round->wait_met = r->round->times.met;
    r->round->broken.gone = now_ns;
}

static int begin_failures(struct run *r, const struct rdzv_news *news, struct err *e)
{
    failure_report_begin_round(r->failures, news->group_world);
    return 0;
}

static int begin_output(struct run *r, const struct rdzv_news *news, struct err *e)
{
    if (group_held(r->group) > 0) {
        logmux_go_on(r->mux);
        return 0;
    }
    r->round->output = news->round;
    const struct logmux_round round = {.round = news->round,
                                       .restarts = news->restart_count,
                                       .rank_base = news->rank_base,
                                       .role_base = news->role_base,
                                       .group_rank = news->group_rank};
    logmux_begin_round(r->mux, &round);
    return 0;
}

static int begin_cgroup(struct run *r, const struct rdzv_news *news, struct err *e)
{
    return group_held(r->group) > 0 ? 0 : worker_setup_begin_round(r, news->round, e);
}

static void start_cgroup(struct run *r, int64_t now_ns)
{
    worker_setup_started(r);
}

static void start_pause(struct run *r, int64_t now_ns)
{
    signals_keep_paused(r);
}

static int begin_workers(struct run *r, const struct rdzv_news *news, struct err *e)
{
    signals_begin_round(r);
    return group_start(r->group, news->rank_base, e);
}

static int begin_hangs(struct run *r, const struct rdzv_news *news, struct err *e)
{
    return hangs_begin_round(r, news, e);
}

static void end_hangs(struct run *r, int64_t now_ns)
{
    hangs_end_round(r);
}

static int begin_stragglers(struct run *r, const struct rdzv_news *news, struct err *e)
{
    return stragglers_begin_round(r, news, e);
}

static void end_stragglers(struct run *r, int64_t now_ns)
{
    stragglers_end_round(r);
}

static void end_grace(struct run *r, int64_t now_ns)
{
    effects_stop_grace(r);
}

/* `begin` and `start` run from top to bottom, `gone` from bottom to top. First come parts that only note that a
 * round is there, so that they know of one that cannot begin. Then what workers need at their start: the store that
 * they meet at, the pipes and folders of their output, the cgroup that they are born in. Then the workers, then the
 * parts that watch them. `gone` of the hangs and of the times read the workers' pages, so both run before the next
 * round drops them. The event log ends the round last, after the line about the restart. The group itself ends the
 * output, because it knows when the pipes have been read. */
static const struct round_part round_parts[] = {
    {"events", begin_events, start_events, end_events},
    {"times", begin_times, start_times, end_times},
    {"state", begin_state, NULL, end_state},
    {"failures", begin_failures, NULL, NULL},
    {"member", member_begin_round, NULL, NULL},
    {"output", begin_output, NULL, NULL},
    {"cgroup", begin_cgroup, start_cgroup, NULL},
    {"pause", NULL, start_pause, NULL},
    {"workers", begin_workers, NULL, NULL},
    {"hangs", begin_hangs, NULL, end_hangs},
    {"stragglers", begin_stragglers, NULL, end_stragglers},
    {"grace", NULL, NULL, end_grace},
};

static const int round_parts_n = sizeof round_parts / sizeof *round_parts;

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

/* May the other nodes go on without this one? Not if this node hosts: it takes the job along. */
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
    if (r->round->unstarted) /* every worker fails in the same way: print it once */
        return;
    post_spawn_failed(r, error < 0 ? EXIT_UNAVAILABLE : error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXEC, text);
    run_pump(r);
}

/* A log folder or file cannot be written, or a worker could not be started after that. */
static void on_failed(void *arg, int rc, const char *text)
{
    struct run *r = arg;
    if (r->round->unstarted)
        return;
    post_spawn_failed(r, rc == ERR_OUTPUT ? EXIT_CANT_CREATE : EXIT_UNAVAILABLE, text);
    run_pump(r);
}

/* Returns the signal that ended a worker which has crun's terminal, if the signal was meant for crun as well; 0:
 * none. The worker may die of a typed key, or of the terminal's end, or exit with 128 + signal, as shells and
 * scripts do. Such a code alone proves nothing (129 is git's usage error): crun must have got the signal, too, or be
 * about to, because the worker's end may be reported first. SIGTERM is not counted: it may have been sent to the
 * shell's whole job (kill %1), but also to the worker alone. */
static int typed_end(const struct run *r, const struct failure_worker *w)
{
    const int signo = ending_code(w->ending) - 128;
    if (!group_has_terminal(r->group, (int)(w - group_workers(r->group))))
        return 0;
    if (signo == SIGINT || signo == SIGQUIT || signo == SIGHUP)
        return w->ending.signaled || signals_came(r, signo) ? signo : 0;
    return signo == SIGTERM && signals_is_on_its_way(r, SIGTERM) ? signo : 0;
}

/* Has every worker of the job said that its part is done (crun_done()), or exited with 0? */
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

static bool is_oom(void *arg, const struct failure_worker *w)
{
    const struct run *r = arg;
    return failure_report_is_oom(r->failures, w, group_workers(r->group), r->agent.slots);
}

const struct group_events round_events = {
    .started = on_started,
    .unstarted = on_unstarted,
    .failed = on_failed,
    .ended = on_ended,
    .is_oom = is_oom,
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
