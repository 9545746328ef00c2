/* Convolutions in groups of channels, depthwise ones among them, planned and run: own kernels on NHWC tensors, as
 * oneDNN has but slow ones. */
#include <errno.h>

#include "worker/device/cpu/plan.h"
#include "worker/device/half.h"

/* As the forward convolution reads and writes. */
static struct groups_job forward_job(const struct cpu_plan *pl, const struct op *op)
{
    const struct op *f = op->fwd >= 0 ? &pl->p->ops[op->fwd] : op;
    const struct tensor *x = &pl->p->tensors[f->in[0]], *y = &pl->p->tensors[f->out];
    return (struct groups_job){.n = pl->o.batch,
                               .h = x->h,
                               .w = x->w,
                               .c = x->c,
                               .oh = y->h,
                               .ow = y->w,
                               .k = y->c,
                               .read = x->c / op->groups,
                               .made = y->c / op->groups,
                               .kh = op->kh,
                               .kw = op->kw,
                               .step = op->sh,
                               .spread = 1,
                               .top = op->ph,
                               .left = op->pw,
                               .from = pl->params + pl->p->params[op->param[0]].offset,
                               .rounds = pl->store};
}

static struct groups_job data_job(const struct cpu_plan *pl, const struct op *op)
{
    const struct groups_job f = forward_job(pl, op);
    struct groups_job j = f;
    j.h = f.oh, j.w = f.ow, j.c = f.k;
    j.oh = f.h, j.ow = f.w, j.k = f.c;
    j.read = f.made, j.made = f.read;
    j.step = 1, j.spread = f.step;
    j.top = f.kh - 1 - f.top, j.left = f.kw - 1 - f.left;
    j.turned = true;
    return j;
}

/* Tensor t as the kernels read it. */
static int operand(struct cpu_plan *pl, int i, int t, struct err *e)
{
    TRY(cpu_plan_value(pl, t, pl->p->tensors[t].c, e));
    return cpu_plan_operand(pl, i, t, pl->p->tensors[t].c, e);
}

static void need_scratch(struct cpu_plan *pl, const struct groups_job *j)
{
    const size_t n = groups_scratch(j, pl->cpu->threads);
    pl->plane_floats = n > pl->plane_floats ? n : pl->plane_floats;
}

int cpu_plan_emit_groups(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const bool data = op->kind == OP_CONV_BWD_DATA;
    const struct groups_job job = data ? data_job(pl, op) : forward_job(pl, op);
    struct step *s;
    const int x = operand(pl, i, op->in[0], e);
    TRY(x);
    TRY(cpu_plan_value(pl, op->out, pl->p->tensors[op->out].c, e));
    const struct value *y = &pl->values[op->out];
    if ((y->store == STORE_BF16) != (pl->store == STORE_BF16))
        return err_set(e, -ENOTSUP, "a convolution in groups of bf16 whose result is fp32: '%s'",
                       pl->p->tensors[op->out].name);
    const int weights = cpu_plan_buffer(pl, groups_weights(&job) * sizeof(float), e);
    TRY(weights);
    TRY(cpu_plan_step(pl, cpu_step_groups, data ? "conv_bwd_data" : "conv", i, &s, e));
    TRY(cpu_plan_read_op(pl, i, e));
    s->store = y->store;
    s->groups = job;
    if (!data && op->param[1] >= 0)
        s->groups.bias = pl->params + pl->p->params[op->param[1]].offset;
    need_scratch(pl, &job);
    TRY(cpu_plan_use(pl, x, &s->groups.x, e));
    TRY(cpu_plan_use(pl, weights, &s->groups.weights, e));
    return cpu_plan_use(pl, y->buffer, &s->groups.y, e);
}

int cpu_plan_emit_groups_param(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct step *s;
    const int x = operand(pl, i, op->in[0], e);
    TRY(x);
    const int dy = operand(pl, i, op->in[1], e);
    TRY(dy);
    TRY(cpu_plan_step(pl, cpu_step_groups_param, "conv_bwd_param", i, &s, e));
    s->store = pl->store;
    s->groups_param = (struct groups_param_job){
        .of = forward_job(pl, op),
        .dw = pl->reduce + pl->p->params[op->param[0]].offset,
        .db = op->param[1] < 0 ? NULL : pl->reduce + pl->p->params[op->param[1]].offset,
        .round_sums = half_gradients(&pl->o, op) ? pl->store : STORE_F32,
    };
    need_scratch(pl, &s->groups_param.of);
    const size_t n = groups_partial(&s->groups_param.of, pl->cpu->threads);
    pl->partial_doubles = n > pl->partial_doubles ? n : pl->partial_doubles;
    TRY(cpu_plan_use(pl, x, &s->groups_param.of.x, e));
    return cpu_plan_use(pl, dy, &s->groups_param.dy, e);
}

int cpu_step_groups(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    s->groups.scratch = pl->plane;
    pl->cpu->kern->groups(&s->groups, s->store, pl->cpu->threads);
    return 0;
}

int cpu_step_groups_param(struct cpu_plan *pl, struct step *s, struct err *e)
{
    struct groups_param_job *j = &s->groups_param;
    j->of.scratch = pl->plane;
    j->partial = pl->partial;
    j->add = pl->args->accumulate;
    pl->cpu->kern->groups_param(j, s->store, pl->cpu->threads);
    return cpu_plan_ready(pl, s->op, e);
}
