#include "worker/run/settle.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/comm/comm.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/ownership.h"
#include "worker/state/hand_over.h"
#include "worker/state/holders.h"
#include "worker/state/state.h"

struct standing {
    int64_t updates, epoch; /* -1: it has no state */
    int64_t summed;         /* it has whole sums of the step behind that, and can do the rest of it */
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

static struct standing standing_of(const struct step *t, bool has, const struct settled *s)
{
    return (struct standing){.updates = has ? s->at.updates + (t->rest.reached == STEP_REACHED_UPDATE) : -1,
                             .epoch = has ? s->at.epoch : -1,
                             .summed = has && t->rest.reached == STEP_REACHED_SUMS};
}

/* Can the rank be where the furthest is without being given anything? */
static bool is_here(const struct standing *r, const struct standing *best)
{
    return r->updates == best->updates || (r->updates >= 0 && r->summed && r->updates + 1 == best->updates);
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

/* here[]: who has the furthest's state, or the sums to make it of. */
static int level(struct step *t, struct comm *c, const bool *here, bool *has, struct settled *s, struct err *e)
{
    const bool mine = here[c->rank];
    if (!mine) {
        *has = false;
        t->rest.reached = STEP_REACHED_NOTHING;
        t->state->version++;
    }
    TRY(hand_over(t->state, c, here, HAND_OVER_UPDATED, e));
    TRY(finish(t, mine, s, e));
    return hand_over(t->state, c, here, HAND_OVER_FOLLOWED, e);
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

/* *best: the rank that is furthest; *any: it has a state, and all of it is there. */
static void compare(const struct step *t, const struct standing *all, int world, bool tells, bool *here, int *best,
                    bool *any)
{
    struct err lost;
    *best = furthest(all, world);
    *any = all[*best].updates >= 0;
    for (int r = 0; r < world; r++)
        here[r] = is_here(&all[r], &all[*best]);
    if (*any && holders_check(&t->state->own->layout, here, &lost) < 0) {
        *any = false;
        if (tells)
            log_warn("recovery", "%s: all ranks go back to the newest checkpoint", lost.text);
    }
}

static int gather_standings(struct step *t, struct comm *c, bool has, const struct settled *s, struct standing *all,
                            struct err *e)
{
    const struct standing mine = standing_of(t, has, s);
    return c->ops->all_gather(c, COMM_CONTROL, &mine, all, sizeof mine, NULL, e);
}

int settle(struct step *t, struct comm *c, bool tells, bool *has, struct settled *s, struct err *e)
{
    struct standing *all = calloc((size_t)c->world, sizeof *all);
    bool *here = calloc((size_t)c->world, sizeof *here), any = false;
    int best = 0, rc = all && here ? 0 : err_errno(e, ENOMEM, "settle on a step");
    if (rc == 0)
        rc = gather_standings(t, c, *has, s, all, e);
    if (rc == 0)
        compare(t, all, c->world, tells, here, &best, &any);
    if (any && rc == 0 && here[c->rank] && all[c->rank].updates < all[best].updates)
        rc = train_update_rest(t, e);
    if (any && rc == 0)
        rc = level(t, c, here, has, s, e);
    if (any && rc == 0)
        rc = share_position(t, c, best, has, s, e);
    free(all);
    free(here);
    return rc < 0 ? rc : any;
}
