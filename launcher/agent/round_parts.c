/* The parts of a round (round.h), in the order in which they begin; and the times of the restart that it is. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/crun/crun_page.h"
#include "launcher/agent/effects.h"
#include "launcher/agent/hangs.h"
#include "launcher/agent/member.h"
#include "launcher/agent/round_internal.h"
#include "launcher/agent/run.h"
#include "launcher/agent/signals.h"
#include "launcher/agent/stragglers.h"
#include "launcher/agent/worker_setup.h"
#include "launcher/config/config.h"
#include "launcher/observe/events.h"
#include "launcher/output/logmux.h"
#include "launcher/report/failure_report.h"
#include "launcher/workers/group.h"

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

/* The furthest one, + 1; 0: there is none. */
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

/* Only of one node: another one may have it. */
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

/* Something of the line of times is to come. */
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
    round_print_times(r); /* its first step never came */
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

/* begin and started go down, gone goes up. What only notes that a round is there comes first, so that it knows of a
 * round that cannot begin. Then what workers need when they start: the store that they meet at, the pipes and folders
 * of their output, the cgroup they are born in; then they; then who watches them. `gone` of the hangs reads the
 * workers' pages, as do the times, so both come before the next round drops them; the log of events ends the round
 * last, after the line of a restart that it was. The group ends the output by itself: it knows when the pipes are
 * read. */
const struct round_part round_parts[] = {
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

const int round_parts_n = sizeof round_parts / sizeof *round_parts;
