/* Halves on the reference device: an op runs in double on operands that were rounded, and its result is rounded. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/device/half.h"
#include "worker/device/host_common.h"
#include "worker/device/ref/ref.h"

struct rounding {
    struct plan_options o;
    bool *stored;    /* per tensor: half_tensor() */
    bool *weight;    /* per parameter: half_weight() */
    double *weights; /* (program_params()): parameters as ops see them */
    double *part;    /* (n_train): gradients of one op, before they are rounded and added */
    double *cast[2]; /* operands */
};

static void round_all(double *x, size_t n, enum dtype t)
{
    for (size_t i = 0; i < n; i++)
        x[i] = dtype_rounded(t, x[i]);
}

static size_t largest_tensor(const struct ref_plan *pl)
{
    size_t most = 1;
    for (int t = 0; t < pl->p->ntensors; t++)
        most = ref_elements(pl, t) > most ? ref_elements(pl, t) : most;
    return most;
}

int ref_rounding_create(struct ref_plan *pl, const struct plan_options *o, struct err *e)
{
    const struct program *p = pl->p;
    struct rounding *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, -ENOMEM, "no memory for a plan");
    pl->rounding = r;
    r->o = *o;
    const size_t operand = largest_tensor(pl);
    r->stored = calloc((size_t)p->ntensors + 1, sizeof *r->stored);
    r->weight = calloc((size_t)p->nparams + 1, sizeof *r->weight);
    r->weights = calloc(program_params(p) + 1, sizeof(double));
    r->part = calloc(p->n_train + 1, sizeof(double));
    r->cast[0] = calloc(operand, sizeof(double));
    r->cast[1] = calloc(operand, sizeof(double));
    if (!r->stored || !r->weight || !r->weights || !r->part || !r->cast[0] || !r->cast[1])
        return err_set(e, -ENOMEM, "no memory for a plan of %zu parameters in halves", program_params(p));
    for (int t = 0; t < p->ntensors; t++)
        r->stored[t] = half_tensor(p, o, t);
    for (int i = 0; i < p->nparams; i++)
        r->weight[i] = half_weight(p, o, i);
    return 0;
}

void ref_rounding_destroy(struct rounding *r)
{
    if (!r)
        return;
    free(r->stored);
    free(r->weight);
    free(r->weights);
    free(r->part);
    free(r->cast[0]);
    free(r->cast[1]);
    free(r);
}

/* The parameters that the op reads, as it sees them. */
static void round_weights(struct ref_plan *pl, const struct op *op)
{
    struct rounding *r = pl->rounding;
    struct plan_range ranges[PROGRAM_READS_MOST];
    const int n = program_reads(pl->p, op, ranges);
    for (int i = 0; i < n; i++)
        memcpy(r->weights + ranges[i].first, pl->params + ranges[i].first,
               (ranges[i].end - ranges[i].first) * sizeof(double));
    for (int k = 0; k < 2; k++)
        if (op->param[k] >= 0 && r->weight[op->param[k]] && op->kind != OP_EMBED) /* a table that is tied to a head */
            round_all(r->weights + pl->p->params[op->param[k]].offset, pl->p->params[op->param[k]].count, r->o.compute);
}

/* What the op has put into r->part goes into the arena as halves do. */
static void take_gradients(struct ref_plan *pl, const struct op *op, bool add)
{
    struct rounding *r = pl->rounding;
    for (int k = 0; k < 2; k++) {
        if (!program_gives(pl->p, op, k))
            continue;
        const struct param *q = &pl->p->params[op->param[k]];
        for (size_t i = q->offset; i < q->offset + q->count; i++)
            pl->reduce[i] = dtype_rounded(r->o.compute, r->part[i]) + (add ? pl->reduce[i] : 0);
    }
}

/* Gradients of parameters, rounded for each rank's samples by themselves: as if each rank had summed its own. */
static int run_rounding_gradients(struct ref_plan *pl, ref_kernel *kernel, const struct op *op,
                                  const struct run_args *a, struct err *e)
{
    const size_t samples = ref_samples(pl, op->in[0]), n = (size_t)pl->n;
    struct run_args args = *a;
    double *reduce = pl->reduce;
    int rc = 0;
    args.accumulate = false;
    for (size_t first = 0; first < samples && rc == 0; first += n) {
        pl->row_first = first, pl->row_end = first + n;
        pl->reduce = pl->rounding->part;
        rc = kernel(pl, op, &args, e);
        pl->reduce = reduce;
        if (rc == 0)
            take_gradients(pl, op, first > 0 || a->accumulate);
    }
    pl->row_first = pl->row_end = 0;
    return rc;
}

int ref_rounded(struct ref_plan *pl, ref_kernel *kernel, const struct op *op, const struct run_args *a, struct err *e)
{
    struct rounding *r = pl->rounding;
    double *params = pl->params, *own[2] = {NULL, NULL};
    round_weights(pl, op);
    if (params)
        pl->params = r->weights;
    for (int k = 0; k < 2; k++) {
        const int t = op->in[k];
        if ((!op_is_product(op->kind) && op->kind != OP_BIAS_BWD) || t < 0 || r->stored[t])
            continue;
        own[k] = pl->value[t];
        memcpy(r->cast[k], own[k], ref_elements(pl, t) * sizeof(double));
        round_all(r->cast[k], ref_elements(pl, t), r->o.compute);
        pl->value[t] = r->cast[k];
    }
    int rc = half_gradients(&r->o, op) ? run_rounding_gradients(pl, kernel, op, a, e) : kernel(pl, op, a, e);
    pl->params = params;
    for (int k = 0; k < 2; k++)
        if (own[k])
            pl->value[op->in[k]] = own[k];
    if (rc < 0)
        return rc;
    if (op->out >= 0 && r->stored[op->out])
        round_all(pl->value[op->out], ref_elements(pl, op->out), r->o.compute);
    return 0;
}
