/* The rendezvous of nodes that are given a list of hosts: the client behind a connection (rdzv_client_tcp.c), what says
 * which host it dials (common/rdzv/client/hosts.h), and, if this machine is in the list, the server of a host, which
 * this node dials as all others do.
 *
 * The list may also be one of daemons that share their state. Either that is known (list_is_daemons), or the first of
 * them that is asked which seats it hears says so: then this node hosts nothing, and its client dials the list itself
 * (tcp_go_direct()). A job that cannot have hosts (list_unfit) ends if each of the list was asked and none is a daemon.
 * Once a host has taken this node, what else comes up in the list is no daemon's concern any more. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/dice.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "common/net/port_mark.h"
#include "launcher/config/home.h"
#include "launcher/rendezvous/addresses.h"
#include "launcher/rendezvous/host_question.h"
#include "launcher/rendezvous/hosting.h"
#include "launcher/rendezvous/rdzv_tcp.h"

#define MODULE "rendezvous"
#define EVENTS_MAX 64
#define LOOK_MS 5000 /* before a host that is not this machine is looked at again: its name may mean it by then */

static_assert(HOME_LIST_MAX <= HOSTS_MAX, "each host of a list has its place");

struct listed;

struct place { /* a host of the list */
    struct listed *owner;
    int index;
    struct endpoint to;
    char where[HOME_HOST_MAX + 16];
    bool own;               /* it is this machine, as far as is known */
    bool hosted;            /* by this crun */
    struct own_host *asked; /* whether it is; NULL: that is not being asked */
    struct host_question *question;
    char denial[256]; /* why it and this node do not trust each other; "": they do, as far as is known */
    bool told;        /* of that */
};

struct listed {
    struct rdzv_client_options o;
    uv_loop_t *loop;
    struct tcp *tcp;
    struct hosts x;
    struct hosts_event events[EVENTS_MAX]; /* to come */
    unsigned first, last;
    bool pumping, closing, begun;
    bool daemons;               /* the list is one of daemons, which are dialled */
    bool meets_daemon;          /* it is, and what the others say of their state is waited for */
    const struct place *daemon; /* the first of them that has named its state; NULL: none has */
    char state[40];             /* that one's */
    int unanswered;             /* of the list, so many have not been heard; each is within HOST_QUESTION_MS */
    struct place places[HOSTS_MAX];
    struct hosting *hosting; /* NULL: this node hosts nothing, yet */
    char why[512];           /* the newest question got no answer */
    int64_t looked;          /* at what hosts are own; 0: not yet */
    struct deadline_timer clock;
};

static void pump(struct listed *d);

static bool has_hosts(const struct listed *d)
{
    return !d->daemons && !d->meets_daemon && !(d->o.list_unfit && d->o.list_unfit[0]);
}

static void push(struct listed *d, struct hosts_event ev)
{
    if (!has_hosts(d))
        return;
    if (d->last - d->first < EVENTS_MAX)
        d->events[d->last++ % EVENTS_MAX] = ev;
    pump(d);
}

/* Those of a node that is done would begin again under a host that does not know of it: it waits as long as they would
 * live. */
static bool has_workers(const struct listed *d)
{
    const struct client *c = &d->tcp->c;
    return c->mode == CLIENT_RUNNING || (c->mode == CLIENT_DONE && clock_ms() < c->lease.acked + d->o.job.silence_ms);
}

/* --- hosting */

/* That node tells its user; and this one does if that node hosts as well, and is asked. */
static void on_stranger(void *arg, const char *host)
{
    (void)arg;
    log_info(MODULE, "a node at %s was turned away, for it holds another secret than this one", host);
}

static void try_to_host(struct listed *d, struct place *p)
{
    const struct home_host *h = &d->o.list[p->index];
    struct err e = {0};
    if (port_is_marked(h->port) && !d->o.hosts_own_seat)
        return; /* a daemon of this machine had it in the last minute */
    const int rc = hosting_open(&d->hosting, d->loop,
                                &(struct hosting_options){.token_file = d->o.token_file,
                                                          .insecure = d->o.insecure,
                                                          .host = h->host,
                                                          .port = h->port,
                                                          .stranger = on_stranger,
                                                          .listed = &d->o.job,
                                                          .listed_run = d->o.run_id,
                                                          .page = d->o.page},
                                &e);
    p->hosted = rc == 0;
    if (rc == 0)
        log_info(MODULE, "hosting at %s", p->where);
    else if (rc != -EADDRINUSE) /* then another crun of this machine does */
        log_warn(MODULE, "this node cannot host at %s: %s", p->where, e.text);
}

