/* How a round begins and how it ends. First who: members of the last round before others, so that a spare displaces
 * nobody but a node that failed too often. Then in which order: members keep theirs, unless the user has numbered the
 * nodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/job/exitcode.h"
#include "common/rdzv/machine/rdzv_impl.h"

static int by_name(const struct node *a, const struct node *b)
{
    int c = strverscmp(a->id, b->id); /* node2 before node10 */
    return c ? c : strcmp(a->id, b->id);
}

static int by_number(const struct node *a, const struct node *b)
{
    if ((a->node_rank < 0) != (b->node_rank < 0))
        return a->node_rank < 0 ? 1 : -1;
    if (a->node_rank != b->node_rank)
        return a->node_rank < b->node_rank ? -1 : 1;
    return by_name(a, b);
}

/* Members of the last round come before others; a node that failed too often comes after both. 0: equal. */
static int by_seniority(const struct node *a, const struct node *b)
{
    if (a->last != b->last)
        return a->last ? 1 : -1;
    if (a->is.member != b->is.member)
        return a->is.member ? -1 : 1;
    return a->is.member && b->is.member ? rdzv_by_rank_(&a, &b) : 0;
}

#define COMPARATOR(name, ...)                                                                                          \
    static int name(const void *pa, const void *pb)                                                                    \
    {                                                                                                                  \
        const struct node *a = *(struct node *const *)pa, *b = *(struct node *const *)pb;                              \
        int c = by_seniority(a, b);                                                                                    \
        (void)c;                                                                                                       \
        return __VA_ARGS__;                                                                                            \
    }
COMPARATOR(seniority_then_name, c ? c : by_name(a, b))
COMPARATOR(seniority_then_join, c ? c : (a->ordinal > b->ordinal) - (a->ordinal < b->ordinal))
COMPARATOR(seniority_then_number, c ? c : by_number(a, b))
COMPARATOR(number_alone, by_number(a, b))
#undef COMPARATOR

static int by_role(const void *pa, const void *pb)
{
    const struct node *a = *(struct node *const *)pa, *b = *(struct node *const *)pb;
    int c = strcmp(a->role, b->role);
    return c ? c : rdzv_by_rank_(pa, pb);
}

/* Put the nodes that could take part into r->order, best first. Returns their number. */
static int line_up(struct rdzv *r)
{
    static int (*const orders[])(const void *, const void *) = {[RDZV_ORDER_HOST] = seniority_then_name,
                                                                [RDZV_ORDER_JOIN] = seniority_then_join,
                                                                [RDZV_ORDER_NODE_RANK] = seniority_then_number};
    const int most = r->config.max_node_failures;
    size_t ready = 0;
    unsigned ordinal = 0;
    for (struct node *n = r->nodes; n; n = n->hh.next) {
        n->ordinal = ordinal++;
        n->last = most > 0 && n->failures >= most;
        if (n->is.joined && !n->is.silent)
            r->order[ready++] = n;
    }
    qsort(r->order, ready, sizeof *r->order, orders[r->config.order]);
    r->m.group_world = (int)ready < r->config.max_nodes ? (int)ready : r->config.max_nodes;
    /* the members are chosen: that some failed too often does not count for the ranks */
    for (int i = 0; i < r->m.group_world; i++)
        r->order[i]->last = false;
    qsort(r->order, (size_t)r->m.group_world, sizeof *r->order,
          r->config.order == RDZV_ORDER_NODE_RANK ? number_alone : orders[r->config.order]);
    return (int)ready;
}

/* Number the members among the workers of their role. */
static void number_roles(struct rdzv *r)
{
    int n = r->m.group_world, first = 0, base = 0;
    qsort(r->order, (size_t)n, sizeof *r->order, by_role);
    for (int i = 0; i < n; i++) {
        if (i > 0 && strcmp(r->order[i]->role, r->order[i - 1]->role) != 0) {
            first = i;
            base = 0;
        }
        r->order[i]->role_base = base;
        base += r->order[i]->slots;
        if (i + 1 == n || strcmp(r->order[i + 1]->role, r->order[i]->role) != 0)
            for (int k = first; k <= i; k++)
                r->order[k]->role_world = base;
    }
    qsort(r->order, (size_t)n, sizeof *r->order, rdzv_by_rank_);
}

static void enlist(struct rdzv *r, struct node *n, int group_rank)
{
    struct standing to = {.member = true, .waits = n->is.waits};
    n->group_rank = group_rank;
    n->rank_base = r->m.world_size;
    r->m.world_size += n->slots;
    rdzv_stand_(r, n, to);
}

bool rdzv_news_is_for_leader(const struct rdzv_news *news)
{
    return news->kind != RDZV_NEWS_STOP && news->group_rank == 0 && news->group_world > 0 && !news->spare;
}

bool rdzv_news_grows(const struct rdzv_news *news)
{
    return news->kind == RDZV_NEWS_STOP && news->why == RDZV_WHY_RESIZE && strcmp(news->cause.text, RDZV_GROWS) == 0;
}

void rdzv_name_leader_(const struct rdzv *r, struct rdzv_news *news)
{
    if (!r->leader)
        return;
    snprintf(news->leader_addr, sizeof news->leader_addr, "%s", r->leader->addr);
    news->leader_port = r->leader->port;
}

