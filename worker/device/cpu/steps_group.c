/* Steps over a group of ranks. Rows are plain, (n, c). */
#include <string.h>

#include "worker/device/cpu/plan.h"

static size_t elements(const struct cpu_plan *pl, int t)
{
    const struct layout l = cpu_plan_layout(pl, t, LAYOUT_PLAIN);
    return layout_count(&l);
}

static int explain(const struct cpu_plan *pl, const struct op *op, int rc, struct err *e)
{
    return rc < 0 ? err_wrap(e, "%s %s over a group", op_name(op->kind), pl->p->tensors[op->in[0]].name) : 0;
}

int cpu_step_gather(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct plan_group *g = pl->o.group;
    return explain(
        pl, op, g->gather(g->ctx, s->group.a, s->group.y, elements(pl, op->in[0]), store_type(s->store), NULL, e), e);
}

/* The sum is rounded once, when it is whole. */
int cpu_step_scatter(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct plan_group *g = pl->o.group;
    const size_t n = elements(pl, op->out);
    float *sum = s->group.wide ? s->group.wide : s->group.y;
    TRY(explain(pl, op, g->scatter(g->ctx, s->group.a, sum, n, DT_F32, NULL, e), e));
    if (store_rounds(s->store))
        pl->cpu->kern->round(sum, n, s->store, pl->cpu->threads);
    for (size_t i = 0; i < n && s->group.wide; i++)
        ((uint16_t *)s->group.y)[i] = bf16_from_f32(sum[i]);
    return 0;
}

static int combine(struct cpu_plan *pl, struct step *s, bool max, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct plan_group *g = pl->o.group;
    const size_t n = elements(pl, op->out);
    memcpy(s->group.y, s->group.a, n * sizeof(float));
    return explain(pl, op, (max ? g->max : g->sum)(g->ctx, s->group.y, n, DT_F32, NULL, e), e);
}

int cpu_step_sum(struct cpu_plan *pl, struct step *s, struct err *e)
{
    return combine(pl, s, false, e);
}

int cpu_step_max(struct cpu_plan *pl, struct step *s, struct err *e)
{
    return combine(pl, s, true, e);
}

/* Some channels of `whole` are the tensor `part`: bytes of a row of each, and where they are. */
struct columns {
    size_t rows, whole, part, at;
};

static struct columns columns_of(const struct cpu_plan *pl, const struct op *op, int whole, int part, size_t elem)
{
    const struct layout w = cpu_plan_layout(pl, whole, LAYOUT_PLAIN), p = cpu_plan_layout(pl, part, LAYOUT_PLAIN);
    const size_t plane = (size_t)w.h * (size_t)w.w * elem;
    return (struct columns){(size_t)w.n, (size_t)w.c * plane, (size_t)p.c * plane, (size_t)op->first * plane};
}

int cpu_step_slice(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const struct columns c = columns_of(pl, op, op->in[0], op->out, store_size(s->store));
    for (size_t i = 0; i < c.rows; i++)
        memcpy((char *)s->group.y + i * c.part, (const char *)s->group.a + i * c.whole + c.at, c.part);
    return 0;
}

int cpu_step_pad(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const struct columns c = columns_of(pl, op, op->out, op->in[0], sizeof(float));
    memset(s->group.y, 0, c.rows * c.whole);
    for (size_t i = 0; i < c.rows; i++)
        memcpy((char *)s->group.y + i * c.whole + c.at, (const char *)s->group.a + i * c.part, c.part);
    return 0;
}
