/* See elect.h, members.h. What is simulated here is the home. */
#include "tests/sim/elect_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/leader/rdzv_reign.h"
#include "rendezvousd/state/state_shared.h"
#include "tests/sim/api.h"

enum { APPEND_AGAIN_MS = 100, PATIENT_SILENCE_MS = ELECTION_FEW_MS + 2000 };

static bool is_redis(const struct shared *s)
{
    return s->kind == ELECT_REDIS || s->kind == ELECT_PATIENT;
}

static bool is_made(const struct shared *s)
{
    return s->kind == ELECT_RELEASE || s->kind == ELECT_EMPTIED;
}

static void pump(struct world *w, struct node *n);

void elect_push_(struct world *w, struct node *n, struct election_event ev)
{
    n->events[n->ev_last++ % 64] = ev;
    pump(w, n);
}

/* --- the home's side of a node */

static struct message *ask_home(struct world *w, struct node *n, enum home_asked call)
{
    struct message *m = elect_is_api_(w) ? post(w, M_KEEPER, w->now) : post(w, M_HOME, delay(w));
    m->node = n->index;
    m->life = n->life;
    m->call = call;
    m->sent = clock_of(n);
    m->own = n->x.own;
    m->seen = n->x.view;
    memcpy(m->identity, n->identity, sizeof m->identity);
    return m;
}

static void append_next(struct world *w, struct node *n)
{
    if (n->append_out || n->queue_first == n->queue_last || clock_of(n) < n->append_at)
        return;
    const struct append *a = &n->queue[n->queue_first % 256];
    struct message *m = ask_home(w, n, a->text ? H_APPEND : H_RELEASE);
    n->append_out = true;
    m->number = a->number;
    m->text = a->text;
    m->whole = a->whole;
    if (a->text)
        snprintf(m->own.epoch, sizeof m->own.epoch, "%s", a->epoch);
}

void elect_queue_(struct world *w, struct node *n, uint64_t number, char *text, const char *epoch, bool whole)
{
    struct append *a = &n->queue[n->queue_last++ % 256];
    *a = (struct append){.number = number, .text = text, .whole = whole};
    snprintf(a->epoch, sizeof a->epoch, "%s", epoch);
    append_next(w, n);
}

static int lead_load(struct rdzv_home *h, struct buf *ret, struct err *e)
{
    const struct node *n = running;
    (void)h, (void)e;
    return buf_addstr(ret, n->log ? n->log : "");
}

static int lead_append(struct rdzv_home *h, const struct rdzv_write *v, struct err *e)
{
    (void)e;
    elect_queue_(W, running, h->asked, keep(W, v->decision->data, v->decision->len), v->epoch, v->whole);
    return RDZV_UNDER_WAY;
}

static const struct rdzv_home_ops lead_ops = {.name = "sim", .load = lead_load, .append = lead_append};

static void on_higher(void *arg, const char *epoch)
{
    struct node *n = arg;
    W->st->higher++;
    note(W, n, "hears of epoch %s", epoch);
    snprintf(n->higher, sizeof n->higher, "%s", epoch);
    elect_push_(W, n, (struct election_event){.kind = ELECTION_HIGHER, .epoch = n->higher});
}

static void resign(struct world *w, struct node *n)
{
    if (n->x.state != ELECTION_RELEASING) {
        n->queue_first = n->queue_last;
        n->append_out = false;
    }
    stop_serving(w, n, true);
}

