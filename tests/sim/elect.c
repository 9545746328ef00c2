/* See elect.h. What is simulated: nodes' clocks (1 % apart), their network (delays, cuts, refusals, connections that
 * break), agents that stand still or die, workers that take their time to stop, and the home. What is the product's:
 * everything between. Rules: no two rounds have workers at once; once all is healed every node that lives works in one
 * round within a minute. */
#include "tests/sim/elect.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/rdzv/client/client.h"
#include "common/rdzv/client/election.h"
#include "common/rdzv/leader/rdzv_reign.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "rendezvousd/jobs/jobs.h"

enum {
    NODES = 5,
    CONNS = 400,
    MESSAGES = 4096,
    LOG = 4096,
    STATES = 64,
    FAULTS_MS = 60000,
    LIVE_MS = 60000, /* after the last fault */
    HEARTBEAT_MS = 1000,
    SILENCE_MS = 3000,
    KILL_MS = 1000,
    GRACE_MS = 6000, /* that workers may take to stop */
    APPEND_AGAIN_MS = 100,
};
#define NEVER INT64_MAX

enum kind { M_DIAL, M_DIALLED, M_REQUEST, M_REPLY, M_CLOSED, M_RESET, M_HOME, M_ANSWER };
enum call { H_LOOK, H_CLAIM, H_LOAD, H_APPEND, H_RENEW, H_RELEASE };

struct message {
    int64_t at;
    uint64_t order;
    enum kind kind;
    int conn, node;
    unsigned life; /* of the node it is for */
    int error;     /* DIALLED */
    bool proved;   /* CLOSED: all processes of the node are dead */
    /* REQUEST */
    enum client_ask what;
    uint64_t seq, round;
    int64_t hold;
    int from;
    char epoch[RDZV_EPOCH_MAX + 1], seen_epoch[RDZV_EPOCH_MAX + 1];
    /* REPLY */
    enum client_reply_kind reply;
    char *text; /* REQUEST, REPLY, HOME (decision), ANSWER (log) */
    /* HOME, ANSWER */
    enum call call;
    struct rdzv_claim seen, own;
    uint64_t number;
    int64_t sent; /* on the node's clock */
    int rc;
    bool whole;
    char identity[RDZV_IDENTITY_MAX + 1];
};

struct conn {
    bool used, client_open, server_open;
    int client, server;
    unsigned client_life, server_life;
    struct jobs_party *party;
    int64_t to_server, to_client; /* newest arrival: it is a stream */
    bool blocked;                 /* a NEXT waits */
    int64_t blocked_until;        /* on the server's clock */
};

struct append {
    uint64_t number;
    char *text;
    char epoch[RDZV_EPOCH_MAX + 1];
    bool whole;
};

struct node {
    int index;
    bool alive, over;
    unsigned life;
    char id[RDZV_ID_MAX + 1];
    int64_t offset, rate; /* clock: offset + now * (1 + rate / 10000) */
    int64_t paused_until, born_at;
    struct client c;
    struct election x;
    int conn;    /* -1 */
    int address; /* which node it dials */
    /* workers; true times */
    bool works;
    uint64_t work_round;
    char work_instance[RDZV_INSTANCE_MAX + 1];
    int64_t dead_at;     /* they are being killed, or stop */
    int64_t lease_until; /* on its clock; 0: none */
    bool join_due;
    /* leading */
    struct jobs *jobs;
    unsigned serving; /* counts its terms */
    struct rdzv_home home;
    char *log;
    char identity[RDZV_IDENTITY_MAX + 1];
    struct append queue[256];
    unsigned queue_first, queue_last;
    bool append_out;
    int64_t append_at; /* its clock */
    struct election_event events[64];
    unsigned ev_first, ev_last;
    bool pumping, applying, inside; /* inside: a call of its jobs */
    char higher[RDZV_EPOCH_MAX + 1];
};

struct entry {
    char epoch[RDZV_EPOCH_MAX + 1];
    uint64_t number;
    char *text; /* in the arena */
};

struct store { /* what one server of the home holds */
    struct rdzv_claim claim;
    bool has_claim;
    int first, count; /* of entries */
    struct entry log[LOG];
    char identity[RDZV_IDENTITY_MAX + 1];
};

struct world {
    enum elect_kind kind;
    uint64_t seed, rng, order;
    int64_t now, faults_end;
    bool trace, safe_replicas;
    int nodes, min, max, live_from;
    struct node n[NODES];
    struct conn conns[CONNS];
    struct message m[MESSAGES];
    int messages;
    int64_t cut_until[NODES][NODES];    /* both ways */
    int64_t refuse_until[NODES][NODES]; /* dials */
    struct store home, old;             /* old: a primary that lives on */
    int64_t old_until, old_confirms_until;
    bool on_old[NODES];
    int64_t home_away_until, out_of_home[NODES];
    struct {
        int64_t at;
        struct rdzv_claim claim;
        bool has_claim;
    } states[STATES]; /* of the claim: a ring */
    unsigned state_count;
    char **arena;
    size_t arena_n, arena_cap;
    struct rdzv_config config;
    struct elect_stats *st;
    struct err *e;
    int broken;
};

static struct world *W; /* jobs ask for the time without an argument */
static struct node *running;

/* --- chance and time */

