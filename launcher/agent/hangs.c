#include "launcher/agent/hangs.h"

#include <stdio.h>

#include "common/job/exitcode.h"
#include "launcher/agent/effects.h"
#include "launcher/agent/round.h"
#include "launcher/agent/run.h"
#include "launcher/config/config.h"
#include "launcher/hang/hang_watch.h"
#include "launcher/observe/events.h"
#include "launcher/output/logmux.h"
#include "launcher/report/failure_report.h"

static bool is_running(void *arg)
{
    return ((const struct run *)arg)->agent.state == AGENT_RUNNING;
}

static void read_worker(void *arg, int local, struct hang_worker *ret)
{
    const struct run *r = arg;
    const struct failure_worker *w = &group_workers(r->group)[local];
    ret->rank = w->rank;
    ret->pid = w->pid;
    ret->gone = w->ended;
    ret->page = group_page(r->group, local);
}

static bool stacks_path(void *arg, int rank, char *out, size_t cap)
{
    const struct run *r = arg;
    int n = -1;
    if (r->logs.root[0])
        n = snprintf(out, cap, "%s/hang-rank-%d.txt", r->logs.round, rank);
    else if (r->scratch[0] && logmux_has_scratch(r->mux))
        n = snprintf(out, cap, "%s/round-%llu-hang-rank-%d.txt", r->scratch, (unsigned long long)round_news(r)->round,
                     rank);
    return n > 0 && (size_t)n < cap;
}

static void on_found(void *arg, int64_t now_ns, const struct hang_verdict *v)
{
    struct run *r = arg;
    round_break(r, now_ns, v->cause);
    events_hang(r->events, v->rank, v->text);
}

/* For the report: the one that is blamed before the others, where nobody stands out. */
static void blame(struct run *r, const struct hang_verdict *v)
{
    char hung[72];
    if (r->agent.state != AGENT_RUNNING)
        return;
    snprintf(hung, sizeof hung, "hung %s", v->where);
    const int base = round_news(r)->rank_base;
    group_hung(r->group, v->rank - base, hung);
    for (int i = 0; v->all && i < r->agent.slots; i++)
        if (base + i != v->rank)
            group_hung(r->group, i, hung);
    for (int i = 0; i < r->agent.slots; i++)
        failure_report_note(r->failures, &group_workers(r->group)[i]);
}

static void on_hung(void *arg, const struct hang_verdict *v)
{
    struct run *r = arg;
    struct agent_event ev = {.kind = AGENT_HUNG, .cause = {.exit_code = EXIT_HUNG, .rank = v->rank}};
    const bool alone = r->config->home.kind == HOME_LOCAL;
    snprintf(ev.cause.text, sizeof ev.cause.text, "%s%s%s", v->cause, alone ? "" : ", reported by ",
             alone ? "" : r->host);
    blame(r, v);
    run_post(r, &ev);
    run_pump(r);
}

int hangs_open(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    struct hang_watch_options o = {.loop = &r->loop,
                                   .mux = r->mux,
                                   .hang = c->hang,
                                   .workers = (int)c->nproc,
                                   .keeps_stacks = r->logs.root[0],
                                   .is_running = is_running,
                                   .read_worker = read_worker,
                                   .stacks_path = stacks_path,
                                   .found = on_found,
                                   .hung = on_hung,
                                   .arg = r};
    o.hang.several_nodes = c->nnodes.max > 1;
    return hang_watch_open(&r->hang, &o, e);
}
