/* Handles what the rendezvous announces to this node, and asks of it. */
#include "launcher/agent/member_internal.h"

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
#include "launcher/agent/turns.h"
#include "launcher/answer/answers.h"
#include "launcher/config/config.h"
#include "launcher/guard/guardian.h"
#include "launcher/observe/events.h"
#include "launcher/output/logmux.h"
#include "launcher/remote/remote_wire.h"

/* ms before an unreachable rendezvous is printed. Nodes of a job start together: the hosting one listens a moment
 * later than another one dials. With -H it takes longer, because each node is started by an ssh of its own. */
#define TROUBLE_QUIET_MS 900
#define TROUBLE_QUIET_REMOTE_MS 5000
/* Pauses between lines which repeat that a rendezvous does not answer. */
#define TROUBLE_FIRST_MS 1000
#define TROUBLE_MOST_MS 30000

/* Print if this node has lost its seat: a node keeps its seat unless it failed too often. */
static void note_round(struct run *r, const struct rdzv_news *news)
{
    struct member *m = r->member;
    const bool lost = m->has_seat && news->spare;
    m->has_seat = !news->spare;
    m->waits_for[0] = m->spare[0] = 0;
    if (lost)
        snprintf(m->spare, sizeof m->spare,
                 "round %llu has another node in this one's place, whose workers failed %lld times "
                 "(--max-node-failures); this one waits as a spare",
                 (unsigned long long)news->round, (long long)r->config->max_node_failures);
    else if (news->spare)
        snprintf(m->spare, sizeof m->spare,
                 "job '%s' is complete: round %llu has all the nodes it may have (%d, the first at %s); this one "
                 "waits as a spare, and runs nothing unless one of them goes",
                 r->config->run_id, (unsigned long long)news->round, news->group_world, news->leader_addr);
    if (!news->spare)
        return;
    snprintf(m->waits_for, sizeof m->waits_for, "%s", m->spare);
    logmux_print(r->mux, "%s", m->spare);
}

/* This node gets no place and nothing runs here. Say which job has its places: the user may have meant a new one. */
static void note_no_place(struct run *r, const struct rdzv_news *news)
{
    const char *run = r->config->run_id;
    if (news->cause.text[0])
        logmux_print(r->mux, "job '%s' has no place for this node: %s", run, news->cause.text);
    else
        logmux_print(
            r->mux,
            "job '%s' has no place for this node: it has all its nodes (%d, the first at %s). A job of its own "
            "needs an id of its own (--rdzv-id); --spare waits until one of them goes",
            run, news->group_world, news->leader_addr);
    r->member->refused = true;
}

static void note_resize(struct run *r, const struct rdzv_news *news)
{
    const bool grows = rdzv_news_grows(news);
    if (grows && group_can_grow(r->group))
        logmux_print(r->mux, "a node has come; the workers here stay, and go on with it");
    else
        logmux_print(r->mux, "%s%sthe nodes of the job change; the workers stop in good order and start again",
                     grows ? "" : news->cause.text, grows || !news->cause.text[0] ? "" : "; ");
}

static void note_stop(struct run *r, const struct rdzv_news *news)
{
    logmux_print(r->mux, "the job was stopped by %s; the workers here are asked to stop",
                 news->cause.text[0] ? news->cause.text : "an operator of its rendezvous");
}

static void note_news(struct run *r, const struct rdzv_news *news)
{
    struct member *m = r->member;
    if (agent_news_leave_no_grace(&r->agent, news))
        logmux_print(r->mux, "the job was ended by %s; the workers here are killed", news->cause.text);
    if (news->kind == RDZV_NEWS_STOP && r->agent.state == AGENT_RUNNING && news->why == RDZV_WHY_DRAIN)
        note_stop(r, news);
    if (news->kind == RDZV_NEWS_END) {
        m->end = *news;
        if (news->spare)
            note_no_place(r, news);
        failures_send_early(r);
    }
    if (news->kind == RDZV_NEWS_ROUND)
        note_round(r, news);
    if (news->kind == RDZV_NEWS_STOP && r->agent.state == AGENT_RUNNING && news->why == RDZV_WHY_RESIZE)
        note_resize(r, news);
    if (news->kind == RDZV_NEWS_ROUND && !news->spare) {
        member_note_broken(r, "");
        r->member->fenced = false;
        member_hint_gloo(r, news);
    }
    if (news->kind == RDZV_NEWS_STOP && r->agent.state == AGENT_RUNNING && news->why == RDZV_WHY_FAILURE) {
        member_note_broken(r, news->cause.text);
        round_break(r, clock_ns(), news->cause.text);
        round_note_detected(r);
        logmux_print(r->mux, "%s; the workers here stop as well", news->cause.text);
    }
}

