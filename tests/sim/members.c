/* Members that dial their leader or host: clocks, network, workers, client, the jobs that are dialled, the life of a
 * node. See members.h. */
#include "tests/sim/members.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/dice.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "rendezvousd/state/state_shared.h"

struct world *W;
struct node *running;

/* --- chance and time */

uint64_t draw(struct world *w)
{
    return dice_roll(&w->rng);
}

int64_t between(struct world *w, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(draw(w) % (uint64_t)(hi - lo + 1));
}

bool chance(struct world *w, double p)
{
    return (double)(draw(w) >> 11) * 0x1p-53 < p;
}

bool faulty(const struct world *w)
{
    return w->now < w->faults_end;
}

void broken(struct world *w, const char *fmt, ...)
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

void note(const struct world *w, const struct node *n, const char *fmt, ...)
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

int64_t clock_of(const struct node *n)
{
    return n->offset + W->now + W->now * n->rate / 10000;
}

int64_t clock_now(void)
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

static bool is_paused(const struct node *n)
{
    return n->paused_from <= W->now && n->paused_until > W->now;
}

bool awake(const struct node *n)
{
    return n->alive && !is_paused(n);
}

char *keep(struct world *w, const char *p, size_t n)
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

struct message *post(struct world *w, enum message_kind kind, int64_t at)
{
    if (w->messages == MESSAGES) {
        broken(w, "%d messages are under way: the simulation runs away", w->messages);
        w->messages = 0;
    }
    struct message *m = &w->m[w->messages++];
    *m = (struct message){.kind = kind, .at = at, .order = w->order++, .conn = -1};
    return m;
}

int64_t delay(struct world *w)
{
    return w->now + (faulty(w) && chance(w, w->late) ? between(w, 0, w->late_ms) : between(w, 0, 4));
}

bool is_cut(const struct world *w, int a, int b)
{
    return a != b && w->cut_until[a][b] > w->now;
}

static int64_t in_order(int64_t *last, int64_t at)
{
    return *last = at > *last ? at : *last;
}

static struct message *to_server(struct world *w, int conn, enum message_kind kind)
{
    struct conn *k = &w->conns[conn];
    struct message *m = post(w, kind, in_order(&k->to_server, delay(w)));
    m->conn = conn;
    m->node = k->server;
    m->life = k->server_life;
    return m;
}

static struct message *to_client(struct world *w, int conn, enum message_kind kind)
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

static void dial(struct world *w, struct node *n, int64_t ms)
{
    const int to = n->address;
    const bool cut = !w->daemons && is_cut(w, n->index, to);
    struct message *m = post(w, M_DIAL, cut ? w->now + ms : delay(w));
    m->node = n->index;
    m->life = n->life;
    m->conn = to; /* which node */
    m->seq = ++n->dials;
    m->error = cut ? -ETIMEDOUT : 0;
}

static void hang_up(struct world *w, struct node *n)
{
    if (n->conn >= 0) {
        w->conns[n->conn].client_open = false;
        to_server(w, n->conn, M_CLOSED);
    }
    n->conn = -1;
    n->dials++; /* what is under way is of no use */
}

