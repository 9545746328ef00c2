/* The rendezvous machine as an object: it is made and destroyed here, its state is read, and its states and events
 * get their names. What the events do is in rdzv.c. */
#include "common/base/choice.h"
#include "common/base/err.h"
#include "common/rdzv/machine/rdzv_impl.h"
#include <errno.h>
#include <stdlib.h>

const char *rdzv_state_name(enum rdzv_state s)
{
    static const char *const names[] = {RDZV_STATES(CHOICE_NAME)};
    return (size_t)s < STATE_COUNT ? names[s] : "?";
}

const char *rdzv_event_name(enum rdzv_event_kind k)
{
    static const char *const names[] = {RDZV_EVENTS(CHOICE_NAME)};
    return (size_t)k < EVENT_COUNT ? names[k] : "?";
}

const char *rdzv_reason_name(enum rdzv_reason why)
{
    static const char *const names[] = {"start", "failure", "resize", "drain"};
    return (size_t)why < sizeof names / sizeof *names ? names[why] : "?";
}

int rdzv_create(struct rdzv **ret, const struct rdzv_config *c, struct err *e)
{
    if (c->min_nodes < 1 || c->max_nodes < c->min_nodes || c->max_nodes > RDZV_NODES_MAX)
        return err_set(e, -EINVAL, "nodes %d:%d: expected 1 <= min <= max <= %d", c->min_nodes, c->max_nodes,
                       RDZV_NODES_MAX);
    if (c->max_restarts < 0)
        return err_set(e, -EINVAL, "max restarts %d: expected 0 or more", c->max_restarts);
    if (c->max_node_failures < 0)
        return err_set(e, -EINVAL, "max node failures %d: expected 0 or more", c->max_node_failures);
    if (c->join_timeout_ms <= 0 || c->last_call_ms < 0 || c->silence_ms <= 0 || c->kill_ms < 0 || c->hold_ms < 0 ||
        c->blank_ms < 0)
        return err_set(
            e, -EINVAL,
            "join timeout %lld, last call %lld, silence %lld, kill %lld, hold %lld, blank %lld ms: expected > 0, >= 0, "
            "> 0, >= 0, >= 0, >= 0",
            (long long)c->join_timeout_ms, (long long)c->last_call_ms, (long long)c->silence_ms, (long long)c->kill_ms,
            (long long)c->hold_ms, (long long)c->blank_ms);
    if (c->restart_window_ms < 0 || c->backoff_ms < 0 || c->backoff_reset_ms < 0 ||
        (c->backoff_ms > 0 && c->backoff_max_ms < c->backoff_ms))
        return err_set(e, -EINVAL,
                       "restart window %lld, backoff %lld to %lld, backoff reset %lld ms: expected >= 0, and "
                       "the longest backoff no shorter than the first",
                       (long long)c->restart_window_ms, (long long)c->backoff_ms, (long long)c->backoff_max_ms,
                       (long long)c->backoff_reset_ms);
    if ((unsigned)c->order > RDZV_ORDER_NODE_RANK)
        return err_set(e, -EINVAL, "rank order %d is unknown", (int)c->order);
    if (c->first_round < 1 || c->first_round > INT64_MAX)
        return err_set(e, -EINVAL, "first round %llu: expected 1 or more", (unsigned long long)c->first_round);
    struct rdzv *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, -ENOMEM, "no memory for a rendezvous");
    r->config = *c;
    r->m.deadline = INT64_MAX;
    r->logged = r->m;
    *ret = r;
    return 0;
}

void rdzv_destroy(struct rdzv *r)
{
    if (!r)
        return;
    struct node *n, *next;
    HASH_ITER (hh, r->nodes, n, next) {
        HASH_DEL(r->nodes, n);
        free(n);
    }
    rdzv_free_gone_(r);
    free(r->restart_times);
    free(r->order);
    free(r);
}

void rdzv_trace(struct rdzv *r, void (*changed)(void *arg, enum rdzv_state from, enum rdzv_state to, uint64_t round),
                void *arg)
{
    r->changed_state = changed;
    r->trace_arg = arg;
}

void rdzv_number_after(struct rdzv *r, uint64_t seq)
{
    r->m.seq_floor = seq > r->m.seq_floor ? seq : r->m.seq_floor;
}

void rdzv_hold(struct rdzv *r, int64_t until_ms)
{
    if (r->m.round > 0)
        return;
    r->m.not_before = until_ms;
    if (r->m.state == RDZV_LAST_CALL)
        r->m.deadline = r->m.last_call > until_ms ? r->m.last_call : until_ms;
}

enum rdzv_state rdzv_state(const struct rdzv *r)
{
    return r->m.state;
}

uint64_t rdzv_round(const struct rdzv *r)
{
    return r->m.round;
}

const char *rdzv_broken(const struct rdzv *r)
{
    return r->broken;
}

int rdzv_restarts(const struct rdzv *r)
{
    return r->m.restarts;
}

int rdzv_nodes(const struct rdzv *r)
{
    return (int)HASH_COUNT(r->nodes);
}

bool rdzv_knows(const struct rdzv *r, const char *node)
{
    return rdzv_find_(r, node) != NULL;
}

static int visit_node(const struct node *n, int (*visit)(void *arg, const struct rdzv_member *m), void *arg)
{
    const struct standing *is = &n->is;
    return visit(arg, &(struct rdzv_member){.node = n->id,
                                            .addr = n->addr,
                                            .addrs = n->addrs,
                                            .role = n->role,
                                            .slots = n->slots,
                                            .node_rank = n->node_rank,
                                            .port = n->port,
                                            .failures = n->failures,
                                            .group_rank = is->member ? n->group_rank : -1,
                                            .rank_base = is->member ? n->rank_base : -1,
                                            .member = is->member,
                                            .ready = is->joined && !is->silent,
                                            .done = is->done,
                                            .silent = is->silent,
                                            .leaving = is->leaving});
}

int rdzv_members(struct rdzv *r, int (*visit)(void *arg, const struct rdzv_member *m), void *arg)
{
    size_t members = 0;
    int rc = 0;
    for (struct node *n = r->nodes; n; n = n->hh.next)
        if (n->is.member)
            r->order[members++] = n;
    if (members > 0)
        qsort(r->order, members, sizeof *r->order, rdzv_by_rank_);
    for (size_t i = 0; i < members && rc == 0; i++)
        rc = visit_node(r->order[i], visit, arg);
    for (const struct node *n = r->nodes; n && rc == 0; n = n->hh.next)
        if (!n->is.member)
            rc = visit_node(n, visit, arg);
    return rc;
}
