/* What must hold of a job, worked out from what is told alone: the machine's own opinion (rdzv_check) is asked
 * elsewhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_impl.h"

struct agent *sim_by_id(struct world *w, const char *id)
{
    return &w->agents[strtol(id + strlen("node"), NULL, 10) - 1];
}

/* --- no two rounds progress at once, of one instance or of two */

bool sim_progresses(const struct world *w, const struct agent *a)
{
    return a->workers && a->paused_until <= w->now && !a->woke;
}

static bool works_elsewhere(const struct agent *a, const char *instance, uint64_t round)
{
    return a->worker_round != round || strcmp(a->worker_instance, instance) != 0;
}

void sim_check_alone(struct world *w, const struct agent *a)
{
    for (int i = 0; i < w->agent_count; i++) {
        const struct agent *b = &w->agents[i];
        if (b != a && sim_progresses(w, b) && works_elsewhere(b, a->worker_instance, a->worker_round))
            sim_broken(w, "%s works in round %llu while %s works in round %llu", a->id,
                       (unsigned long long)a->worker_round, b->id, (unsigned long long)b->worker_round);
    }
}

/* --- the budget of restarts, and backoff */

static void forget_old_restarts(struct world *w, int64_t now)
{
    struct account *a = &w->account;
    int kept = 0;
    for (int i = 0; i < a->counted; i++) {
        if (now - a->restart_at[i] > w->config.restart_window_ms)
            continue;
        a->restart_at[kept++] = a->restart_at[i];
    }
    a->counted = kept;
}

/* The log has all that still count; later ones that count no more stay in it. */
static void log_restarts(struct world *w, int64_t now)
{
    struct account *a = &w->account;
    forget_old_restarts(w, now);
    for (int i = 0; i < a->counted; i++)
        a->restart_age[i] = now - a->restart_at[i];
    a->logged = a->counted;
}

static int against_budget(struct world *w, int64_t now)
{
    if (w->config.restart_window_ms == 0)
        return w->account.restarts;
    forget_old_restarts(w, now);
    return w->account.counted;
}

static int64_t expected_wait(const struct rdzv_config *c, int row)
{
    double wait = (double)c->backoff_ms;
    for (int i = 2; i < row; i++)
        wait *= 2;
    return row < 2 ? 0 : wait > (double)c->backoff_max_ms ? c->backoff_max_ms : (int64_t)wait;
}

static void account_failure(struct world *w, int64_t now)
{
    struct account *a = &w->account;
    if (against_budget(w, now) >= w->config.max_restarts)
        sim_broken(w, "a restart with %d of %d used up", against_budget(w, now), w->config.max_restarts);
    a->restarts++;
    w->stats->restarts++;
    if (w->config.restart_window_ms > 0 && a->counted < RESTARTS_MAX)
        a->restart_at[a->counted++] = now;
    log_restarts(w, now);
    a->row = now - a->round_at < w->config.backoff_reset_ms ? a->row + 1 : 0;
    a->not_before = now + (w->config.backoff_ms > 0 ? expected_wait(&w->config, a->row) : 0);
}

static int count_staying(void *arg, const struct rdzv_member *m)
{
    *(int *)arg += !m->leaving && !m->silent;
    return 0;
}

/* A node leaves because it cannot start its workers, and the job cannot do without. */
static bool is_left_too_small(const struct world *w, const struct rdzv_event *ev)
{
    int staying = 0;
    rdzv_members(w->rdzv, count_staying, &staying);
    return ev->kind == RDZV_LEAVE && ev->cause.exit_code != 0 && staying < w->config.min_nodes;
}