static void on_loaded(struct world *w, struct node *n, char *log)
{
    struct jobs_led led = {0};
    struct err e = {0};
    if (n->x.state != ELECTION_LOADING)
        return;
    if (is_daemon(w, n)) {
        elect_daemon_loaded_(w, n, log);
        return;
    }
    jobs_create(&n->jobs, &(struct jobs_options){.now = clock_now, .embedded = true, .elected = true}, &e);
    n->home = (struct rdzv_home){.ops = &lead_ops};
    n->log = log;
    int rc = jobs_lead(n->jobs,
                       &(struct jobs_lead){.home = &n->home,
                                           .run = "sim",
                                           .node = n->id,
                                           .epoch = n->x.own.epoch,
                                           .identity = n->identity,
                                           .grace_ms = n->x.grace_ms,
                                           .valid_ms = n->x.o.valid_ms,
                                           .lately_ms = election_lately_ms(&n->x.o),
                                           .full_until = clock_of(n) + n->x.full_ms,
                                           .higher = on_higher,
                                           .arg = n},
                       &led, &e);
    if (rc < 0)
        broken(w, "%s cannot take over: %s", n->id, e.text);
    w->st->terms++;
    note(w, n, "leads under %s, grace %lld, %s%s", n->x.own.epoch, (long long)n->x.grace_ms,
         led.is_empty ? "empty" : "a job", led.lost ? ", lost" : "");
    elect_push_(w, n,
                (struct election_event){.kind = ELECTION_LOADED,
                                        .rc = !led.is_empty,
                                        .hold = led.lost || (shared(w)->safe_replicas && !led.is_empty)});
}

static void carry_out_election(struct world *w, struct node *n, enum election_effect_kind fx)
{
    switch (fx) {
    case ELECTION_LOOK:
        ask_home(w, n, H_LOOK);
        break;
    case ELECTION_CLAIM:
        ask_home(w, n, H_CLAIM);
        break;
    case ELECTION_LOAD:
        ask_home(w, n, H_LOAD);
        break;
    case ELECTION_RENEW:
        ask_home(w, n, H_RENEW);
        if (!is_daemon(w, n))
            elect_push_(w, n, (struct election_event){.kind = ELECTION_HEARD, .enough = jobs_heard(n->jobs) >= w->min});
        break;
    case ELECTION_RELEASE:
        w->st->releases++;
        note(w, n, "releases, %lld ms owed", (long long)n->x.own.hold_ms);
        elect_queue_(w, n, 0, NULL, n->x.own.epoch, false);
        break;
    case ELECTION_DIAL:
        if (is_daemon(w, n))
            break;
        note(w, n, "dials %s under %s", n->x.view.node, n->x.view.epoch);
        n->address = n->x.view.port - 1;
        client(w, n,
               (struct client_event){
                   .kind = CLIENT_ADDRESS, .text = n->x.view.node, .epoch = n->x.view.epoch, .seen = n->x.highest});
        break;
    case ELECTION_UNTIL:
        if (!n->jobs)
            break;
        if (!is_daemon(w, n))
            jobs_hold(n->jobs, n->x.hold_until);
        jobs_lead_until(n->jobs, n->x.until);
        if (n->x.away_ms)
            jobs_lead_away(n->jobs, n->x.sent, n->x.away_ms);
        break;
    case ELECTION_RESIGN:
        note(w, n, "resigns");
        if (is_daemon(w, n))
            elect_daemon_resigns_(w, n);
        else
            resign(w, n);
        break;
    }
}

static void pump(struct world *w, struct node *n)
{
    enum election_effect_kind fx[ELECTION_EFFECTS_MAX];
    struct node *before = running;
    if (n->pumping || n->inside)
        return;
    n->pumping = true;
    running = n;
    while (n->ev_first != n->ev_last) {
        const struct election_event ev = n->events[n->ev_first++ % 64];
        election_step(&n->x, &ev, clock_of(n));
        const int count = n->x.fx_count;
        memcpy(fx, n->x.fx, sizeof fx);
        for (int i = 0; i < count; i++)
            carry_out_election(w, n, fx[i]);
    }
    running = before;
    n->pumping = false;
}

/* --- the home */

static struct store *store_of(struct world *w, int node)
{
    return shared(w)->on_old[node] && shared(w)->old_until > w->now ? &shared(w)->old : &shared(w)->home;
}

static void note_state(struct world *w)
{
    const unsigned i = shared(w)->state_count++ % STATES;
    shared(w)->states[i].at = w->now;
    shared(w)->states[i].claim = shared(w)->home.claim;
    shared(w)->states[i].has_claim = shared(w)->home.has_claim;
}

