/* The daemon around the machine: turns messages into events, keeps each node's newest news, notices silence; logs every
 * decision before it is told, and goes on from that log when it was killed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/sim/sim_impl.h"

enum { UNHEARD_MS = 3000, COMPACT_BYTES = 65536 };

int64_t sim_host_clock(const struct world *w)
{
    return w->now + w->host_skew;
}

bool sim_is_over(const struct world *w)
{
    enum rdzv_state s = w->rdzv ? rdzv_state(w->rdzv) : RDZV_JOINING;
    return s == RDZV_SUCCEEDED || s == RDZV_FAILED || s == RDZV_DRAINED;
}

/* A node that was forgotten and comes back is a new one: it has no place, and what it was told before is no longer
 * true. */
static void lose(struct world *w, struct agent *a)
{
    struct account *acc = &w->account;
    int n = 0;
    if (a->news.seq > 0 && a->news.kind != RDZV_NEWS_END)
        a->news.kind = 0; /* its number stays: the next must be higher */
    for (int i = 0; i < acc->order_count; i++)
        if (acc->order[i] != a - w->agents)
            acc->order[n++] = acc->order[i];
    acc->order_count = n;
}

static void refresh_known(struct world *w)
{
    if (rdzv_nodes(w->rdzv) == w->known)
        return;
    w->known = rdzv_nodes(w->rdzv);
    for (int i = 0; i < w->agent_count; i++) {
        struct agent *a = &w->agents[i];
        bool known = rdzv_knows(w->rdzv, a->id);
        if (a->known && !known)
            lose(w, a);
        if (known && !a->known)
            a->joined_as = ++w->account.joins;
        a->known = known;
    }
}

static void keep_news(struct world *w)
{
    for (size_t i = 0; i < w->fx.n; i++) {
        struct agent *a = sim_by_id(w, w->fx.v[i].node);
        const struct rdzv_news *n = &w->fx.v[i].news;
        if (n->seq <= a->news.seq)
            sim_broken(w, "news %llu of %s follows news %llu", (unsigned long long)n->seq, a->id,
                       (unsigned long long)a->news.seq);
        a->news = (struct told){.seq = n->seq, .round = n->round, .kind = n->kind, .spare = n->spare};
        if (!a->known && n->kind != RDZV_NEWS_END) {
            a->news.kind = 0; /* told and forgotten in one step */
            continue;
        }
        /* a blocked RDZV.NEXT is answered at once */
        if (a->connected)
            sim_send(w, (struct message){.agent = (int)(a - w->agents),
                                         .to_agent = true,
                                         .ask = ASK_HEARTBEAT,
                                         .news = a->news,
                                         .acked_send = a->heard_sent});
    }
}

static void write_log(struct world *w)
{
    size_t before = w->log.len;
    struct err e;
    if (!w->durable)
        return;
    if (rdzv_delta(w->rdzv, sim_host_clock(w), &w->log, &e) < 0)
        sim_broken(w, "%s", e.text);
    if (w->log.len > before && w->log.data[before] == 'm')
        w->account.core_logged_at = sim_host_clock(w);
}

static void trace(const struct world *w, const struct rdzv_event *ev, enum rdzv_state before, int rc,
                  const struct err *e)
{
    fprintf(stderr, "%6lld %-7s %-8s round %llu: %s -> %s, round %llu, %zu news%s%s\n", (long long)w->now,
            rdzv_event_name(ev->kind), ev->node, (unsigned long long)ev->round, rdzv_state_name(before),
            rdzv_state_name(rdzv_state(w->rdzv)), (unsigned long long)rdzv_round(w->rdzv), w->fx.n,
            rc ? " refused: " : "", rc ? e->text : "");
}