/* Which events may use up a restart, and that it is one per broken round. */
static void check_budget(struct world *w, const struct rdzv_event *ev, enum rdzv_state before)
{
    struct account *a = &w->account;
    int64_t now = sim_host_clock(w);
    bool failure = false, orderly = false;
    for (size_t i = 0; i < w->fx->n; i++) {
        const struct rdzv_news *n = &w->fx->v[i].news;
        failure |= n->kind == RDZV_NEWS_STOP && n->why == RDZV_WHY_FAILURE;
        orderly |= n->kind == RDZV_NEWS_STOP && n->why != RDZV_WHY_FAILURE;
        w->stats->resizes += n->kind == RDZV_NEWS_STOP && n->why == RDZV_WHY_RESIZE;
    }
    int used = rdzv_restarts(w->rdzv) - a->restarts;
    bool may = before == RDZV_RUNNING &&
               (ev->kind == RDZV_FAIL || ev->kind == RDZV_GONE || ev->kind == RDZV_JOIN || ev->kind == RDZV_TICK);
    if (used < 0 || used > 1 || (used == 1 && !may))
        sim_broken(w, "%s in state %s used up %d restarts", rdzv_event_name(ev->kind), rdzv_state_name(before), used);
    if (failure && used != 1)
        sim_broken(w, "a round stopped by a failure used up %d restarts", used);
    if (used == 1)
        account_failure(w, now);
    if (used == 1 && (ev->kind == RDZV_FAIL || ev->kind == RDZV_JOIN))
        a->failures[sim_by_id(w, ev->node) - w->agents]++;
    if (orderly && now - a->round_at >= w->config.backoff_reset_ms)
        a->row = 0;
    if (before == RDZV_RUNNING && rdzv_state(w->rdzv) == RDZV_FAILED &&
        against_budget(w, now) != w->config.max_restarts && !is_left_too_small(w, ev))
        sim_broken(w, "the job failed with %d of %d restarts used up", against_budget(w, now), w->config.max_restarts);
    if (rdzv_state(w->rdzv) == RDZV_BACKOFF) {
        w->stats->backoffs += before != RDZV_BACKOFF;
        if ((a->not_before <= now && ev->kind != RDZV_SILENT) || rdzv_deadline(w->rdzv) > a->not_before)
            sim_broken(w, "the job backs off until %lld, expected %lld", (long long)rdzv_deadline(w->rdzv),
                       (long long)a->not_before);
    }
}

void sim_account_logged(struct world *w)
{
    w->account.core_logged_at = sim_host_clock(w);
}

void sim_account_restarted(struct world *w)
{
    struct account *a = &w->account;
    int64_t now = sim_host_clock(w), wait = a->not_before - a->core_logged_at;
    a->not_before = now + (wait > 0 ? wait : 0);
    a->round_at = now - (a->core_logged_at - a->round_at);
    a->core_logged_at = now;
    a->counted = a->logged;
    for (int i = 0; i < a->counted; i++)
        a->restart_at[i] = now - a->restart_age[i];
}

/* A node has brought what its rendezvous has lost: it counts, up to the budget. */
void sim_account_adopted(struct world *w, int restarts)
{
    struct account *a = &w->account;
    const int64_t now = sim_host_clock(w);
    const int most = w->config.max_restarts;
    if (w->config.restart_window_ms == 0 && restarts > most)
        restarts = most;
    if (w->config.restart_window_ms > 0)
        forget_old_restarts(w, now);
    const int counted = a->counted;
    for (int i = a->restarts; w->config.restart_window_ms > 0 && i < restarts && a->counted < most; i++)
        a->restart_at[a->counted++] = now;
    if (a->counted > counted)
        log_restarts(w, now);
    a->restarts = restarts > a->restarts ? restarts : a->restarts;
}

void sim_account_compacted(struct world *w)
{
    struct account *a = &w->account;
    a->core_logged_at = sim_host_clock(w);
    log_restarts(w, a->core_logged_at);
}

/* --- ranks */

struct round {
    const struct rdzv_news *of[AGENTS_MAX]; /* by agent */
    struct agent *at[AGENTS_MAX];           /* by group rank */
    int members;
};

