/* The nodes of a rendezvous. Every change of a node's standing goes through one function. It maintains the counts
 * that decisions need, the order of fences, and which nodes the log must record: so the cost of a step depends on
 * what it changes, not on the number of nodes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/rdzv/machine/rdzv_impl.h"

struct node *rdzv_find_(const struct rdzv *r, const char *id)
{
    struct node *n;
    HASH_FIND_STR(r->nodes, id, n);
    return n;
}

void rdzv_touch_(struct rdzv *r, struct node *n)
{
    if (n->changed)
        return;
    n->changed = true;
    DL_APPEND2(r->changed, n, prev, next);
}

static void count(struct rdzv *r, const struct node *n, int by)
{
    const struct standing *is = &n->is;
    r->ready += is->joined && !is->silent ? by : 0;
    r->working += is->member && !is->joined ? by : 0;
    r->working_done += is->member && !is->joined && is->done ? by : 0;
    r->members += is->member ? by : 0;
    r->staying += !is->leaving && !is->silent ? by : 0;
    r->heirs += !is->member && !is->silent && !is->waits ? by : 0;
}

/* Insert into the list of silent nodes, by fence. Except after a replay fences are added in order, so the search
 * from the end is short. */
static void insert_silent(struct rdzv *r, struct node *n)
{
    struct node *before = r->silent ? r->silent->silent_prev : NULL; /* the last */
    while (before && before->fence > n->fence)
        before = before == r->silent ? NULL : before->silent_prev;
    if (before)
        DL_APPEND_ELEM2(r->silent, before, n, silent_prev, silent_next);
    else
        DL_PREPEND2(r->silent, n, silent_prev, silent_next);
}

void rdzv_stand_(struct rdzv *r, struct node *n, struct standing to)
{
    count(r, n, -1);
    if (n->is.silent)
        DL_DELETE2(r->silent, n, silent_prev, silent_next);
    n->is = to;
    if (n->is.silent)
        insert_silent(r, n);
    count(r, n, 1);
    rdzv_touch_(r, n);
}

int rdzv_by_rank_(const void *pa, const void *pb)
{
    const struct node *a = *(struct node *const *)pa, *b = *(struct node *const *)pb;
    return (a->group_rank > b->group_rank) - (a->group_rank < b->group_rank);
}

struct tally rdzv_tally_(const struct rdzv *r)
{
    return (struct tally){.ready = r->ready,
                          .stopping = r->working - (r->m.why == RDZV_WHY_DRAIN ? r->working_done : 0),
                          .members = r->members,
                          .staying = r->staying};
}

int rdzv_add_node_(struct rdzv *r, const char *id, struct node **ret, struct err *e)
{
    unsigned there = HASH_COUNT(r->nodes);
    if (there >= RDZV_NODES_MAX)
        return err_set(e, ERR_REFUSED, "node '%s' cannot join: the job has %u nodes, the most there can be", id, there);
    struct node *n = NULL;
    if (ARRAY_RESERVE(r->order, r->order_cap, there + 1) < 0 || !(n = calloc(1, sizeof *n)))
        return err_set(e, -ENOMEM, "no memory for node '%s'", id);
    snprintf(n->id, sizeof n->id, "%s", id);
    n->seq = r->m.seq_floor;
    n->node_rank = n->group_rank = n->rank_base = -1;
    HASH_ADD_STR(r->nodes, id, n);
    if (!n->hh.tbl) {
        free(n);
        return err_set(e, -ENOMEM, "no memory for node '%s'", id);
    }
    count(r, n, 1);
    rdzv_touch_(r, n);
    *ret = n;
    return 0;
}

void rdzv_forget_(struct rdzv *r, struct node *n)
{
    if (r->m.state == RDZV_RUNNING && n->is.member && n->is.done)
        r->m.departed_done++;
    if (n->seq > r->m.seq_floor)
        r->m.seq_floor = n->seq;
    if (r->leader == n)
        r->leader = NULL;
    count(r, n, -1);
    if (n->is.silent)
        DL_DELETE2(r->silent, n, silent_prev, silent_next);
    if (n->changed)
        DL_DELETE2(r->changed, n, prev, next);
    HASH_DEL(r->nodes, n);
    if (r->logging)
        DL_APPEND2(r->gone, n, prev, next);
    else
        free(n);
}

void rdzv_free_gone_(struct rdzv *r)
{
    for (struct node *n = r->gone, *after; n; n = after) {
        after = n->next;
        free(n);
    }
    r->gone = NULL;
}

struct rdzv_news *rdzv_tell_(struct step *s, struct node *n, enum rdzv_news_kind kind)
{
    if (s->fx->n == s->fx->cap) { /* room was reserved before the step began */
        snprintf(s->r->broken, sizeof s->r->broken, "a step has more news than two for each node");
        s->fx->n--;
    }
    struct rdzv_effect *fx = &s->fx->v[s->fx->n++];
    memset(fx, 0, sizeof *fx);
    memcpy(fx->node, n->id, sizeof fx->node);
    fx->news.seq = ++n->seq;
    rdzv_touch_(s->r, n);
    fx->news.kind = kind;
    fx->news.round = s->r->m.round;
    fx->news.why = s->r->m.why;
    fx->news.restart_count = s->r->m.restarts;
    fx->news.group_rank = fx->news.rank_base = fx->news.role_base = fx->news.cause.rank = -1;
    return &fx->news;
}
