/* The other steps: thin calls of kernels. */
#include "worker/device/cpu/plan.h"

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
    s->input.images = pl->args->batch.rows;
    s->input.mix = pl->args->batch.mix;
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
