/* The rendezvous of nodes that share a home (rdzv_home.h): the client behind a connection (rdzv_client_tcp.c), the
 * election that says whom it dials (common/rdzv/client/election.h), and, while this node leads, the server for all
 * others (hosting.h), which this node dials as well. One way to be a member: a connection. keeper.h asks the home. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/dice.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/numbers.h"
#include "common/job/exitcode.h"
#include "common/net/addr.h"
#include "common/rdzv/client/election.h"
#include "common/rdzv/leader/keeper.h"
#include "launcher/rendezvous/hosting.h"
#include "launcher/rendezvous/rdzv_tcp.h"
#include "rendezvousd/jobs/jobs.h"

#define MODULE "rendezvous"
#define EVENTS_MAX 32
#define LAG_SLACK_MS 2000 /* a Redis looks at its replicas' lag once a second; and the kill's second */
#define KEEP_MS 3600000

/* Decisions of the jobs here, on their way to the home. */
struct lead_home {
    struct rdzv_home base;
    struct elected *owner;
    struct buf log; /* as it was when the term began */
};

struct elected {
    struct rdzv_client_options o;
    uv_loop_t *loop;
    struct tcp *tcp;
    struct election x;
    struct election_event events[EVENTS_MAX]; /* to come */
    unsigned first, last;
    bool pumping, closing, answered, warned;
    bool failed; /* our newest claim: what is wrong stays wrong though the home can be read */
    char higher[RDZV_EPOCH_MAX + 1];
    struct keeper *keeper;
    struct lead_home home;
    char identity[RDZV_IDENTITY_MAX + 1];
    int64_t lag_ms;
    bool took_over;
    struct hosting *hosting; /* NULL: this node does not lead, and does not try to */
    struct deadline_timer clock;
};

static void pump(struct elected *d);

static void push(struct elected *d, struct election_event ev)
{
    if (d->last - d->first < EVENTS_MAX)
        d->events[d->last++ % EVENTS_MAX] = ev;
    pump(d);
}

/* --- the home of the jobs here */

static int lead_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    const struct lead_home *h = (struct lead_home *)base;
    const int rc = buf_add(ret, h->log.data ? h->log.data : "", h->log.len);
    return rc < 0 ? err_set(e, rc, "the decision log does not fit in memory") : 0;
}

static int lead_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct lead_home *h = (struct lead_home *)base;
    const int rc = keeper_append(h->owner->keeper, w, base->asked);
    return rc < 0 ? err_set(e, rc, "no memory for a decision") : RDZV_UNDER_WAY;
}

static void lead_forget(struct rdzv_home *base)
{
    (void)base;
}

static const struct rdzv_home_ops lead_ops = {
    .name = "lead", .load = lead_load, .append = lead_append, .forget = lead_forget};

static void complain(struct elected *d, const struct keeper_answer *a);

static void on_appended(struct elected *d, const struct keeper_answer *a)
{
    if (d->x.state != ELECTION_LEADING || strcmp(a->claim.epoch, d->x.own.epoch) != 0)
        return; /* of a term that is over */
    if (a->rc != 1) {
        keeper_end_term(d->keeper);
        if (a->rc < 0)
            complain(d, a);
        push(d, (struct election_event){.kind = a->rc < 0 ? ELECTION_UNABLE : ELECTION_RENEWED, .rc = 0});
        return;
    }
    d->home.base.stands = a->number;
    if (d->home.base.landed)
        d->home.base.landed(d->home.base.arg);
}

/* --- leading */

static int serve(struct elected *d, struct err *e)
{
    const struct hosting_options o = {.token_file = d->o.token_file,
                                      .insecure = d->o.insecure,
                                      .one_node = d->o.job.max_nodes == 1,
                                      .port = d->o.lead_port,
                                      .stranger = d->o.stranger,
                                      .arg = d->o.arg,
                                      .elected = true,
                                      .page = d->o.page};
    if (d->hosting)
        return 0;
    TRY(hosting_open(&d->hosting, d->loop, &o, e));
    d->x.own.port = d->hosting->port;
    return 0;
}

