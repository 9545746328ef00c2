#include "launcher/agent/member.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "launcher/agent/effects.h"
#include "launcher/agent/failures.h"
#include "launcher/agent/round.h"
#include "launcher/agent/run.h"
#include "launcher/agent/signals.h"
#include "launcher/agent/turns.h"
#include "launcher/config/config.h"
#include "launcher/guard/guardian.h"
#include "launcher/observe/events.h"
#include "launcher/output/logmux.h"
#include "launcher/remote/remote_wire.h"
#include "launcher/rendezvous/bootstrap.h"
#include "launcher/rendezvous/rendezvous.h"
#include "launcher/report/failure_report.h"
#include "launcher/workers/group.h"

struct member {
    struct run *r;
    struct rendezvous *rendezvous;
    int socket; /* the connection that stands for this node, -1: none */
    struct bootstrap store;
    char store_url[280];          /* where the workers of the round meet */
    char *addresses;              /* every address of every node, on group rank 0 */
    uv_timer_t report, take_over; /* of steps, to the rendezvous; of the rendezvous */
    uint64_t last_round;          /* that this node was told of, as a member or not */
    struct rdzv_news end;         /* zeroed until the job is over */
    bool announced;               /* to the crun that started this one, that it has joined */
    bool has_seat;                /* in the newest round; where false, it waits as a spare, or was told of none */
    bool refused;                 /* the rendezvous does not take this node, and that is said */
    char waits_for[320];          /* while this node joins, for people */
};

/* --- what the rendezvous says */

/* A node that has a seat keeps it, but for one that failed too often. */
static void note_round(struct run *r, const struct rdzv_news *news)
{
    struct member *m = r->member;
    const bool lost = m->has_seat && news->spare;
    m->has_seat = !news->spare;
    m->waits_for[0] = 0;
    if (lost)
        snprintf(m->waits_for, sizeof m->waits_for,
                 "round %llu has another node in this one's place, whose workers failed %lld times "
                 "(--max-node-failures); this one waits as a spare",
                 (unsigned long long)news->round, (long long)r->config->max_node_failures);
    else if (news->spare)
        snprintf(m->waits_for, sizeof m->waits_for,
                 "round %llu has all the nodes it may have; this one waits as a spare",
                 (unsigned long long)news->round);
    if (news->spare)
        logmux_print(r->mux, "%s", m->waits_for);
}

static void note_news(struct run *r, const struct rdzv_news *news)
{
    struct member *m = r->member;
    if (news->kind == RDZV_NEWS_END) {
        m->end = *news;
        failures_send_early(r);
    } else {
        m->last_round = news->round;
    }
    if (news->kind == RDZV_NEWS_ROUND)
        note_round(r, news);
    if (news->kind == RDZV_NEWS_STOP && r->agent.state == AGENT_RUNNING && news->why == RDZV_WHY_RESIZE)
        logmux_print(r->mux, "the nodes of the job change; the workers stop in good order and start again");
    if (news->kind == RDZV_NEWS_STOP && r->agent.state == AGENT_RUNNING && news->why == RDZV_WHY_FAILURE) {
        round_break(r, clock_ns(), news->cause.text);
        round_note_told(r);
        logmux_print(r->mux, "%s; the workers here stop as well", news->cause.text);
    }
}

/* From now on it is not the crun that started this one that knows how the job fares. */
static void announce_joined(struct run *r)
{
    if (r->config->control_fd >= 0 && !r->member->announced)
        logmux_print_text(r->mux, REMOTE_JOINED "\n");
    r->member->announced = true;
}

static void on_news(void *arg, const struct rdzv_news *news)
{
    struct run *r = arg;
    announce_joined(r);
    log_debug("agent", "news kind=%d round=%llu", (int)news->kind, (unsigned long long)news->round);
    note_news(r, news);
    run_post(r, &(struct agent_event){.kind = AGENT_NEWS, .news = *news});
    /* News comes from inside effects or from a timer; the former are pumped by whoever applies them. */
    run_pump(r);
}

static void on_members(void *arg, const char *addrs)
{
    struct member *m = ((struct run *)arg)->member;
    free(m->addresses);
    m->addresses = strdup(addrs);
}

static void on_fence(void *arg, const char *why)
{
    struct run *r = arg;
    if (r->agent.state == AGENT_RUNNING) {
        round_break(r, clock_ns(), "fenced");
        round_note_told(r);
    }
    events_fenced(r->events, why);
    run_post(r, &(struct agent_event){.kind = AGENT_FENCED});
    run_pump(r);
    if (why[0])
        logmux_print(r->mux, "%s; the workers here were ended", why); /* first the deed */
}

/* What became of the workers of a node that goes without the rendezvous. */
static const char *fate_of_workers(const struct run *r)
{
    if (r->agent.done)
        return "; this node's workers had finished, whether the job has is unknown";
    return r->agent.state == AGENT_RUNNING || r->agent.state == AGENT_STOPPING ? "; the workers here are ended" : "";
}

