/* Ops over a group of ranks, and what stands around them. Values lie as (c, n, h, w), channel first; on the wire each
 * rank's rows lie by themselves, (ranks, c, N, h, w). */
#include <string.h>

#include "common/base/err.h"
#include "worker/device/ref/ref.h"

/* Elements of one channel of one rank's rows. */
static size_t run_of(const struct ref_plan *pl, int t)
{
    return (size_t)pl->n * ref_plane(pl, t);
}

int ref_slice(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t channel = ref_samples(pl, op->in[0]) * ref_plane(pl, op->in[0]);
    memcpy(pl->value[op->out], pl->value[op->in[0]] + (size_t)op->first * channel,
           ref_elements(pl, op->out) * sizeof(double));
    return 0;
}

int ref_pad(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t channel = ref_samples(pl, op->out) * ref_plane(pl, op->out);
    memset(pl->value[op->out], 0, ref_elements(pl, op->out) * sizeof(double));
    memcpy(pl->value[op->out] + (size_t)op->first * channel, pl->value[op->in[0]],
           ref_elements(pl, op->in[0]) * sizeof(double));
    return 0;
}

/* From (ranks, c, run) to (c, ranks, run), or back. */
static void transpose(double *to, const double *from, size_t outer, size_t inner, size_t run)
{
    for (size_t i = 0; i < outer; i++)
        for (size_t j = 0; j < inner; j++)
            memcpy(to + (j * outer + i) * run, from + (i * inner + j) * run, run * sizeof *to);
}

int ref_gather(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t n = ref_elements(pl, op->in[0]), c = (size_t)pl->p->tensors[op->out].c;
    const struct plan_group *g = pl->group;
    if (!g) {
        memcpy(pl->value[op->out], pl->value[op->in[0]], n * sizeof(double));
        return 0;
    }
    if (g->gather(g->ctx, pl->value[op->in[0]], pl->exchange, n, DT_F64, NULL, e) < 0)
        return err_wrap(e, "gather %s", pl->p->tensors[op->in[0]].name);
    transpose(pl->value[op->out], pl->exchange, (size_t)g->ranks, c, run_of(pl, op->out));
    return 0;
}

int ref_scatter(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t n = ref_elements(pl, op->out), c = (size_t)pl->p->tensors[op->out].c;
    const struct plan_group *g = pl->group;
    if (!g) {
        memcpy(pl->value[op->out], pl->value[op->in[0]], n * sizeof(double));
        return 0;
    }
    transpose(pl->exchange, pl->value[op->in[0]], c, (size_t)g->ranks, run_of(pl, op->out));
    if (g->scatter(g->ctx, pl->exchange, pl->value[op->out], n, DT_F64, NULL, e) < 0)
        return err_wrap(e, "sum and scatter %s", pl->p->tensors[op->in[0]].name);
    return 0;
}

/* x -> y, combined by one of the group's calls. */
static int combine(struct ref_plan *pl, const struct op *op, bool max, struct err *e)
{
    const size_t n = ref_elements(pl, op->out);
    const struct plan_group *g = pl->group;
    memcpy(pl->value[op->out], pl->value[op->in[0]], n * sizeof(double));
    if (g && (max ? g->max : g->sum)(g->ctx, pl->value[op->out], n, DT_F64, NULL, e) < 0)
        return err_wrap(e, "combine %s over a group", pl->p->tensors[op->in[0]].name);
    return 0;
}

int ref_sum(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    return combine(pl, op, false, e);
}

int ref_max(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    return combine(pl, op, true, e);
}

int ref_bias(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t n = ref_samples(pl, op->out) * ref_plane(pl, op->out), elements = ref_elements(pl, op->out);
    for (size_t i = 0; i < elements; i++)
        pl->value[op->out][i] = pl->value[op->in[0]][i] + ref_param(pl, op->param[0])[i / n];
    return 0;
}

int ref_bias_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t samples = ref_samples(pl, op->in[0]), c = (size_t)pl->p->tensors[op->in[0]].c,
                 plane = ref_plane(pl, op->in[0]), n = samples * plane;
    const size_t first = pl->row_first * plane, end = (pl->row_end ? pl->row_end : samples) * plane;
    for (size_t k = 0; k < c; k++) {
        double sum = 0, *to = ref_gradient(pl, op->param[0]) + k;
        for (size_t i = first; i < end; i++)
            sum += pl->value[op->in[0]][k * n + i];
        *to = a->accumulate ? *to + sum : sum;
    }
    return 0;
}