/* A listing may be a second old. */
static void see_claim(struct world *w, const struct store *s, struct message *ret)
{
    ret->rc = s->has_claim;
    ret->own = s->claim;
    if (is_redis(shared(w)) || !faulty(w) || !chance(w, 0.3))
        return;
    const int64_t then = w->now - between(w, 0, 1000);
    for (unsigned k = 0; k < STATES && k < shared(w)->state_count; k++) {
        const unsigned i = (shared(w)->state_count - 1 - k) % STATES;
        if (shared(w)->states[i].at > then)
            continue;
        ret->rc = shared(w)->states[i].has_claim;
        ret->own = shared(w)->states[i].claim;
        return;
    }
}

static void add_entry(struct world *w, struct store *s, const char *epoch, uint64_t number, char *text, bool whole)
{
    if (whole)
        s->first = s->count;
    if (s->count == LOG) {
        broken(w, "the log is full");
        return;
    }
    struct entry *x = &s->log[s->count++];
    snprintf(x->epoch, sizeof x->epoch, "%s", epoch);
    x->number = number;
    x->text = text;
}

static void take_claim(struct world *w, struct store *s, struct message *m)
{
    const struct rdzv_claim none = {0};
    struct buf b = {0};
    m->rc = rdzv_claim_is(s->has_claim ? &s->claim : &none, &m->seen) && strcmp(m->identity, s->identity) == 0;
    if (m->rc == 0)
        return;
    if (!s->has_claim)
        s->first = s->count;
    s->claim = m->own;
    s->has_claim = true;
    rdzv_reign_record(m->own.epoch, m->own.node, s->identity, &b);
    add_entry(w, s, m->own.epoch, 0, keep(w, b.data, b.len), false);
    buf_free(&b);
}

static bool is_ours(const struct store *s, const struct message *m)
{
    return s->has_claim && strcmp(s->claim.epoch, m->own.epoch) == 0 && strcmp(m->identity, s->identity) == 0;
}

static void take_append(struct world *w, struct store *s, struct message *m)
{
    for (int i = s->first; i < s->count; i++)
        if (strcmp(s->log[i].epoch, m->own.epoch) == 0 && s->log[i].number == m->number) {
            m->rc = 1; /* its answer was lost */
            return;
        }
    m->rc = is_ours(s, m);
    if (m->rc)
        add_entry(w, s, m->own.epoch, m->number, m->text, m->whole);
}

static void take_renewal(struct store *s, struct message *m, bool release)
{
    m->rc = is_ours(s, m) && !s->claim.released;
    if (!m->rc)
        return;
    s->claim.n++;
    m->own.n = s->claim.n;
    if (release) {
        s->claim.released = true;
        s->claim.hold_ms = m->own.hold_ms;
        s->claim.held = m->own.held;
    }
}

static char *whole_log(struct world *w, const struct store *s)
{
    struct buf b = {0};
    for (int i = s->first; i < s->count; i++)
        buf_addstr(&b, s->log[i].text);
    char *text = keep(w, b.data ? b.data : "", b.len);
    buf_free(&b);
    return text;
}

/* Where a server may be replaced: enough replicas have it only on one side of a cut. */
static bool is_confirmed(struct world *w, const struct store *s)
{
    return s != &shared(w)->old || w->now < shared(w)->old_confirms_until;
}

static void on_home(struct world *w, struct message m)
{
    struct node *n = &w->n[m.node];
    struct store *s = store_of(w, m.node);
    const bool away = shared(w)->home_away_until > w->now || shared(w)->out_of_home[m.node] > w->now;
    /* What is left of a dead process, or of a term before the newest claim, is on the connection to the server that it
     * was meant for. */
    if (m.life == n->life && (m.call == H_CLAIM || !m.identity[0])) {
        if (m.call == H_CLAIM || !n->identity[0])
            snprintf(n->identity, sizeof n->identity, "%s", s->identity);
        memcpy(m.identity, n->identity, sizeof m.identity);
    }
    if (away) {
        m.rc = -ETIMEDOUT;
    } else {
        switch (m.call) {
        case H_LOOK:
            see_claim(w, s, &m);
            break;
        case H_CLAIM:
            take_claim(w, s, &m);
            break;
        case H_LOAD:
            m.text = whole_log(w, s);
            break;
        case H_APPEND:
            take_append(w, s, &m);
            break;
        case H_RENEW:
        case H_RELEASE:
            take_renewal(s, &m, m.call == H_RELEASE);
            break;
        }
        if (s == &shared(w)->home)
            note_state(w);
        if (m.call != H_LOOK && m.call != H_LOAD && m.rc == 1 && !is_confirmed(w, s))
            m.rc = -EAGAIN;
        if (faulty(w) && !is_made(shared(w)) && chance(w, 0.02)) {
            w->st->lost_replies++;
            m.rc = -ECONNRESET;
        }
    }
    struct message *a = post(w, M_ANSWER, away ? w->now + between(w, 100, 1500) : delay(w));
    const uint64_t order = a->order;
    const int64_t at = a->at;
    *a = m;
    a->kind = M_ANSWER;
    a->order = order;
    a->at = at;
}