static void on_failed(void *arg, int exit_code, const char *why)
{
    struct run *r = arg;
    struct agent_event ev = {.kind = AGENT_FAILED, .cause = {.exit_code = exit_code, .rank = -1}};
    snprintf(ev.cause.text, sizeof ev.cause.text, "%.*s", (int)sizeof ev.cause.text - 1, why);
    logmux_print(r->mux, "%s%s", why, fate_of_workers(r));
    r->member->refused = true;
    run_post(r, &ev);
    run_pump(r);
}

/* Whoever typed the address of a daemon that is just away wants to know that its port is taken. */
static void announce_hosting(struct run *r)
{
    const struct home *h = &r->config->home;
    if (h->kind == HOME_TCP && h->hosting == HOME_HOSTS_IF_OWN && rendezvous_hosts(r->member->rendezvous))
        logmux_print(r->mux, "nobody listens at %s: this crun hosts the rendezvous there until the job has ended",
                     h->endpoint);
}

/* Nobody is where the rendezvous should be: this crun may be the one to host it. */
static void on_take_over(uv_timer_t *t)
{
    struct member *m = container_of(t, struct member, take_over);
    struct run *r = m->r;
    struct err e = {0};
    if (r->agent.state != AGENT_JOINING)
        return;
    int rc = rendezvous_take_over(m->rendezvous, m->last_round, &e);
    if (rc == 0)
        return;
    if (rc > 0 && r->config->home.kind == HOME_STATIC)
        bootstrap_share(&m->store, rendezvous_server(m->rendezvous));
    if (rc > 0) {
        announce_hosting(r);
        rc = rendezvous_join(m->rendezvous, &e);
    }
    if (rc < 0)
        on_failed(r, EXIT_UNAVAILABLE, e.text);
}

static void on_progress(void *arg, const struct rdzv_progress *p)
{
    struct run *r = arg;
    char *out = r->member->waits_for;
    const size_t cap = sizeof r->member->waits_for;
    if (p->text[0])
        snprintf(out, cap, "%s", p->text);
    else if (p->state == RDZV_BACKOFF)
        snprintf(out, cap, "rounds failed early one after another; the next one waits (%d of %d nodes are here)",
                 p->joined, p->min_nodes);
    else if (p->joined < p->min_nodes)
        snprintf(out, cap, "%d of %d nodes%s%s", p->joined, p->min_nodes, p->missing[0] ? ", missing " : "",
                 p->missing);
    else
        snprintf(out, cap, "%d nodes of %d to %d are here", p->joined, p->min_nodes, p->max_nodes);
    logmux_print(r->mux, p->text[0] || p->state == RDZV_BACKOFF ? "%s" : "joining: %s", out);
    if (p->text[0])
        uv_timer_start(&r->member->take_over, on_take_over, 0, 0); /* not from inside the client that it would close */
}

static void on_lease(void *arg, int64_t until_ms)
{
    guardian_lease(((struct run *)arg)->link, until_ms);
}

static void on_socket(void *arg, int fd)
{
    struct run *r = arg;
    r->member->socket = fd;
    guardian_hold(r->link, fd);
}

static int64_t still_ms(void *arg, int64_t since_ms)
{
    return turns_still_ms(arg, since_ms);
}

static int prepare_store(void *arg)
{
    struct run *r = arg;
    struct err e = {0};
    int port, rc = bootstrap_prepare(&r->member->store, &port, &e);
    if (rc < 0)
        logmux_print(r->mux, "cannot open the bootstrap store: %s", e.text);
    return rc < 0 ? rc : port;
}

static int count_reachable(void *arg)
{
    return bootstrap_alive(&((struct run *)arg)->member->store);
}

/* --- what group rank 0 reports */

static void on_report(uv_timer_t *t)
{
    const struct member *m = container_of(t, struct member, report);
    const struct run *r = m->r;
    struct group_progress p;
    char text[160];
    if (r->agent.state != AGENT_RUNNING || round_news(r)->group_rank != 0 || !group_progress(r->group, &p))
        return;
    size_t n = (size_t)snprintf(text, sizeof text, "step=%llu", (unsigned long long)p.step);
    if (p.has_metrics)
        snprintf(text + n, sizeof text - n, " images_per_s=%.6g loss=%.6g", p.images_per_s, p.loss);
    rendezvous_report(m->rendezvous, text);
}

void member_note_progress(struct run *r)
{
    const uint64_t ms = 2 * (uint64_t)r->config->conf.keep_alive_interval_ms;
    struct member *m = r->member;
    if (round_news(r)->group_rank == 0 && r->config->home.kind != HOME_LOCAL && rendezvous_takes_reports(m->rendezvous))
        uv_timer_start(&m->report, on_report, ms, ms);
}

/* --- what this node tells */

int member_join(struct run *r, struct err *e)
{
    return rendezvous_join(r->member->rendezvous, e);
}

int member_fail(struct run *r, const struct rdzv_cause *cause, struct err *e)
{
    return rendezvous_fail(r->member->rendezvous, cause, e);
}

int member_done(struct run *r, struct err *e)
{
    return rendezvous_done(r->member->rendezvous, e);
}