/* Others may lead, if this node cannot listen. */
static void claim(struct elected *d)
{
    struct err e = {0};
    int rc = serve(d, &e);
    if (rc < 0) {
        log_warn(MODULE, "this node cannot lead job '%s': %s", d->o.run_id, e.text);
        tcp_trouble(d->tcp, e.text);
        d->x.o.never = true;
    }
    rc = rc ? rc : keeper_claim(d->keeper, &d->x.view, &d->x.own);
    if (rc < 0)
        push(d, (struct election_event){.kind = ELECTION_CLAIMED, .rc = 0});
}

/* From inside of a call of the jobs, which are to be closed for it. */
static void on_higher(void *arg, const char *epoch)
{
    struct elected *d = arg;
    snprintf(d->higher, sizeof d->higher, "%s", epoch);
    deadline_timer_set(&d->clock, 0);
}

/* The decisions are here. */
static int take_over(struct elected *d, struct keeper_answer *a, struct jobs_led *ret, struct err *e)
{
    struct lead_home *h = &d->home;
    if (a->rc < 0)
        return err_set(e, a->rc, "%s", a->e.text);
    buf_free(&h->log);
    h->log = a->text;
    a->text = (struct buf){0};
    h->base = (struct rdzv_home){.ops = &lead_ops, .cancel_fd = -1};
    const int rc = jobs_lead(d->hosting->jobs,
                             &(struct jobs_lead){.home = &h->base,
                                                 .run = d->o.run_id,
                                                 .node = d->o.node,
                                                 .epoch = d->x.own.epoch,
                                                 .identity = d->identity,
                                                 .grace_ms = d->x.grace_ms,
                                                 .valid_ms = d->x.o.valid_ms,
                                                 .lately_ms = election_lately_ms(&d->x.o),
                                                 .full_until = clock_ms() + d->x.full_ms,
                                                 .higher = on_higher,
                                                 .arg = d},
                             ret, e);
    buf_free(&h->log);
    return rc < 0 ? err_wrap(e, "decision log") : 0;
}

static void on_loaded(struct elected *d, struct keeper_answer *a)
{
    struct jobs_led led = {0};
    struct err e = {0};
    if (d->x.state != ELECTION_LOADING)
        return;
    const int rc = take_over(d, a, &led, &e);
    if (rc < 0) {
        log_warn(MODULE, "this node cannot lead job '%s': %s", d->o.run_id, e.text);
        tcp_trouble(d->tcp, e.text);
    } else {
        log_info(MODULE, "leading job '%s' at port %d, epoch %s", d->o.run_id, d->hosting->port, d->x.own.epoch);
    }
    push(d, (struct election_event){.kind = ELECTION_LOADED,
                                    .rc = rc < 0 ? rc : !led.is_empty,
                                    .hold = led.lost || d->took_over || (d->lag_ms > 0 && !led.is_empty),
                                    .hold_ms = d->lag_ms ? d->lag_ms + d->o.job.silence_ms + LAG_SLACK_MS : 0});
}

static void resign(struct elected *d)
{
    if (!d->hosting)
        return;
    if (d->x.state != ELECTION_RELEASING)
        keeper_end_term(d->keeper);
    jobs_yield(d->hosting->jobs);
    hosting_close(d->hosting);
    d->hosting = NULL;
}

static void renew(struct elected *d)
{
    const bool enough = jobs_heard(d->hosting->jobs) >= d->o.job.min_nodes;
    keeper_renew(d->keeper, &d->x.own);
    push(d, (struct election_event){.kind = ELECTION_HEARD, .enough = enough});
}

/* --- following */

static bool is_own(const struct elected *d)
{
    return d->hosting && strcmp(d->x.view.epoch, d->x.own.epoch) == 0;
}

