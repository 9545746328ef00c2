/* Steps that copy rows of pixels for products of matrices, or from them. */
#include "worker/device/cpu/plan.h"

static int step_unfold(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    product_unfold(&s->rows.shape, s->rows.from, s->rows.to, pl->cpu->threads);
    return 0;
}

static int step_spread(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    product_spread(&s->rows.shape, s->rows.from, s->rows.to, pl->cpu->threads);
    if (store_rounds(s->store))
        pl->cpu->kern->round(s->rows.to, s->count, s->store, pl->cpu->threads);
    return 0;
}

int cpu_plan_unfolded(struct cpu_plan *pl, int op, const struct dnn_shape *s, int x, struct err *e)
{
    struct step *st;
    if (product_is_whole(s))
        return x;
    const int rows = cpu_plan_buffer(pl, product_unfolded_bytes(s), e);
    TRY(rows);
    TRY(cpu_plan_step(pl, step_unfold, "unfold", op, &st, e));
    st->rows.shape = *s;
    TRY(cpu_plan_use(pl, x, &st->rows.from, e));
    TRY(cpu_plan_use(pl, rows, &st->rows.to, e));
    return rows;
}

int cpu_plan_spread(struct cpu_plan *pl, int op, const struct dnn_shape *s, int rows, struct err *e)
{
    const struct value *dx = &pl->values[pl->p->ops[op].out];
    struct step *st;
    TRY(cpu_plan_step(pl, step_spread, "spread", op, &st, e));
    st->rows.shape = *s;
    st->store = dx->store;
    st->count = layout_count(&dx->layout);
    TRY(cpu_plan_use(pl, rows, &st->rows.from, e));
    return cpu_plan_use(pl, dx->buffer, &st->rows.to, e);
}
