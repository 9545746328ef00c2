#include "worker/state/divergence.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/device.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

static bool all_finite(const struct state *s, const void *arena, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++)
        if (!isfinite(s->real == DT_F64 ? ((const double *)arena)[i] : (double)((const float *)arena)[i]))
            return false;
    return true;
}

/* What this rank updates of a parameter: elsewhere there may be no sums. */
static bool gradient_finite(const struct state *s, const void *reduce, const struct param *q)
{
    for (int k = 0; k < s->own->nowned; k++) {
        const struct ownership_range r = ownership_clip(s->own, k, q->offset, q->offset + q->count);
        if (!all_finite(s, reduce, r.first, r.end - r.first))
            return false;
    }
    return true;
}

static bool param_finite(const struct state *s, const void *arena, const struct param *q)
{
    return all_finite(s, arena, (q->role == PARAM_STAT ? s->program->n_train : 0) + q->offset, q->count);
}

/* The first parameter of a role of which `finite` is false; NULL if there is none. Where ranks have parts of their own
 * only, all of them look and tell one another. d: NULL: this rank says what it sees. */
static int first_bad(const struct state *s, struct ddp *d, const void *arena, enum param_role role,
                     bool (*finite)(const struct state *, const void *, const struct param *), const char **ret,
                     struct err *e)
{
    const struct program *p = s->program;
    double *bad = calloc((size_t)p->nparams + 1, sizeof *bad);
    int rc = bad ? 0 : err_errno(e, ENOMEM, "%d parameters", p->nparams);
    for (int i = 0; i < p->nparams && rc == 0; i++)
        bad[i] = p->params[i].role == role && !finite(s, arena, &p->params[i]);
    if (rc == 0 && d && ownership_is_spread(s->own))
        rc = ddp_sum(d, bad, (size_t)p->nparams, e);
    *ret = NULL;
    for (int i = p->nparams - 1; i >= 0 && rc == 0; i--)
        *ret = bad[i] > 0 ? p->params[i].name : *ret;
    free(bad);
    return rc;
}

int divergence_error(struct state *s, struct ddp *d, double loss, struct err *e)
{
    const struct program *p = s->program;
    void *params = calloc(1, state_bytes(s, p->n_train)), *reduce = calloc(1, state_bytes(s, p->n_reduce));
    int rc = params && reduce ? 0 : err_errno(e, ENOMEM, "copy of the gradients");
    if (rc == 0)
        rc = s->device->ops->download(s->device, params, s->params, state_bytes(s, p->n_train), e);
    if (rc == 0)
        rc = s->device->ops->download(s->device, reduce, s->reduce, state_bytes(s, p->n_reduce), e);
    char where[160] = "no tensor that is kept tells where";
    const char *gradient = NULL, *weight = NULL, *stat = NULL;
    if (rc == 0)
        rc = first_bad(s, d, reduce, PARAM_TRAIN, gradient_finite, &gradient, e);
    if (rc == 0)
        rc = first_bad(s, d, params, PARAM_TRAIN, param_finite, &weight, e);
    if (rc == 0)
        rc = first_bad(s, d, reduce, PARAM_STAT, param_finite, &stat, e);
    if (rc == 0) {
        if (weight)
            snprintf(where, sizeof where, "%s is not finite", weight);
        else if (stat)
            snprintf(where, sizeof where, "%s of this batch is not finite", stat);
        else if (gradient)
            snprintf(where, sizeof where, "the gradient of %s is not finite", gradient);
        rc = err_set(e, ERR_DIVERGED, "training diverged: the loss is %g, %s; lower --base-learning-rate%s",
                     isnan(loss) ? (double)NAN : loss, where, s->loss_scale.scale != 1 ? " or --loss-scale" : "");
    }
    free(params);
    free(reduce);
    return rc;
}

int divergence_of_weights(struct state *s, double loss, struct err *e)
{
    const size_t bytes = state_bytes(s, s->program->n_train);
    void *params = malloc(bytes);
    if (!params)
        return err_errno(e, ENOMEM, "copy of the weights");
    int rc = s->device->ops->download(s->device, params, s->params, bytes, e);
    const char *weight = NULL;
    if (rc == 0)
        rc = first_bad(s, NULL, params, PARAM_TRAIN, param_finite, &weight, e);
    if (weight)
        rc = err_set(e, ERR_DIVERGED, "diverged: the test loss is %g, %s is not finite; lower --base-learning-rate",
                     isnan(loss) ? (double)NAN : loss, weight);
    free(params);
    return rc;
}
