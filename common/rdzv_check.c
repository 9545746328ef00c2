/* What must hold of a rendezvous after every step, told apart by name so that a simulation says which rule broke. */
#include "common/err.h"
#include "common/rdzv_impl.h"
#include <stdlib.h>

#define MUST(cond, ...)                                                                                                \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            return err_set(e, ERR_CORRUPT, __VA_ARGS__);                                                               \
    } while (0)

static int check_node(const struct rdzv *r, const struct node *n, struct err *e)
{
    bool running = r->state == RDZV_RUNNING;
    MUST(n->id[0], "a node has no id");
    MUST(!n->joined || (n->slots >= 1 && n->slots <= RDZV_SLOTS_MAX), "node '%s' has %d slots", n->id, n->slots);
    MUST(n->joined || n->member, "node '%s' is neither joined nor a member", n->id);
    MUST(!n->done || n->member, "node '%s' is done without being a member", n->id);
    MUST(!(running && n->member && n->joined), "member '%s' of the running round asks for the next one", n->id);
    MUST(!n->leaving || (n->member && !n->joined), "node '%s' is leaving but has no workers", n->id);
    MUST(!(running && n->leaving), "node '%s' is leaving while the round runs on", n->id);
    MUST(!n->member || (n->group_rank >= 0 && n->group_rank < r->group_world), "node '%s' has group rank %d of %d",
         n->id, n->group_rank, r->group_world);
    MUST(!n->member || (n->rank_base >= 0 && n->rank_base < r->world_size), "node '%s' has rank base %d of %d", n->id,
         n->rank_base, r->world_size);
    return 0;
}

static int by_rank(const void *pa, const void *pb)
{
    const struct node *a = *(const struct node *const *)pa, *b = *(const struct node *const *)pb;
    return (a->group_rank > b->group_rank) - (a->group_rank < b->group_rank);
}

/* Ranks of the running round are unique and, as long as nobody has gone, dense. v: room for all nodes. */
static int check_ranks(const struct rdzv *r, const struct node **v, struct err *e)
{
    int n = 0, base = 0;
    for (const struct node *i = r->nodes; i; i = i->hh.next)
        if (i->member)
            v[n++] = i;
    qsort(v, (size_t)n, sizeof *v, by_rank);
    for (int i = 0; i < n; i++) {
        MUST(i == 0 || v[i]->group_rank > v[i - 1]->group_rank, "nodes '%s' and '%s' share group rank %d", v[i - 1]->id,
             v[i]->id, v[i]->group_rank);
        MUST(v[i]->rank_base >= base, "node '%s' has rank base %d, but ranks below %d are taken", v[i]->id,
             v[i]->rank_base, base);
        base = v[i]->rank_base + v[i]->slots;
    }
    MUST(base <= r->world_size, "ranks reach %d in a world of %d", base, r->world_size);
    MUST(n + r->departed_done == r->group_world, "%d members and %d gone make no group of %d", n, r->departed_done,
         r->group_world);
    MUST(r->departed_done > 0 || base == r->world_size, "ranks end at %d in a world of %d", base, r->world_size);
    return 0;
}

static int check_running(const struct rdzv *r, const struct tally *t, struct err *e)
{
    const struct rdzv_config *c = &r->config;
    int done = 0, waiting = 0;
    MUST(r->round >= c->first_round && r->round > 0, "round %llu runs below the first, %llu",
         (unsigned long long)r->round, (unsigned long long)c->first_round);
    MUST(r->group_world >= c->min_nodes && r->group_world <= c->max_nodes, "round of %d nodes, allowed are %d to %d",
         r->group_world, c->min_nodes, c->max_nodes);
    for (const struct node *n = r->nodes; n; n = n->hh.next) {
        done += n->done;
        waiting += !n->member && !n->silent;
    }
    MUST(done + r->departed_done == r->done_count, "%d nodes are done and %d gone, counted are %d", done,
         r->departed_done, r->done_count);
    MUST(r->done_count < r->group_world, "all %d members are done and the round still runs", r->group_world);
    MUST(waiting == 0 || t->members >= c->max_nodes || r->done_count > 0,
         "%d nodes wait beside a round of %d with room for %d", waiting, t->members, c->max_nodes);
    if (t->members == 0)
        return 0;
    const struct node **v = malloc((size_t)t->members * sizeof *v);
    if (!v)
        return 0; /* no memory to look: nothing is known to be wrong */
    int rc = check_ranks(r, v, e);
    free(v);
    return rc;
}

static int check_state(const struct rdzv *r, const struct tally *t, struct err *e)
{
    const struct rdzv_config *c = &r->config;
    switch (r->state) {
    case RDZV_JOINING:
        MUST(t->ready < c->min_nodes, "joining with %d nodes of at least %d", t->ready, c->min_nodes);
        MUST(t->stopping == 0, "joining while %d members still have workers", t->stopping);
        break;
    case RDZV_LAST_CALL:
        MUST(t->ready >= c->min_nodes && t->ready < c->max_nodes, "last call with %d nodes, allowed are %d to %d",
             t->ready, c->min_nodes, c->max_nodes);
        MUST(r->round == 0, "last call after round %llu", (unsigned long long)r->round);
        break;
    case RDZV_RUNNING:
        return check_running(r, t, e);
    case RDZV_STOPPING:
        MUST(t->stopping > 0, "stopping although no member has workers");
        break;
    case RDZV_SUCCEEDED:
        MUST(r->done_count == r->group_world && r->group_world > 0, "succeeded with %d of %d members done",
             r->done_count, r->group_world);
        break;
    case RDZV_FAILED:
    case RDZV_DRAINED:
        break;
    }
    bool waits = r->begun && r->state <= RDZV_STOPPING && r->state != RDZV_RUNNING;
    MUST(waits == (r->state_deadline != INT64_MAX), "state %s %s a deadline", rdzv_state_name(r->state),
         waits ? "lacks" : "has");
    return 0;
}

int rdzv_check(const struct rdzv *r, struct err *e)
{
    MUST((unsigned)r->state <= RDZV_DRAINED, "state %d is unknown", (int)r->state);
    MUST(r->restarts >= 0 && r->restarts <= r->config.max_restarts, "%d restarts used up of %d", r->restarts,
         r->config.max_restarts);
    MUST(r->order_cap >= HASH_COUNT(r->nodes), "room to order %zu of %u nodes", r->order_cap, HASH_COUNT(r->nodes));
    for (const struct node *n = r->nodes; n; n = n->hh.next)
        TRY(check_node(r, n, e));
    struct tally t = rdzv_tally_(r);
    return check_state(r, &t, e);
}