static void dial(struct elected *d)
{
    const struct rdzv_claim *c = &d->x.view;
    char where[CLIENT_WHERE_MAX + 1], host[RDZV_ID_MAX + 1];
    struct endpoint to = {0};
    snprintf(to.host, sizeof to.host, "%s", is_own(d) ? "127.0.0.1" : c->addrs);
    snprintf(to.port, sizeof to.port, "%d", c->port);
    if (d->o.insecure && !is_own(d) && !d->warned) {
        log_warn(MODULE, "dialling %s port %d, which the claim in the rendezvous names, without a proof (--insecure)",
                 to.host, c->port);
        d->warned = true;
    }
    snprintf(where, sizeof where, "%.95s (%.200s port %d)", c->node, is_own(d) ? "this node" : c->addrs, c->port);
    snprintf(host, sizeof host, "%.*s", (int)strcspn(c->node, "+"), c->node);
    if (d->o.secret_help)
        d->tcp->c.o.secret_help = d->o.secret_help(d->o.arg, host, true);
    tcp_address(d->tcp, &to, where, c->epoch, d->x.highest);
}

static void on_seek(void *arg, bool refused)
{
    struct elected *d = arg;
    push(d, (struct election_event){.kind = ELECTION_AWAY, .refused = refused, .sent = d->tcp->c.lease.acked});
}

static void on_acked(void *arg)
{
    struct elected *d = arg;
    d->answered = true;
    push(d, (struct election_event){.kind = ELECTION_ACKED});
}

static void on_told(void *arg, const struct rdzv_news *news)
{
    if (news->kind == RDZV_NEWS_ROUND && !news->spare)
        push(arg, (struct election_event){.kind = ELECTION_RANK, .rank = news->group_rank});
}

/* --- the home */

static bool for_good(int rc)
{
    return rc == ERR_REFUSED || rc == -EROFS || rc == -EINVAL || rc == -EPROTO || rc == -ENOTDIR || rc == -EACCES ||
           rc == -ECONNABORTED;
}

/* The home cannot be reached, or does not let us in. */
static void complain(struct elected *d, const struct keeper_answer *a)
{
    const int code = a->rc == -EROFS || a->rc == -ECONNABORTED ? EXIT_UNAVAILABLE : EXIT_USAGE_ERROR;
    if (!d->answered && for_good(a->rc))
        tcp_step(d->tcp, (struct client_event){.kind = CLIENT_TROUBLE, .text = a->e.text, .error = code});
    else
        tcp_trouble(d->tcp, a->e.text);
}

static void complain_of_nobody(struct elected *d)
{
    char text[512];
    snprintf(text, sizeof text,
             "nobody leads job '%.128s' at %.200s, and this node may not (--rdzv-conf is_host=0, or no port to listen "
             "at)",
             d->o.run_id, d->o.endpoint);
    tcp_trouble(d->tcp, text);
}

/* It has answered. */
static void be_content(struct elected *d)
{
    if (d->tcp->c.homeless)
        tcp_trouble(d->tcp, "");
}

static void on_seen(struct elected *d, const struct keeper_answer *a)
{
    if (a->rc < 0)
        complain(d, a);
    else if (d->x.o.never && (a->rc == 0 || a->claim.released))
        complain_of_nobody(d);
    else if (!d->failed)
        be_content(d);
    push(d, (struct election_event){.kind = ELECTION_SEEN, .rc = a->rc, .claim = &a->claim});
}

static void on_claimed(struct elected *d, const struct keeper_answer *a)
{
    d->failed = a->rc < 0;
    if (a->rc < 0)
        complain(d, a);
    memcpy(d->identity, a->identity, sizeof d->identity);
    d->lag_ms = a->lag_ms;
    d->took_over = a->took_over;
    push(d, (struct election_event){.kind = ELECTION_CLAIMED, .rc = a->rc, .sent = a->sent});
    if (d->x.state == ELECTION_LOOKING)
        resign(d); /* another one was faster */
}