static void on_own(void *arg, bool own)
{
    struct place *p = arg;
    p->asked = NULL;
    p->own = own;
    if (own && !p->owner->hosting && has_hosts(p->owner))
        try_to_host(p->owner, p);
}

static void look_whether_own(struct listed *d, struct place *p)
{
    if (p->own || p->asked)
        return;
    p->own = (d->o.hosts_own_seat && d->o.node_rank == p->index) ||
             own_host_ask(&p->asked, d->loop, d->o.list[p->index].host, on_own, p) == OWN_HOST_YES;
}

/* One place for each crun: that of its seat before others, for several may run on one machine. */
static void host_if_own(struct listed *d)
{
    const int n = d->o.list_count;
    const int64_t now = clock_ms();
    const bool looks = d->looked == 0 || now - d->looked >= LOOK_MS;
    d->looked = looks ? now : d->looked;
    for (int i = 0; i < n && !d->hosting && !d->o.never_leads; i++) {
        struct place *p = &d->places[(d->o.node_rank + i) % n];
        if (looks)
            look_whether_own(d, p);
        if (p->own)
            try_to_host(d, p);
    }
}

/* --- daemons */

static void fail(struct listed *d, const char *why)
{
    tcp_step(d->tcp, (struct client_event){.kind = CLIENT_TROUBLE, .text = why, .error = EXIT_USAGE_ERROR});
}

static void go_direct(struct listed *d)
{
    struct endpoint to[HOSTS_MAX];
    for (int i = 0; i < d->o.list_count; i++)
        to[i] = d->places[i].to;
    d->daemons = true;
    hosting_close(d->hosting);
    d->hosting = NULL;
    deadline_timer_set(&d->clock, INT64_MAX);
    tcp_go_direct(d->tcp, to, d->o.list_count, d->state);
}

static void refuse_states(struct listed *d, const struct place *p, const char *state)
{
    char why[900];
    if (!state)
        snprintf(why, sizeof why,
                 "the rendezvousd at %.270s keeps its jobs for itself, and those of a list share them: start all of "
                 "%.300s with the same --state",
                 p->where, d->o.endpoint);
    else
        snprintf(why, sizeof why,
                 "the daemons %.270s and %.270s of the list do not share one state, %s and %s: start them with the "
                 "same --state",
                 d->daemon->where, p->where, d->state, state);
    fail(d, why);
}

/* Two hosts say the same: the one that comes first in the list has the right secret. */
static const char *help(const struct place *p)
{
    const struct listed *d = p->owner;
    bool first = false;
    for (int i = 0; i < p->index; i++)
        first = first || d->places[i].own;
    return d->o.secret_help(d->o.arg, p->to.host, !first);
}

static const char *trusted_place(const struct listed *d)
{
    int i = 0;
    while (i < d->o.list_count - 1 && d->places[i].denial[0])
        i++;
    return d->places[i].where;
}

/* Once for each place, when it is known, as far as they answer soon, whether they are hosts or daemons. */
static void tell_denials(struct listed *d)
{
    char text[1024];
    for (int i = 0; i < d->o.list_count; i++) {
        struct place *p = &d->places[i];
        if (!p->denial[0] || p->told)
            continue;
        if (!d->meets_daemon)
            snprintf(text, sizeof text,
                     "the host %.80s and this node do not trust each other, so they cannot be in one job: %s%.640s",
                     p->where, p->denial, help(p));
        else
            snprintf(
                text, sizeof text,
                "the daemons %.80s and %.80s do not have the same secret, so this node cannot go on with %.80s: %s; "
                "start them with the same --token-file",
                trusted_place(d), p->where, p->where, p->denial);
        p->told = true;
        d->o.tell(d->o.arg, text);
    }
}

/* Nothing is asked of any of them before all have named their state: two that do not share it may both take a node. */
static void go_when_all_are_heard(struct listed *d)
{
    if (!d->meets_daemon || d->daemons || d->unanswered > 0)
        return;
    tell_denials(d);
    go_direct(d);
}

