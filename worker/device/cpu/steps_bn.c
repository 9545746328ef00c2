/* Batch normalisation as steps: kernels walk over the data, here is what happens per channel between the walks, in
 * double. */
#include <math.h>
#include <string.h>

#include "worker/device/cpu/plan.h"

static int sum_over_ranks(const struct cpu_plan *pl, double *buf, int n, struct err *e)
{
    const struct run_hooks *h = pl->args->hooks;
    if (!h || !h->all_sum)
        return 0;
    if (h->all_sum(h->ctx, buf, (size_t)n, DT_F64, NULL, e) < 0)
        return err_wrap(e, "sum batch statistics of %d values over all ranks", n);
    return 0;
}

static const float *param_at(const struct cpu_plan *pl, int param)
{
    return pl->params + pl->p->params[param].offset;
}

/* A scale or shift, or its gradient, as the kernels of this plan see it. */
static float half_bn(const struct cpu_plan *pl, float v)
{
    return pl->o.half_bn ? store_value(pl->store, v) : v;
}

/* mean and variance of the batch over all ranks; this rank's share of them goes into the reduce arena (program.h). If
 * no sample counts at all the output is beta: 1 / sqrt(eps) once a layer would overflow fp32, and 0 * inf would reach
 * the gradients. */
static int statistics(struct cpu_plan *pl, const struct step *s, int c, int padded, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    struct bn_state *b = s->bn;
    double *sum = b->wire, *squares = b->wire + c; /* (c), (c), count: one sum over all ranks */
    memcpy(sum, b->sums, sizeof(double) * (size_t)c);
    memcpy(squares, b->sums + padded, sizeof(double) * (size_t)c);
    b->wire[2 * c] = pl->weight_sum * s->bn_fwd.stats.v.hw;
    TRY(sum_over_ranks(pl, b->wire, 2 * c + 1, e));
    b->count = b->wire[2 * c];
    double per = b->count > 0 ? 1 / b->count : 0, unbiased = b->count > 1 ? b->count / (b->count - 1) : 1;
    float *mean_out = pl->reduce + pl->p->n_train + pl->p->params[op->param[2]].offset; /* (c) */
    float *var_out = pl->reduce + pl->p->n_train + pl->p->params[op->param[3]].offset;
    bool add = pl->args->accumulate;
    for (int i = 0; i < c; i++) {
        double mean = sum[i] * per, var = squares[i] * per - mean * mean;
        var = var < 0 ? 0 : var; /* rounding only: NaN stays */
        b->mean[i] = (float)mean;
        b->invstd[i] = b->count > 0 ? (float)(1 / sqrt(var + (double)op->eps)) : 0;
        if (pl->args->again)
            continue;
        mean_out[i] = (float)(mean * pl->weight_sum) + (add ? mean_out[i] : 0);
        var_out[i] = (float)(var * unbiased * pl->weight_sum) + (add ? var_out[i] : 0);
    }
    return 0;
}

static void apply(struct cpu_plan *pl, struct step *s, int c)
{
    const struct op *op = &pl->p->ops[s->op];
    struct bn_state *b = s->bn;
    const float *gamma = param_at(pl, op->param[0]), *beta = param_at(pl, op->param[1]);
    for (int i = 0; i < c; i++) {
        b->scale[i] = half_bn(pl, gamma[i]) * b->invstd[i];
        b->beta[i] = half_bn(pl, beta[i]);
    }
    pl->cpu->kern->bn_apply(&s->bn_fwd.apply, s->store, pl->cpu->threads);
}

int cpu_step_bn_train(struct cpu_plan *pl, struct step *s, struct err *e)
{
    struct bn_stats_job *j = &s->bn_fwd.stats;
    j->weights = pl->args->batch.weights;
    j->partial = pl->partial;
    pl->cpu->kern->bn_stats(j, s->store, pl->cpu->threads);
    TRY(statistics(pl, s, j->v.c, view_channels(&j->v), e));
    apply(pl, s, j->v.c);
    return 0;
}

int cpu_step_bn_eval(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const float *mean = pl->stats + pl->p->params[op->param[2]].offset;
    const float *var = pl->stats + pl->p->params[op->param[3]].offset;
    int c = s->bn_fwd.apply.v.c;
    for (int i = 0; i < c; i++) {
        s->bn->mean[i] = mean[i];
        s->bn->invstd[i] = (float)(1 / sqrt((double)var[i] + (double)op->eps));
    }
    apply(pl, s, c);
    return 0;
}

static void give_gradient(const struct cpu_plan *pl, const struct op *op, int k, const double *sums, int c)
{
    float *to = program_gives(pl->p, op, k) ? pl->reduce + pl->p->params[op->param[k]].offset : NULL; /* (c) */
    for (int i = 0; to && i < c; i++)
        to[i] = half_bn(pl, (float)sums[i]) + (pl->args->accumulate ? to[i] : 0);
}

/* dx needs the sums over all ranks; gradients of gamma and beta are this rank's, the reduction of gradients adds the
 * others'. */
static int sums_of_gradients(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    struct bn_state *b = s->bn;
    const int c = s->bn_bwd.sums.v.c, padded = view_channels(&s->bn_bwd.sums.v);
    for (int i = 0; i < c; i++) {
        b->wire[i] = b->sums[i]; /* (2, c): sum dy, sum dy * xhat */
        b->wire[c + i] = b->sums[padded + i] * (double)b->invstd[i];
    }
    give_gradient(pl, op, 0, b->wire + c, c);
    give_gradient(pl, op, 1, b->wire, c);
    TRY(cpu_plan_ready(pl, s->op, e));
    TRY(sum_over_ranks(pl, b->wire, 2 * c, e));
    const double per = b->count > 0 ? 1 / b->count : 0;
    for (int i = 0; i < c; i++) {
        b->k1[i] = (float)(b->wire[i] * per);
        b->k2[i] = (float)(b->wire[c + i] * per * (double)b->invstd[i]);
    }
    return 0;
}

/* Of a fixed one k1 and k2 are 0, as they were made: dx is dy times the scale. */
int cpu_step_bn_bwd(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    struct bn_state *b = s->bn;
    struct bn_bwd_sums_job *j = &s->bn_bwd.sums;
    j->weights = pl->args->batch.weights;
    j->partial = pl->partial;
    if (!op->fixed || j->dz)
        pl->cpu->kern->bn_bwd_sums(j, s->store, pl->cpu->threads);
    if (!op->fixed)
        TRY(sums_of_gradients(pl, s, e));
    if (!s->bn_bwd.apply.dx)
        return 0;
    const float *gamma = param_at(pl, op->param[0]);
    for (int i = 0; i < j->v.c; i++)
        b->scale[i] = half_bn(pl, gamma[i]) * b->invstd[i];
    s->bn_bwd.apply.weights = pl->args->batch.weights;
    pl->cpu->kern->bn_bwd_apply(&s->bn_bwd.apply, s->store, pl->cpu->threads);
    if (s->out)
        pl->cpu->kern->round(s->out, s->count, pl->store, pl->cpu->threads);
    return 0;
}
