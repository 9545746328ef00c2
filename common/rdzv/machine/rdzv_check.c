/* The invariants of a rendezvous, each with a name, so that the simulator can say which one broke. */
#include "common/base/err.h"
#include "common/rdzv/machine/rdzv_impl.h"
#include <stdlib.h>

#define MUST(cond, ...)                                                                                                \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            return err_set(e, ERR_CORRUPT, __VA_ARGS__);                                                               \
    } while (0)

static int check_node(const struct rdzv *r, const struct node *n, struct err *e)
{
    bool running = r->m.state == RDZV_RUNNING;
    MUST(n->id[0], "a node has no id");
    MUST(!n->is.joined || (n->slots >= 1 && n->slots <= RDZV_SLOTS_MAX), "node '%s' has %d slots", n->id, n->slots);
    MUST(n->is.joined || n->is.member, "node '%s' is neither joined nor a member", n->id);
    MUST(n->failures >= 0 && n->failures <= r->m.restarts + 1, "node '%s' broke %d rounds, and %d restarts are used up",
         n->id, n->failures, r->m.restarts);
    MUST(!n->is.done || n->is.member, "node '%s' is done without being a member", n->id);
    MUST(!(running && n->is.member && n->is.joined), "member '%s' of the running round asks for the next one", n->id);
    MUST(!n->is.leaving || (n->is.member && !n->is.joined), "node '%s' is leaving but has no workers", n->id);
    MUST(!(running && n->is.leaving), "node '%s' is leaving while the round runs on", n->id);
    MUST(!n->is.member || (n->group_rank >= 0 && n->group_rank < r->m.group_world), "node '%s' has group rank %d of %d",
         n->id, n->group_rank, r->m.group_world);
    MUST(!n->is.member || (n->rank_base >= 0 && n->rank_base < r->m.world_size), "node '%s' has rank base %d of %d",
         n->id, n->rank_base, r->m.world_size);
    return 0;
}

/* Ranks of the running round are unique; they are dense as long as no node has gone. v: room for all nodes. */
static int check_ranks(const struct rdzv *r, const struct node **v, struct err *e)
{
    int n = 0, base = 0;
    for (const struct node *i = r->nodes; i; i = i->hh.next)
        if (i->is.member)
            v[n++] = i;
    qsort(v, (size_t)n, sizeof *v, rdzv_by_rank_);
    for (int i = 0; i < n; i++) {
        MUST(i == 0 || v[i]->group_rank > v[i - 1]->group_rank, "nodes '%s' and '%s' share group rank %d", v[i - 1]->id,
             v[i]->id, v[i]->group_rank);
        MUST(v[i]->rank_base >= base, "node '%s' has rank base %d, but ranks below %d are taken", v[i]->id,
             v[i]->rank_base, base);
        base = v[i]->rank_base + v[i]->slots;
    }
    MUST(base <= r->m.world_size, "ranks reach %d in a world of %d", base, r->m.world_size);
    MUST(r->m.departed_done > 0 || base == r->m.world_size, "ranks end at %d in a world of %d", base, r->m.world_size);
    return 0;
}

static int check_running(const struct rdzv *r, const struct tally *t, struct err *e)
{
    const struct rdzv_config *c = &r->config;
    int done = 0, waiting = 0;
    MUST(r->m.round >= c->first_round && r->m.round > 0, "round %llu runs below the first, %llu",
         (unsigned long long)r->m.round, (unsigned long long)c->first_round);
    MUST(r->m.group_world >= c->min_nodes && r->m.group_world <= c->max_nodes,
         "round of %d nodes, allowed are %d to %d", r->m.group_world, c->min_nodes, c->max_nodes);
    for (const struct node *n = r->nodes; n; n = n->hh.next) {
        done += n->is.done;
        waiting += !n->is.member && !n->is.silent;
    }
    MUST(done + r->m.departed_done == r->m.done_count, "%d nodes are done and %d gone, counted are %d", done,
         r->m.departed_done, r->m.done_count);
    MUST(r->m.done_count < r->m.group_world, "all %d members are done and the round still runs", r->m.group_world);
    MUST(waiting == 0 || t->members >= c->max_nodes || r->m.done_count > 0,
         "%d nodes wait beside a round of %d with room for %d", waiting, t->members, c->max_nodes);
    MUST(t->members > 0 && t->members + r->m.departed_done == r->m.group_world,
         "%d members and %d gone make no group of %d", t->members, r->m.departed_done, r->m.group_world);
    const struct node **v = malloc((size_t)t->members * sizeof *v);
    if (!v)
        return 0; /* no memory for the check: report no fault */
    int rc = check_ranks(r, v, e);
    free(v);
    return rc;
}

