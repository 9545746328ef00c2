/* Norms of the channels of positions, planned and run. */
#include <errno.h>

#include "worker/device/cpu/plan.h"

static void widen(size_t *most, size_t n)
{
    *most = n > *most ? n : *most;
}

void cpu_plan_need_sums(struct cpu_plan *pl, int c)
{
    widen(&pl->partial_doubles, kern_sums(c, pl->cpu->threads) + kern_sums(c, 1));
    widen(&pl->plane_floats, kern_sums(c, pl->cpu->threads));
}

static int channels(const struct cpu_plan *pl, int t)
{
    return pl->p->tensors[t].c;
}

static size_t rows_of(const struct cpu_plan *pl, int t)
{
    const struct layout l = cpu_plan_layout(pl, t, channels(pl, t));
    return (size_t)l.n * (size_t)(l.h * l.w);
}

int cpu_plan_same_stores(const struct cpu_plan *pl, int op, int t, int other, struct err *e)
{
    if (t < 0 || other < 0 || (pl->values[t].store == STORE_BF16) == (pl->values[other].store == STORE_BF16))
        return 0;
    return err_set(e, -ENOTSUP, "operation '%s' between bf16 and fp32: '%s' and '%s' (expected one type of both)",
                   op_name(pl->p->ops[op].kind), pl->p->tensors[t].name, pl->p->tensors[other].name);
}

int cpu_plan_emit_norm(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const int c = channels(pl, op->in[0]), x = cpu_plan_settle(pl, i, op->in[0], c, e);
    struct step *s;
    TRY(x);
    TRY(cpu_plan_value(pl, op->out, c, e));
    TRY(cpu_plan_same_stores(pl, i, op->in[0], op->out, e));
    TRY(cpu_plan_step(pl, cpu_step_norm, "norm", i, &s, e));
    TRY(cpu_plan_read_op(pl, i, e));
    s->store = pl->values[op->out].store;
    s->norm = (struct norm_job){.rows = rows_of(pl, op->out),
                                .c = c,
                                .rms = op->rms,
                                .eps = op->eps,
                                .gamma = pl->params + pl->p->params[op->param[0]].offset,
                                .beta = op->param[1] < 0 ? NULL : pl->params + pl->p->params[op->param[1]].offset};
    TRY(cpu_plan_reach(pl, x, &s->norm.x, e));
    return cpu_plan_reach(pl, pl->values[op->out].buffer, &s->norm.y, e);
}

int cpu_plan_emit_norm_bwd(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const int c = channels(pl, op->in[0]), x = cpu_plan_settle(pl, i, op->in[0], c, e);
    struct step *s;
    TRY(x);
    const int dy = cpu_plan_settle(pl, i, op->in[1], c, e);
    TRY(dy);
    TRY(cpu_plan_same_stores(pl, i, op->in[0], op->in[1], e));
    if (op->out >= 0)
        TRY(cpu_plan_value(pl, op->out, c, e));
    TRY(cpu_plan_same_stores(pl, i, op->in[0], op->out, e));
    TRY(cpu_plan_step(pl, cpu_step_norm_bwd, "norm_bwd", i, &s, e));
    TRY(cpu_plan_read_op(pl, i, e));
    s->store = pl->values[op->out >= 0 ? op->out : op->in[0]].store;
    s->norm_bwd = (struct norm_bwd_job){.rows = rows_of(pl, op->in[0]),
                                        .c = c,
                                        .rms = op->rms,
                                        .eps = op->eps,
                                        .gamma = pl->params + pl->p->params[op->param[0]].offset};
    cpu_plan_need_sums(pl, c);
    TRY(cpu_plan_reach(pl, x, &s->norm_bwd.x, e));
    TRY(cpu_plan_reach(pl, dy, &s->norm_bwd.dy, e));
    return op->out < 0 ? 0 : cpu_plan_reach(pl, pl->values[op->out].buffer, &s->norm_bwd.dx, e);
}

int cpu_step_norm(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    pl->cpu->kern->norm(&s->norm, s->store, pl->cpu->threads);
    return 0;
}

void cpu_plan_give_sums(struct cpu_plan *pl, int param, const double *sums)
{
    float *to = param < 0 ? NULL : pl->reduce + pl->p->params[param].offset;
    for (size_t i = 0; to && i < pl->p->params[param].count; i++)
        to[i] = (float)sums[i] + (pl->args->accumulate ? to[i] : 0);
}

int cpu_step_norm_bwd(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    struct norm_bwd_job *j = &s->norm_bwd;
    j->partial = pl->partial;
    j->dgamma = pl->partial + kern_sums(j->c, pl->cpu->threads);
    j->dbeta = j->dgamma + kern_sums(j->c, 1) / 2;
    j->runs = pl->plane;
    pl->cpu->kern->norm_bwd(j, s->store, pl->cpu->threads);
    cpu_plan_give_sums(pl, program_gives(pl->p, op, 0) ? op->param[0] : -1, j->dgamma);
    cpu_plan_give_sums(pl, op->param[1], j->dbeta);
    return cpu_plan_ready(pl, s->op, e);
}
