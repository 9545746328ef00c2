/* Finds what is not a number, and says where. */
#include "worker/state/divergence.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

/* Tensors of a role: where they are. */
struct place {
    const char *arena; /* device memory */
    size_t first;      /* the arena's element at offset 0 */
    enum param_role role;
    bool owned; /* there is nothing sensible but what this rank owns */
    enum ownership_arena as;
};

static struct place weights_of(const struct state *s)
{
    return (struct place){s->params, 0, PARAM_TRAIN, ownership_is_cut(s->own, OWNERSHIP_PARAMS), OWNERSHIP_PARAMS};
}

static bool all_finite(enum dtype t, const void *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(t == DT_F64 ? ((const double *)v)[i] : (double)((const float *)v)[i]))
            return false;
    return true;
}

static int range_finite(struct state *s, const struct place *w, size_t first, size_t end, bool *ret, struct err *e)
{
    double room[1024];
    const size_t most = sizeof room / state_bytes(s, 1);
    for (size_t at = first, n; at < end && *ret; at += n) {
        n = end - at < most ? end - at : most;
        TRY(s->device->ops->download(s->device, room, w->arena + state_bytes(s, w->first + at), state_bytes(s, n), e));
        *ret = all_finite(s->real, room, n);
    }
    return 0;
}

static int param_finite(struct state *s, const struct place *w, const struct param *q, bool *ret, struct err *e)
{
    *ret = true;
    if (!w->owned)
        return range_finite(s, w, q->offset, q->offset + q->count, ret, e);
    for (int k = 0; k < s->own->nowned; k++) {
        const struct ownership_range r = ownership_clip(s->own, k, q->offset, q->offset + q->count);
        const size_t at = r.first < r.end ? ownership_place(s->own, w->as, r.first) : 0;
        TRY(range_finite(s, w, at, at + (r.end - r.first), ret, e));
    }
    return 0;
}

/* The first parameter of a role, in the model's order, that is not finite; NULL if there is none. Where ranks have
 * parts of their own only, all of them look and tell one another, over c. */
static int first_bad(struct state *s, struct comm *c, struct place w, const char **ret, struct err *e)
{
    const struct program *p = s->program, *whole = s->whole;
    double *bad = calloc((size_t)whole->nparams + 1, sizeof *bad);
    int rc = bad ? 0 : err_errno(e, ENOMEM, "%d parameters", whole->nparams);
    for (int i = 0; i < p->nparams && rc == 0; i++) {
        const bool sums = w.as == OWNERSHIP_GRADIENTS,
                   is = p->params[i].role == w.role && !(sums && p->params[i].frozen);
        bool finite = true;
        rc = is ? param_finite(s, &w, &p->params[i], &finite, e) : 0;
        if (!finite)
            bad[program_find_param(whole, p->params[i].name)] = 1;
    }
    if (rc == 0 && c && ownership_is_spread(s->own))
        rc = c->ops->all_reduce(c, COMM_CONTROL, bad, (size_t)whole->nparams, DT_F64, COMM_SUM, NULL, e);
    *ret = NULL;
    for (int i = whole->nparams - 1; i >= 0 && rc == 0; i--)
        *ret = bad[i] > 0 ? whole->params[i].name : *ret;
    free(bad);
    return rc;
}

int divergence_error(struct state *s, struct ddp *d, double loss, struct err *e)
{
    struct comm *c = ddp_group(d, LAYOUT_ALL);
    char where[160] = "no tensor that is kept tells where";
    const char *gradient, *weight, *stat;
    TRY(first_bad(s, c, (struct place){s->reduce, 0, PARAM_TRAIN, true, OWNERSHIP_GRADIENTS}, &gradient, e));
    TRY(first_bad(s, c, weights_of(s), &weight, e));
    TRY(first_bad(s, c, (struct place){s->reduce, s->program->n_train, PARAM_STAT, false, OWNERSHIP_GRADIENTS}, &stat,
                  e));
    if (weight)
        snprintf(where, sizeof where, "%s is not finite", weight);
    else if (stat)
        snprintf(where, sizeof where, "%s of this batch is not finite", stat);
    else if (gradient)
        snprintf(where, sizeof where, "the gradient of %s is not finite", gradient);
    return err_set(e, ERR_DIVERGED, "training diverged: the loss is %g, %s; lower --base-learning-rate%s",
                   isnan(loss) ? (double)NAN : loss, where, s->loss_scale.scale != 1 ? " or --loss-scale" : "");
}

int divergence_of_weights(struct state *s, struct comm *c, double loss, struct err *e)
{
    const char *weight;
    TRY(first_bad(s, c, weights_of(s), &weight, e));
    if (!weight)
        return 0;
    return err_set(e, ERR_DIVERGED, "diverged: the test loss is %g, %s is not finite; lower --base-learning-rate",
                   isnan(loss) ? (double)NAN : loss, weight);
}
