/* The rendezvous machine as an object: its making and end, what can be read of it, and the names of its states and events. What happens
 * in it is in rdzv.c. */
#include "common/err.h"
#include "common/rdzv_impl.h"
#include <errno.h>
#include <stdlib.h>

const char *rdzv_state_name(enum rdzv_state s)
{
    static const char *const names[] = {
#define X(name, text) [name] = text,
        RDZV_STATES(X)
#undef X
    };
    return (size_t)s < STATE_COUNT ? names[s] : "?";
}

const char *rdzv_event_name(enum rdzv_event_kind k)
{
    static const char *const names[] = {
#define X(name, text) [name] = text,
        RDZV_EVENTS(X)
#undef X
    };
    return (size_t)k < EVENT_COUNT ? names[k] : "?";
}

int rdzv_create(struct rdzv **ret, const struct rdzv_config *c, struct err *e)
{
    if (c->min_nodes < 1 || c->max_nodes < c->min_nodes || c->max_nodes > RDZV_NODES_MAX)
        return err_set(e, -EINVAL, "nodes %d:%d: expected 1 <= min <= max <= %d", c->min_nodes, c->max_nodes,
                       RDZV_NODES_MAX);
    if (c->max_restarts < 0)
        return err_set(e, -EINVAL, "max restarts %d: expected 0 or more", c->max_restarts);
    if (c->join_timeout_ms <= 0 || c->last_call_ms < 0 || c->silence_ms <= 0 || c->kill_ms < 0)
        return err_set(
            e, -EINVAL, "join timeout %lld, last call %lld, silence %lld, kill %lld ms: expected > 0, >= 0, > 0, >= 0",
            (long long)c->join_timeout_ms, (long long)c->last_call_ms, (long long)c->silence_ms, (long long)c->kill_ms);
    if (c->first_round < 1 || c->first_round > INT64_MAX)
        return err_set(e, -EINVAL, "first round %llu: expected 1 or more", (unsigned long long)c->first_round);
    struct rdzv *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, -ENOMEM, "no memory for a rendezvous");
    r->config = *c;
    r->state_deadline = INT64_MAX;
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
    free(r->order);
    free(r);
}

enum rdzv_state rdzv_state(const struct rdzv *r)
{
    return r->state;
}

uint64_t rdzv_round(const struct rdzv *r)
{
    return r->round;
}

int rdzv_restarts(const struct rdzv *r)
{
    return r->restarts;
}

int rdzv_nodes(const struct rdzv *r)
{
    return (int)HASH_COUNT(r->nodes);
}

bool rdzv_knows(const struct rdzv *r, const char *node)
{
    const struct node *n;
    HASH_FIND_STR(r->nodes, node, n);
    return n != NULL;
}