static int check_state(const struct rdzv *r, const struct tally *t, struct err *e)
{
    const struct rdzv_config *c = &r->config;
    switch (r->m.state) {
    case RDZV_JOINING:
        MUST(t->ready < c->min_nodes, "joining with %d nodes of at least %d", t->ready, c->min_nodes);
        MUST(t->stopping == 0, "joining while %d members still have workers", t->stopping);
        break;
    case RDZV_LAST_CALL:
        MUST(t->ready >= c->min_nodes && (t->ready < c->max_nodes || r->m.deadline == r->m.not_before),
             "last call with %d nodes, allowed are %d to %d", t->ready, c->min_nodes, c->max_nodes);
        MUST(r->m.round == 0, "last call after round %llu", (unsigned long long)r->m.round);
        break;
    case RDZV_RUNNING:
        return check_running(r, t, e);
    case RDZV_STOPPING:
        MUST(t->stopping > 0, "stopping although no member has workers");
        break;
    case RDZV_BACKOFF:
        MUST(t->ready >= c->min_nodes, "backing off with %d nodes of at least %d", t->ready, c->min_nodes);
        MUST(t->stopping == 0, "backing off while %d members still have workers", t->stopping);
        MUST(r->m.deadline == r->m.not_before, "backing off with two ends");
        MUST(r->m.row >= 2 && c->backoff_ms > 0, "backing off after %d failures in a row", r->m.row);
        break;
    case RDZV_SUCCEEDED:
        MUST(r->m.done_count == r->m.group_world && r->m.group_world > 0, "succeeded with %d of %d members done",
             r->m.done_count, r->m.group_world);
        break;
    case RDZV_FAILED:
    case RDZV_DRAINED:
        break;
    }
    bool waits = r->m.begun && r->m.state <= RDZV_BACKOFF && r->m.state != RDZV_RUNNING;
    if (r->m.state == RDZV_LAST_CALL && r->m.not_before == INT64_MAX) /* held until rdzv_hold() says otherwise */
        waits = false;
    MUST(waits == (r->m.deadline != INT64_MAX), "state %s %s a deadline", rdzv_state_name(r->m.state),
         waits ? "lacks" : "has");
    return 0;
}

/* Do the counts, lists and pointers that the steps maintain agree with a walk over all nodes? */
static int check_counts(const struct rdzv *r, struct err *e)
{
    int ready = 0, working = 0, working_done = 0, members = 0, staying = 0, heirs = 0, silent = 0, fenced = 0;
    const struct node *leader = NULL;
    for (const struct node *n = r->nodes; n; n = n->hh.next) {
        const struct standing *is = &n->is;
        ready += is->joined && !is->silent;
        working += is->member && !is->joined;
        working_done += is->member && !is->joined && is->done;
        members += is->member;
        staying += !is->leaving && !is->silent;
        heirs += !is->member && !is->silent && !is->waits;
        silent += is->silent;
        if (is->member && n->group_rank == 0)
            leader = n;
    }
    for (const struct node *n = r->silent; n; n = n->silent_next) {
        fenced += n->is.silent;
        MUST(!n->silent_next || n->fence <= n->silent_next->fence, "the fence of '%s' is out of order", n->id);
    }
    MUST(
        r->ready == ready && r->working == working && r->working_done == working_done && r->members == members &&
            r->staying == staying && r->heirs == heirs && fenced == silent,
        "counted are %d ready, %d working, %d of them done, %d members, %d staying, %d heirs, %d silent; there are %d, "
        "%d, %d, %d, %d, %d, %d",
        r->ready, r->working, r->working_done, r->members, r->staying, r->heirs, fenced, ready, working, working_done,
        members, staying, heirs, silent);
    MUST(r->leader == leader, "the leader is '%s', expected '%s'", r->leader ? r->leader->id : "",
         leader ? leader->id : "");
    return 0;
}

static int check_budget(const struct rdzv *r, struct err *e)
{
    bool window = r->config.restart_window_ms > 0;
    long long counted = window ? (long long)r->restart_n : r->m.restarts;
    MUST(r->m.restarts >= 0 && counted <= r->config.max_restarts, "%lld restarts used up of %d", counted,
         r->config.max_restarts);
    MUST(r->restart_n == 0 || window, "%zu restarts are remembered without a window", r->restart_n);
    for (size_t i = 1; i < r->restart_n; i++)
        MUST(r->restart_times[i - 1] <= r->restart_times[i], "restart %zu comes before the one before", i);
    return 0;
}

int rdzv_check(const struct rdzv *r, struct err *e)
{
    MUST(!r->broken[0], "%s", r->broken);
    MUST((unsigned)r->m.state < STATE_COUNT, "state %d is unknown", (int)r->m.state);
    MUST(r->order_cap >= HASH_COUNT(r->nodes), "room to order %zu of %u nodes", r->order_cap, HASH_COUNT(r->nodes));
    MUST(r->m.begun || (r->m.state == RDZV_JOINING && r->m.round == 0 && !r->nodes), "state %s without a first event",
         rdzv_state_name(r->m.state));
    TRY(check_budget(r, e));
    TRY(check_counts(r, e));
    for (const struct node *n = r->nodes; n; n = n->hh.next)
        TRY(check_node(r, n, e));
    struct tally t = rdzv_tally_(r);
    return check_state(r, &t, e);
}