void rdzv_tell_round_(struct step *s, struct node *n)
{
    struct rdzv_news *news = rdzv_tell_(s, n, RDZV_NEWS_ROUND);
    news->group_world = s->r->m.group_world;
    news->world_size = s->r->m.world_size;
    news->spare = !n->is.member;
    if (n->is.member) {
        news->group_rank = n->group_rank;
        news->rank_base = n->rank_base;
        news->role_base = n->role_base;
        news->role_world = n->role_world;
    }
    rdzv_name_leader_(s->r, news);
}

uint64_t rdzv_next_round(const struct rdzv *r)
{
    const uint64_t last = r->m.round > r->m.round_floor ? r->m.round : r->m.round_floor;
    return last + 1 > r->config.first_round ? last + 1 : r->config.first_round;
}

void rdzv_start_round_(struct step *s)
{
    struct rdzv *r = s->r;
    struct core *m = &r->m;
    int ready = line_up(r);
    m->why = m->round ? m->why : RDZV_WHY_START;
    m->round = rdzv_next_round(r);
    m->world_size = m->done_count = m->departed_done = 0;
    m->round_started = s->now;
    for (struct node *n = r->nodes; n; n = n->hh.next) {
        struct standing to = n->is;
        to.waits |= to.member;
        to.member = to.done = false;
        n->group_rank = n->rank_base = -1;
        rdzv_stand_(r, n, to);
    }
    for (int i = 0; i < m->group_world; i++)
        enlist(r, r->order[i], i);
    number_roles(r);
    r->leader = r->order[0];
    rdzv_set_state_(r, RDZV_RUNNING, INT64_MAX);
    for (int i = 0; i < ready; i++) {
        struct node *n = r->order[i];
        if (n->is.member || rdzv_may_wait_(r, n))
            rdzv_tell_round_(s, n);
        else
            rdzv_turn_away_(s, n, NULL);
    }
}

bool rdzv_may_wait_(const struct rdzv *r, const struct node *n)
{
    return n->is.waits || r->config.max_nodes > r->config.min_nodes;
}

void rdzv_turn_away_(struct step *s, struct node *n, const struct rdzv_cause *why)
{
    struct rdzv_news *news = rdzv_tell_(s, n, RDZV_NEWS_END);
    news->spare = true;
    news->exit_code = EXIT_UNAVAILABLE;
    news->group_world = s->r->m.group_world;
    if (why)
        news->cause = *why;
    rdzv_name_leader_(s->r, news);
    rdzv_forget_(s->r, n);
}

/* --- stops and ends */

void rdzv_tell_end_(struct step *s, struct node *n, int exit_code, const struct rdzv_cause *cause)
{
    struct rdzv_news *news = rdzv_tell_(s, n, RDZV_NEWS_END);
    news->exit_code = exit_code;
    if (cause)
        news->cause = *cause;
    if (n->is.member) { /* it may not have heard of the round yet: these news replace its start */
        news->group_rank = n->group_rank;
        news->group_world = s->r->m.group_world;
        rdzv_name_leader_(s->r, news);
    }
}

void rdzv_set_state_(struct rdzv *r, enum rdzv_state to, int64_t deadline)
{
    enum rdzv_state from = r->m.state;
    r->m.state = to;
    r->m.deadline = deadline;
    if (from != to && r->changed_state)
        r->changed_state(r->trace_arg, from, to, r->m.round);
}

void rdzv_finish_(struct step *s, enum rdzv_state how, int exit_code, const struct rdzv_cause *cause)
{
    for (struct node *n = s->r->nodes; n; n = n->hh.next)
        rdzv_tell_end_(s, n, exit_code, cause);
    rdzv_set_state_(s->r, how, INT64_MAX);
}

/* The running round is over for reason `why`: every member must stop its workers and join again. */
void rdzv_stop_round_(struct step *s, enum rdzv_reason why, const struct rdzv_cause *cause)
{
    if (s->now - s->r->m.round_started >= s->r->config.backoff_reset_ms)
        s->r->m.row = 0;
    s->r->m.why = why;
    rdzv_set_state_(s->r, RDZV_STOPPING, s->now + s->r->config.join_timeout_ms);
    for (struct node *n = s->r->nodes; n; n = n->hh.next) {
        if (!n->is.member)
            continue;
        struct rdzv_news *news = rdzv_tell_(s, n, RDZV_NEWS_STOP);
        if (cause)
            news->cause = *cause;
    }
}

/* A failure breaks the running round: one restart is used up; if none is left, the job fails. */
void rdzv_fail_round_(struct step *s, const struct rdzv_cause *cause)
{
    struct core *m = &s->r->m;
    struct rdzv_cause c = *cause;
    if (c.exit_code < 1 || c.exit_code > 255)
        c.exit_code = EXIT_FAIL;
    if (c.fatal || rdzv_used_up_(s->r, s->now) >= s->r->config.max_restarts) {
        m->why = RDZV_WHY_FAILURE;
        rdzv_finish_(s, RDZV_FAILED, c.exit_code, &c);
        return;
    }
    rdzv_use_up_restart_(s->r, s->now);
    if (s->now - m->round_started < s->r->config.backoff_reset_ms)
        m->row++;
    rdzv_stop_round_(s, RDZV_WHY_FAILURE, &c);
    m->not_before = s->now + rdzv_backoff_(s->r);
}
