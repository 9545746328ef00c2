#include "launcher/agent/member.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "launcher/agent/failures.h"
#include "launcher/agent/run.h"
#include "launcher/config/config.h"
#include "launcher/guard/guardian.h"
#include "launcher/observe/events.h"
#include "launcher/output/logmux.h"
#include "launcher/remote/remote_wire.h"
#include "launcher/rendezvous/rdzv_dial.h"
#include "launcher/rendezvous/rendezvous.h"
#include "launcher/report/failure_report.h"

/* --- what the rendezvous says */

static void note_news(struct run *r, const struct rdzv_news *news)
{
    if (news->kind == RDZV_NEWS_END) {
        r->end = *news;
        failures_send_early(r);
    } else {
        r->last_round = news->round;
    }
    if (news->kind == RDZV_NEWS_ROUND)
        r->waits_for[0] = 0;
    if (news->kind == RDZV_NEWS_ROUND && news->spare) {
        snprintf(r->waits_for, sizeof r->waits_for,
                 "round %llu has all the nodes it may have; this one waits as a spare",
                 (unsigned long long)news->round);
        logmux_say(r->mux, "%s", r->waits_for);
    }
    if (news->kind == RDZV_NEWS_STOP && r->agent.state == AGENT_RUNNING && news->why == RDZV_WHY_RESIZE)
        logmux_say(r->mux, "the nodes of the job change; the workers stop in good order and start again");
    if (news->kind == RDZV_NEWS_STOP && r->agent.state == AGENT_RUNNING && news->why == RDZV_WHY_FAILURE) {
        round_begin_timeline(r, clock_ns(), news->cause.text);
        r->broken.told = clock_ns();
        logmux_say(r->mux, "%s; the workers here stop as well", news->cause.text);
    }
}

/* From now on it is not the crun that started this one that knows how the job fares. */
static void say_joined(struct run *r)
{
    if (r->config->control_fd >= 0 && !r->said_joined)
        logmux_say_text(r->mux, REMOTE_JOINED "\n");
    r->said_joined = true;
}

static void on_news(void *arg, const struct rdzv_news *news)
{
    struct run *r = arg;
    say_joined(r);
    log_debug("agent", "news kind=%d round=%llu", (int)news->kind, (unsigned long long)news->round);
    note_news(r, news);
    run_post(r, &(struct agent_event){.kind = AGENT_NEWS, .news = *news});
    /* News comes from inside effects or from a timer; the former are pumped by whoever applies them. */
    run_pump(r);
}

static void on_members(void *arg, const char *addrs)
{
    struct run *r = arg;
    free(r->members);
    r->members = strdup(addrs);
}

static void on_fence(void *arg, const char *why)
{
    struct run *r = arg;
    if (r->agent.state == AGENT_RUNNING) {
        round_begin_timeline(r, clock_ns(), "fenced");
        r->broken.told = clock_ns();
    }
    events_fenced(r->events, why);
    run_post(r, &(struct agent_event){.kind = AGENT_FENCED});
    run_pump(r);
    if (why[0])
        logmux_say(r->mux, "%s; the workers here were ended", why); /* first the deed */
}

/* What became of the workers of a node that goes without the rendezvous. */
static const char *fate(const struct run *r)
{
    if (r->agent.done)
        return "; this node's workers had finished, whether the job has is unknown";
    return r->agent.state == AGENT_RUNNING || r->agent.state == AGENT_STOPPING ? "; the workers here are ended" : "";
}

static void on_failed(void *arg, int exit_code, const char *why)
{
    struct run *r = arg;
    struct agent_event ev = {.kind = AGENT_FAILED, .cause = {.exit_code = exit_code, .rank = -1}};
    snprintf(ev.cause.text, sizeof ev.cause.text, "%s", why);
    logmux_say(r->mux, "%s%s", why, fate(r));
    r->refused = true;
    run_post(r, &ev);
    run_pump(r);
}

/* Nobody is where the rendezvous should be: this crun may be the one to host it. */
static void take_over(uv_timer_t *t)
{
    struct run *r = container_of(t, struct run, take_over);
    struct err e = {0};
    if (r->agent.state != AGENT_JOINING)
        return;
    int rc = rendezvous_take_over(r->rendezvous, r->last_round, &e);
    if (rc == 0)
        return;
    if (rc > 0 && r->config->home.kind == HOME_STATIC)
        bootstrap_share(&r->store, rendezvous_server(r->rendezvous));
    if (rc > 0)
        rc = rendezvous_join(r->rendezvous, &e);
    if (rc < 0)
        on_failed(r, EXIT_UNAVAILABLE, e.text);
}

static void on_progress(void *arg, const struct rdzv_progress *p)
{
    struct run *r = arg;
    char *out = r->waits_for;
    const size_t cap = sizeof r->waits_for;
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
    logmux_say(r->mux, p->text[0] || p->state == RDZV_BACKOFF ? "%s" : "joining: %s", out);
    if (p->text[0])
        uv_timer_start(&r->take_over, take_over, 0, 0); /* not from inside the client that it would close */
}

