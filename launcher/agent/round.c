#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/include/crun.h"
#include "common/job/env_contract.h"
#include "common/job/exitcode.h"
#include "launcher/agent/member.h"
#include "launcher/agent/run.h"
#include "launcher/base/program.h"
#include "launcher/base/virtual_rank.h"
#include "launcher/config/config.h"
#include "launcher/guard/cgroup.h"
#include "launcher/guard/guardian.h"
#include "launcher/hang/hang_watch.h"
#include "launcher/observe/events.h"
#include "launcher/output/logmux.h"
#include "launcher/rendezvous/rendezvous.h"
#include "launcher/report/failure_report.h"
#include "launcher/workers/spawn_env.h"

extern char **environ;

/* --- starting */

const char *round_error_path(struct run *r, int rank)
{
    const unsigned long long round = r->round.round;
    if (r->logs.root[0])
        log_layout_path(&r->logs, rank - r->round.rank_base, rank, LOG_FILE_ERROR, r->error_file);
    else if (r->link->scratch_dir[0])
        snprintf(r->error_file, sizeof r->error_file, "%.1000s/round-%llu-rank-%d.error.json", r->link->scratch_dir,
                 round, rank);
    else
        return NULL;
    return r->error_file;
}

static const char *reason_text(enum rdzv_reason why)
{
    return why == RDZV_WHY_START ? "start" : crun_stop_reason_name((enum crun_stop_reason)why);
}

/* The path where this rank will leave its error record. An earlier job may have left one there; it would be taken for
 * ours. */
static const char *fresh_error_path(struct run *r, int rank)
{
    const char *path = round_error_path(r, rank);
    if (path)
        unlink(path);
    return path ? path : ""; /* not unset: of a crun around this one the workers would inherit its path */
}

static int make_env(void *arg, int local, int page_fd, char ***ret, struct err *e)
{
    struct run *r = arg;
    const struct rdzv_news *n = &r->round;
    const int rank = n->rank_base + local;
    const struct env_contract c = {.rank = rank,
                                   .world_size = n->world_size,
                                   .local_rank = r->config->virtual_local_rank ? 0 : local,
                                   .local_world_size = r->config->nproc,
                                   .group_rank = n->group_rank,
                                   .group_world_size = n->group_world,
                                   .role_rank = n->role_base + local,
                                   .role_world_size = n->role_world,
                                   .master_port = r->master_port,
                                   .restart_count = n->restart_count,
                                   .max_restarts = r->config->max_restarts,
                                   .round = (int64_t)n->round,
                                   .prev_rank = r->prev_base < 0 ? -1 : r->prev_base + local,
                                   .global_restarts = n->restart_count,
                                   .role_name = r->config->role,
                                   .master_addr = r->master_addr,
                                   .run_id = r->config->run_id,
                                   .use_agent_store = "True",
                                   .error_file = fresh_error_path(r, rank),
                                   .signals = r->config->stops.handled.names,
                                   .nccl_async = r->nccl_async,
                                   .store_url = r->store_url,
                                   .node_id = r->node,
                                   .restart_reason = reason_text(n->why)};
    const char *extra[8] = {r->page_variable};
    size_t n_extra = 1;
    snprintf(r->omp_variable, sizeof r->omp_variable, "OMP_NUM_THREADS=%d", placement_threads(&r->placement, local));
    snprintf(r->page_variable, sizeof r->page_variable, ENV_PAGE_FD "=%d", page_fd);
    if (r->set_omp)
        extra[n_extra++] = r->omp_variable;
    const struct near_adapters *near = placement_near(&r->placement, local);
    if (near && near->hcas[0])
        extra[n_extra++] = near->hcas;
    if (near && near->nics[0])
        extra[n_extra++] = near->nics;
    struct virtual_rank device;
    if (r->config->virtual_local_rank) {
        TRY(virtual_rank_device(local, &device, e));
        extra[n_extra++] = device.cuda;
        extra[n_extra++] = device.hip[0] ? device.hip : NULL;
    }
    return spawn_env_build(environ, &c, extra, ret, e);
}