static void on_daemon(void *arg, struct host_question *q, const char *state)
{
    struct place *p = arg;
    struct listed *d = p->owner;
    if (p->question != q)
        return;
    p->question = NULL;
    d->unanswered--;
    if (!d->daemons && d->tcp->c.past.instance[0])
        return; /* a host has taken this node before */
    if (!state || (state[0] && d->daemon && strcmp(d->state, state) != 0)) {
        refuse_states(d, p, state);
        return;
    }
    if (state[0] && !d->daemon) {
        d->daemon = p;
        snprintf(d->state, sizeof d->state, "%s", state);
    }
    if (!d->meets_daemon)
        log_info(MODULE, "%s is a rendezvousd: so are those of the list", p->where);
    d->meets_daemon = true;
    go_when_all_are_heard(d);
}

/* None of the list is a daemon, as far as they answer, and hosts it cannot have. */
static void note_unfit(struct listed *d)
{
    char why[900];
    if (d->daemons || d->unanswered > 0)
        return;
    snprintf(why, sizeof why,
             "%s; if they are daemons that share their state (none answers now): --rdzv-backend rendezvousd",
             d->o.list_unfit);
    fail(d, why);
}

/* --- asking */

static void on_answered(void *arg, struct host_question *q, enum hosts_answer answer, int seats, uint64_t round,
                        const char *why)
{
    struct place *p = arg;
    struct listed *d = p->owner;
    if (p->question != q)
        return;
    p->question = NULL;
    d->unanswered--;
    snprintf(p->denial, sizeof p->denial, "%.160s", answer == HOSTS_DENIED ? why : "");
    p->told = p->told && answer == HOSTS_DENIED;
    if (d->meets_daemon) {
        go_when_all_are_heard(d);
        return;
    }
    if (!has_hosts(d)) {
        note_unfit(d);
        return;
    }
    log_debug(MODULE, "%s: %s%d seats, round %llu", p->where, why[0] ? why : "hears ", seats,
              (unsigned long long)round);
    if (answer != HOSTS_HEARS)
        snprintf(d->why, sizeof d->why, "none of the hosts %.200s can be used; %.80s: %.160s", d->o.endpoint, p->where,
                 answer == HOSTS_REFUSED ? "nobody listens there" : why);
    push(d, (struct hosts_event){.kind = HOSTS_ANSWER,
                                 .host = p->index,
                                 .answer = answer,
                                 .own = p->hosted,
                                 .seats = seats,
                                 .round = round});
}

static void ask(struct listed *d)
{
    if (has_hosts(d))
        host_if_own(d);
    d->unanswered = d->o.list_count;
    for (int i = 0; i < d->o.list_count; i++) {
        struct place *p = &d->places[i];
        host_question_close(p->question);
        p->question = host_question_ask(
            d->loop, &(struct host_question_options){.to = &p->to,
                                                     .run = d->o.run_id,
                                                     .node = d->o.node,
                                                     .token = d->tcp->tokens.n ? &d->tcp->tokens.v[0] : NULL,
                                                     .insecure = d->o.insecure,
                                                     .answered = on_answered,
                                                     .daemon = on_daemon,
                                                     .arg = p});
        d->unanswered -= !p->question;
    }
}

static void dial(struct listed *d)
{
    const struct place *p = &d->places[d->x.host];
    tcp_address(d->tcp, &p->to, p->where, "listed", "");
}

static void on_seek(void *arg, bool refused)
{
    push(arg, (struct hosts_event){.kind = HOSTS_AWAY, .refused = refused});
}

static void on_acked(void *arg)
{
    push(arg, (struct hosts_event){.kind = HOSTS_ACKED});
}

/* --- time */

static void on_clock(void *arg)
{
    push(arg, (struct hosts_event){.kind = HOSTS_TICK});
}

static void carry_out(struct listed *d, enum hosts_effect_kind fx)
{
    static const char denied[] = "most hosts of the list and this node do not trust each other";
    switch (fx) {
    case HOSTS_ASK:
        ask(d);
        break;
    case HOSTS_DIAL:
        dial(d);
        break;
    case HOSTS_DENY:
        tcp_step(d->tcp, (struct client_event){.kind = CLIENT_TROUBLE, .text = denied, .error = EXIT_USAGE_ERROR});
        break;
    }
}