static uint64_t draw(struct world *w)
{
    uint64_t z = (w->rng += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t between(struct world *w, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(draw(w) % (uint64_t)(hi - lo + 1));
}

static bool chance(struct world *w, double p)
{
    return (double)(draw(w) >> 11) * 0x1p-53 < p;
}

static bool faulty(const struct world *w)
{
    return w->now < w->faults_end;
}

static void broken(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void broken(struct world *w, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!w->broken)
        w->broken = err_set(w->e, ERR_CORRUPT, "seed %llu, at %lld ms: %s", (unsigned long long)w->seed,
                            (long long)w->now, text);
}

static void note(const struct world *w, const struct node *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void note(const struct world *w, const struct node *n, const char *fmt, ...)
{
    va_list ap;
    if (!w->trace)
        return;
    va_start(ap, fmt);
    fprintf(stderr, "%6lld %-4s ", (long long)w->now, n ? n->id : "");
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

static int64_t clock_of(const struct node *n)
{
    return n->offset + W->now + W->now * n->rate / 10000;
}

static int64_t clock_now(void)
{
    return clock_of(running);
}

/* When its clock will show that, or later. */
static int64_t true_time(const struct node *n, int64_t at)
{
    int64_t t = at == NEVER ? NEVER : (at - n->offset) * 10000 / (10000 + n->rate);
    while (t != NEVER && n->offset + t + t * n->rate / 10000 < at)
        t++;
    return t;
}

static bool awake(const struct node *n)
{
    return n->alive && n->paused_until <= W->now;
}

static char *keep(struct world *w, const char *p, size_t n)
{
    if (w->arena_n == w->arena_cap) {
        w->arena_cap = w->arena_cap ? 2 * w->arena_cap : 1024;
        w->arena = realloc(w->arena, w->arena_cap * sizeof *w->arena);
    }
    char *copy = malloc(n + 1);
    memcpy(copy, p, n);
    copy[n] = 0;
    return w->arena[w->arena_n++] = copy;
}

/* --- the network */

static struct message *post(struct world *w, enum kind kind, int64_t at)
{
    if (w->messages == MESSAGES) {
        broken(w, "%d messages are under way: the simulation runs away", w->messages);
        w->messages = 0;
    }
    struct message *m = &w->m[w->messages++];
    *m = (struct message){.kind = kind, .at = at, .order = w->order++, .conn = -1};
    return m;
}

static int64_t delay(struct world *w)
{
    return w->now + (faulty(w) && chance(w, 0.02) ? between(w, 0, 4000) : between(w, 0, 4));
}

static bool is_cut(const struct world *w, int a, int b)
{
    return a != b && w->cut_until[a][b] > w->now;
}

static int64_t in_order(int64_t *last, int64_t at)
{
    return *last = at > *last ? at : *last;
}

static struct message *to_server(struct world *w, int conn, enum kind kind)
{
    struct conn *k = &w->conns[conn];
    struct message *m = post(w, kind, in_order(&k->to_server, delay(w)));
    m->conn = conn;
    m->node = k->server;
    m->life = k->server_life;
    return m;
}

static struct message *to_client(struct world *w, int conn, enum kind kind)
{
    struct conn *k = &w->conns[conn];
    struct message *m = post(w, kind, in_order(&k->to_client, delay(w)));
    m->conn = conn;
    m->node = k->client;
    m->life = k->client_life;
    return m;
}

static void reply(struct world *w, int conn, enum client_reply_kind kind, const char *text)
{
    struct message *m = to_client(w, conn, M_REPLY);
    m->reply = kind;
    m->text = keep(w, text, strlen(text));
}

/* --- workers, and the first rule */

static void end_workers(struct node *n)
{
    n->works = false;
    n->dead_at = NEVER;
}

static void kill_workers(struct node *n, int64_t within)
{
    const int64_t at = W->now + (chance(W, 0.3) ? within : between(W, 0, within));
    if (n->works && at < n->dead_at)
        n->dead_at = at;
}

static void start_workers(struct world *w, struct node *n, const struct rdzv_news *news)
{
    if (n->works)
        broken(w, "%s is told of round %llu while it works", n->id, (unsigned long long)news->round);
    n->works = true;
    n->dead_at = NEVER;
    n->work_round = news->round;
    memcpy(n->work_instance, n->c.past.instance, sizeof n->work_instance);
    w->st->rounds++;
    note(w, n, "starts round %llu", (unsigned long long)news->round);
    for (int i = 0; i < w->nodes; i++) {
        const struct node *o = &w->n[i];
        if (o != n && o->works && (o->work_round != n->work_round || strcmp(o->work_instance, n->work_instance) != 0))
            broken(w, "%s works in round %llu of %s while %s works in round %llu of %s", n->id,
                   (unsigned long long)n->work_round, n->work_instance, o->id, (unsigned long long)o->work_round,
                   o->work_instance);
    }
}

/* --- the client of a node */

static void pump(struct world *w, struct node *n);
static void push(struct world *w, struct node *n, struct election_event ev)
{
    n->events[n->ev_last++ % 64] = ev;
    pump(w, n);
}

static void client(struct world *w, struct node *n, struct client_event ev);

static void dial(struct world *w, struct node *n, int64_t ms)
{
    const int to = n->address;
    const bool cut = is_cut(w, n->index, to);
    struct message *m = post(w, M_DIAL, cut ? w->now + ms : delay(w));
    m->node = n->index;
    m->life = n->life;
    m->conn = to; /* which node */
    m->error = cut ? -ETIMEDOUT : 0;
}

static void hang_up(struct world *w, struct node *n)
{
    if (n->conn >= 0) {
        w->conns[n->conn].client_open = false;
        to_server(w, n->conn, M_CLOSED);
    }
    n->conn = -1;
}

static char *record_of(struct world *w, struct node *n, enum client_ask what)
{
    struct rdzv_event ev;
    struct buf b = {0};
    client_claim(&n->c, what, &ev);
    if (what == ASK_JOIN) {
        ev.slots = 1;
        ev.node_rank = -1;
        ev.port = 1;
        snprintf(ev.addr, sizeof ev.addr, "10.0.0.%d", n->index + 1);
    }
    rdzv_event_encode(&ev, &b);
    if (what == ASK_JOIN)
        rdzv_config_encode(&w->config, &b);
    char *copy = keep(w, b.data, b.len);
    buf_free(&b);
    return copy;
}

static void send_request(struct world *w, struct node *n, const struct client_effect *fx)
{
    if (n->conn < 0)
        return;
    struct message *m = to_server(w, n->conn, M_REQUEST);
    m->what = fx->what;
    m->seq = fx->seq;
    m->hold = fx->ms;
    m->from = fx->from;
    m->round = n->c.mode == CLIENT_RUNNING || n->c.mode == CLIENT_DONE || fx->what != ASK_TERM ? n->c.round : 0;
    snprintf(m->epoch, sizeof m->epoch, "%s", n->c.epoch);
    snprintf(m->seen_epoch, sizeof m->seen_epoch, "%s", n->c.seen);
    if (fx->what == ASK_JOIN || fx->what == ASK_FAIL || fx->what == ASK_DONE || fx->what == ASK_LEAVE)
        m->text = record_of(w, n, fx->what);
}

static void take_news(struct world *w, struct node *n, const struct rdzv_news *news)
{
    note(w, n, "is told: kind %d round %llu", (int)news->kind, (unsigned long long)news->round);
    if (news->kind == RDZV_NEWS_ROUND && !news->spare) {
        push(w, n, (struct election_event){.kind = ELECTION_RANK, .rank = news->group_rank});
        start_workers(w, n, news);
    } else if (news->kind == RDZV_NEWS_STOP) {
        kill_workers(n, chance(w, 0.5) ? GRACE_MS : 200);
        n->join_due = true;
    } else if (news->kind == RDZV_NEWS_END) {
        kill_workers(n, KILL_MS);
        n->over = true;
    }
}

static void carry_out(struct world *w, struct node *n, const struct client_effect *fx)
{
    switch (fx->kind) {
    case CLIENT_DIAL:
        dial(w, n, fx->ms);
        break;
    case CLIENT_HANG_UP:
        hang_up(w, n);
        break;
    case CLIENT_SEND:
        send_request(w, n, fx);
        break;
    case CLIENT_TELL:
        take_news(w, n, &fx->news);
        break;
    case CLIENT_FENCE:
        note(w, n, "is fenced: %s", fx->text);
        w->st->fences++;
        kill_workers(n, KILL_MS);
        n->join_due = true;
        break;
    case CLIENT_FAILED:
        if (!faulty(w))
            broken(w, "%s fails: %s", n->id, fx->text);
        kill_workers(n, KILL_MS);
        n->over = true;
        break;
    case CLIENT_LEASE:
        n->lease_until = fx->ms;
        break;
    case CLIENT_SEEK:
        push(w, n, (struct election_event){.kind = ELECTION_AWAY, .refused = fx->ms != 0});
        break;
    case CLIENT_ACKED:
        push(w, n, (struct election_event){.kind = ELECTION_ACKED});
        break;
    default:
        break;
    }
}

static void apply(struct world *w, struct node *n)
{
    const struct client_effect *fx;
    if (n->applying)
        return;
    n->applying = true;
    while ((fx = client_effect(&n->c))) {
        carry_out(w, n, fx);
        client_done(&n->c);
    }
    n->applying = false;
}

static void client(struct world *w, struct node *n, struct client_event ev)
{
    client_step(&n->c, &ev, clock_of(n));
    apply(w, n);
}

/* --- the home's side of a node */

static struct message *ask_home(struct world *w, struct node *n, enum call call)
{
    struct message *m = post(w, M_HOME, delay(w));
    m->node = n->index;
    m->life = n->life;
    m->call = call;
    m->sent = clock_of(n);
    m->own = n->x.own;
    m->seen = n->x.view;
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

static void queue(struct world *w, struct node *n, uint64_t number, char *text, const char *epoch, bool whole)
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
    queue(W, running, h->asked, keep(W, v->decision->data, v->decision->len), v->epoch, v->whole);
    return RDZV_UNDER_WAY;
}

static const struct rdzv_home_ops lead_ops = {.name = "sim", .load = lead_load, .append = lead_append};

static void on_higher(void *arg, const char *epoch)
{
    struct node *n = arg;
    W->st->higher++;
    note(W, n, "hears of epoch %s", epoch);
    snprintf(n->higher, sizeof n->higher, "%s", epoch);
    push(W, n, (struct election_event){.kind = ELECTION_HIGHER, .epoch = n->higher});
}

static void close_at_server(struct world *w, int conn, enum jobs_end how, bool tell)
{
    struct conn *k = &w->conns[conn];
    struct jobs_party *p = k->party;
    if (!k->server_open)
        return;
    k->server_open = k->blocked = false;
    k->party = NULL;
    if (tell)
        to_client(w, conn, M_RESET);
    jobs_party_close(p, how);
}

static void stop_serving(struct world *w, struct node *n, bool tell)
{
    if (!n->jobs)
        return;
    jobs_yield(n->jobs);
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].used && w->conns[i].server == n->index && w->conns[i].server_life == n->serving)
            close_at_server(w, i, JOBS_SILENT, tell);
    jobs_destroy(n->jobs);
    n->jobs = NULL;
    n->serving++;
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
                                           .full_until = clock_of(n) + n->x.full_ms,
                                           .higher = on_higher,
                                           .arg = n},
                       &led, &e);
    if (rc < 0)
        broken(w, "%s cannot take over: %s", n->id, e.text);
    w->st->terms++;
    note(w, n, "leads under %s, grace %lld, %s%s", n->x.own.epoch, (long long)n->x.grace_ms,
         led.is_empty ? "empty" : "a job", led.lost ? ", lost" : "");
    push(w, n,
         (struct election_event){
             .kind = ELECTION_LOADED, .rc = !led.is_empty, .hold = led.lost || (w->safe_replicas && !led.is_empty)});
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
        push(w, n, (struct election_event){.kind = ELECTION_HEARD, .enough = jobs_heard(n->jobs) >= w->min});
        break;
    case ELECTION_RELEASE:
        w->st->releases++;
        note(w, n, "releases, %lld ms owed", (long long)n->x.own.hold_ms);
        queue(w, n, 0, NULL, n->x.own.epoch, false);
        break;
    case ELECTION_DIAL:
        note(w, n, "dials %s under %s", n->x.view.node, n->x.view.epoch);
        n->address = n->x.view.port - 1;
        client(w, n,
               (struct client_event){
                   .kind = CLIENT_ADDRESS, .text = n->x.view.node, .epoch = n->x.view.epoch, .seen = n->x.highest});
        break;
    case ELECTION_UNTIL:
        if (!n->jobs)
            break;
        jobs_hold(n->jobs, n->x.hold_until);
        jobs_lead_until(n->jobs, n->x.until);
        break;
    case ELECTION_RESIGN:
        note(w, n, "resigns");
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

/* --- serving */

static const char *word_of(int rc)
{
    return rc == ERR_FENCED     ? "FENCED"
           : rc == ERR_REFUSED  ? "REFUSED"
           : rc == ERR_MISMATCH ? "DIFFERS"
           : rc == -ENOENT      ? "NOJOB"
           : rc == -EDQUOT      ? "LIMIT"
           : rc == -EAGAIN      ? "BUSY"
           : rc == -ESTALE      ? "NOTERM"
                                : "ERR";
}

static void say(struct world *w, int conn, int rc, const struct err *e)
{
    char text[600];
    snprintf(text, sizeof text, "%s %s", word_of(rc), e->text);
    if (rc < 0)
        reply(w, conn, REPLY_ERROR, text);
    else
        reply(w, conn, REPLY_STATUS, "OK");
}

static void on_told(void *arg, const struct rdzv_news *news, const char *members, int more)
{
    const int conn = (int)(intptr_t)arg;
    struct buf b = {0};
    (void)members, (void)more;
    W->conns[conn].blocked = false;
    if (!news) {
        reply(W, conn, REPLY_ERROR, "FENCED a newer connection stands for this node");
        return;
    }
    rdzv_news_encode(news, &b);
    reply(W, conn, REPLY_RECORD, b.data);
    buf_free(&b);
}

/* As rdzv_next_ops_ of rendezvousd/commands. */
static void end_next(struct world *w, int conn)
{
    struct conn *k = &w->conns[conn];
    struct err e = {0};
    if (!k->blocked)
        return;
    k->blocked = false;
    jobs_next_cancel(k->party);
    const int rc = jobs_may_answer(w->n[k->server].jobs, &e);
    if (rc < 0)
        say(w, conn, rc, &e);
    else
        reply(w, conn, REPLY_NIL, "");
}

static void serve_join(struct world *w, int conn, struct jobs_party *p, const struct message *m)
{
    struct rdzv_event ev;
    struct rdzv_config c;
    struct jobs_joined joined;
    struct err e = {0};
    char text[200];
    rdzv_config_defaults(&c);
    int rc = rdzv_event_decode(m->text, strlen(m->text), &ev, &e);
    rc = rc ? rc : rdzv_config_decode(m->text, strlen(m->text), &c, &e);
    rc = rc ? rc : jobs_join(p, "sim", &ev, &c, &joined, &e);
    if (rc < 0) {
        say(w, conn, rc, &e);
        return;
    }
    snprintf(text, sizeof text, "instance=%s epoch=1 seq=%llu", joined.instance, (unsigned long long)joined.seq);
    reply(w, conn, REPLY_RECORD, text);
}

static void serve(struct world *w, const struct message *m)
{
    struct conn *k = &w->conns[m->conn];
    const char *node = w->n[k->client].id;
    char id[RDZV_ID_MAX + 1];
    struct jobs_party *p = k->party;
    struct rdzv_event ev;
    struct err e = {0};
    int rc;
    snprintf(id, sizeof id, "n%d.%u", k->client, k->client_life);
    node = id;
    end_next(w, m->conn);
    switch (m->what) {
    case ASK_TERM:
        rc = jobs_term(p, "sim", m->epoch, m->seen_epoch, m->round, &e);
        if (k->server_open) /* else it has resigned */
            say(w, m->conn, rc, &e);
        break;
    case ASK_JOIN:
        serve_join(w, m->conn, p, m);
        break;
    case ASK_NEXT:
        k->blocked = true;
        k->blocked_until = clock_now() + m->hold;
        rc = jobs_next(p, "sim", node, m->seq, m->from, &e);
        if (rc < 0) {
            k->blocked = false;
            say(w, m->conn, rc, &e);
        }
        break;
    case ASK_FAIL:
    case ASK_DONE:
    case ASK_LEAVE:
        rc = rdzv_event_decode(m->text, strlen(m->text), &ev, &e);
        rc = rc ? rc : jobs_claim(p, "sim", &ev, &e);
        say(w, m->conn, rc, &e);
        break;
    default:
        reply(w, m->conn, REPLY_STATUS, "OK");
        break;
    }
}

/* --- messages */

static int free_conn(struct world *w)
{
    for (int i = 0; i < CONNS; i++)
        if (!w->conns[i].client_open && !w->conns[i].server_open) {
            bool named = false;
            for (int k = 0; k < w->messages && !named; k++)
                named = w->m[k].conn == i && w->m[k].kind != M_DIAL;
            if (!named)
                return i;
        }
    broken(w, "no connection is free");
    return 0;
}

static void on_dial(struct world *w, const struct message *m)
{
    struct node *n = &w->n[m->node], *to = &w->n[m->conn];
    int error = m->error;
    if (n->life != m->life || !n->alive || !n->c.dialling)
        return;
    if (!error && is_cut(w, n->index, to->index))
        error = -ETIMEDOUT;
    if (!error && (w->refuse_until[n->index][to->index] > w->now || !to->alive || !to->jobs))
        error = -ECONNREFUSED;
    running = n;
    if (error) {
        client(w, n, (struct client_event){.kind = CLIENT_DIALLED, .error = error, .text = "dial"});
        return;
    }
    const int i = free_conn(w);
    struct err e = {0};
    w->conns[i] = (struct conn){.used = true,
                                .client_open = true,
                                .server_open = true,
                                .client = n->index,
                                .server = to->index,
                                .client_life = n->life,
                                .server_life = to->serving};
    running = to;
    if (jobs_party_open(
            &w->conns[i].party, to->jobs,
            &(struct jobs_party_options){
                .principal = "", .addr = "10.0.0.9", .local = "10.0.0.8", .told = on_told, .arg = (void *)(intptr_t)i},
            &e) < 0)
        broken(w, "%s", e.text);
    running = n;
    n->conn = i;
    client(w, n, (struct client_event){.kind = CLIENT_DIALLED});
    if (n->conn == i)
        client(w, n, (struct client_event){.kind = CLIENT_READY});
}

static void on_client_message(struct world *w, const struct message *m)
{
    struct node *n = &w->n[m->node];
    if (!n->alive || n->life != m->life || n->conn != m->conn)
        return;
    running = n;
    if (m->kind == M_REPLY)
        client(w, n,
               (struct client_event){.kind = CLIENT_REPLY,
                                     .reply = {m->reply, m->text ? m->text : "", m->text ? strlen(m->text) : 0}});
    else
        client(w, n, (struct client_event){.kind = CLIENT_LOST, .how = RDZV_LOST, .text = "reset"});
}

static void on_server_message(struct world *w, const struct message *m)
{
    struct node *n = &w->n[m->node];
    if (!n->alive || n->serving != m->life || !n->jobs || !w->conns[m->conn].server_open)
        return;
    running = n;
    n->inside = true;
    if (m->kind == M_REQUEST)
        serve(w, m);
    else
        close_at_server(w, m->conn, m->proved ? JOBS_GONE : JOBS_SILENT, false);
    n->inside = false;
    pump(w, n);
    if (n->jobs && jobs_deadline(n->jobs) <= clock_now())
        jobs_tick(n->jobs);
}

/* --- the home */

static struct store *store_of(struct world *w, int node)
{
    return w->on_old[node] && w->old_until > w->now ? &w->old : &w->home;
}

static void note_state(struct world *w)
{
    const unsigned i = w->state_count++ % STATES;
    w->states[i].at = w->now;
    w->states[i].claim = w->home.claim;
    w->states[i].has_claim = w->home.has_claim;
}

/* A listing may be a second old. */
static void see_claim(struct world *w, const struct store *s, struct message *ret)
{
    ret->rc = s->has_claim;
    ret->own = s->claim;
    if (w->kind == ELECT_REDIS || !faulty(w) || !chance(w, 0.3))
        return;
    const int64_t then = w->now - between(w, 0, 1000);
    for (unsigned k = 0; k < STATES && k < w->state_count; k++) {
        const unsigned i = (w->state_count - 1 - k) % STATES;
        if (w->states[i].at > then)
            continue;
        ret->rc = w->states[i].has_claim;
        ret->own = w->states[i].claim;
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
static bool is_confirmed(const struct world *w, const struct store *s)
{
    return s != &w->old || w->now < w->old_confirms_until;
}

static void on_home(struct world *w, struct message m)
{
    struct node *n = &w->n[m.node];
    struct store *s = store_of(w, m.node);
    const bool away = w->home_away_until > w->now || w->out_of_home[m.node] > w->now;
    if (m.call == H_CLAIM || !n->identity[0])
        snprintf(n->identity, sizeof n->identity, "%s", s->identity);
    memcpy(m.identity, n->identity, sizeof m.identity);
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
        if (s == &w->home)
            note_state(w);
        if (m.call != H_LOOK && m.call != H_LOAD && m.rc == 1 && !is_confirmed(w, s))
            m.rc = -EAGAIN;
        if (faulty(w) && chance(w, 0.02)) {
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
    n->append_out = false;
    if (n->queue_first == n->queue_last)
        return;
    if (m->rc < 0 && m->call == H_APPEND) {
        n->append_at = clock_of(n) + APPEND_AGAIN_MS;
        return;
    }
    n->queue_first++;
    if (m->call == H_RELEASE) {
        push(w, n, (struct election_event){.kind = ELECTION_RELEASED});
    } else if (n->x.state == ELECTION_LEADING && strcmp(m->own.epoch, n->x.own.epoch) == 0) {
        if (m->rc == 1) {
            n->home.stands = m->number;
            if (n->home.landed)
                n->home.landed(n->home.arg);
        } else {
            push(w, n, (struct election_event){.kind = ELECTION_RENEWED, .rc = 0});
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
        push(w, n, (struct election_event){.kind = ELECTION_SEEN, .rc = m->rc, .claim = &m->own});
        break;
    case H_CLAIM:
        push(w, n, (struct election_event){.kind = ELECTION_CLAIMED, .rc = m->rc, .sent = m->sent});
        break;
    case H_LOAD:
        if (m->rc < 0)
            push(w, n, (struct election_event){.kind = ELECTION_LOADED, .rc = m->rc});
        else
            on_loaded(w, n, m->text);
        break;
    case H_RENEW:
        if (strcmp(m->own.epoch, n->x.own.epoch) == 0)
            push(w, n,
                 (struct election_event){.kind = ELECTION_RENEWED, .rc = m->rc, .sent = m->sent, .claim = &m->own});
        break;
    case H_APPEND:
    case H_RELEASE:
        on_appended(w, n, m);
        break;
    }
}

/* --- the life of a node */

static void born(struct world *w, struct node *n)
{
    struct rdzv_claim own = {.port = n->index + 1, .addrs = "10.0.0.1"};
    n->life++;
    n->alive = true;
    n->over = n->works = n->join_due = n->pumping = n->applying = n->append_out = n->inside = false;
    n->dead_at = n->born_at = NEVER;
    n->conn = -1;
    n->lease_until = 0;
    n->paused_until = 0;
    n->queue_first = n->queue_last = n->ev_first = n->ev_last = 0;
    n->append_at = 0;
    n->identity[0] = 0;
    n->rate = between(w, -50, 50);
    n->offset = between(w, 1000000, 1000000000);
    snprintf(n->id, sizeof n->id, "n%d.%u", n->index, n->life);
    snprintf(own.node, sizeof own.node, "%s", n->id);
    client_init(&n->c, &(struct client_options){.job = w->config,
                                                .heartbeat_ms = HEARTBEAT_MS,
                                                .connect_ms = 3600000,
                                                .run_id = "sim",
                                                .node = n->id,
                                                .endpoint = "home",
                                                .elected = true,
                                                .seed = (unsigned)draw(w)});
    election_init(&n->x, &(struct election_options){.silence_ms = SILENCE_MS,
                                                    .kill_ms = KILL_MS,
                                                    .nodes = w->nodes,
                                                    .never = n->index >= w->live_from && w->live_from > 0,
                                                    .seed = draw(w),
                                                    .own = &own});
    running = n;
    push(w, n, (struct election_event){.kind = ELECTION_BEGIN});
    client(w, n, (struct client_event){.kind = CLIENT_JOIN});
}

/* All its processes, or its machine with them: then nobody hears of it. */
static void die(struct world *w, struct node *n, bool proved)
{
    if (!n->alive)
        return;
    note(w, n, proved ? "is killed" : "vanishes");
    w->st->kills++;
    running = n;
    if (n->conn >= 0) {
        w->conns[n->conn].client_open = false;
        if (proved)
            to_server(w, n->conn, M_CLOSED)->proved = true;
    }
    stop_serving(w, n, proved);
    n->alive = false;
    n->queue_first = n->queue_last;
    for (int i = 0; i < CONNS; i++) /* that nobody answers any more */
        if (w->conns[i].used && w->conns[i].client == n->index && w->conns[i].client_life == n->life)
            w->conns[i].client_open = false;
    client_finish(&n->c);
    end_workers(n);
    n->born_at = w->now + between(w, 200, 15000);
}

static void tick(struct world *w, struct node *n)
{
    const int64_t clock = clock_of(n);
    running = n;
    if (n->works && n->dead_at <= w->now)
        end_workers(n);
    /* the guardian, also of an agent that stands still */
    if (n->works && n->lease_until && clock >= n->lease_until) {
        kill_workers(n, KILL_MS);
        n->lease_until = 0;
    }
    if (!awake(n))
        return;
    if (client_deadline(&n->c) <= clock)
        client(w, n, (struct client_event){.kind = CLIENT_TICK});
    if (n->join_due && !n->works && !n->over) {
        n->join_due = false;
        client(w, n, (struct client_event){.kind = CLIENT_JOIN});
    }
    if (election_deadline(&n->x) <= clock)
        push(w, n, (struct election_event){.kind = ELECTION_TICK});
    append_next(w, n);
    for (int i = 0; i < CONNS && n->jobs; i++)
        if (w->conns[i].blocked && w->conns[i].server == n->index && w->conns[i].server_life == n->serving &&
            w->conns[i].blocked_until <= clock)
            end_next(w, i);
    if (n->jobs && jobs_deadline(n->jobs) <= clock)
        jobs_tick(n->jobs);
}

static int64_t wake_of(struct world *w, const struct node *n)
{
    int64_t at = n->dead_at, t;
    if (!n->alive)
        return n->born_at;
    if (n->works && n->lease_until && (t = true_time(n, n->lease_until)) < at)
        at = t;
    if (!awake(n))
        return at < n->paused_until ? at : n->paused_until;
    if (n->join_due && !n->works && !n->over)
        return w->now;
    if ((t = true_time(n, client_deadline(&n->c))) < at)
        at = t;
    if ((t = true_time(n, election_deadline(&n->x))) < at)
        at = t;
    if (n->queue_first != n->queue_last && !n->append_out && (t = true_time(n, n->append_at)) < at)
        at = t;
    if (n->jobs && (t = true_time(n, jobs_deadline(n->jobs))) < at)
        at = t;
    for (int i = 0; i < CONNS && n->jobs; i++)
        if (w->conns[i].blocked && w->conns[i].server == n->index && w->conns[i].server_life == n->serving &&
            (t = true_time(n, w->conns[i].blocked_until)) < at)
            at = t;
    return at;
}

/* --- faults */

static void cut(struct world *w, int a, int b, int64_t until, bool refuse)
{
    if (a == b)
        return;
    if (refuse) {
        w->refuse_until[a][b] = until;
        if (chance(w, 0.5))
            w->refuse_until[b][a] = until;
    } else {
        w->cut_until[a][b] = w->cut_until[b][a] = until;
    }
}

static void new_identity(struct world *w, struct store *s)
{
    snprintf(s->identity, sizeof s->identity, "%08llx-%d", (unsigned long long)(draw(w) & 0xffffffff), 1);
}

static void redis_fault(struct world *w)
{
    struct store *s = &w->home;
    if (chance(w, 0.3)) {
        w->st->wipes++;
        note(w, NULL, "the home is emptied");
        s->has_claim = false;
        s->claim = (struct rdzv_claim){0};
        s->first = s->count;
        new_identity(w, s);
        return;
    }
    w->st->failovers++;
    w->old = *s;
    w->old_confirms_until = w->safe_replicas && chance(w, 0.5) ? w->now + between(w, 0, 3000) : w->now;
    w->old_until = w->old_confirms_until + between(w, 0, 8000);
    for (int i = 0; i < w->nodes; i++)
        w->on_old[i] = chance(w, 0.5);
    int lost = w->safe_replicas ? (int)between(w, 0, 3) : 0;
    while (lost-- > 0 && s->count > s->first)
        s->count--;
    if (w->safe_replicas && chance(w, 0.5) && s->claim.n > 2)
        s->claim.n -= 2;
    new_identity(w, s);
    if (w->old_confirms_until > w->now) /* the new one has too few replicas until then */
        w->home_away_until = w->old_confirms_until;
    if (!w->safe_replicas)
        w->old_until = 0;
    note(w, NULL, "failover; the old primary lives until %lld, confirms until %lld", (long long)w->old_until,
         (long long)w->old_confirms_until);
}

static void fault(struct world *w)
{
    struct node *n = &w->n[between(w, 0, w->nodes - 1)];
    const int other = (int)between(w, 0, w->nodes - 1);
    const int64_t what = between(w, 0, 99), until = w->now + between(w, 50, 12000);
    if (what < 20) {
        die(w, n, chance(w, 0.6));
    } else if (what < 45) {
        w->st->pauses++;
        note(w, n, "stands still until %lld", (long long)until);
        n->paused_until = until;
    } else if (what < 60) {
        w->st->cuts++;
        note(w, n, "is cut from node %d until %lld", other, (long long)until);
        cut(w, n->index, other, until, false);
    } else if (what < 68) {
        for (int i = 0; i < w->nodes; i++)
            cut(w, n->index, i, until, false);
        note(w, n, "is cut from all until %lld", (long long)until);
        if (chance(w, 0.4))
            w->out_of_home[n->index] = until;
    } else if (what < 76) {
        cut(w, n->index, other, until, true);
        note(w, n, "is refused by node %d until %lld", other, (long long)until);
    } else if (what < 86) {
        w->st->outages++;
        if (chance(w, 0.5))
            w->home_away_until = w->now + between(w, 100, 9000);
        else
            w->out_of_home[n->index] = until;
    } else if (what < 94) {
        running = n;
        if (awake(n) && n->works && n->dead_at == NEVER)
            client(
                w, n,
                (struct client_event){.kind = CLIENT_FAIL, .cause = &(struct rdzv_cause){.exit_code = 1, .rank = -1}});
    } else if (w->kind == ELECT_REDIS) {
        redis_fault(w);
    }
}

static void heal(struct world *w)
{
    note(w, NULL, "all is healed");
    for (int a = 0; a < w->nodes; a++)
        for (int b = 0; b < w->nodes; b++)
            if (w->kind != ELECT_CUTS) {
                w->cut_until[a][b] = 0;
                w->refuse_until[a][b] = 0;
            }
    for (int i = 0; i < w->nodes; i++) {
        struct node *n = &w->n[i];
        w->out_of_home[i] = 0;
        if (n->paused_until > w->now)
            n->paused_until = w->now;
        if (!n->alive && n->born_at > w->now)
            n->born_at = w->now;
    }
    w->home_away_until = w->old_until = 0;
}

/* --- one schedule */

static void set_up(struct world *w)
{
    struct rdzv_config *c = &w->config;
    w->rng = w->seed * 2654435761u + (uint64_t)w->kind;
    w->nodes = (int)between(w, w->kind == ELECT_CUTS ? 3 : 2, NODES);
    w->max = w->nodes;
    w->min = (int)between(w, 1, w->nodes);
    w->safe_replicas = w->kind == ELECT_REDIS && chance(w, 0.5);
    w->live_from =
        chance(w, 0.2) && w->nodes > 2 && w->kind != ELECT_CUTS ? w->nodes - 1 : 0; /* the last never leads */
    w->faults_end = FAULTS_MS;
    new_identity(w, &w->home);
    rdzv_config_defaults(c);
    c->min_nodes = w->min;
    c->max_nodes = 2 * w->max; /* one that vanished has a place for a while */
    c->max_restarts = 1000;
    c->last_call_ms = between(w, 0, 2000);
    c->join_timeout_ms = 3600000;
    c->silence_ms = SILENCE_MS;
    c->kill_ms = KILL_MS;
    for (int i = 0; i < w->nodes; i++) {
        w->n[i].index = i;
        w->n[i].born_at = between(w, 0, 500);
    }
    if (w->kind == ELECT_CUTS) { /* two nodes that never meet, while others meet both */
        const bool refuse = chance(w, 0.5);
        cut(w, 0, 1, NEVER, refuse);
        if (refuse)
            w->refuse_until[0][1] = w->refuse_until[1][0] = NEVER;
    }
}

/* Where nodes are cut off for good, some may have no leader that they reach: MIN of them work. */
static bool is_live(const struct world *w)
{
    int most = 0;
    for (int i = 0; i < w->nodes && w->kind == ELECT_CUTS; i++) {
        int same = 0;
        for (int k = 0; k < w->nodes; k++)
            same += w->n[k].works && w->n[k].dead_at == NEVER && w->n[k].work_round == w->n[i].work_round;
        most = w->n[i].works && same > most ? same : most;
    }
    if (w->kind == ELECT_CUTS)
        return most >= w->min;
    for (int i = 0; i < w->nodes; i++)
        if (!w->n[i].works || w->n[i].dead_at != NEVER || w->n[i].work_round != w->n[0].work_round)
            return false;
    return true;
}

static void deliver(struct world *w, int i)
{
    struct message m = w->m[i];
    const struct conn *k = m.conn >= 0 && m.kind != M_DIAL && m.kind < M_HOME ? &w->conns[m.conn] : NULL;
    const bool for_node = m.kind != M_HOME;
    int64_t later = 0;
    if (k && is_cut(w, k->client, k->server)) /* TCP sends it again, until somebody gives up */
        later = w->cut_until[k->client][k->server];
    if (for_node && w->n[m.node].alive && w->n[m.node].paused_until > w->now)
        later = w->n[m.node].paused_until;
    if (m.kind == M_DIAL && w->n[m.conn].alive && w->n[m.conn].paused_until > w->now)
        later = w->n[m.conn].paused_until < w->now + 5000 ? w->n[m.conn].paused_until : w->now + 5000;
    if (later == NEVER) {
        w->m[i] = w->m[--w->messages];
        return;
    }
    if (later > w->now) {
        w->m[i].at = later + 1;
        return;
    }
    w->m[i] = w->m[--w->messages];
    w->st->events++;
    switch (m.kind) {
    case M_DIAL:
        on_dial(w, &m);
        break;
    case M_REQUEST:
    case M_CLOSED:
        on_server_message(w, &m);
        break;
    case M_REPLY:
    case M_RESET:
        on_client_message(w, &m);
        break;
    case M_HOME:
        on_home(w, m);
        break;
    case M_ANSWER:
        on_answer(w, &m);
        break;
    case M_DIALLED:
        break;
    }
}

static void live(struct world *w)
{
    int64_t next_fault = between(w, 0, 3000), live_until = FAULTS_MS + LIVE_MS;
    bool healed = false;
    while (!w->broken) {
        int first = -1;
        int64_t now = next_fault;
        struct node *who = NULL;
        for (int i = 0; i < w->messages; i++)
            if (first < 0 || w->m[i].at < w->m[first].at ||
                (w->m[i].at == w->m[first].at && w->m[i].order < w->m[first].order))
                first = i;
        if (first >= 0 && w->m[first].at < now)
            now = w->m[first].at;
        for (int i = 0; i < w->nodes; i++) {
            const int64_t at = wake_of(w, &w->n[i]);
            if (at <= now && (!who || at < wake_of(w, who))) {
                who = &w->n[i];
                now = at;
            }
        }
        if (!healed && now >= w->faults_end) {
            w->now = w->faults_end;
            heal(w);
            healed = true;
            continue;
        }
        w->now = now > w->now ? now : w->now;
        if (w->now > live_until) {
            broken(w, "the job does not live again %d s after all was healed", LIVE_MS / 1000);
            return;
        }
        if (healed && w->now > w->faults_end + 20000 && is_live(w))
            return;
        if (who) {
            if (!who->alive)
                born(w, who);
            else
                tick(w, who);
        } else if (first >= 0 && w->m[first].at <= w->now) {
            deliver(w, first);
        } else {
            fault(w);
            next_fault = w->now + between(w, 1, 3000);
            if (next_fault >= w->faults_end)
                next_fault = NEVER;
        }
    }
}

int elect_run(enum elect_kind kind, uint64_t seed, bool trace, struct elect_stats *total, struct err *e)
{
    struct world *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, -ENOMEM, "no memory");
    W = w;
    log_init(trace ? LOG_DEBUG : LOG_ERROR, NULL);
    w->kind = kind;
    w->seed = seed;
    w->trace = trace;
    w->st = total;
    w->e = e;
    set_up(w);
    live(w);
    const int rc = w->broken;
    for (int i = 0; i < w->nodes; i++)
        if (w->n[i].alive) {
            running = &w->n[i];
            stop_serving(w, &w->n[i], false);
            client_finish(&w->n[i].c);
        }
    for (size_t i = 0; i < w->arena_n; i++)
        free(w->arena[i]);
    free(w->arena);
    free(w);
    return rc;
}