static int make_argv(void *arg, int local, char ***ret, struct err *e)
{
    const struct run *r = arg;
    char rank[16];
    if (!r->program->macros)
        return 0;
    snprintf(rank, sizeof rank, "%d", r->round.rank_base + local);
    return program_args(r->program, rank, local, ret, e);
}

/* They may go on without this node. A node that hosts takes the job along when it goes. */
static bool are_enough_others(const struct run *r)
{
    return r->round.group_world > r->config->nnodes.min && !rendezvous_hosts(r->rendezvous);
}

static void spawn_failed(struct run *r, int code, const char *text)
{
    struct agent_event ev = {.kind = AGENT_SPAWN_FAILED,
                             .cause = {.exit_code = code, .rank = -1, .fatal = !are_enough_others(r)}};
    const bool alone = r->config->home.kind == HOME_LOCAL;
    snprintf(ev.cause.text, sizeof ev.cause.text, "%.180s%s%.60s", text, alone ? "" : ", told by ",
             alone ? "" : r->host);
    logmux_say(r->mux, "%s", text);
    r->unspawned = true;
    run_post(r, &ev);
}

/* Left out where it can be: the round goes on without. */
static int begin_cgroup(struct run *r, uint64_t round, struct err *e)
{
    struct err why;
    if (!r->cgroup || cgroup_begin_round(r->cgroup, round, &why) == 0)
        return 0;
    if (r->config->cgroup == CONFIG_CGROUP_ON)
        return err_set(e, why.code, "%s (--cgroup on)", why.text);
    log_debug("agent", "%s", why.text);
    return 0;
}

void round_spawn(struct run *r, const struct rdzv_news *news)
{
    struct err e = {0};
    const int prev_base = r->round.round ? r->round.rank_base : -1;
    r->round = *news;
    events_round(r->events, news);
    r->prev_base = prev_base;
    r->timeline = r->broken;
    r->timeline.restart = news->restart_count;
    r->timeline.round = clock_ns();
    r->timeline.pending = news->why == RDZV_WHY_FAILURE && r->timeline.woken; /* a newcomer broke nothing */
    r->broken = (struct timeline){0};
    r->unspawned = false;
    failure_report_begin_round(r->failures, news->group_world);
    int rc = member_begin_round(r, news, &e);
    if (rc == 0)
        rc = logmux_begin_round(r->mux,
                                &(struct logmux_round){.round = news->round,
                                                       .restarts = news->restart_count,
                                                       .rank_base = news->rank_base,
                                                       .role_base = news->role_base,
                                                       .group_rank = news->group_rank},
                                &e);
    if (rc == 0)
        rc = begin_cgroup(r, news->round, &e);
    if (rc == 0)
        rc = group_start(r->group, news->rank_base, &e);
    if (rc == 0)
        hang_watch_begin_round(r->hang);
    if (rc < 0)
        spawn_failed(r, rc == ERR_OUTPUT ? EXIT_CANT_CREATE : EXIT_UNAVAILABLE, e.text);
}

void round_say_timeline(struct run *r)
{
    char text[512];
    if (r->timeline.pending && r->timeline.spawned) {
        logmux_say(r->mux, "%s", timeline_text(&r->timeline, text, sizeof text));
        events_restart(r->events, &r->timeline);
    }
    r->timeline.pending = false;
}

static void on_started(void *arg)
{
    struct run *r = arg;
    if (r->unspawned)
        return;
    r->timeline.spawned = clock_ns();
    events_started(r->events, group_workers(r->group), r->agent.slots);
    if (!r->wait_first_step || r->timeline.first_step)
        round_say_timeline(r);
}