static void on_answer(void *arg, struct keeper_answer *a)
{
    struct elected *d = arg;
    if (a->e.code == -ESTALE) /* also of an append that was tried again */
        log_warn(MODULE, "%s", a->e.text);
    switch (a->call) {
    case KEEPER_LOOK:
        on_seen(d, a);
        break;
    case KEEPER_CLAIM:
        on_claimed(d, a);
        break;
    case KEEPER_LOAD:
        on_loaded(d, a);
        break;
    case KEEPER_RENEW:
        if (a->rc < 0)
            complain(d, a);
        else
            be_content(d);
        if (strcmp(a->claim.epoch, d->x.own.epoch) == 0)
            push(d,
                 (struct election_event){.kind = ELECTION_RENEWED, .rc = a->rc, .sent = a->sent, .claim = &a->claim});
        break;
    case KEEPER_APPEND:
        on_appended(d, a);
        break;
    case KEEPER_RELEASE:
        push(d, (struct election_event){.kind = ELECTION_RELEASED});
        break;
    case KEEPER_FORGET:
        break;
    }
}

/* --- the election */

static void carry_out(struct elected *d, enum election_effect_kind fx)
{
    switch (fx) {
    case ELECTION_LOOK:
        keeper_look(d->keeper);
        break;
    case ELECTION_CLAIM:
        claim(d);
        break;
    case ELECTION_LOAD:
        keeper_load(d->keeper);
        break;
    case ELECTION_RENEW:
        renew(d);
        break;
    case ELECTION_RELEASE:
        keeper_release(d->keeper, &d->x.own);
        break;
    case ELECTION_DIAL:
        dial(d);
        break;
    case ELECTION_UNTIL:
        if (!d->hosting)
            break;
        jobs_hold(d->hosting->jobs, d->x.hold_until);
        jobs_lead_until(d->hosting->jobs, d->x.until);
        if (d->x.away_ms)
            jobs_lead_away(d->hosting->jobs, d->x.sent, d->x.away_ms);
        break;
    case ELECTION_RESIGN:
        resign(d);
        break;
    }
}

static void on_clock(void *arg)
{
    struct elected *d = arg;
    if (d->higher[0])
        push(d, (struct election_event){.kind = ELECTION_HIGHER, .epoch = d->higher});
    d->higher[0] = 0;
    push(d, (struct election_event){.kind = ELECTION_TICK});
}

/* What is carried out may bring further events: they wait for the rest of the effects. */
static void pump(struct elected *d)
{
    enum election_effect_kind fx[ELECTION_EFFECTS_MAX];
    if (d->pumping)
        return;
    d->pumping = true;
    while (d->first != d->last) {
        const struct election_event ev = d->events[d->first++ % EVENTS_MAX];
        const enum election_state before = d->x.state;
        election_step(&d->x, &ev, clock_ms());
        if (d->x.state != before)
            log_debug(MODULE, "%s -> %s", election_state_name(before), election_state_name(d->x.state));
        const int n = d->x.fx_count;
        memcpy(fx, d->x.fx, sizeof fx);
        for (int i = 0; i < n; i++)
            carry_out(d, fx[i]);
    }
    d->pumping = false;
    if (!d->closing)
        deadline_timer_set(&d->clock, d->higher[0] ? 0 : election_deadline(&d->x));
}

/* --- the agent's calls */

static struct elected *of(const struct rdzv_client *c)
{
    return ((const struct tcp *)c)->seeker.arg;
}

static int elected_join(struct rdzv_client *c, struct err *e)
{
    push(of(c), (struct election_event){.kind = ELECTION_BEGIN});
    return tcp_join(c, e);
}

static struct hosting *elected_hosting(const struct rdzv_client *c)
{
    const struct elected *d = of(c);
    return d->x.state == ELECTION_LEADING ? d->hosting : NULL;
}

/* --- life */

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

