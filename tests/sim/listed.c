/* See listed.h, members.h. What is simulated here are the questions to the hosts of the list. */
#include "tests/sim/listed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

static void pump(struct world *w, struct node *n);

static void push(struct world *w, struct node *n, struct hosts_event ev)
{
    n->hosts_events[n->ev_last++ % 64] = ev;
    pump(w, n);
}

/* --- which host it dials */

static void ask_hosts(struct world *w, struct node *n)
{
    n->question++;
    for (int i = 0; i < w->hosts; i++) {
        if (is_cut(w, n->index, i))
            continue;
        struct message *m = post(w, M_QUESTION, delay(w));
        m->node = i;
        m->life = w->n[i].life;
        m->host = n->index; /* who asks */
        m->question = n->question;
    }
}

static bool has_workers(const struct node *n)
{
    return n->c.mode == CLIENT_RUNNING || (n->c.mode == CLIENT_DONE && clock_of(n) < n->c.lease.acked + SILENCE_MS);
}

static void pump(struct world *w, struct node *n)
{
    if (n->pumping)
        return;
    n->pumping = true;
    while (n->ev_first != n->ev_last) {
        struct hosts_event ev = n->hosts_events[n->ev_first++ % 64];
        enum hosts_effect_kind fx[HOSTS_EFFECTS_MAX];
        ev.working = has_workers(n);
        hosts_step(&n->h, &ev, clock_of(n));
        const int count = n->h.fx_count;
        memcpy(fx, n->h.fx, sizeof fx);
        for (int i = 0; i < count; i++) {
            if (fx[i] == HOSTS_DENY)
                broken(w, "%s is denied", n->id);
            if (fx[i] != HOSTS_DIAL) {
                ask_hosts(w, n);
                continue;
            }
            n->address = n->h.host;
            note(w, n, "dials host %d", n->h.host);
            client(w, n,
                   (struct client_event){
                       .kind = CLIENT_ADDRESS, .text = w->n[n->h.host].id, .epoch = "listed", .seen = ""});
        }
    }
    n->pumping = false;
}

static void on_question(struct world *w, const struct message *q)
{
    struct node *n = &w->n[q->node], *who = &w->n[q->host];
    struct jobs_seats seats = {0};
    struct err e = {0};
    const bool refused = !n->alive || w->refuse_until[who->index][n->index] > w->now;
    if (is_cut(w, n->index, who->index))
        return;
    running = n;
    if (!refused && jobs_seats(n->jobs, "sim", who->id, &seats, &e) < 0)
        broken(w, "%s", e.text);
    struct message *m = post(w, M_HEARD, delay(w));
    m->node = who->index;
    m->life = who->life;
    m->host = n->index;
    m->question = q->question;
    m->answer = refused ? HOSTS_REFUSED : HOSTS_HEARS;
    m->seats = seats.heard;
    m->last = seats.round;
}

static void on_heard(struct world *w, const struct message *m)
{
    struct node *n = &w->n[m->node];
    if (!n->alive || n->life != m->life || n->question != m->question || is_cut(w, n->index, m->host))
        return;
    push(w, n,
         (struct hosts_event){
             .kind = HOSTS_ANSWER, .host = m->host, .answer = m->answer, .seats = m->seats, .round = m->last});
}

static void deliver(struct world *w, struct message m)
{
    if (m.kind == M_QUESTION)
        on_question(w, &m);
    else
        on_heard(w, &m);
}

/* --- the machine of a node */

static void born(struct world *w, struct node *n)
{
    const struct jobs_options o = {.now = clock_now, .embedded = true, .listed = &w->config, .listed_run = "sim"};
    struct err e = {0};
    hosts_init(&n->h,
               &(struct hosts_options){.count = w->hosts, .min = w->min, .silence_ms = SILENCE_MS, .seed = draw(w)});
    if (jobs_create(&n->jobs, &o, &e) < 0)
        broken(w, "%s", e.text);
    push(w, n, (struct hosts_event){.kind = HOSTS_BEGIN});
}

static void away(struct world *w, struct node *n, bool refused)
{
    push(w, n, (struct hosts_event){.kind = HOSTS_AWAY, .refused = refused});
}

static void acked(struct world *w, struct node *n)
{
    push(w, n, (struct hosts_event){.kind = HOSTS_ACKED});
}

static void tick(struct world *w, struct node *n)
{
    if (hosts_deadline(&n->h) <= clock_of(n))
        push(w, n, (struct hosts_event){.kind = HOSTS_TICK});
}

static int64_t deadline(const struct node *n)
{
    return hosts_deadline(&n->h);
}

/* --- one schedule */

static void fault(struct world *w)
{
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
        if (chance(w, 0.3)) { /* about when it would notice */
            const int64_t from = w->now + between(w, 1000, 4000);
            pause_node(w, &w->n[other], from, from + between(w, 1000, 8000));
        }
    } else if (what < 68) {
        cut_from_all(w, n, until);
    } else if (what < 76) {
        cut(w, n->index, other, until, true);
        note(w, n, "is refused by node %d until %lld", other, (long long)until);
    } else {
        fail_worker(w, n);
    }
}

static void set_up(struct world *w)
{
    w->listed = true;
    w->late = 0.04;
    w->late_ms = 8000;
    w->nodes = (int)between(w, w->cuts_last ? 3 : 2, NODES);
    w->max = w->nodes;
    w->min = (int)between(w, w->nodes / 2 + 1, w->cuts_last ? w->nodes - 1 : w->nodes);
    w->hosts = (int)between(w, w->cuts_last ? 3 : 2, w->nodes); /* one that all reach is among them */
    settle(w);
}

int listed_run(enum listed_kind kind, uint64_t seed, bool trace, struct members_stats *total, struct err *e)
{
    static const struct world_ops ops = {.set_up = set_up,
                                         .born = born,
                                         .away = away,
                                         .acked = acked,
                                         .pump = pump,
                                         .tick = tick,
                                         .deadline = deadline,
                                         .deliver = deliver,
                                         .fault = fault};
    struct world *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, -ENOMEM, "no memory");
    w->cuts_last = kind == LISTED_CUTS;
    const int rc = members_run(w, &ops, seed, (int)kind, trace, total, e);
    free(w);
    return rc;
}