int member_leave(struct run *r, const struct rdzv_cause *why, struct err *e)
{
    return rendezvous_leave(r->member->rendezvous, why, e);
}

/* --- a round */

struct member_leader member_leader(const struct run *r, const struct rdzv_news *news)
{
    const struct home *h = &r->config->home;
    if (h->kind == HOME_STATIC)
        return (struct member_leader){h->host, h->port};
    return (struct member_leader){news->leader_addr, news->leader_port};
}

int member_serve(struct run *r, const struct rdzv_news *news, struct err *e)
{
    struct member *m = r->member;
    struct rdzv_config job;
    config_job(r->config, &job);
    const char *addresses = m->addresses ? m->addresses : "";
    if (bootstrap_use(&m->store, news->round, news->group_world, addresses, job.silence_ms, e) < 0)
        return err_wrap(e, "cannot open the bootstrap store");
    return 0;
}

int member_begin_round(struct run *r, const struct rdzv_news *news, struct err *e)
{
    struct member *m = r->member;
    const struct member_leader leader = member_leader(r, news);
    if (news->group_rank != 0)
        bootstrap_drop(&m->store);
    else
        TRY(member_serve(r, news, e));
    strcpy(m->store_url, "resp://");
    home_join(leader.host, leader.port, m->store_url + 7, sizeof m->store_url - 7);
    uv_timer_stop(&m->report);
    return 0;
}

/* --- what others ask */

const char *member_store_url(const struct run *r)
{
    return r->member->store_url;
}

const struct rdzv_news *member_end(const struct run *r)
{
    return &r->member->end;
}

const char *member_waits_for(const struct run *r)
{
    return r->member->waits_for;
}

const bool *member_refused(const struct run *r)
{
    return &r->member->refused;
}

bool member_hosts(const struct run *r)
{
    return rendezvous_hosts(r->member->rendezvous);
}

int member_socket(const struct run *r)
{
    return r->member->socket;
}

/* --- life */

static int open_rendezvous(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    struct rendezvous_options o = {
        .home = &c->home,
        .one_node = c->nnodes.max == 1,
        .iface = c->iface,
        .local_addr = c->local_addr,
        .client =
            {
                .heartbeat_ms = c->conf.keep_alive_interval_ms,
                .connect_ms = config_join_timeout_ms(c),
                .daemon_grace_ms = c->conf.daemon_grace_ms,
                .allow_unsafe = c->conf.allow_unsafe == 1,
                .max_lag_ms = c->conf.max_lag_ms,
                .run_id = c->run_id,
                .token_file = c->token_file,
                .insecure = c->insecure,
                .tls = c->rdzv_tls,
                .tls_ca = c->rdzv_ca,
                .node = r->node,
                .role = c->role,
                .slots = (int)c->nproc,
                .store_port = prepare_store,
                .on_news = on_news,
                .on_members = on_members,
                .on_progress = on_progress,
                .on_fence = on_fence,
                .on_lease = on_lease,
                .still_ms = still_ms,
                .on_failed = on_failed,
                .on_socket = on_socket,
                .majority = count_reachable,
                .arg = r,
            },
    };
    config_job(c, &o.client.job);
    if (c->home.kind == HOME_FILE && (o.client.home_fd = guardian_start_home(r->link)) < 0)
        return err_errno(e, -o.client.home_fd, "a socket to the process that opens the shared folder");
    return rendezvous_open(&r->member->rendezvous, &r->loop, &o, e);
}

int member_open(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    struct member *m = calloc(1, sizeof *m);
    if (!m)
        return err_errno(e, ENOMEM, "rendezvous");
    m->r = r;
    m->socket = -1;
    uv_timer_init(&r->loop, &m->report);
    uv_timer_init(&r->loop, &m->take_over);
    r->member = m;
    TRY(open_rendezvous(r, e));
    announce_hosting(r);
    const struct bootstrap_options store = {
        .loopback_only = c->home.kind == HOME_LOCAL,
        .shared = c->home.kind == HOME_STATIC ? rendezvous_server(m->rendezvous) : NULL,
        .shared_port = c->home.port,
        .run_id = c->run_id,
        .failure = failure_report_receive,
        .arg = r->failures,
    };
    bootstrap_init(&m->store, &r->loop, &store);
    return 0;
}

void member_see_off(struct run *r)
{
    const struct config *c = r->config;
    const int64_t bound_ms = stops_longest_ms(&c->stops) + c->conf.close_timeout_ms;
    if (member_hosts(r))
        effects_await_end(r, bound_ms);
    rendezvous_see_off(r->member->rendezvous, bound_ms, signals_hurry(r));
}

void member_close(struct run *r)
{
    struct member *m = r->member;
    if (!m)
        return;
    uv_close((uv_handle_t *)&m->report, NULL);
    uv_close((uv_handle_t *)&m->take_over, NULL);
    bootstrap_close(&m->store);
    rendezvous_close(m->rendezvous);
}

void member_free(struct run *r)
{
    if (r->member)
        free(r->member->addresses);
    free(r->member);
    r->member = NULL;
}