static void on_appended(struct world *w, struct node *n, const struct message *m)
{
    const struct append *a = &n->queue[n->queue_first % 256];
    if (!n->append_out || n->queue_first == n->queue_last || (m->call == H_APPEND) != (a->text != NULL) ||
        (a->text && (a->number != m->number || strcmp(a->epoch, m->own.epoch) != 0)))
        return; /* of a term that is over */
    n->append_out = false;
    if (m->rc < 0 && m->call == H_APPEND) {
        n->append_at = clock_of(n) + APPEND_AGAIN_MS;
        return;
    }
    n->queue_first++;
    if (m->call == H_RELEASE) {
        elect_push_(w, n, (struct election_event){.kind = ELECTION_RELEASED});
    } else if (n->x.state == ELECTION_LEADING && strcmp(m->own.epoch, n->x.own.epoch) == 0) {
        if (m->rc == 1 && is_daemon(w, n)) {
            state_shared_stands(n->log_of_jobs, m->number);
        } else if (m->rc == 1) {
            n->home.stands = m->number;
            if (n->home.landed)
                n->home.landed(n->home.arg);
        } else {
            elect_push_(w, n, (struct election_event){.kind = ELECTION_RENEWED, .rc = 0});
        }
    }
    append_next(w, n);
}

static void on_answer(struct world *w, struct message *m)
{
    struct node *n = &w->n[m->node];
    if (!n->alive || n->life != m->life)
        return;
    running = n;
    switch (m->call) {
    case H_LOOK:
        if (m->rc < 0)
            client(w, n, (struct client_event){.kind = CLIENT_TROUBLE, .text = "away"});
        elect_push_(w, n, (struct election_event){.kind = ELECTION_SEEN, .rc = m->rc, .claim = &m->own});
        break;
    case H_CLAIM:
        elect_push_(w, n, (struct election_event){.kind = ELECTION_CLAIMED, .rc = m->rc, .sent = m->sent});
        break;
    case H_LOAD:
        if (m->rc < 0)
            elect_push_(w, n, (struct election_event){.kind = ELECTION_LOADED, .rc = m->rc});
        else
            on_loaded(w, n, m->text);
        break;
    case H_RENEW:
        if (strcmp(m->own.epoch, n->x.own.epoch) == 0)
            elect_push_(
                w, n,
                (struct election_event){.kind = ELECTION_RENEWED, .rc = m->rc, .sent = m->sent, .claim = &m->own});
        break;
    case H_APPEND:
    case H_RELEASE:
        on_appended(w, n, m);
        break;
    }
}

/* --- the machine of a node */

static void born(struct world *w, struct node *n)
{
    struct rdzv_claim own = {.port = n->index + 1, .addrs = "10.0.0.1"};
    const int live_from = shared(w)->live_from;
    n->append_out = false;
    n->queue_first = n->queue_last = 0;
    n->append_at = 0;
    n->identity[0] = 0;
    if (w->daemons) {
        n->x = (struct election){0};
        if (is_daemon(w, n))
            elect_daemon_born_(w, n);
        return;
    }
    snprintf(own.node, sizeof own.node, "%s", n->id);
    if (elect_is_api_(w))
        elect_keep_(w, n);
    election_init(&n->x, &(struct election_options){.silence_ms = w->config.silence_ms,
                                                    .kill_ms = KILL_MS,
                                                    .valid_ms = elect_is_api_(w) ? elect_home_(n)->valid_ms : 0,
                                                    .away_ms = elect_is_api_(w) ? elect_home_(n)->away_ms * 2 / 5 : 0,
                                                    .nodes = w->nodes,
                                                    .never = n->index >= live_from && live_from > 0,
                                                    .seed = draw(w),
                                                    .own = &own});
    elect_push_(w, n, (struct election_event){.kind = ELECTION_BEGIN});
}