static void collect(struct world *w, struct round *r)
{
    for (size_t i = 0; i < w->fx->n; i++) {
        const struct rdzv_news *n = &w->fx->v[i].news;
        struct agent *a = sim_by_id(w, w->fx->v[i].node);
        if (n->kind != RDZV_NEWS_ROUND)
            continue;
        r->of[a - w->agents] = n;
        if (n->spare)
            continue;
        if (n->group_rank < 0 || n->group_rank >= n->group_world || n->group_rank >= AGENTS_MAX || r->at[n->group_rank])
            sim_broken(w, "group rank %d of %s is taken or outside %d", n->group_rank, a->id, n->group_world);
        else
            r->at[n->group_rank] = a;
        r->members++;
    }
}

static void check_numbers(struct world *w, const struct round *r)
{
    int base = 0;
    for (int i = 0; i < r->members; i++) {
        const struct rdzv_news *n = r->of[r->at[i] - w->agents];
        if (n->rank_base != base || n->group_world != r->members)
            sim_broken(w, "rank base %d of %s in %d nodes, expected %d in %d", n->rank_base, r->at[i]->id,
                       n->group_world, base, r->members);
        base += r->at[i]->slots;
        if (strcmp(n->leader_addr, r->at[0]->id) != 0 || n->leader_port != 1000 + (int)(r->at[0] - w->agents))
            sim_broken(w, "leader is %s port %d, expected %s", n->leader_addr, n->leader_port, r->at[0]->id);
    }
    for (int i = 0; i < r->members; i++)
        if (r->of[r->at[i] - w->agents]->world_size != base)
            sim_broken(w, "%s is told of a world of %d, expected %d", r->at[i]->id,
                       r->of[r->at[i] - w->agents]->world_size, base);
    if (r->members < w->config.min_nodes || r->members > w->config.max_nodes)
        sim_broken(w, "a round of %d nodes, allowed are %d to %d", r->members, w->config.min_nodes,
                   w->config.max_nodes);
}

static void check_roles(struct world *w, const struct round *r)
{
    for (int i = 0; i < r->members; i++) {
        int base = 0, world = 0;
        for (int k = 0; k < r->members; k++)
            if (strcmp(r->at[k]->role, r->at[i]->role) == 0) {
                world += r->at[k]->slots;
                base += k < i ? r->at[k]->slots : 0;
            }
        const struct rdzv_news *n = r->of[r->at[i] - w->agents];
        if (n->role_base != base || n->role_world != world)
            sim_broken(w, "%s has role ranks %d+ of %d, expected %d+ of %d", r->at[i]->id, n->role_base, n->role_world,
                       base, world);
    }
}

/* Whether b may follow a, both new to the round (or, by number, any two of it). Ids sort as agents are numbered. */
static bool in_order(const struct world *w, const struct agent *a, const struct agent *b)
{
    switch (w->config.order) {
    case RDZV_ORDER_JOIN:
        return a->joined_as < b->joined_as;
    case RDZV_ORDER_NODE_RANK:
        if (a->node_rank != b->node_rank)
            return a->node_rank >= 0 && (b->node_rank < 0 || a->node_rank < b->node_rank);
        break;
    case RDZV_ORDER_HOST:
        break;
    }
    return a < b;
}

static bool fails_too_often(const struct world *w, int agent)
{
    const int most = w->config.max_node_failures;
    return most > 0 && w->account.failures[agent] >= most;
}

/* Who failed too often has no seat while another waits. */
static void check_seats(struct world *w, const struct round *r)
{
    for (int i = 0; i < w->agent_count; i++)
        for (int k = 0; k < r->members && r->of[i] && r->of[i]->spare && !fails_too_often(w, i); k++)
            if (fails_too_often(w, (int)(r->at[k] - w->agents)))
                sim_broken(w, "%s has a seat after %d failures, and %s waits", r->at[k]->id,
                           w->account.failures[r->at[k] - w->agents], w->agents[i].id);
}

