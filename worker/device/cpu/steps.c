/* The other steps: thin calls of kernels. */
#include <omp.h>

#include "worker/device/cpu/plan.h"
#include "worker/device/host_common.h"

int cpu_step_dnn(struct cpu_plan *pl, struct step *s, struct err *e)
{
    TRY(dnn_run(s->kernel, e));
    if (s->out)
        pl->cpu->kern->round(s->out, s->count, s->store, pl->cpu->threads);
    return 0;
}

int cpu_step_param_gradient(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    TRY(dnn_run(s->kernel, e));
    if (s->out) {
        pl->cpu->kern->round(s->out, s->count, s->store, pl->cpu->threads);
        if (s->bias)
            pl->cpu->kern->round(s->bias, pl->p->params[op->param[1]].count, s->store, 1);
    }
    TRY(dnn_run(pl->args->accumulate ? s->reorder_add : s->reorder, e));
    if (s->bias) {
        const struct param *q = &pl->p->params[op->param[1]];
        float *out = pl->reduce + q->offset;
        for (size_t i = 0; i < q->count; i++)
            out[i] = s->bias[i] + (pl->args->accumulate ? out[i] : 0);
    }
    return cpu_plan_ready(pl, s->op, e);
}

int cpu_step_input(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    s->input.images = pl->args->batch.images;
    pl->cpu->kern->input(&s->input, s->store, pl->cpu->threads);
    return 0;
}

int cpu_step_add(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    pl->cpu->kern->add(s->add.a, s->add.b, s->add.y, s->add.relu, s->count, s->store, pl->cpu->threads);
    return 0;
}

int cpu_step_relu_bwd(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    pl->cpu->kern->relu_bwd(s->add.a, s->add.b, s->add.y, s->count, s->store, pl->cpu->threads);
    return 0;
}

#define POOL_STEP(name)                                                                                                \
    int cpu_step_##name(struct cpu_plan *pl, struct step *s, struct err *e)                                            \
    {                                                                                                                  \
        (void)e;                                                                                                       \
        s->pool.plane = pl->plane;                                                                                     \
        pl->cpu->kern->name(&s->pool, s->store, pl->cpu->threads);                                                     \
        return 0;                                                                                                      \
    }
POOL_STEP(maxpool)
POOL_STEP(maxpool_bwd)
POOL_STEP(avgpool)
POOL_STEP(avgpool_bwd)

/* Each sample's metrics by themselves, then summed in order: the same for any number of threads. */
int cpu_step_xent(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct batch *b = &pl->args->batch;
    int classes = pl->p->classes;
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (int n = 0; n < pl->o.batch; n++) {
        double *z = pl->logits + (size_t)omp_get_thread_num() * (size_t)classes, /* (threads, classes) */
            *m = pl->metrics + (size_t)n * METRIC_N;                             /* (N, METRIC_N) */
        for (int i = 0; i < METRIC_N; i++)
            m[i] = 0;
        for (int i = 0; i < classes; i++)
            z[i] = (double)s->xent.logits[(size_t)n * (size_t)classes + i];
        if (b->weights[n] != 0)
            host_xent(z, classes, b->labels[n], pl->args->smoothing, m);
    }
    static const enum metric written[] = {METRIC_LOSS, METRIC_TOP1, METRIC_TOP5, METRIC_COUNT};
    float *out = pl->reduce + pl->p->n_train + pl->p->n_stats; /* (METRIC_N) */
    for (size_t k = 0; k < sizeof(written) / sizeof(written[0]); k++) {
        double sum = 0;
        for (int n = 0; n < pl->o.batch; n++)
            sum += pl->metrics[(size_t)n * METRIC_N + written[k]];
        out[written[k]] = (float)sum + (pl->args->accumulate ? out[written[k]] : 0);
    }
    return 0;
}

int cpu_step_xent_bwd(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct batch *b = &pl->args->batch;
    int classes = pl->p->classes;
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (int n = 0; n < pl->o.batch; n++) {
        double *z = pl->logits + (size_t)omp_get_thread_num() * (size_t)classes;
        size_t at = (size_t)n * (size_t)classes; /* logits, dlogits (N, classes) */
        for (int i = 0; i < classes; i++)
            z[i] = (double)s->xent.logits[at + i];
        if (b->weights[n] != 0)
            host_xent_backward(z, classes, b->labels[n], pl->args->smoothing, pl->args->grad_scale, z);
        for (int i = 0; i < classes; i++) {
            float f = b->weights[n] != 0 ? (float)z[i] : 0;
            if (s->store == STORE_BF16)
                ((uint16_t *)s->xent.dlogits)[at + i] = bf16_from_f32(f);
            else
                ((float *)s->xent.dlogits)[at + i] = store_value(s->store, f);
        }
    }
    return 0;
}