int sim_step(struct world *w, const struct rdzv_event *ev)
{
    enum rdzv_state before = rdzv_state(w->rdzv);
    uint64_t round_before = rdzv_round(w->rdzv);
    struct err e = {0};
    int rc = rdzv_step(w->rdzv, ev, sim_host_clock(w), &w->fx, &e);
    w->stats->steps++;
    w->events++;
    ++(rc ? w->stats->turned_down : w->stats->taken)[before][ev->kind];
    if (w->trace)
        trace(w, ev, before, rc, &e);
    if (rc < 0) {
        w->stats->refused++;
        if (rc != ERR_FENCED && rc != ERR_REFUSED)
            sim_broken(w, "step failed: %s", e.text);
        if (w->fx.n > 0)
            sim_broken(w, "a refused step told %zu news", w->fx.n);
    } else {
        write_log(w);
        refresh_known(w);
        sim_check_step(w, ev, before, round_before);
        keep_news(w);
    }
    if (rdzv_check(w->rdzv, &e) < 0)
        sim_broken(w, "after %s in state %s: %s", rdzv_event_name(ev->kind), rdzv_state_name(before), e.text);
    return rc;
}

static int step_node(struct world *w, enum rdzv_event_kind kind, const struct agent *a)
{
    struct rdzv_event ev = {.kind = kind};
    memcpy(ev.node, a->id, sizeof ev.node);
    return sim_step(w, &ev);
}

void sim_host_silence(struct world *w, struct agent *a)
{
    a->known_silent = true;
    step_node(w, RDZV_SILENT, a);
}

/* --- its life */

int sim_host_open(struct world *w, struct err *e)
{
    w->host_skew = sim_between(w, 0, 1000000000);
    w->unheard = sim_host_clock(w);
    return rdzv_create(&w->rdzv, &w->config, e);
}

static int describe(void *arg, const struct rdzv_member *m)
{
    return buf_printf(arg, "%s %d %d %d %d%d%d%d%d %s %s\n", m->node, m->slots, m->group_rank, m->rank_base, m->member,
                      m->ready, m->done, m->silent, m->leaving, m->role, m->addr);
}

/* All that can be seen of the machine but its times. */
static void look(struct rdzv *r, struct buf *ret)
{
    buf_printf(ret, "%s round %llu restarts %d\n", rdzv_state_name(rdzv_state(r)), (unsigned long long)rdzv_round(r),
               rdzv_restarts(r));
    rdzv_members(r, describe, ret);
}

void sim_host_kill(struct world *w, int64_t down_ms)
{
    if (w->trace)
        fprintf(stderr, "%6lld daemon killed\n", (long long)w->now);
    struct buf before = {0}, after = {0};
    struct rdzv *successor = NULL;
    struct err e = {0};
    look(w->rdzv, &before);
    if (rdzv_create(&successor, &w->config, &e) < 0 ||
        (w->log.len > 0 && rdzv_replay(successor, w->log.data, w->log.len, 0, &e) < 0)) {
        sim_broken(w, "%s", e.text);
    } else {
        look(successor, &after);
        if (strcmp(before.data, after.data) != 0)
            sim_broken(w, "the log says '%s', but the machine was '%s'", after.data, before.data);
    }
    buf_free(&before);
    buf_free(&after);
    rdzv_destroy(successor);
    rdzv_destroy(w->rdzv);
    w->rdzv = NULL;
    w->host_up_at = w->now + down_ms;
    for (int i = 0; i < w->agent_count; i++)
        w->agents[i].connected = false;
    w->stats->daemon_restarts++;
}

/* Another process, perhaps after a boot: its clock begins anywhere. All nodes are silent until they are heard. */
void sim_host_restart(struct world *w)
{
    struct err e;
    w->host_skew = sim_between(w, -1000000, 1000000000) - w->now;
    if (rdzv_create(&w->rdzv, &w->config, &e) < 0 ||
        (w->log.len > 0 && rdzv_replay(w->rdzv, w->log.data, w->log.len, sim_host_clock(w), &e) < 0)) {
        sim_broken(w, "%s", e.text);
        return;
    }
    if (w->trace)
        fprintf(stderr, "%6lld daemon restarted\n", (long long)w->now);
    sim_account_restarted(w);
    w->unheard = sim_host_clock(w);
    for (int i = 0; i < w->agent_count; i++) {
        struct agent *a = &w->agents[i];
        a->heard = sim_host_clock(w);
        if (a->known && !sim_is_over(w))
            sim_host_silence(w, a);
    }
}

void sim_host_compact(struct world *w)
{
    struct err e;
    buf_clear(&w->log);
    if (rdzv_snapshot(w->rdzv, sim_host_clock(w), &w->log, &e) < 0)
        sim_broken(w, "%s", e.text);
    sim_account_compacted(w);
    w->stats->compactions++;
}