/* Tell the crun that started this one that it has joined: from now on that crun does not know how the job is doing. */
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
    r->member->trouble[0] = 0;
    log_debug("agent", "news kind=%d round=%llu", (int)news->kind, (unsigned long long)news->round);
    note_news(r, news);
    run_post(r, &(struct agent_event){.kind = AGENT_NEWS, .news = *news});
    /* run now; if an effect caused this news, the outer call does it */
    run_pump(r);
}

static void on_members(void *arg, const char *addrs)
{
    struct member *m = ((struct run *)arg)->member;
    free(m->addresses);
    m->addresses = strdup(addrs);
}

/* The workers of this node are killed. If their lease has run out, this node lost touch silence_ms before its end. */
static void break_fenced(struct run *r)
{
    const int64_t now = clock_ns(), until = r->member->lease_ms * 1000000;
    const bool lapsed = until > 0 && until <= now;
    struct rdzv_config job;
    config_job(r->config, &job);
    round_break(r, lapsed ? until - job.silence_ms * 1000000 : now,
                lapsed ? "lost touch with the rendezvous" : "fenced");
    round_note_detected(r);
}

static void on_fence(void *arg, const char *why)
{
    struct run *r = arg;
    char link[FAILURES_LINK_MAX];
    if (r->agent.state == AGENT_RUNNING)
        break_fenced(r);
    events_fenced(r->events, why);
    member_note_broken(r, why);
    r->member->fenced = true;
    run_post(r, &(struct agent_event){.kind = AGENT_FENCED});
    run_pump(r);
    if (why[0])
        logmux_print(r->mux, "%s; the workers here were ended%s", why, failures_down_link(r, link)); /* killed first */
}

/* A phrase about the workers of a node that exits without an answer of the rendezvous. */
static const char *fate_of_workers(const struct run *r)
{
    if (r->agent.done)
        return "; this node's workers had finished; whether the job has, is unknown";
    return r->agent.live > 0 ? "; the workers here are ended" : "";
}

static void on_failed(void *arg, int exit_code, const char *why)
{
    struct run *r = arg;
    struct agent_event ev = {.kind = AGENT_FAILED, .cause = {.exit_code = exit_code, .rank = -1}};
    char link[FAILURES_LINK_MAX];
    snprintf(ev.cause.text, sizeof ev.cause.text, "%.*s", (int)sizeof ev.cause.text - 1, why);
    logmux_print(r->mux, "%s%s%s", why, fate_of_workers(r), failures_down_link(r, link));
    r->member->refused = true;
    run_post(r, &ev);
    run_pump(r);
}

/* This crun hosts a job at an address of this machine. Print it, so that a user who meant a daemon that is down
 * knows that its port is taken now. */
void member_announce_hosting(struct run *r)
{
    const struct home *h = &r->config->home;
    if (h->kind == HOME_TCP && h->hosting == HOME_HOSTS_IF_OWN && rendezvous_hosts(r->member->rendezvous))
        logmux_print(r->mux, "nobody listens at %s: this crun hosts the rendezvous there until the job has ended",
                     h->endpoint);
}

/* No rendezvous answers at its address: host it here, if this crun is the one to do so. */
static void on_take_over(uv_timer_t *t)
{
    struct member *m = container_of(t, struct member, take_over);
    struct run *r = m->r;
    struct err e = {0};
    if (r->agent.state != AGENT_JOINING)
        return;
    int rc = rendezvous_take_over(m->rendezvous, &e);
    if (rc == 0)
        return;
    if (rc > 0 && r->config->home.kind == HOME_STATIC)
        bootstrap_share(&m->store, rendezvous_server(m->rendezvous));
    if (rc > 0) {
        member_announce_hosting(r);
        rc = rendezvous_join(m->rendezvous, &e);
    }
    if (rc < 0)
        on_failed(r, EXIT_UNAVAILABLE, e.text);
}

void member_may_host(void *arg)
{
    uv_timer_start(&((struct run *)arg)->member->take_over, on_take_over, 0, 0);
}

/* Print that the rendezvous cannot be reached: when it lasts, when the reason changes, then after pauses. */
static void print_trouble(struct run *r, const struct rdzv_progress *p)
{
    struct member *m = r->member;
    int unsaid;
    if (p->for_ms < (r->config->control_fd < 0 ? TROUBLE_QUIET_MS : TROUBLE_QUIET_REMOTE_MS))
        return;
    if (!repeat_is_same(p->text, m->trouble)) {
        snprintf(m->trouble, sizeof m->trouble, "%s", p->text);
        m->troubles = (struct repeat){.first_ms = TROUBLE_FIRST_MS, .most_ms = TROUBLE_MOST_MS};
    }
    if (!r->config->cannot.code && repeat_is_said(&m->troubles, clock_ms(), &unsaid))
        logmux_print(r->mux, "%s", m->waits_for);
    member_hint_taken(r, p->for_ms);
}

