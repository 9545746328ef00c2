/* Batch normalisation.
 *
 *   mean, var   over the samples that count and their positions, of all ranks if hooks->all_sum is there; two passes,
 *               so that a large mean costs no digits. No sample at all: mean 0, var 0
 *   y           = gamma * (x - mean) / sqrt(var + eps) + beta, for every sample
 *   dbeta       = sum dy,  dgamma = sum dy * xhat: this rank's sums; the all-reduce of gradients adds the others'
 *   dx          = gamma / sqrt(var + eps) * (dy - sum dy / m - xhat * sum dy * xhat / m), the sums over all ranks, m
 *               elements; 0 for a sample that does not count: it moved no statistic
 *   op.fixed    mean, var are the running ones, also in training; dx = gamma / sqrt(var + eps) * dy
 *
 * The arena gets mean * s and var * m / (m - 1) * s, s being the samples of this rank that count (m = 1: var
 * itself). */
#include <math.h>

#include "common/base/err.h"
#include "worker/device/host_common.h"
#include "worker/device/ref/ref.h"

struct channels { /* of a tensor (c, n, plane) */
    size_t c, n, plane;
};

static struct channels channels_of(const struct ref_plan *pl, int t)
{
    return (struct channels){(size_t)pl->p->tensors[t].c, (size_t)pl->n, ref_plane(pl, t)};
}

static int sum_over_ranks(const struct run_args *a, const struct op *op, double *buf, size_t n, struct err *e)
{
    if (!a->hooks || !a->hooks->all_sum)
        return 0;
    if (a->hooks->all_sum(a->hooks->ctx, buf, n, DT_F64, NULL, e) < 0)
        return err_wrap(e, "sum statistics of a batch norm of %zu values", n);
    return 0;
}

/* out[c] = sum over counting samples of (x - centre[c])^2, or of x where centre is NULL. */
static void channel_sums(const struct ref_plan *pl, const double *x, struct channels s, const float *weights,
                         const double *centre, double *out)
{
    int threads = pl->threads;
    PARALLEL_FOR
    for (size_t c = 0; c < s.c; c++) {
        double sum = 0;
        for (size_t n = 0; n < s.n; n++)
            for (size_t i = 0; i < s.plane && weights[n] != 0; i++) {
                double v = x[(c * s.n + n) * s.plane + i];
                sum += centre ? (v - centre[c]) * (v - centre[c]) : v;
            }
        out[c] = sum;
    }
}

/* Statistics of the batch into pl->saved[f]; var is left in pl->scratch. */
static int batch_statistics(struct ref_plan *pl, const struct op *op, int f, const struct run_args *a, struct err *e)
{
    int x = op->in[0];
    struct channels s = channels_of(pl, x);
    struct bn_saved *b = &pl->saved[f]; /* mean, inv_std (c) */
    double *sums = pl->scratch;         /* (c), and the number of elements behind them */
    channel_sums(pl, pl->value[x], s, a->batch.weights, NULL, sums);
    sums[s.c] = host_batch_count(&a->batch, pl->n) * (double)s.plane;
    TRY(sum_over_ranks(a, op, sums, s.c + 1, e));
    b->elements = sums[s.c];
    double per = b->elements > 0 ? 1 / b->elements : 0;
    for (size_t c = 0; c < s.c; c++)
        b->mean[c] = b->elements > 0 ? sums[c] / b->elements : 0;
    channel_sums(pl, pl->value[x], s, a->batch.weights, b->mean, sums);
    TRY(sum_over_ranks(a, op, sums, s.c, e));
    for (size_t c = 0; c < s.c; c++) {
        sums[c] *= per;
        b->inv_std[c] = 1 / sqrt(sums[c] + (double)op->eps);
    }
    return 0;
}

static void running_statistics(struct ref_plan *pl, const struct op *op, int f)
{
    const double *mean = pl->stats + pl->p->params[op->param[2]].offset;
    const double *var = pl->stats + pl->p->params[op->param[3]].offset;
    for (int c = 0; c < pl->p->tensors[op->in[0]].c; c++) {
        pl->saved[f].mean[c] = mean[c];
        pl->saved[f].inv_std[c] = 1 / sqrt(var[c] + (double)op->eps);
    }
}

/* Put this rank's share of the statistics into the arena. */
static void hand_over(struct ref_plan *pl, const struct op *op, const struct bn_saved *b, const struct run_args *a)
{
    double *arena = pl->reduce + pl->p->n_train;
    double *mean = arena + pl->p->params[op->param[2]].offset, /* (c) */
        *var = arena + pl->p->params[op->param[3]].offset;
    double samples = host_batch_count(&a->batch, pl->n);
    double unbiased = b->elements > 1 ? b->elements / (b->elements - 1) : 1;
    for (int c = 0; c < pl->p->tensors[op->in[0]].c; c++) {
        mean[c] = b->mean[c] * samples + (a->accumulate ? mean[c] : 0);
        var[c] = pl->scratch[c] * unbiased * samples + (a->accumulate ? var[c] : 0);
    }
}