static void away(struct world *w, struct node *n, bool refused)
{
    elect_push_(w, n, (struct election_event){.kind = ELECTION_AWAY, .refused = refused, .sent = n->c.lease.acked});
}

static void acked(struct world *w, struct node *n)
{
    elect_push_(w, n, (struct election_event){.kind = ELECTION_ACKED});
}

static void ranked(struct world *w, struct node *n, int rank)
{
    elect_push_(w, n, (struct election_event){.kind = ELECTION_RANK, .rank = rank});
}

static void tick(struct world *w, struct node *n)
{
    if (election_deadline(&n->x) <= clock_of(n))
        elect_push_(w, n, (struct election_event){.kind = ELECTION_TICK});
    append_next(w, n);
    if (is_daemon(w, n))
        elect_daemon_tick_(w, n);
}

static int64_t deadline(const struct node *n)
{
    const int64_t probe = is_daemon(W, n) ? elect_daemon_deadline_(n) : NEVER;
    const int64_t due = election_deadline(&n->x) < probe ? election_deadline(&n->x) : probe;
    const bool waits = n->queue_first != n->queue_last && !n->append_out;
    return waits && n->append_at < due ? n->append_at : due;
}

static void deliver(struct world *w, struct message m)
{
    if (m.kind == M_KEEPER)
        elect_keeper_(w, &m);
    else if (m.kind == M_HOME && elect_is_api_(w))
        elect_request_(w, &m);
    else if (m.kind == M_HOME)
        on_home(w, m);
    else
        on_answer(w, &m);
}

/* --- faults */

static void new_identity(struct world *w, struct store *s)
{
    snprintf(s->identity, sizeof s->identity, "%08llx-%d", (unsigned long long)(draw(w) & 0xffffffff), 1);
}

void elect_empty_(struct world *w)
{
    struct store *s = &shared(w)->home;
    w->st->wipes++;
    note(w, NULL, "the home is emptied");
    s->has_claim = false;
    s->claim = (struct rdzv_claim){0};
    s->first = s->count;
    new_identity(w, s);
}

static void redis_fault(struct world *w)
{
    struct store *s = &shared(w)->home;
    if (chance(w, 0.3)) {
        elect_empty_(w);
        return;
    }
    w->st->failovers++;
    shared(w)->old = *s;
    shared(w)->old_confirms_until = shared(w)->safe_replicas && chance(w, 0.5) ? w->now + between(w, 0, 3000) : w->now;
    shared(w)->old_until = shared(w)->old_confirms_until + between(w, 0, 8000);
    for (int i = 0; i < w->nodes; i++)
        shared(w)->on_old[i] = chance(w, 0.5);
    int lost = shared(w)->safe_replicas ? (int)between(w, 0, 3) : 0;
    while (lost-- > 0 && s->count > s->first)
        s->count--;
    if (shared(w)->safe_replicas && chance(w, 0.5) && s->claim.n > 2)
        s->claim.n -= 2;
    new_identity(w, s);
    if (shared(w)->old_confirms_until > w->now) /* the new one has too few replicas until then */
        shared(w)->home_away_until = shared(w)->old_confirms_until;
    if (!shared(w)->safe_replicas)
        shared(w)->old_until = 0;
    note(w, NULL, "failover; the old primary lives until %lld, confirms until %lld", (long long)shared(w)->old_until,
         (long long)shared(w)->old_confirms_until);
}

