/* The daemon around the machine: turns messages into events, keeps each node's newest news, notices silence; and checks every step
 * against rules it works out for itself. */
#include "common/err.h"
#include "tests/sim/sim_impl.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { UNHEARD_MS = 3000 };

static struct agent *by_id(struct world *w, const char *id)
{
    for (int i = 0; i < w->agent_count; i++)
        if (strcmp(w->agents[i].id, id) == 0)
            return &w->agents[i];
    return NULL;
}

/* Ranks as any reader of the news sees them. */
static void check_round_news(struct world *w)
{
    int members = 0, base = 0, world = 0;
    const char *leader = NULL;
    struct agent *at[AGENTS_MAX] = {0};
    uint64_t round = rdzv_round(w->rdzv);
    for (size_t i = 0; i < w->fx.n; i++) {
        const struct rdzv_news *n = &w->fx.v[i].news;
        if (n->kind != RDZV_NEWS_ROUND || n->spare)
            continue;
        struct agent *a = by_id(w, w->fx.v[i].node);
        if (n->group_rank < 0 || n->group_rank >= n->group_world || n->group_rank >= AGENTS_MAX || at[n->group_rank])
            sim_broken(w, "group rank %d of %s is taken or outside %d", n->group_rank, a->id, n->group_world);
        else
            at[n->group_rank] = a;
        members++;
        world = n->world_size;
        leader = n->leader_addr;
        if (n->group_world < w->config.min_nodes || n->group_world > w->config.max_nodes)
            sim_broken(w, "a round of %d nodes, allowed are %d to %d", n->group_world, w->config.min_nodes,
                       w->config.max_nodes);
    }
    if (members == 0)
        return;
    if (round <= w->last_round)
        sim_broken(w, "round %llu follows round %llu", (unsigned long long)round, (unsigned long long)w->last_round);
    w->last_round = round;
    w->stats->rounds++;
    for (int i = 0; i < members; i++) {
        if (!at[i]) {
            sim_broken(w, "nobody has group rank %d of %d", i, members);
            return;
        }
        for (size_t k = 0; k < w->fx.n; k++)
            if (strcmp(w->fx.v[k].node, at[i]->id) == 0 && w->fx.v[k].news.kind == RDZV_NEWS_ROUND &&
                w->fx.v[k].news.rank_base != base)
                sim_broken(w, "rank base %d of %s, expected %d", w->fx.v[k].news.rank_base, at[i]->id, base);
        base += at[i]->slots;
    }
    if (base != world)
        sim_broken(w, "%d slots make a world of %d", base, world);
    if (strcmp(leader, at[0]->id) != 0) /* agents give their id as address */
        sim_broken(w, "leader is %s, expected %s", leader, at[0]->id);

    /* members of the last round keep their order and come first */
    int last = -1;
    bool fresh = false;
    for (int i = 0; i < members; i++) {
        int was = -1;
        for (int k = 0; k < w->order_count; k++)
            if (strcmp(w->order[k], at[i]->id) == 0)
                was = k;
        if (was >= 0 && (fresh || was < last))
            sim_broken(w, "%s lost its place in the order", at[i]->id);
        if (was >= 0)
            last = was;
        fresh |= was < 0;
    }
    w->order_count = members;
    for (int i = 0; i < members; i++)
        snprintf(w->order[i], sizeof w->order[i], "%s", at[i]->id);

    for (int i = 0; i < w->agent_count; i++)
        if (w->agents[i].workers && w->agents[i].worker_round != round)
            sim_broken(w, "round %llu starts while %s works in round %llu", (unsigned long long)round, w->agents[i].id,
                       (unsigned long long)w->agents[i].worker_round);
}

