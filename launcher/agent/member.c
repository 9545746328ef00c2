/* The agent's side of its rendezvous: opens it, and sends what this node reports (member.h). */
#include "launcher/agent/member_internal.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "launcher/agent/effects.h"
#include "launcher/agent/hangs.h"
#include "launcher/agent/round.h"
#include "launcher/agent/run.h"
#include "launcher/agent/signals.h"
#include "launcher/agent/stragglers.h"
#include "launcher/agent/worker_setup.h"
#include "launcher/config/config.h"
#include "launcher/guard/guardian.h"
#include "launcher/observe/gauges.h"
#include "launcher/rendezvous/rdzv_dial.h"
#include "launcher/report/failure_report.h"
#include "launcher/workers/group.h"

/* --- what this node reports for status pages */

static struct crun_page *page_of(const void *arg, int local)
{
    return group_page(((const struct run *)arg)->group, local);
}

static void report(const struct run *r)
{
    struct member *m = r->member;
    const struct rdzv_news *round = round_news(r);
    const int64_t now_ms = clock_ms();
    struct gauges_host host;
    struct gauges_gpus gpus;
    struct buf text = {.max = RDZV_REPORT_MAX};
    struct node_report_view v = {.round = round->round,
                                 .rank_base = round->rank_base,
                                 .workers = r->agent.slots,
                                 .leads = round->group_rank == 0,
                                 .page = page_of,
                                 .arg = r,
                                 .logs = r->logs.root,
                                 .ras = worker_setup_ras(r)};
    v.host = gauges_read_host(r->link->gauges_page, now_ms, &host) ? &host : NULL;
    v.gpus = gauges_read_gpus(r->link->gauges_page, now_ms, &gpus) ? &gpus : NULL;
    if (node_report_write(&m->reported, &v, &text) == 0 && text.len)
        rendezvous_report(m->rendezvous, text.data);
    buf_free(&text);
}

static void on_report(uv_timer_t *t)
{
    const struct run *r = container_of(t, struct member, report)->r;
    if (r->agent.state == AGENT_RUNNING)
        report(r);
}

/* The workers have ended, and no further report is due: report their last steps now. */
static void report_last(struct run *r)
{
    if (!uv_is_active((uv_handle_t *)&r->member->report))
        return;
    report(r);
    uv_timer_stop(&r->member->report);
}

static void start_reports(struct run *r, bool steps)
{
    struct member *m = r->member;
    const uint64_t ms =
        (uint64_t)node_report_pause_ms(round_news(r)->group_world, r->config->conf.keep_alive_interval_ms, steps);
    uv_timer_start(&m->report, on_report, ms, ms);
}

void member_note_progress(struct run *r)
{
    if (r->config->home.kind != HOME_LOCAL && rendezvous_takes_reports(r->member->rendezvous))
        start_reports(r, true);
}

/* Begin to report steps, unless this crun hosts, and has no page that shows nodes. The gauges process measures for
 * these reports, and for faults of GPUs and links in the failure report. */
static void begin_reports(struct run *r)
{
    const bool reports =
        r->config->home.kind == HOME_TCP && rendezvous_takes_reports(r->member->rendezvous) && !member_hosts(r);
    uv_timer_stop(&r->member->report);
    if (reports || round_news(r)->group_world > 1 || access("/proc/driver/nvidia/version", F_OK) == 0)
        guardian_start_gauges(r->link);
    if (reports)
        start_reports(r, false);
}

void member_publish_failure(struct run *r, const char *text)
{
    rendezvous_publish_failure(r->member->rendezvous, text, signals_hurry(r));
}

/* --- what this node reports */

int member_join(struct run *r, struct err *e)
{
    return rendezvous_join(r->member->rendezvous, e);
}

int member_fail(struct run *r, const struct rdzv_cause *cause, struct err *e)
{
    report_last(r);
    return rendezvous_fail(r->member->rendezvous, cause, e);
}