static void fault(struct world *w)
{
    struct shared *s = shared(w);
    if (is_made(s)) {
        elect_made_(w);
        return;
    }
    struct node *n = &w->n[between(w, 0, w->nodes - 1)];
    const int other = (int)between(w, 0, w->nodes - 1);
    const int64_t what = between(w, 0, 99), until = w->now + between(w, 50, 12000);
    if (what < 20) {
        die(w, n, chance(w, 0.6));
    } else if (what < 45) {
        pause_node(w, n, w->now, until);
    } else if (what < 60) {
        w->st->cuts++;
        note(w, n, "is cut from node %d until %lld", other, (long long)until);
        cut(w, n->index, other, until, false);
    } else if (what < 68) {
        cut_from_all(w, n, until);
        if (chance(w, 0.4))
            s->out_of_home[n->index] = until;
    } else if (what < 76) {
        cut(w, n->index, other, until, true);
        note(w, n, "is refused by node %d until %lld", other, (long long)until);
    } else if (what < 86) {
        w->st->outages++;
        if (chance(w, 0.5))
            s->home_away_until = w->now + between(w, 100, 9000);
        else
            s->out_of_home[n->index] = until;
    } else if (what < 94 && !is_daemon(w, n)) {
        fail_worker(w, n);
    } else if (is_daemon(w, n)) {
        running = n;
        if (awake(n) && !n->leaving) {
            note(w, n, "hands over");
            n->leaving = true;
            elect_push_(w, n, (struct election_event){.kind = ELECTION_LEAVE});
        }
    } else if (is_redis(s)) {
        redis_fault(w);
    } else if (s->kind == ELECT_ETCD && chance(w, 0.3)) {
        w->st->wipes++;
        note(w, NULL, "the home is emptied");
        api_etcd_expire();
    } else if (s->kind == ELECT_KUBE && chance(w, 0.3)) {
        w->st->wipes++;
        note(w, NULL, "the ConfigMaps are deleted");
        api_kube_lose();
    } else if (elect_is_api_(w)) {
        (s->kind == ELECT_KUBE ? api_kube_compact : api_etcd_compact)();
    }
}

static void heal(struct world *w)
{
    struct shared *s = shared(w);
    memset(s->out_of_home, 0, sizeof s->out_of_home);
    s->home_away_until = s->old_until = 0;
}

static void set_up(struct world *w)
{
    struct shared *s = shared(w);
    const bool made = is_made(s);
    w->cuts_last = s->kind == ELECT_CUTS;
    w->late = made ? 0 : 0.02;
    w->late_ms = 4000;
    w->nodes = made ? NODES : (int)between(w, s->kind == ELECT_STANDBY ? 4 : w->cuts_last ? 3 : 2, NODES);
    w->max = 2 * w->nodes; /* one that vanished has a place for a while */
    w->min = made ? 2 : (int)between(w, 1, w->nodes);
    s->safe_replicas = is_redis(s) && chance(w, 0.5);
    s->live_from =
        !made && chance(w, 0.2) && w->nodes > 2 && !w->cuts_last ? w->nodes - 1 : 0; /* the last never leads */
    new_identity(w, &s->home);
    if (s->kind == ELECT_ETCD)
        api_etcd_begin(draw(w) >> 1);
    if (s->kind == ELECT_KUBE)
        api_kube_begin();
    if (s->kind == ELECT_STANDBY)
        w->daemons = (int)between(w, 2, w->nodes - 2 < 3 ? w->nodes - 2 : 3);
    w->min = w->daemons ? (int)between(w, 1, w->nodes - w->daemons) : w->min;
    settle(w);
    if (s->kind == ELECT_PATIENT)
        w->config.silence_ms = PATIENT_SILENCE_MS;
}

int elect_run(enum elect_kind kind, uint64_t seed, bool trace, struct members_stats *total, struct err *e)
{
    static const struct world_ops ops = {.set_up = set_up,
                                         .born = born,
                                         .away = away,
                                         .acked = acked,
                                         .ranked = ranked,
                                         .pump = pump,
                                         .tick = tick,
                                         .deadline = deadline,
                                         .deliver = deliver,
                                         .fault = fault,
                                         .heal = heal};
    struct shared *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, -ENOMEM, "no memory");
    s->kind = kind;
    const int rc = members_run(&s->w, &ops, seed, (int)kind, trace, total, e);
    elect_end_(&s->w);
    free(s);
    return rc;
}