static char *record_of(struct world *w, struct node *n, enum client_ask what)
{
    struct rdzv_event ev;
    struct buf b = {0};
    client_claim(&n->c, what, &ev);
    if (what == ASK_JOIN) {
        ev.slots = 1;
        ev.node_rank = w->listed ? n->index : -1;
        ev.numbered = w->listed;
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
    m->got = fx->got;
    snprintf(m->epoch, sizeof m->epoch, "%s", n->c.epoch);
    snprintf(m->seen_epoch, sizeof m->seen_epoch, "%s", n->c.seen);
    if (fx->what == ASK_JOIN || fx->what == ASK_FAIL || fx->what == ASK_DONE || fx->what == ASK_LEAVE)
        m->text = record_of(w, n, fx->what);
}

static void take_news(struct world *w, struct node *n, const struct rdzv_news *news)
{
    note(w, n, "is told: kind %d round %llu", (int)news->kind, (unsigned long long)news->round);
    if (news->kind == RDZV_NEWS_ROUND && !news->spare) {
        if (w->ops->ranked)
            w->ops->ranked(w, n, news->group_rank);
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
        w->ops->away(w, n, fx->ms != 0);
        break;
    case CLIENT_ACKED:
        w->ops->acked(w, n);
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

void client(struct world *w, struct node *n, struct client_event ev)
{
    client_step(&n->c, &ev, clock_of(n));
    apply(w, n);
}

/* --- serving */

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

void stop_serving(struct world *w, struct node *n, bool tell)
{
    if (!n->jobs)
        return;
    jobs_yield(n->jobs);
    for (int i = 0; i < CONNS; i++)
        if (w->conns[i].server == n->index && w->conns[i].server_life == n->serving)
            close_at_server(w, i, JOBS_SILENT, tell);
    jobs_destroy(n->jobs);
    state_shared_destroy(n->log_of_jobs);
    n->log_of_jobs = NULL;
    n->jobs = NULL;
    n->serving++;
}

static const char *word_of(int rc)
{
    return rc == ERR_FENCED     ? "FENCED"
           : rc == ERR_REFUSED  ? "REFUSED"
           : rc == ERR_MISMATCH ? "DIFFERS"
           : rc == -ENOENT      ? "NOJOB"
           : rc == -EDQUOT      ? "LIMIT"
           : rc == -EAGAIN      ? "BUSY"
           : rc == -ESTALE      ? "NOTERM"
           : rc == -EBUSY       ? "FEW"
           : rc == -EREMOTE     ? "STANDBY"
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

static void say_term(struct world *w, int conn, const char *instance)
{
    char text[64];
    snprintf(text, sizeof text, "OK%s%s", instance[0] ? " " : "", instance);
    reply(w, conn, REPLY_STATUS, text);
}

static void on_told(void *arg, const struct rdzv_news *news, const char *members, int more)
{
    const int conn = (int)(intptr_t)arg;
    struct buf b = {0};
    (void)members, (void)more;
    W->conns[conn].blocked = false;
    if (!news) {
        reply(W, conn, REPLY_ERROR,
              jobs_party_is_void(W->conns[conn].party) ? "FENCED a newer connection stands for this node"
                                                       : "NOJOB this host has given up the job");
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

static void on_again(void *arg)
{
    end_next(W, (int)(intptr_t)arg);
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
    jobs_got(p, m->got);
    rc = rc ? rc : jobs_join(p, "sim", &ev, &c, &joined, &e);
    if (rc < 0) {
        say(w, conn, rc, &e);
        return;
    }
    snprintf(text, sizeof text, "instance=%s epoch=1 seq=%llu%s", joined.instance, (unsigned long long)joined.seq,
             joined.few ? " few=1" : "");
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
        if (k->server_open && rc < 0) /* else it has resigned */
            say(w, m->conn, rc, &e);
        else if (k->server_open)
            say_term(w, m->conn, jobs_term_instance(p));
        break;
    case ASK_JOIN:
        serve_join(w, m->conn, p, m);
        break;
    case ASK_NEXT:
        jobs_got(p, m->got);
        k->blocked = true;
        k->blocked_until = clock_now() + m->hold;
        rc = jobs_next(p, "sim", node, m->seq, m->from, &e);
        if (rc == 0 && jobs_next_hurries(p))
            k->blocked_until = clock_now() + 1;
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

static int dial_error(const struct world *w, const struct node *n, const struct node *to)
{
    if (is_cut(w, n->index, to->index))
        return -ETIMEDOUT;
    return w->refuse_until[n->index][to->index] > w->now || !to->alive || !to->jobs ? -ECONNREFUSED : 0;
}

/* As rdzv_dial_list.c: the first that takes the call, from the one whose turn it is on. */
static struct node *dial_daemons(struct world *w, struct node *n, int *ret_error)
{
    int worst = -ECONNREFUSED;
    for (int i = 0; i < w->daemons; i++) {
        struct node *to = &w->n[(n->address + i) % w->daemons];
        *ret_error = dial_error(w, n, to);
        if (*ret_error == 0) {
            n->address = to->index;
            return to;
        }
        worst = *ret_error == -ETIMEDOUT ? *ret_error : worst;
    }
    *ret_error = worst;
    return NULL;
}

static void on_dial(struct world *w, const struct message *m)
{
    struct node *n = &w->n[m->node], *to = &w->n[m->conn];
    int error = m->error;
    if (n->life != m->life || !n->alive || !n->c.dialling || (w->listed && m->seq != n->dials))
        return;
    if (w->daemons)
        to = dial_daemons(w, n, &error);
    else if (!error)
        error = dial_error(w, n, to);
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
    if (jobs_party_open(&w->conns[i].party, to->jobs,
                        &(struct jobs_party_options){.principal = "",
                                                     .addr = "10.0.0.9",
                                                     .local = "10.0.0.8",
                                                     .told = on_told,
                                                     .again = on_again,
                                                     .arg = (void *)(intptr_t)i},
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
    if (m->kind == M_REPLY && w->daemons && m->reply == REPLY_ERROR && strncmp(m->text, "STANDBY ", 8) == 0)
        n->address = (n->address + 1) % w->daemons;
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
    w->ops->pump(w, n);
    if (n->jobs && jobs_deadline(n->jobs) <= clock_now())
        jobs_tick(n->jobs);
}

/* --- the life of a node */

static void born(struct world *w, struct node *n)
{
    n->life++;
    n->alive = true;
    n->over = n->works = n->join_due = n->pumping = n->applying = n->inside = false;
    n->dead_at = n->born_at = NEVER;
    n->conn = -1;
    n->lease_until = 0;
    n->paused_until = 0;
    n->ev_first = n->ev_last = 0;
    n->rate = between(w, -50, 50);
    n->offset = between(w, 1000000, 1000000000);
    snprintf(n->id, sizeof n->id, "n%d.%u", n->index, n->life);
    client_init(&n->c, &(struct client_options){.job = w->config,
                                                .heartbeat_ms = HEARTBEAT_MS,
                                                .connect_ms = 3600000,
                                                .run_id = "sim",
                                                .node = n->id,
                                                .endpoint = "sim",
                                                .elected = w->daemons == 0,
                                                .listed = w->listed,
                                                .seed = (unsigned)draw(w)});
    running = n;
    w->ops->born(w, n);
    if (is_daemon(w, n))
        return;
    client(w, n, (struct client_event){.kind = CLIENT_JOIN});
}

/* All its processes, or its machine with them: then nobody hears of it. */
void die(struct world *w, struct node *n, bool proved)
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
    n->writes = false;
    stop_serving(w, n, proved);
    n->alive = false;
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
    w->ops->tick(w, n);
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
    if ((t = true_time(n, w->ops->deadline(n))) < at)
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

void cut(struct world *w, int a, int b, int64_t until, bool refuse)
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

void cut_from_all(struct world *w, const struct node *n, int64_t until)
{
    for (int i = 0; i < w->nodes; i++)
        cut(w, n->index, i, until, false);
    note(w, n, "is cut from all until %lld", (long long)until);
}

static void cut_for_good(struct world *w)
{
    const bool refuse = chance(w, 0.5);
    cut(w, 0, 1, NEVER, refuse);
    if (refuse)
        w->refuse_until[0][1] = w->refuse_until[1][0] = NEVER;
}

void pause_node(struct world *w, struct node *n, int64_t from, int64_t until)
{
    n->paused_from = from;
    n->paused_until = until;
    if (from > w->now)
        return;
    w->st->pauses++;
    note(w, n, "stands still until %lld", (long long)until);
}

void fail_worker(struct world *w, struct node *n)
{
    running = n;
    if (awake(n) && n->works && n->dead_at == NEVER)
        client(w, n,
               (struct client_event){.kind = CLIENT_FAIL, .cause = &(struct rdzv_cause){.exit_code = 1, .rank = -1}});
}

static void heal(struct world *w)
{
    note(w, NULL, "all is healed");
    for (int a = 0; a < w->nodes; a++)
        for (int b = 0; b < w->nodes; b++)
            if (!w->cuts_last) {
                w->cut_until[a][b] = 0;
                w->refuse_until[a][b] = 0;
            }
    for (int i = 0; i < w->nodes; i++) {
        struct node *n = &w->n[i];
        n->paused_from = n->paused_until = 0;
        if (!n->alive && n->born_at > w->now)
            n->born_at = w->now;
    }
    if (w->ops->heal)
        w->ops->heal(w);
}

/* --- one schedule */

void settle(struct world *w)
{
    struct rdzv_config *c = &w->config;
    rdzv_config_defaults(c);
    c->min_nodes = w->min;
    c->max_nodes = w->max;
    c->max_restarts = 1000;
    c->last_call_ms = between(w, 0, 2000);
    c->join_timeout_ms = 3600000;
    c->silence_ms = SILENCE_MS;
    c->kill_ms = KILL_MS;
    for (int i = 0; i < w->nodes; i++) {
        w->n[i].index = i;
        w->n[i].born_at = between(w, 0, 500);
    }
    if (w->cuts_last)
        cut_for_good(w);
}

/* Where nodes are cut off for good, some may have no leader that they reach: MIN of them work. */
static bool is_live(const struct world *w)
{
    int most = 0;
    for (int i = 0; i < w->nodes && w->cuts_last; i++) {
        int same = 0;
        for (int k = 0; k < w->nodes; k++)
            same += w->n[k].works && w->n[k].dead_at == NEVER && w->n[k].work_round == w->n[i].work_round;
        most = w->n[i].works && same > most ? same : most;
    }
    if (w->cuts_last)
        return most >= w->min;
    for (int i = w->daemons; i < w->nodes; i++)
        if (!w->n[i].works || w->n[i].dead_at != NEVER || w->n[i].work_round != w->n[w->daemons].work_round)
            return false;
    return true;
}

static bool is_for_server(const struct message *m)
{
    return m->kind == M_REQUEST || m->kind == M_CLOSED;
}

/* A connection is a stream: what was sent before, and waited longer, comes first. */
static bool waits_for_another(struct world *w, const struct message *m)
{
    for (int i = 0; i < w->messages; i++) {
        struct message *o = &w->m[i];
        if (o->conn == m->conn && o->order < m->order && o->kind != M_DIAL && o->kind < M_HOME &&
            is_for_server(o) == is_for_server(m)) {
            o->at = w->now;
            return true;
        }
    }
    return false;
}

static void deliver(struct world *w, int i)
{
    struct message m = w->m[i];
    const struct conn *k = m.conn >= 0 && m.kind != M_DIAL && m.kind < M_HOME ? &w->conns[m.conn] : NULL;
    const bool for_node = m.kind != M_HOME;
    int64_t later = 0;
    if (k && is_cut(w, k->client, k->server)) /* TCP sends it again, until somebody gives up */
        later = w->cut_until[k->client][k->server];
    if (for_node && w->n[m.node].alive && is_paused(&w->n[m.node]))
        later = w->n[m.node].paused_until;
    if (m.kind == M_DIAL && w->n[m.conn].alive && is_paused(&w->n[m.conn]))
        later = w->n[m.conn].paused_until < w->now + 5000 ? w->n[m.conn].paused_until : w->now + 5000;
    if (later == NEVER) {
        w->m[i] = w->m[--w->messages];
        return;
    }
    if (later > w->now) {
        w->m[i].at = later + 1;
        return;
    }
    if (k && waits_for_another(w, &m))
        return;
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
    default:
        w->ops->deliver(w, m);
        break;
    }
}

static void live(struct world *w)
{
    const int64_t live_until = FAULTS_MS + LIVE_MS;
    bool healed = false;
    w->next_fault = between(w, 0, 3000);
    while (!w->broken) {
        int first = -1;
        int64_t now = w->next_fault;
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
            const int64_t due = w->next_fault;
            w->ops->fault(w);
            if (w->next_fault == due)
                w->next_fault = w->now + between(w, 1, 3000);
            if (w->next_fault >= w->faults_end)
                w->next_fault = NEVER;
        }
    }
}

int members_run(struct world *w, const struct world_ops *ops, uint64_t seed, int kind, bool trace,
                struct members_stats *total, struct err *e)
{
    W = w;
    log_init(trace ? LOG_DEBUG : LOG_ERROR, NULL);
    w->ops = ops;
    w->seed = seed;
    w->rng = seed * 2654435761u + (uint64_t)kind;
    w->trace = trace;
    w->st = total;
    w->e = e;
    w->faults_end = FAULTS_MS;
    ops->set_up(w);
    live(w);
    const int rc = w->broken;
    for (int i = 0; i < w->nodes; i++)
        if (w->n[i].alive) {
            running = &w->n[i];
            w->n[i].writes = false;
            stop_serving(w, &w->n[i], false);
            client_finish(&w->n[i].c);
        }
    for (size_t i = 0; i < w->arena_n; i++)
        free(w->arena[i]);
    free(w->arena);
    return rc;
}
