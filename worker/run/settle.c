/* Brings the ranks that are left after a broken round to the same step. */
#include "worker/run/settle.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/comm/comm.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/ownership.h"
#include "worker/state/hand_over.h"
#include "worker/state/holders.h"
#include "worker/state/holdings.h"
#include "worker/state/reshard.h"
#include "worker/state/state.h"

struct offer {
    int64_t made;              /* -1: there is none */
    int64_t sure, rank, moves; /* moves: this rank is to have it in another place */
    struct layout layout;
};

struct standing {
    int64_t updates, epoch; /* -1: it has no state */
    int64_t summed;         /* it has whole sums of the step behind that, and can do the rest of it */
    struct offer offers[HOLDINGS_MOST];
    int from; /* the offer that counts; -1: none */
};

/* What all ranks find alike. */
struct counsel {
    struct standing *all;
    bool *here;           /* (world): who has the furthest's state, or the sums to make it of */
    int best;             /* the furthest */
    struct layout layout; /* that its state was made for */
};

void settled_advance(struct position *at, const struct step_result *res)
{
    at->updates++;
    at->step++;
    at->lr = res->lr;
    at->epoch_loss += res->loss;
    at->epoch_top1 += res->top1;
    at->epoch_count += res->count;
    at->epoch_seconds += (double)res->total_ns / 1e9;
    at->seconds += (double)res->total_ns / 1e9;
}

static bool is_before(const struct standing *a, const struct standing *b)
{
    return a->updates != b->updates ? a->updates < b->updates : a->epoch < b->epoch;
}

static int furthest(const struct standing *all, int world)
{
    int best = 0;
    for (int r = 1; r < world; r++)
        if (is_before(&all[best], &all[r]))
            best = r;
    return best;
}

static struct standing standing_of(const struct step *t, bool has, const struct settled *s, const struct holdings *h)
{
    struct standing ret;
    memset(&ret, 0, sizeof ret);
    ret.updates = has ? s->at.updates + (t->rest.reached == STEP_REACHED_UPDATE) : -1;
    ret.epoch = has ? s->at.epoch : -1;
    ret.summed = has && t->rest.reached == STEP_REACHED_SUMS;
    for (int i = 0; i < HOLDINGS_MOST; i++) {
        const struct holding *o = &h->of[i];
        ret.offers[i].made = has && i < h->n ? o->made : -1;
        if (ret.offers[i].made < 0)
            continue;
        ret.offers[i].sure = o->sure;
        ret.offers[i].moves = o->state != t->state;
        ret.offers[i].rank = o->state->own->rank;
        ret.offers[i].layout = o->state->own->layout;
    }
    return ret;
}

/* Can the rank be where the furthest is without being given anything? */
static bool is_here(const struct standing *r, const struct standing *best)
{
    return r->updates == best->updates || (r->updates >= 0 && r->summed && r->updates + 1 == best->updates);
}

/* The newest state that somebody is sure of; who does not have it has nothing. */
static int64_t choose_state(struct standing *all, int world)
{
    int64_t made = -1;
    for (int r = 0; r < world; r++)
        for (int i = 0; i < HOLDINGS_MOST; i++)
            if (all[r].offers[i].sure && all[r].offers[i].made > made)
                made = all[r].offers[i].made;
    for (int r = 0; r < world; r++) {
        all[r].from = -1;
        for (int i = 0; i < HOLDINGS_MOST && made >= 0; i++)
            if (all[r].offers[i].made == made)
                all[r].from = i;
        if (all[r].from < 0)
            all[r].updates = all[r].epoch = -1;
    }
    return made;
}

/* Do those that are here have everything, as ranks of the layout that the state was made for? */
static int check_holders(const struct counsel *n, int world, struct err *e)
{
    bool *here = calloc((size_t)layout_members(&n->layout), sizeof *here);
    if (!here)
        return err_errno(e, ENOMEM, "settle on a step");
    for (int r = 0; r < world; r++)
        if (n->here[r])
            here[n->all[r].offers[n->all[r].from].rank] = true;
    const int rc = holders_check(&n->layout, here, e);
    free(here);
    return rc;
}

/* 1: there is a state, and all of it. */
static int take_counsel(struct counsel *n, int world, bool tells, struct holdings *h, struct err *e)
{
    struct err lost;
    h->made = choose_state(n->all, world);
    n->best = furthest(n->all, world);
    if (n->all[n->best].updates < 0)
        return 0;
    n->layout = n->all[n->best].offers[n->all[n->best].from].layout;
    for (int r = 0; r < world; r++)
        n->here[r] = is_here(&n->all[r], &n->all[n->best]);
    const int rc = check_holders(n, world, &lost);
    if (rc == -ENODATA && tells)
        log_warn("recovery", "%s: all ranks go back to the newest checkpoint", lost.text);
    return rc == 0 ? 1 : rc == -ENODATA ? 0 : err_set(e, rc, "%s", lost.text);
}