static void on_lease(void *arg, int64_t until_ms)
{
    guardian_lease(((struct run *)arg)->link, until_ms);
}

static void on_socket(void *arg, int fd)
{
    struct run *r = arg;
    r->rdzv_fd = fd;
    guardian_hold(r->link, fd);
}

static int store_port(void *arg)
{
    struct run *r = arg;
    struct err e = {0};
    int port, rc = bootstrap_prepare(&r->store, &port, &e);
    if (rc < 0)
        logmux_say(r->mux, "cannot open the bootstrap store: %s", e.text);
    return rc < 0 ? rc : port;
}

static int majority(void *arg)
{
    return bootstrap_alive(&((struct run *)arg)->store);
}

/* --- what group rank 0 reports */

static void on_report(uv_timer_t *t)
{
    struct run *r = container_of(t, struct run, report);
    struct group_progress p;
    char text[160];
    if (r->agent.state != AGENT_RUNNING || r->round.group_rank != 0 || !group_progress(r->group, &p))
        return;
    size_t n = (size_t)snprintf(text, sizeof text, "step=%llu", (unsigned long long)p.step);
    if (p.has_metrics)
        snprintf(text + n, sizeof text - n, " images_per_s=%.6g loss=%.6g", p.images_per_s, p.loss);
    rendezvous_report(r->rendezvous, text);
}

void member_progressed(struct run *r)
{
    const uint64_t ms = 2 * (uint64_t)r->config->conf.keep_alive_interval_ms;
    if (r->round.group_rank == 0 && r->config->home.kind != HOME_LOCAL && rendezvous_takes_reports(r->rendezvous))
        uv_timer_start(&r->report, on_report, ms, ms);
}

/* --- life */

void member_find_leader(const struct run *r, const struct rdzv_news *news, struct endpoint *ret)
{
    const struct home *h = &r->config->home;
    const bool is_static = h->kind == HOME_STATIC;
    snprintf(ret->host, sizeof ret->host, "%s", is_static ? h->host : news->leader_addr);
    snprintf(ret->port, sizeof ret->port, "%d", is_static ? h->port : news->leader_port);
}

int member_serve(struct run *r, const struct rdzv_news *news, struct err *e)
{
    struct rdzv_config job;
    config_job(r->config, &job);
    if (bootstrap_use(&r->store, news->round, news->group_world, r->members ? r->members : "", job.silence_ms, e) < 0)
        return err_wrap(e, "cannot open the bootstrap store");
    return 0;
}

int member_begin_round(struct run *r, const struct rdzv_news *news, struct err *e)
{
    if (news->group_rank != 0)
        bootstrap_drop(&r->store);
    else
        TRY(member_serve(r, news, e));
    struct endpoint leader;
    member_find_leader(r, news, &leader);
    snprintf(r->master_addr, sizeof r->master_addr, "%s", leader.host);
    r->master_port = atoi(leader.port);
    strcpy(r->store_url, "resp://");
    home_join(r->master_addr, r->master_port, r->store_url + 7, sizeof r->store_url - 7);
    uv_timer_stop(&r->report);
    return 0;
}

int member_open(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    struct rdzv_client_options client = {
        .heartbeat_ms = c->conf.keep_alive_interval_ms,
        .connect_ms = config_join_timeout_ms(c),
        .daemon_grace_ms = c->conf.daemon_grace_ms,
        .run_id = c->run_id,
        .token_file = c->token_file,
        .insecure = c->insecure,
        .tls = c->rdzv_tls,
        .tls_ca = c->rdzv_ca,
        .node = r->node,
        .role = c->role,
        .slots = (int)c->nproc,
        .store_port = store_port,
        .on_news = on_news,
        .on_members = on_members,
        .on_progress = on_progress,
        .on_fence = on_fence,
        .on_lease = on_lease,
        .on_failed = on_failed,
        .on_socket = on_socket,
        .majority = majority,
        .arg = r,
    };
    config_job(c, &client.job);
    const struct rendezvous_options rendezvous = {.home = &c->home,
                                                  .one_node = c->nnodes.max == 1,
                                                  .iface = c->iface,
                                                  .local_addr = c->local_addr,
                                                  .client = client};
    TRY(rendezvous_open(&r->rendezvous, &r->loop, &rendezvous, e));
    const struct bootstrap_options store = {
        .loopback_only = c->home.kind == HOME_LOCAL,
        .shared = c->home.kind == HOME_STATIC ? rendezvous_server(r->rendezvous) : NULL,
        .shared_port = c->home.port,
        .run_id = c->run_id,
        .failure = failure_report_receive,
        .arg = r->failures,
    };
    bootstrap_init(&r->store, &r->loop, &store);
    return 0;
}

void member_close(struct run *r)
{
    uv_close((uv_handle_t *)&r->report, NULL);
    uv_close((uv_handle_t *)&r->take_over, NULL);
    free(r->members);
    bootstrap_close(&r->store);
    rendezvous_close(r->rendezvous);
}
