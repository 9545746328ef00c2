/* The agent as status pages see it: its state, what it waits for, its workers. */
#include <stdio.h>

#include "common/base/choice.h"
#include "launcher/agent/effects.h"
#include "launcher/agent/member.h"
#include "launcher/agent/notices.h"
#include "launcher/agent/round.h"
#include "launcher/agent/run.h"
#include "launcher/config/config.h"
#include "launcher/guard/guardian.h"
#include "launcher/observe/agent_view.h"
#include "launcher/observe/events.h"

static const char *const state_names[] = {AGENT_STATES(CHOICE_NAME)};

/* Describe what this state waits for. */
static void describe_wait(const struct run *r, char *out, size_t cap)
{
    const char *text = "";
    switch (r->agent.state) {
    case AGENT_IDLE:
    case AGENT_JOINING:
        text = member_waits_for(r)[0] ? member_waits_for(r) : "the rendezvous has not answered yet";
        break;
    case AGENT_RUNNING:
        text = "the workers are being started";
        break;
    case AGENT_HOLDING:
        snprintf(out, cap, "%d of %d workers have yet to let go of the broken round, or to end",
                 r->agent.live - r->agent.held, r->agent.slots);
        return;
    case AGENT_STOPPING:
        snprintf(out, cap, "%d of %d workers have yet to end", r->agent.live, r->agent.slots);
        return;
    case AGENT_CLEARING:
        text = "all workers exited with 0; what they left behind is ended";
        break;
    case AGENT_FINISHING:
        text = "the workers of this node are done; other nodes still run";
        break;
    case AGENT_PARTING:
        text = "this node leaves the job";
        break;
    case AGENT_OVER:
        snprintf(out, cap, "exit code %d%s", run_exit_code(r),
                 member_hosts(r) ? "; other nodes have yet to hear of the end" : "");
        return;
    }
    snprintf(out, cap, "%s", text);
}

static const struct crun_page *page_of(const void *arg, int local)
{
    return group_page(((const struct run *)arg)->group, local);
}

static void fill_round(const struct run *r, struct agent_view *v)
{
    const enum agent_state s = r->agent.state;
    const struct rdzv_news *n = round_news(r);
    v->round = n->round;
    v->in_round =
        s == AGENT_RUNNING || s == AGENT_HOLDING || s == AGENT_STOPPING || s == AGENT_CLEARING || s == AGENT_FINISHING;
    v->world_size = n->world_size;
    v->nodes = n->group_world;
    v->group_rank = n->group_rank;
    v->restarts = round_restarts(r);
    v->max_restarts = r->config->max_restarts;
    v->waiting = n->round == 0 || s == AGENT_JOINING;
    v->stopping = s == AGENT_STOPPING || s == AGENT_HOLDING;
    v->started = round_is_started(r);
}

void view_fill(void *run, struct agent_view *v)
{
    const struct run *r = run;
    const struct home *h = &r->config->home;
    *v = (struct agent_view){.run_id = r->config->run_id,
                             .node = r->node,
                             .host = r->host,
                             .role = r->config->role,
                             .states = state_names,
                             .n_states = sizeof state_names / sizeof *state_names,
                             .state = (int)r->agent.state,
                             .ready = r->agent.state == AGENT_RUNNING && round_is_started(r),
                             .preempted = notices_has(r),
                             .rendezvous = home_kind_name(h->kind),
                             .endpoint = h->kind == HOME_REDIS ? "" : h->endpoint, /* a URL may hold a password */
                             .hosts = member_hosts(r),
                             .connected = member_socket(r) >= 0,
                             .workers = r->agent.slots,
                             .list = group_workers(r->group),
                             .page = page_of,
                             .arg = r,
                             .figures = events_figures(r->events)};
    v->dials = !v->hosts && (h->kind == HOME_TCP || h->kind == HOME_STATIC);
    describe_wait(r, v->waits_for, sizeof v->waits_for);
    fill_round(r, v);
    logmux_figures(r->mux, &v->logs);
    v->logs.dropped += console_files_lost(r->link->console);
}