/* Parameters that others update come; and what is left of the step is done. */
static int finish(struct step *t, bool here, struct settled *s, struct err *e)
{
    if (!here || t->rest.reached != STEP_REACHED_UPDATE)
        return ownership_is_handed_out(t->state->own) ? ddp_gather(t->ddp, t->state->params, e) : 0;
    TRY(train_finish_rest(t, e));
    settled_advance(&s->at, &t->rest.result);
    s->epoch_bad += t->rest.result.bad;
    s->last = t->rest.result;
    s->scale = t->rest.scale;
    return 0;
}

static void lose(struct step *t, bool *has)
{
    *has = false;
    t->rest.reached = STEP_REACHED_NOTHING;
    t->state->version++;
}

/* In the layout that there was. */
static int level(struct step *t, struct comm *c, const bool *here, bool *has, struct settled *s, struct err *e)
{
    const bool mine = here[c->rank];
    if (!mine)
        lose(t, has);
    TRY(hand_over(t->state, c, here, HAND_OVER_UPDATED, e));
    TRY(finish(t, mine, s, e));
    return hand_over(t->state, c, here, HAND_OVER_FOLLOWED, e);
}

/* old: the step in the layout that there was, of a rank that is here. */
static int move_on(struct step *old, struct step *t, struct comm *c, const bool *here, bool *has, struct settled *s,
                   struct err *e)
{
    const bool mine = here[c->rank];
    if (!mine)
        lose(t, has);
    if (mine && !ownership_is_handed_out(t->state->own))
        TRY(finish(old, true, s, e));
    if (mine) {
        t->rest = old->rest;
        t->updates = old->updates;
    }
    TRY(reshard(mine ? old->state : NULL, t->state, c, e));
    TRY(finish(t, mine, s, e));
    TRY(hand_over(t->state, c, here, HAND_OVER_WHOLE, e));
    t->state->version++;
    return 0;
}

/* The furthest's position is everybody's. */
static int share_position(struct step *t, struct comm *c, int best, bool *has, struct settled *s, struct err *e)
{
    struct settled its = *s;
    TRY(c->ops->broadcast(c, COMM_CONTROL, &its, sizeof its, best, NULL, e));
    *s = its;
    *has = true;
    t->state->loss_scale = s->scale;
    return 0;
}

static int gather_standings(struct step *t, struct comm *c, bool has, const struct settled *s, const struct holdings *h,
                            struct standing *all, struct err *e)
{
    const struct standing mine = standing_of(t, has, s, h);
    return c->ops->all_gather(c, COMM_CONTROL, &mine, all, sizeof mine, NULL, e);
}

/* There is a state, and all of it. */
static int become(struct step *t, struct comm *c, const struct counsel *n, bool *has, struct settled *s,
                  struct holdings *h, struct err *e)
{
    struct step old = *t;
    if (h->from >= 0) {
        old.state = h->of[h->from].state;
        old.optimizer = h->of[h->from].optimizer;
    }
    for (int r = 0; r < c->world; r++)
        h->moved = h->moved || (n->here[r] && n->all[r].offers[n->all[r].from].moves);
    if (n->here[c->rank] && n->all[c->rank].updates < n->all[n->best].updates)
        TRY(train_update_rest(&old, e));
    t->rest = old.rest;
    TRY((h->moved ? 0 : level(t, c, n->here, has, s, e)));
    TRY((h->moved ? move_on(&old, t, c, n->here, has, s, e) : 0));
    return share_position(t, c, n->best, has, s, e);
}

int settle(struct step *t, struct comm *c, bool tells, bool *has, struct settled *s, struct holdings *h, struct err *e)
{
    struct holdings one = {.of = {{.sure = true, .state = t->state, .optimizer = t->optimizer}}, .n = 1};
    struct counsel n = {.all = calloc((size_t)c->world, sizeof *n.all),
                        .here = calloc((size_t)c->world, sizeof *n.here)};
    h = h ? h : &one;
    h->from = -1;
    h->moved = false;
    int rc = n.all && n.here ? 0 : err_errno(e, ENOMEM, "settle on a step");
    if (rc == 0)
        rc = gather_standings(t, c, *has, s, h, n.all, e);
    if (rc == 0)
        rc = take_counsel(&n, c->world, tells, h, e);
    const bool any = rc == 1;
    if (any) {
        h->from = n.all[c->rank].from;
        rc = become(t, c, &n, has, s, h, e);
    }
    free(n.all);
    free(n.here);
    return rc < 0 ? rc : any;
}