int member_done(struct run *r, struct err *e)
{
    report_last(r);
    return rendezvous_done(r->member->rendezvous, e);
}

int member_leave(struct run *r, const struct rdzv_cause *why, struct err *e)
{
    report_last(r);
    return rendezvous_leave(r->member->rendezvous, why, e);
}

void member_answer(void *run, uint64_t id, const char *text)
{
    rendezvous_answer(((struct run *)run)->member->rendezvous, id, text);
}

/* --- a round */

struct member_leader member_leader(const struct run *r, const struct rdzv_news *news)
{
    const struct home *h = &r->config->home;
    if (h->kind == HOME_STATIC)
        return (struct member_leader){h->host, h->port};
    return (struct member_leader){news->leader_addr, news->leader_port};
}

void member_leader_endpoint(const struct run *r, const struct rdzv_news *news, struct endpoint *ret)
{
    const struct member_leader at = member_leader(r, news);
    snprintf(ret->host, sizeof ret->host, "%s", at.host);
    snprintf(ret->port, sizeof ret->port, "%d", at.port);
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
    if (news->group_rank != 0) {
        struct endpoint at;
        bootstrap_drop(&m->store);
        member_leader_endpoint(r, news, &at);
        member_try_store(r, &at);
    } else {
        member_drop_store_dial(r);
        TRY(member_serve(r, news, e));
    }
    strcpy(m->store_url, "resp://");
    home_join(leader.host, leader.port, m->store_url + 7, sizeof m->store_url - 7);
    begin_reports(r);
    return 0;
}

/* --- what others ask */

uint64_t member_store_changes(const struct run *r)
{
    return bootstrap_changes(&r->member->store);
}

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

struct page *member_page(const struct run *r)
{
    return rendezvous_page(r->member->rendezvous);
}

int member_reached(const struct run *r)
{
    return rendezvous_reached(r->member->rendezvous);
}

int member_socket(const struct run *r)
{
    return r->member->socket;
}

/* --- life */

/* Handle what another node sends to group rank 0. */
static int on_failure(void *arg, const char *node, const char *text, size_t n)
{
    return failure_report_receive(((struct run *)arg)->failures, node, text, n);
}

static int open_rendezvous(struct run *r, struct err *e)
{
    const struct config *c = r->config;
    struct rendezvous_options o = {
        .home = &c->home,
        .one_node = c->nnodes.max == 1,
        .iface = c->iface,
        .local_addr = c->local_addr,
        .may_host = member_may_host,
        .client =
            {
                .heartbeat_ms = c->conf.keep_alive_interval_ms,
                .connect_ms = config_join_timeout_ms(c),
                .daemon_grace_ms = c->conf.daemon_grace_ms,
                .never_leads = c->conf.is_host == 0,
                .lead_port = (int)c->conf.port,
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
                .waits = c->spare,
                .numbered = c->home.numbered,
            },
    };
    const struct hosting_page page = {.has_tokens = c->http_token_file, .any_host = c->http_insecure};
    r->member->page = page;
    o.client.page = c->http_port >= 0 ? &r->member->page : NULL;
    config_job(c, &o.client.job);
    member_listen(r, &o.client);
    if (c->home.kind == HOME_FILE)
        o.client.home_fd = r->link->home_fd;
    else if (r->link->home_fd >= 0)
        close(r->link->home_fd);
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
    member_announce_hosting(r);
    const struct bootstrap_options store = {
        .loopback_only = c->home.kind == HOME_LOCAL,
        .shared = c->home.kind == HOME_STATIC ? rendezvous_server(m->rendezvous) : NULL,
        .shared_port = c->home.port,
        .fixed_port = c->home.store_port,
        .run_id = c->run_id,
        .failure = on_failure,
        .steps = stragglers_hear,
        .quiet = hangs_hear,
        .met = round_note_met,
        .arg = r,
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
    member_drop_store_dial(r);
    own_host_close(m->asked);
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
