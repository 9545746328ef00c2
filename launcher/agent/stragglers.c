/* What the agent does about stragglers: prints them, tells their nodes, excludes them if asked to (stragglers.h). */
#include "launcher/agent/stragglers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "launcher/agent/effects.h"
#include "launcher/agent/member.h"
#include "launcher/agent/round.h"
#include "launcher/agent/run.h"
#include "launcher/config/config.h"
#include "launcher/observe/events.h"
#include "launcher/output/logmux.h"
#include "launcher/rendezvous/leader_link.h"
#include "launcher/rendezvous/rdzv_dial.h"
#include "launcher/report/failure_report.h"
#include "launcher/straggler/straggler_watch.h"

#define EXCLUDE "EXCLUDE " /* an answer: followed by rank and class */

struct stragglers {
    struct straggler_watch *watch;
    struct leader_link *link; /* to group rank 0 */
    struct endpoint leader;
    struct { /* on group rank 0: verdicts that go to this worker's node with the answer to its next steps */
        bool any;
        struct straggler_verdict v;
    } exclude;
    bool *excluded; /* by place on this node */
};

/* --- a straggler is excluded */

static bool restarts_are_left(const struct run *r)
{
    return r->config->restart_window > 0 || round_restarts(r) < r->config->max_restarts;
}

static void exclude(struct run *r, int rank, const char *why)
{
    const int local = rank - round_news(r)->rank_base;
    const bool alone = r->config->home.kind == HOME_LOCAL;
    struct agent_event ev = {.kind = AGENT_HUNG, .cause = {.exit_code = EXIT_HUNG, .rank = rank}};
    char ending[72];
    if (local < 0 || local >= r->agent.slots || r->agent.state != AGENT_RUNNING)
        return;
    if (r->stragglers->excluded[local] || !restarts_are_left(r)) {
        logmux_print(r->mux, "rank %d stays, though it is slow: %s", rank,
                     r->stragglers->excluded[local] ? "in this place a worker was excluded already"
                                                    : "no restart is left");
        return;
    }
    r->stragglers->excluded[local] = true;
    snprintf(ending, sizeof ending, "excluded as a straggler (%s)", why);
    snprintf(ev.cause.text, sizeof ev.cause.text, "rank %d%s%s %s", rank, alone ? "" : " on ", alone ? "" : r->host,
             ending);
    round_break(r, clock_ns(), ev.cause.text);
    group_hung(r->group, local, ending);
    failure_report_note(r->failures, &group_workers(r->group)[local]);
    run_post(r, &ev);
    run_pump(r);
}

/* --- found, on group rank 0 */

static void on_found(void *arg, const struct straggler_verdict *v, uint64_t step)
{
    struct run *r = arg;
    struct stragglers *s = r->stragglers;
    char text[320];
    const int local = v->rank - round_news(r)->rank_base;
    const bool is_ours = local >= 0 && local < r->agent.slots;
    straggler_text(v, step, is_ours && r->config->home.kind != HOME_LOCAL ? r->host : "", text, sizeof text);
    logmux_print(r->mux, "%s", text);
    events_straggler(r->events, v->rank, v->peer, straggler_class_name(v->why), step, text);
    if (r->config->straggler_action != STRAGGLER_EXCLUDE)
        return;
    if (is_ours) {
        exclude(r, v->rank, straggler_class_name(v->why));
    } else {
        s->exclude.any = true;
        s->exclude.v = *v;
    }
}

static bool is_of(const char *text, size_t n, int rank)
{
    char head[64];
    unsigned long long last;
    int base, count;
    snprintf(head, sizeof head, "%.*s", n < sizeof head ? (int)n : (int)sizeof head - 1, text);
    return sscanf(head, "%llu %d %d", &last, &base, &count) == 3 && rank >= base && rank - base < count;
}

int stragglers_hear(void *run, const char *text, size_t n, char *answer, size_t cap)
{
    struct stragglers *s = ((struct run *)run)->stragglers;
    if (!straggler_watch_hear(s->watch, text, n))
        return ERR_REFUSED;
    if (s->exclude.any && is_of(text, n, s->exclude.v.rank)) {
        snprintf(answer, cap, EXCLUDE "%d %s", s->exclude.v.rank, straggler_class_name(s->exclude.v.why));
        s->exclude.any = false;
    }
    return 0;
}

/* --- elsewhere: steps are reported to group rank 0 */

static void tell(void *arg, const char *text, size_t n)
{
    struct run *r = arg;
    if (leader_link_tell(r->stragglers->link, round_news(r)->round, &r->stragglers->leader, strndup(text, n)) < 0)
        log_debug("agent", "cannot tell group rank 0 of our steps");
}

static void on_answer(void *arg, const char *status)
{
    struct run *r = arg;
    int rank;
    char why[16];
    if (!status)
        log_debug("agent", "group rank 0 does not take our steps");
    else if (sscanf(status, EXCLUDE "%d %15s", &rank, why) == 2 && r->config->straggler_action == STRAGGLER_EXCLUDE)
        exclude(r, rank, why);
}

static void on_lost(void *arg, const char *why)
{
    (void)arg;
    log_debug("agent", "cannot tell group rank 0 of our steps: %s", why);
}

/* --- what the watch asks */

static bool is_running(void *arg)
{
    return ((const struct run *)arg)->agent.state == AGENT_RUNNING;
}

static struct crun_page *page(void *arg, int local)
{
    const struct run *r = arg;
    return group_workers(r->group)[local].ended ? NULL : group_page(r->group, local);
}

/* --- life */

int stragglers_open(struct run *r, struct err *e)
{
    struct stragglers *s = calloc(1, sizeof *s);
    const struct straggler_watch_options o = {.loop = &r->loop,
                                              .workers = (int)r->config->nproc,
                                              .is_running = is_running,
                                              .page = page,
                                              .tell = tell,
                                              .found = on_found,
                                              .arg = r};
    const struct leader_link_options link = {.loop = &r->loop,
                                             .command = "RDZV.STEPS",
                                             .run_id = r->config->run_id,
                                             .node = r->node,
                                             .answer = on_answer,
                                             .lost = on_lost,
                                             .arg = r};
    r->stragglers = s;
    if (!s || !(s->excluded = calloc((size_t)r->config->nproc, sizeof *s->excluded)) ||
        leader_link_open(&s->link, &link) < 0)
        return err_errno(e, ENOMEM, "looking for stragglers");
    return straggler_watch_open(&s->watch, &o, e);
}

int stragglers_begin_round(struct run *r, const struct rdzv_news *news, struct err *e)
{
    struct stragglers *s = r->stragglers;
    member_leader_endpoint(r, news, &s->leader);
    leader_link_hang_up(s->link);
    s->exclude.any = false;
    return straggler_watch_begin_round(s->watch, news->rank_base, news->world_size, news->group_rank == 0, e);
}

void stragglers_progressed(struct run *r)
{
    straggler_watch_progressed(r->stragglers->watch);
}

void stragglers_end_round(struct run *r)
{
    leader_link_hang_up(r->stragglers->link);
    straggler_watch_end_round(r->stragglers->watch);
}

void stragglers_close(struct run *r)
{
    if (!r->stragglers)
        return;
    leader_link_close(r->stragglers->link);
    straggler_watch_close(r->stragglers->watch);
    r->stragglers->link = NULL;
    r->stragglers->watch = NULL;
}

void stragglers_free(struct run *r)
{
    if (r->stragglers)
        free(r->stragglers->excluded);
    free(r->stragglers);
    r->stragglers = NULL;
}