static void on_progressed(void *arg, int64_t first_step_ns)
{
    struct run *r = arg;
    r->timeline.first_step = first_step_ns;
    hang_watch_progressed(r->hang);
    member_progressed(r);
    if (r->timeline.spawned)
        round_say_timeline(r);
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
    if (r->unspawned) /* every worker fails the same way: said once */
        return;
    spawn_failed(r, error < 0 ? EXIT_UNAVAILABLE : error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXEC, text);
    run_pump(r);
}

void round_begin_timeline(struct run *r, int64_t woken, const char *cause)
{
    const bool window = r->config->restart_window > 0;
    r->broken = (struct timeline){.woken = woken, .max_restarts = window ? -1 : (int)r->config->max_restarts};
    snprintf(r->broken.cause, sizeof r->broken.cause, "%.*s", (int)sizeof r->broken.cause - 1, cause);
}

static void on_ended(void *arg, int local, int64_t woken)
{
    struct run *r = arg;
    const struct failure_worker *w = &group_workers(r->group)[local];
    struct agent_event ev = {.kind = AGENT_WORKER_ENDED,
                             .cause = {.exit_code = ending_code(w->ending), .rank = w->rank}};
    if (r->shares_terminal && w->ending.signaled && (w->ending.value == SIGINT || w->ending.value == SIGQUIT))
        ev.signo = w->ending.value;
    ev.cause.fatal = stops_fatal(&r->config->stops, ev.cause.exit_code);
    char text[64];
    const bool alone = r->config->home.kind == HOME_LOCAL;
    snprintf(ev.cause.text, sizeof ev.cause.text, "rank %d%s%s %s", w->rank, alone ? "" : " on ", alone ? "" : r->host,
             ending_text(w->ending, text, sizeof text));
    log_info("agent", "worker ended: %s pid=%d", ev.cause.text, (int)w->pid);
    events_exited(r->events, w, !r->timeline.spawned && !r->unspawned);
    if (r->agent.state == AGENT_RUNNING && !ev.signo && ev.cause.exit_code != EXIT_OK &&
        ev.cause.exit_code != EXIT_REQUEUE)
        round_begin_timeline(r, woken, ev.cause.text);
    run_post(r, &ev);
    run_pump(r);
}

static void on_gone(void *arg)
{
    struct run *r = arg;
    uv_timer_stop(&r->grace);
    round_say_timeline(r); /* its first step never came */
    r->wait_first_step = group_attached(r->group);
    r->broken.gone = clock_ns();
    hang_watch_end_round(r->hang);
    events_gone(r->events);
    run_post(r, &(struct agent_event){.kind = AGENT_GONE});
    run_pump(r);
}

static void on_unkillable(void *arg, const char *who)
{
    struct run *r = arg;
    logmux_say(r->mux, "still there %g s after SIGKILL: %s; the kernel does not end them, and crun goes without",
               r->config->stops.kill, who);
    run_post(r, &(struct agent_event){.kind = AGENT_UNKILLABLE});
    run_pump(r);
}

/* --- the end */

void round_say_stopped(struct run *r, const char *why)
{
    const struct failure_worker *w = group_workers(r->group);
    char text[64], line[512];
    size_t n = (size_t)snprintf(line, sizeof line, "%s", why);
    const char *before = "; not in good order: ";
    for (int i = 0; r->round.round && i < r->agent.slots && n < sizeof line; i++) {
        const int code = ending_code(w[i].ending);
        if (!w[i].ended || code == EXIT_OK || code == EXIT_REQUEUE || code == 128 + SIGTERM)
            continue;
        n += (size_t)snprintf(line + n, sizeof line - n, "%srank %d %s", before, w[i].rank,
                              ending_text(w[i].ending, text, sizeof text));
        before = ", ";
    }
    logmux_say(r->mux, "%s", line);
}

const struct group_events round_events = {
    .started = on_started,
    .unstarted = on_unstarted,
    .ended = on_ended,
    .progressed = on_progressed,
    .gone = on_gone,
    .unkillable = on_unkillable,
    .make_env = make_env,
    .make_argv = make_argv,
};