int ref_bn(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    int f = (int)(op - pl->p->ops), threads = pl->threads;
    const double *x = pl->value[op->in[0]];
    double *y = pl->value[op->out];
    struct channels s = channels_of(pl, op->in[0]);
    const struct bn_saved *b = &pl->saved[f];
    const double *gamma = ref_param(pl, op->param[0]), *beta = ref_param(pl, op->param[1]);
    if (pl->training && !op->fixed) {
        TRY(batch_statistics(pl, op, f, a, e));
        if (!a->again)
            hand_over(pl, op, b, a);
    } else {
        running_statistics(pl, op, f);
    }
    PARALLEL_FOR
    for (size_t c = 0; c < s.c; c++)
        for (size_t i = c * s.n * s.plane; i < (c + 1) * s.n * s.plane; i++)
            y[i] = gamma[c] * (x[i] - b->mean[c]) * b->inv_std[c] + beta[c];
    return 0;
}

/* sums[c] = sum dy, sums[C + c] = sum dy * xhat, over this rank's counting samples. */
static void gradient_sums(const struct ref_plan *pl, const double *x, const double *dy, struct channels s,
                          const float *weights, const struct bn_saved *b, double *sums)
{
    int threads = pl->threads;
    PARALLEL_FOR
    for (size_t c = 0; c < s.c; c++) {
        double plain = 0, projected = 0;
        for (size_t n = 0; n < s.n; n++)
            for (size_t i = 0; i < s.plane && weights[n] != 0; i++) {
                size_t at = (c * s.n + n) * s.plane + i;
                plain += dy[at];
                projected += dy[at] * (x[at] - b->mean[c]) * b->inv_std[c];
            }
        sums[c] = plain;
        sums[s.c + c] = projected;
    }
}

static void fixed_bwd(struct ref_plan *pl, const struct op *op)
{
    const struct channels s = channels_of(pl, op->in[0]);
    const double *dy = pl->value[op->in[1]], *gamma = ref_param(pl, op->param[0]);
    running_statistics(pl, op, op->fwd);
    for (size_t i = 0; i < s.c * s.n * s.plane; i++)
        pl->value[op->out][i] = gamma[i / (s.n * s.plane)] * pl->saved[op->fwd].inv_std[i / (s.n * s.plane)] * dy[i];
}

/* This rank's sums become gradients, of those that are trained. */
static void give_sums(struct ref_plan *pl, const struct op *op, const double *sums, bool add)
{
    const size_t c = (size_t)pl->p->tensors[op->in[0]].c;
    for (int k = 0; k < 2; k++) {
        double *to = program_gives(pl->p, op, k) ? ref_gradient(pl, op->param[k]) : NULL;
        for (size_t i = 0; to && i < c; i++)
            to[i] = sums[(k == 0 ? c : 0) + i] + (add ? to[i] : 0);
    }
}

int ref_bn_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    if (op->fixed) {
        fixed_bwd(pl, op);
        return 0;
    }
    int threads = pl->threads;
    const double *x = pl->value[op->in[0]], *dy = pl->value[op->in[1]];
    struct channels s = channels_of(pl, op->in[0]);
    const struct bn_saved *b = &pl->saved[op->fwd];
    const double *gamma = ref_param(pl, op->param[0]);
    double *sums = pl->scratch;                            /* (2, c) */
    if (op->fwd < pl->ops.first || op->fwd >= pl->ops.end) /* a slice without the forward op */
        TRY(batch_statistics(pl, op, op->fwd, a, e));
    gradient_sums(pl, x, dy, s, a->batch.weights, b, sums);
    give_sums(pl, op, sums, a->accumulate);
    TRY(sum_over_ranks(a, op, sums, 2 * s.c, e));
    if (op->out < 0)
        return 0;
    double *dx = pl->value[op->out], per = b->elements > 0 ? 1 / b->elements : 0;
    PARALLEL_FOR
    for (size_t c = 0; c < s.c; c++)
        for (size_t n = 0; n < s.n; n++)
            for (size_t i = (c * s.n + n) * s.plane; i < (c * s.n + n + 1) * s.plane; i++) {
                double xhat = (x[i] - b->mean[c]) * b->inv_std[c];
                double inner = dy[i] - sums[c] * per - xhat * sums[s.c + c] * per;
                dx[i] = a->batch.weights[n] != 0 ? gamma[c] * b->inv_std[c] * inner : 0;
            }
    return 0;
}