/* Which events may use up a restart, and that it is one per broken round. */
static void check_budget(struct world *w, const struct rdzv_event *ev, enum rdzv_state before, uint64_t round_before)
{
    bool stop_failure = false, ended_by_failure = before == RDZV_RUNNING && rdzv_state(w->rdzv) == RDZV_FAILED;
    for (size_t i = 0; i < w->fx.n; i++) {
        const struct rdzv_news *n = &w->fx.v[i].news;
        stop_failure |= n->kind == RDZV_NEWS_STOP && n->why == RDZV_WHY_FAILURE;
        w->stats->resizes += n->kind == RDZV_NEWS_STOP && n->why == RDZV_WHY_RESIZE;
    }
    int used = rdzv_restarts(w->rdzv) - w->restarts_seen;
    w->restarts_seen = rdzv_restarts(w->rdzv);
    w->stats->restarts += (uint64_t)used;
    bool may = before == RDZV_RUNNING &&
               (ev->kind == RDZV_FAIL || ev->kind == RDZV_GONE || ev->kind == RDZV_JOIN || ev->kind == RDZV_TICK);
    if (used < 0 || used > 1 || (used == 1 && !may))
        sim_broken(w, "%s in state %s used up %d restarts", rdzv_event_name(ev->kind), rdzv_state_name(before), used);
    if (stop_failure && used != 1)
        sim_broken(w, "a round stopped by a failure used up %d restarts", used);
    if (ended_by_failure && rdzv_restarts(w->rdzv) != w->config.max_restarts)
        sim_broken(w, "the job failed with %d of %d restarts used up", rdzv_restarts(w->rdzv), w->config.max_restarts);
    if ((ev->kind == RDZV_FAIL || ev->kind == RDZV_DONE) && ev->round != round_before)
        sim_broken(w, "%s of %s about round %llu was taken in round %llu", rdzv_event_name(ev->kind), ev->node,
                   (unsigned long long)ev->round, (unsigned long long)round_before);
}

/* A node that was forgotten and comes back is a new one: it has no place, and what it was told before is no longer true. */
static void forget_nodes(struct world *w)
{
    for (int i = 0; i < w->agent_count; i++) {
        struct agent *a = &w->agents[i];
        if (a->has_news && a->news.kind != RDZV_NEWS_END && !rdzv_knows(w->rdzv, a->id))
            a->has_news = false;
    }
    int n = 0;
    for (int i = 0; i < w->order_count; i++)
        if (rdzv_knows(w->rdzv, w->order[i]))
            memmove(w->order[n++], w->order[i], sizeof w->order[i]);
    w->order_count = n;
}

static void keep_news(struct world *w)
{
    for (size_t i = 0; i < w->fx.n; i++) {
        struct agent *a = by_id(w, w->fx.v[i].node);
        if (w->fx.v[i].news.seq <= a->news.seq)
            sim_broken(w, "news %llu of %s follows news %llu", (unsigned long long)w->fx.v[i].news.seq, a->id,
                       (unsigned long long)a->news.seq);
        a->has_news = true;
        a->news = w->fx.v[i].news;
        /* a blocked RDZV.NEXT is answered at once */
        sim_send(w, (struct message){.agent = (int)(a - w->agents),
                                     .to_agent = true,
                                     .ask = ASK_HEARTBEAT,
                                     .has_news = true,
                                     .news = a->news,
                                     .acked_send = a->heard_sent});
    }
}

int sim_step(struct world *w, const struct rdzv_event *ev)
{
    enum rdzv_state before = rdzv_state(w->rdzv);
    uint64_t round_before = rdzv_round(w->rdzv);
    struct err e = {0};
    int rc = rdzv_step(w->rdzv, ev, w->now, &w->fx, &e);
    w->stats->steps++;
    if (w->trace)
        fprintf(stderr, "%6lld %-7s %-8s round %llu: %s -> %s, round %llu, %zu news%s%s\n", (long long)w->now,
                rdzv_event_name(ev->kind), ev->node, (unsigned long long)ev->round, rdzv_state_name(before),
                rdzv_state_name(rdzv_state(w->rdzv)), (unsigned long long)rdzv_round(w->rdzv), w->fx.n,
                rc ? " refused: " : "", rc ? e.text : "");
    if (rc < 0) {
        w->stats->refused++;
        if (rc != ERR_FENCED && rc != ERR_REFUSED)
            sim_broken(w, "step failed: %s", e.text);
        if (w->fx.n > 0)
            sim_broken(w, "a refused step told %zu news", w->fx.n);
    } else {
        check_budget(w, ev, before, round_before);
        check_round_news(w);
        keep_news(w);
    }
    forget_nodes(w);
    if (rdzv_check(w->rdzv, &e) < 0)
        sim_broken(w, "after %s in state %s: %s", rdzv_event_name(ev->kind), rdzv_state_name(before), e.text);
    return rc;
}