static void check_order(struct world *w, const struct round *r)
{
    struct account *acc = &w->account;
    int was[AGENTS_MAX];
    for (int i = 0; i < AGENTS_MAX; i++)
        was[i] = -1;
    for (int k = 0; k < acc->order_count; k++)
        was[acc->order[k]] = k;
    for (int i = 0; i < w->agent_count; i++)
        if (r->of[i] && r->of[i]->spare && was[i] >= 0 && !fails_too_often(w, i))
            sim_broken(w, "%s lost its place in the round", w->agents[i].id);
    for (int i = 1; i < r->members; i++) {
        int a = was[r->at[i - 1] - w->agents], b = was[r->at[i] - w->agents];
        bool old = b >= 0 && w->config.order != RDZV_ORDER_NODE_RANK;
        bool right = old ? a >= 0 && a < b
                         : (a >= 0 && w->config.order != RDZV_ORDER_NODE_RANK) || in_order(w, r->at[i - 1], r->at[i]);
        if (!right)
            sim_broken(w, "%s follows %s in the order", r->at[i]->id, r->at[i - 1]->id);
    }
    acc->order_count = r->members;
    for (int i = 0; i < r->members; i++)
        acc->order[i] = (int)(r->at[i] - w->agents);
}

static void check_round(struct world *w)
{
    struct round r = {0};
    collect(w, &r);
    if (r.members == 0)
        return;
    uint64_t round = rdzv_round(w->rdzv);
    int64_t now = sim_host_clock(w);
    if (round <= w->account.round)
        sim_broken(w, "round %llu follows round %llu", (unsigned long long)round, (unsigned long long)w->account.round);
    if (now < w->account.not_before)
        sim_broken(w, "round %llu starts %lld ms before the backoff is over", (unsigned long long)round,
                   (long long)(w->account.not_before - now));
    w->account.round = round;
    w->account.round_at = now;
    w->stats->rounds++;
    for (int i = 0; i < r.members; i++)
        if (r.at[i] && round <= r.at[i]->named_round)
            sim_broken(w, "round %llu follows round %llu, which %s has named", (unsigned long long)round,
                       (unsigned long long)r.at[i]->named_round, r.at[i]->id);
        else if (!r.at[i]) {
            sim_broken(w, "nobody has group rank %d of %d", i, r.members);
            return;
        }
    check_numbers(w, &r);
    check_roles(w, &r);
    check_seats(w, &r);
    check_order(w, &r);
    for (int i = 0; i < w->agent_count; i++)
        if (sim_progresses(w, &w->agents[i]) && works_elsewhere(&w->agents[i], w->instance, round))
            sim_broken(w, "round %llu starts while %s works in round %llu", (unsigned long long)round, w->agents[i].id,
                       (unsigned long long)w->agents[i].worker_round);
}

/* One that was forgotten begins anew when it comes back: the round has done without it. */
static void forget_failures(struct world *w)
{
    for (int i = 0; i < w->agent_count; i++)
        if (w->account.failures[i] > 0 && !rdzv_knows(w->rdzv, w->agents[i].id))
            w->account.failures[i] = 0;
}

void sim_check_step(struct world *w, const struct rdzv_event *ev, enum rdzv_state before, uint64_t round_before)
{
    if ((ev->kind == RDZV_FAIL || ev->kind == RDZV_DONE) && ev->round != round_before)
        sim_broken(w, "%s of %s about round %llu was taken in round %llu", rdzv_event_name(ev->kind), ev->node,
                   (unsigned long long)ev->round, (unsigned long long)round_before);
    const enum rdzv_state s = rdzv_state(w->rdzv);
    if (s != before) {
        w->stats->succeeded += s == RDZV_SUCCEEDED;
        w->stats->failed += s == RDZV_FAILED;
        w->stats->drained += s == RDZV_DRAINED;
    }
    forget_failures(w);
    check_budget(w, ev, before);
    check_round(w);
}
