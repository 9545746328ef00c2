/* Copies of rows of pixels: product.h. */
#include "worker/device/cpu/plan.h"

int cpu_step_unfold(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    product_unfold(&s->rows.shape, s->rows.from, s->rows.to, pl->cpu->threads);
    return 0;
}

int cpu_step_spread(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    product_spread(&s->rows.shape, s->rows.from, s->rows.to, pl->cpu->threads);
    if (store_rounds(s->store))
        pl->cpu->kern->round(s->rows.to, s->count, s->store, pl->cpu->threads);
    return 0;
}
