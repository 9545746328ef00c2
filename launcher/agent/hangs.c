/* What the agent does about hangs: starts the watch (hang/hang_watch.h), and ends the round when a worker hangs. */
#include "launcher/agent/hangs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "launcher/agent/effects.h"
#include "launcher/agent/member.h"
#include "launcher/agent/round.h"
#include "launcher/agent/run.h"
#include "launcher/agent/signals.h"
#include "launcher/config/config.h"
#include "launcher/hang/hang_watch.h"
#include "launcher/observe/events.h"
#include "launcher/output/logmux.h"
#include "launcher/rendezvous/leader_link.h"
#include "launcher/rendezvous/rdzv_dial.h"
#include "launcher/report/failure_report.h"

static bool is_running(void *arg)
{
    const struct run *r = arg;
    return r->agent.state == AGENT_RUNNING && !signals_paused(r);
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

static bool keeps(const struct run *r, int local)
{
    struct crun_page *p = group_page(r->group, local);
    return p && atomic_load(&p->keeps) != 0;
}

/* If no worker stands out, choose the one that the report blames first. */
static void blame(struct run *r, const struct hang_verdict *v)
{
    char hung[72];
    if (r->agent.state != AGENT_RUNNING)
        return;
    snprintf(hung, sizeof hung, "hung %s", v->where);
    const int base = round_news(r)->rank_base;
    group_hung(r->group, v->rank - base, hung);
    for (int i = 0; v->all && i < r->agent.slots; i++)
        if (base + i != v->rank && !(v->spares && keeps(r, i)))
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

/* --- signs of life of all nodes */

struct hangs {
    struct leader_link *link; /* to group rank 0 */
    struct endpoint leader;
};

static uint64_t store_changes(void *arg)
{
    return member_store_changes(arg);
}

static void tell_quiet(void *arg, const char *text, size_t n)
{
    struct run *r = arg;
    if (leader_link_tell(r->hangs->link, round_news(r)->round, &r->hangs->leader, strndup(text, n)) < 0)
        log_debug("agent", "cannot tell group rank 0 that our workers are quiet");
}

static void on_answer(void *arg, const char *status)
{
    struct run *r = arg;
    if (status)
        hang_watch_answer(r->hang, status);
    else
        log_debug("agent", "group rank 0 does not take that our workers are quiet");
}

static void on_lost(void *arg, const char *why)
{
    (void)arg;
    log_debug("agent", "cannot tell group rank 0 that our workers are quiet: %s", why);
}

int hangs_hear(void *run, const char *text, size_t n, char *answer, size_t cap)
{
    return hang_watch_hear(((struct run *)run)->hang, text, n, answer, cap) ? 0 : ERR_REFUSED;
}

/* --- life */

int hangs_begin_round(struct run *r, const struct rdzv_news *news, struct err *e)
{
    leader_link_hang_up(r->hangs->link);
    member_leader_endpoint(r, news, &r->hangs->leader);
    const int rc = hang_watch_begin_round(r->hang, news->rank_base, news->world_size, news->group_rank == 0);
    return rc < 0 ? err_errno(e, -rc, "hang detection") : 0;
}

void hangs_end_round(struct run *r)
{
    leader_link_hang_up(r->hangs->link);
    hang_watch_end_round(r->hang);
}

void hangs_close(struct run *r)
{
    hang_watch_close(r->hang);
    r->hang = NULL;
    if (r->hangs)
        leader_link_close(r->hangs->link);
    free(r->hangs);
    r->hangs = NULL;
}

int hangs_open(struct run *r, struct err *e)
{
    const struct leader_link_options link = {.loop = &r->loop,
                                             .command = "RDZV.QUIET",
                                             .run_id = r->config->run_id,
                                             .node = r->node,
                                             .answer = on_answer,
                                             .lost = on_lost,
                                             .arg = r};
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
                                   .store_changes = store_changes,
                                   .tell_quiet = tell_quiet,
                                   .arg = r};
    o.hang.several_nodes = c->nnodes.max > 1;
    o.hang.witness_ns = c->witness_ns;
    r->hangs = calloc(1, sizeof *r->hangs);
    if (!r->hangs || leader_link_open(&r->hangs->link, &link) < 0)
        return err_errno(e, ENOMEM, "hang detection");
    return hang_watch_open(&r->hang, &o, e);
}