/* What is carried out may bring further events: they wait for the rest of the effects. */
static void pump(struct listed *d)
{
    if (d->pumping || d->closing || d->daemons)
        return;
    d->pumping = true;
    while (d->first != d->last && !d->closing && !d->daemons) {
        struct hosts_event ev = d->events[d->first++ % EVENTS_MAX];
        const enum hosts_state before = d->x.state;
        enum hosts_effect_kind fx[HOSTS_EFFECTS_MAX];
        ev.working = has_workers(d);
        hosts_step(&d->x, &ev, clock_ms());
        if (d->x.state != before)
            log_debug(MODULE, "%s -> %s", hosts_state_name(before), hosts_state_name(d->x.state));
        if (d->x.state != HOSTS_ASKING)
            tell_denials(d);
        if (d->x.state == HOSTS_PAUSING && before != HOSTS_PAUSING)
            tcp_trouble(d->tcp, d->why[0] ? d->why : "no host has answered yet");
        const int n = d->x.fx_count;
        memcpy(fx, d->x.fx, sizeof fx);
        for (int i = 0; i < n && !d->closing; i++)
            carry_out(d, fx[i]);
    }
    d->pumping = false;
    if (!d->closing && !d->daemons)
        deadline_timer_set(&d->clock, hosts_deadline(&d->x));
}

/* --- the agent's calls */

static struct listed *of(const struct rdzv_client *c)
{
    return ((const struct tcp *)c)->seeker.arg;
}

static int listed_join(struct rdzv_client *c, struct err *e)
{
    struct listed *d = of(c);
    if (!has_hosts(d) && !d->begun && !d->o.tls)
        ask(d);
    d->begun = true;
    push(of(c), (struct hosts_event){.kind = HOSTS_BEGIN});
    return tcp_join(c, e);
}

static struct hosting *listed_hosting(const struct rdzv_client *c)
{
    return of(c)->hosting;
}

/* --- life */

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

static void finish(struct listed *d)
{
    d->closing = true;
    for (int i = 0; i < d->o.list_count; i++) {
        own_host_close(d->places[i].asked);
        host_question_close(d->places[i].question);
    }
    if (d->tcp)
        tcp_close(&d->tcp->base);
    hosting_close(d->hosting);
    uv_close((uv_handle_t *)&d->clock.uv, on_closed);
}

static void listed_close(struct rdzv_client *c)
{
    if (c && !of(c)->closing)
        finish(of(c));
}

static int listed_open(struct rdzv_client **ret, uv_loop_t *loop, const struct rdzv_client_options *o, struct err *e)
{
    struct listed *d = calloc(1, sizeof *d);
    if (!d)
        return err_errno(e, ENOMEM, "rendezvous");
    d->o = *o;
    d->loop = loop;
    for (int i = 0; i < o->list_count; i++) {
        struct place *p = &d->places[i];
        *p = (struct place){.owner = d, .index = i};
        snprintf(p->to.host, sizeof p->to.host, "%s", o->list[i].host);
        snprintf(p->to.port, sizeof p->to.port, "%d", o->list[i].port);
        home_join(o->list[i].host, o->list[i].port, p->where, sizeof p->where);
    }
    deadline_timer_init(&d->clock, loop, on_clock, d);
    d->clock.uv.data = d;
    hosts_init(&d->x, &(struct hosts_options){.count = o->list_count,
                                              .min = o->job.min_nodes,
                                              .silence_ms = o->job.silence_ms,
                                              .seed = dice_seed()});
    const struct tcp_seeker seeker = {.seek = on_seek, .acked = on_acked, .listed = true, .arg = d};
    const int rc = tcp_open(&d->tcp, loop, o, &rdzv_client_listed_ops, &seeker, e);
    if (rc < 0) {
        finish(d);
        return rc;
    }
    if (o->list_is_daemons)
        go_direct(d);
    else if (has_hosts(d))
        host_if_own(d);
    *ret = &d->tcp->base;
    return 0;
}

const struct rdzv_client_ops rdzv_client_listed_ops = {
    TCP_CALLS,           .name = "listed",          .open = listed_open,
    .join = listed_join, .hosting = listed_hosting, .close = listed_close,
};