/* --- messages and time */

static struct rdzv_event event_of(const struct world *w, const struct agent *a, const struct message *m)
{
    static const enum rdzv_event_kind kinds[] = {
        [ASK_HEARTBEAT] = RDZV_RESUME, [ASK_JOIN] = RDZV_JOIN,   [ASK_FAIL] = RDZV_FAIL,
        [ASK_DONE] = RDZV_DONE,        [ASK_LEAVE] = RDZV_LEAVE, [TELL_GONE] = RDZV_GONE};
    struct rdzv_event ev = {.kind = kinds[m->ask],
                            .round = m->round,
                            .slots = a->slots,
                            .node_rank = a->node_rank,
                            .port = 1000 + (int)(a - w->agents),
                            .cause = {.exit_code = m->ask == ASK_LEAVE ? a->leaving_code : 9, .rank = 0}};
    memcpy(ev.node, a->id, sizeof ev.node);
    memcpy(ev.addr, a->id, sizeof ev.addr);
    memcpy(ev.role, a->role, sizeof a->role);
    return ev;
}

void sim_host_receive(struct world *w, const struct message *m)
{
    struct agent *a = &w->agents[m->agent];
    struct rdzv_event ev = event_of(w, a, m);
    if (m->ask == TELL_GONE) {
        if (a->connected)
            sim_step(w, &ev); /* else that connection ended with a daemon before */
        return;
    }
    a->heard = sim_host_clock(w);
    a->connected = true;
    if (m->sent > a->heard_sent)
        a->heard_sent = m->sent;
    if (a->known_silent && a->known)
        step_node(w, RDZV_RESUME, a);
    a->known_silent = false;
    int rc = 0;
    if (m->ask != ASK_HEARTBEAT)
        rc = sim_step(w, &ev);
    else if (!a->known)
        rc = ERR_REFUSED;
    enum answer answer = rc == 0 ? ANSWER_OK : rc == ERR_FENCED ? ANSWER_FENCED : ANSWER_REFUSED;
    if (sim_is_over(w) && answer != ANSWER_OK)
        answer = ANSWER_OVER;
    sim_send(w, (struct message){.agent = m->agent,
                                 .to_agent = true,
                                 .ask = m->ask,
                                 .round = m->round,
                                 .answer = answer,
                                 .acked_send = m->sent,
                                 .news = a->news});
}

static int64_t unheard_at(const struct agent *a)
{
    return a->known && !a->known_silent ? a->heard + UNHEARD_MS : NEVER;
}

int64_t sim_host_wake(const struct world *w)
{
    if (!w->rdzv)
        return w->host_up_at;
    int64_t at = rdzv_deadline(w->rdzv);
    if (w->unheard < at && !sim_is_over(w))
        at = w->unheard;
    if (at != NEVER)
        at -= w->host_skew;
    return at < w->host_paused_until ? w->host_paused_until : at;
}

/* Being heard only moves this bound up, and who is new was heard just now: it is looked at again when it is reached. */
static void notice_silence(struct world *w)
{
    if (w->unheard > sim_host_clock(w) || sim_is_over(w))
        return;
    w->unheard = sim_host_clock(w) + UNHEARD_MS;
    for (int i = 0; i < w->agent_count && !sim_is_over(w); i++) {
        struct agent *a = &w->agents[i];
        if (unheard_at(a) <= sim_host_clock(w))
            sim_host_silence(w, a);
        else if (unheard_at(a) < w->unheard)
            w->unheard = unheard_at(a);
    }
}

void sim_host_tick(struct world *w)
{
    if (!w->rdzv) {
        sim_host_restart(w);
        return;
    }
    if (rdzv_deadline(w->rdzv) <= sim_host_clock(w)) {
        int known = rdzv_nodes(w->rdzv);
        sim_step(w, &(struct rdzv_event){.kind = RDZV_TICK});
        w->stats->fences += (uint64_t)(known - rdzv_nodes(w->rdzv));
        if (rdzv_deadline(w->rdzv) <= sim_host_clock(w))
            sim_broken(w, "a tick leaves its deadline behind");
    }
    notice_silence(w);
    if (w->durable && w->log.len > COMPACT_BYTES)
        sim_host_compact(w);
}