/* Text for when MIN nodes are there. */
static void enough_text(const struct presence *now, char *out, size_t cap)
{
    char begins[128] = "";
    if (now->left_ms >= 0)
        snprintf(begins, sizeof begins, "; it begins in %lld s%s", (long long)(now->left_ms + 999) / 1000,
                 now->joined < now->max_nodes ? ", sooner with all of them (--rdzv-conf last_call_timeout)" : "");
    if (now->min_nodes == now->max_nodes)
        snprintf(out, cap, "%d of %d nodes here%s", now->joined, now->max_nodes, begins);
    else
        snprintf(out, cap, "%d of %d to %d nodes here%s", now->joined, now->min_nodes, now->max_nodes, begins);
}

/* Print which nodes are there: at once if they have changed, else after pauses, as only the seconds differ. */
static void print_joining(struct run *r, const struct presence *now)
{
    struct member *m = r->member;
    char there[sizeof m->joining];
    int unsaid;
    if (r->config->cannot.code)
        return; /* how long it stays was said */
    snprintf(there, sizeof there, "%d %d %s %s %s", (int)now->state, now->joined, now->missing, now->silent, now->here);
    if (strcmp(there, m->joining) != 0) {
        strcpy(m->joining, there);
        m->joinings = (struct repeat){.first_ms = TROUBLE_FIRST_MS, .most_ms = TROUBLE_MOST_MS};
    }
    if (repeat_is_said(&m->joinings, clock_ms(), &unsaid))
        logmux_print(r->mux, now->state == RDZV_BACKOFF ? "%s" : "joining: %s", m->waits_for);
    member_hint_alone(r, now);
}

static void on_progress(void *arg, const struct rdzv_progress *p)
{
    struct run *r = arg;
    const struct presence *now = &p->now;
    char why[320];
    char *out = r->member->waits_for;
    const size_t cap = sizeof r->member->waits_for;
    if (!p->text[0] && now->state == RDZV_RUNNING && r->member->spare[0]) { /* that was said, and still holds */
        snprintf(out, cap, "%s", r->member->spare);
        r->member->trouble[0] = 0;
        return;
    }
    const char *done = r->agent.done ? "; this node's workers have finished; whether the job has, is unknown" : "";
    if (p->text[0] && p->left_ms > 0)
        snprintf(out, cap, "%s%s; given up in %lld s", p->text, done, (long long)((p->left_ms + 999) / 1000));
    else if (p->text[0])
        snprintf(out, cap, "%s%s", p->text, done);
    else if (now->state == RDZV_BACKOFF)
        snprintf(out, cap, "rounds failed early one after another; the next one waits (%d of %d nodes are here)",
                 now->joined, now->min_nodes);
    else if (now->joined < now->min_nodes)
        presence_text(now, out, cap);
    else
        enough_text(now, out, cap);
    if (r->agent.state == AGENT_PARTING || effects_has_wish(r)) /* it waits AGENT_PART_MS at most */
        return;
    if (!p->text[0]) {
        r->member->trouble[0] = 0;
        print_joining(r, now);
        return;
    }
    if (p->for_ms >= TROUBLE_QUIET_MS && member_hint_lost_host(r, p, why, sizeof why)) {
        on_failed(r, EXIT_UNAVAILABLE, why);
        return;
    }
    print_trouble(r, p);
    member_hint_unhosted(r, p);
    /* from the loop, because it closes the client that called us */
    uv_timer_start(&r->member->take_over, on_take_over, 0, 0);
}

static void on_lease(void *arg, int64_t until_ms)
{
    struct run *r = arg;
    if (until_ms > clock_ms()) /* else they are to be killed now */
        r->member->lease_ms = until_ms;
    guardian_lease(r->link, until_ms);
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
    const int wanted = r->config->home.store_port;
    if (rc < 0)
        logmux_print(r->mux, "cannot open the bootstrap store: %s", e.text);
    else if (wanted && port != wanted && !r->member->port_told)
        logmux_print(r->mux,
                     "port %d (--master-port) is taken on this machine: where this node comes first, the workers meet "
                     "at port %d",
                     wanted, port);
    r->member->port_told = r->member->port_told || (rc == 0 && wanted && port != wanted);
    return rc < 0 ? rc : port;
}

static void on_tell(void *arg, const char *text)
{
    logmux_print(((struct run *)arg)->mux, "%s", text);
}

static int count_reachable(void *arg)
{
    return bootstrap_alive(&((struct run *)arg)->member->store);
}

static void on_asked(void *arg, const char *record)
{
    answers_hear(((struct run *)arg)->answers, record);
}

void member_listen(struct run *r, struct rdzv_client_options *o)
{
    o->store_port = prepare_store;
    o->on_news = on_news;
    o->on_members = on_members;
    o->on_progress = on_progress;
    o->on_fence = on_fence;
    o->on_lease = on_lease;
    o->still_ms = still_ms;
    o->on_failed = on_failed;
    o->on_socket = on_socket;
    o->tell = on_tell;
    o->secret_help = member_secret_help;
    o->stranger = member_note_stranger;
    o->majority = count_reachable;
    o->on_asked = on_asked;
    o->arg = r;
}