static bool is_over(const struct world *w)
{
    enum rdzv_state s = rdzv_state(w->rdzv);
    return s == RDZV_SUCCEEDED || s == RDZV_FAILED || s == RDZV_DRAINED;
}

static struct rdzv_event event_of(const struct world *w, const struct agent *a, const struct message *m)
{
    static const enum rdzv_event_kind kinds[] = {
        [ASK_HEARTBEAT] = RDZV_RESUME, [ASK_JOIN] = RDZV_JOIN,   [ASK_FAIL] = RDZV_FAIL,
        [ASK_DONE] = RDZV_DONE,        [ASK_LEAVE] = RDZV_LEAVE, [TELL_GONE] = RDZV_GONE};
    struct rdzv_event ev = {
        .kind = kinds[m->ask], .round = m->round, .slots = a->slots, .cause = {.exit_code = 9, .rank = 0}};
    (void)w;
    memcpy(ev.node, a->id, sizeof ev.node);
    memcpy(ev.addr, a->id, sizeof ev.addr);
    return ev;
}

void sim_host_receive(struct world *w, const struct message *m)
{
    struct agent *a = &w->agents[m->agent];
    struct rdzv_event ev = event_of(w, a, m);
    if (m->ask == TELL_GONE) {
        sim_step(w, &ev);
        return;
    }
    a->heard = w->now;
    if (m->sent > a->heard_sent)
        a->heard_sent = m->sent;
    bool known = rdzv_knows(w->rdzv, a->id);
    if (a->known_silent && known) {
        struct rdzv_event back = ev;
        back.kind = RDZV_RESUME;
        sim_step(w, &back);
    }
    a->known_silent = false;
    int rc = 0;
    if (m->ask != ASK_HEARTBEAT)
        rc = sim_step(w, &ev);
    else if (!known)
        rc = ERR_REFUSED;
    enum answer answer = rc == 0 ? ANSWER_OK : rc == ERR_FENCED ? ANSWER_FENCED : ANSWER_REFUSED;
    if (is_over(w) && answer != ANSWER_OK)
        answer = ANSWER_OVER;
    sim_send(w, (struct message){.agent = m->agent,
                                 .to_agent = true,
                                 .ask = m->ask,
                                 .answer = answer,
                                 .acked_send = m->sent,
                                 .has_news = a->has_news,
                                 .news = a->news});
}

int64_t sim_host_wake(const struct world *w)
{
    int64_t at = rdzv_deadline(w->rdzv);
    if (is_over(w))
        return at;
    for (int i = 0; i < w->agent_count; i++) {
        const struct agent *a = &w->agents[i];
        if (!a->known_silent && rdzv_knows(w->rdzv, a->id) && a->heard + UNHEARD_MS < at)
            at = a->heard + UNHEARD_MS;
    }
    return at;
}

void sim_host_tick(struct world *w)
{
    if (rdzv_deadline(w->rdzv) <= w->now) {
        int known = rdzv_nodes(w->rdzv);
        sim_step(w, &(struct rdzv_event){.kind = RDZV_TICK});
        w->stats->fences += (uint64_t)(known - rdzv_nodes(w->rdzv));
        if (rdzv_deadline(w->rdzv) <= w->now)
            sim_broken(w, "a tick leaves its deadline behind");
    }
    for (int i = 0; i < w->agent_count && !is_over(w); i++) {
        struct agent *a = &w->agents[i];
        if (a->known_silent || !rdzv_knows(w->rdzv, a->id) || a->heard + UNHEARD_MS > w->now)
            continue;
        a->known_silent = true;
        struct rdzv_event ev = {.kind = RDZV_SILENT};
        memcpy(ev.node, a->id, sizeof ev.node);
        sim_step(w, &ev);
    }
}