/* Whoever leads lets go; where the job is over and everybody knows, its traces go, too. */
static void finish(struct elected *d)
{
    const bool known = d->hosting && d->x.state == ELECTION_LEADING && jobs_all_know(d->hosting->jobs);
    if (d->tcp)
        tcp_close(&d->tcp->base);
    if (d->keeper)
        push(d, (struct election_event){.kind = ELECTION_LEAVE});
    if (known)
        keeper_forget(d->keeper);
    d->closing = true;
    hosting_close(d->hosting);
    keeper_close(d->keeper);
    buf_free(&d->home.log);
    uv_close((uv_handle_t *)&d->clock.uv, on_closed);
}

static void elected_close(struct rdzv_client *c)
{
    if (c && !of(c)->closing)
        finish(of(c));
}

/* The one that the user named first; loopback only where there is nothing else. */
static void own_addresses(const struct elected *d, char *out, size_t cap)
{
    char one[RDZV_ADDR_MAX + 1];
    size_t n = (size_t)snprintf(out, cap, "%s", d->o.addr ? d->o.addr : "");
    for (const char *p = d->o.addrs ? d->o.addrs : ""; *p; p += strcspn(p, ","), p += *p == ',') {
        snprintf(one, sizeof one, "%.*s", (int)strcspn(p, ","), p);
        if ((n == 0 || !addr_host_is_loopback(one)) && n + strlen(one) + 1 < cap)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? "," : "", one);
    }
}

static void set_up_election(struct elected *d, const struct rdzv_home_ops *home)
{
    struct rdzv_claim own = {0};
    own_addresses(d, own.addrs, sizeof own.addrs);
    snprintf(own.node, sizeof own.node, "%s", d->o.node);
    election_init(&d->x, &(struct election_options){.silence_ms = d->o.job.silence_ms,
                                                    .kill_ms = d->o.job.kill_ms,
                                                    .valid_ms = home->valid_ms,
                                                    .away_ms = home->away_ms,
                                                    .nodes = d->o.job.max_nodes,
                                                    .never = d->o.never_leads,
                                                    .seed = dice_seed(),
                                                    .own = &own});
}

static int open_home(struct elected *d, struct err *e)
{
    const struct rdzv_home_options o = {.run_id = d->o.run_id,
                                        .io_timeout_ms = d->o.job.silence_ms,
                                        .keep_ms = KEEP_MS,
                                        .allow_unsafe = d->o.allow_unsafe,
                                        .max_lag_ms = d->o.max_lag_ms,
                                        .process_fd = d->o.home_fd};
    struct rdzv_home *home;
    const int rc = rdzv_home_open(&home, d->o.endpoint, &o, e);
    if (rc < 0)
        return rc == -EINVAL ? ERR_USAGE : rc; /* the URL */
    set_up_election(d, home->ops);
    const int64_t patience_ms = max_i64(d->o.job.silence_ms, home->ops->away_ms);
    return keeper_open(&d->keeper, d->loop, home, patience_ms, on_answer, d, e);
}

static int elected_open(struct rdzv_client **ret, uv_loop_t *loop, const struct rdzv_client_options *o, struct err *e)
{
    struct elected *d = calloc(1, sizeof *d);
    if (!d)
        return err_errno(e, ENOMEM, "rendezvous");
    d->o = *o;
    d->loop = loop;
    d->home.owner = d;
    deadline_timer_init(&d->clock, loop, on_clock, d);
    d->clock.uv.data = d;
    const struct tcp_seeker seeker = {.seek = on_seek, .acked = on_acked, .told = on_told, .arg = d};
    int rc = open_home(d, e);
    if (rc == 0)
        rc = tcp_open(&d->tcp, loop, o, &rdzv_client_elected_ops, &seeker, e);
    if (rc < 0) {
        finish(d);
        return rc;
    }
    d->tcp->c.o.valid_ms = d->x.o.valid_ms;
    *ret = &d->tcp->base;
    return 0;
}

const struct rdzv_client_ops rdzv_client_elected_ops = {
    TCP_CALLS,
    .name = "elected",
    .open = elected_open,
    .join = elected_join,
    .hosting = elected_hosting,
    .close = elected_close,
};
