/* The loss over parts of the logits (program/split.h), row by row. Tensors are plain rows of fp32, (n, c). */
#include <string.h>

#include "worker/device/cpu/plan.h"

#define REAL float
#include "worker/device/xent_parts.h"

#include "worker/device/loss_parts.h"

static int rows_of(const struct cpu_plan *pl, int t)
{
    return pl->o.batch * pl->p->tensors[t].ranks;
}

int cpu_step_labels(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const size_t per = input_row_labels(&pl->p->input);
    for (size_t i = 0; i < (size_t)pl->o.batch * per; i++) {
        const struct host_target t = host_target(&pl->args->batch, per, i);
        float *to = (float *)s->group.y + i * LABEL_N;
        to[LABEL_CLASS] = (float)t.label;
        to[LABEL_WEIGHT] = t.label >= 0 ? 1.0f : 0.0f;
        to[LABEL_SECOND] = (float)t.second;
        to[LABEL_SHARE] = (float)t.share;
    }
    return 0;
}

int cpu_step_numbers(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const uint32_t *sample = pl->args->batch.samples; /* NULL: nothing is drawn */
    float *to = s->group.y;
    for (int i = 0; i < pl->o.batch; i++, to += SAMPLE_N) {
        to[SAMPLE_HIGH] = sample ? (float)(sample[i] >> 16) : 0;
        to[SAMPLE_LOW] = sample ? (float)(sample[i] & 0xffff) : 0;
    }
    return 0;
}

int cpu_step_xent_top(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const int n = rows_of(pl, op->out), k = pl->p->tensors[op->in[0]].c;
    const float *z = s->group.a, *label = s->group.b;
    float *top = s->group.y;
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (int i = 0; i < n; i++)
        xent_top(z + (size_t)i * (size_t)k, k, op->first, label + i * LABEL_N,
                 pl->cpu->kern->largest(z + (size_t)i * (size_t)k, k), top + i * TOP_N);
    return 0;
}

int cpu_step_xent_sums(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const int n = rows_of(pl, op->out), k = pl->p->tensors[op->in[0]].c;
    const float *z = s->group.a, *top = s->group.b;
    float *sums = s->group.y;
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (int i = 0; i < n; i++) { /* a sample that does not count sums nothing */
        pl->cpu->kern->xent_sums_of_part(z + (size_t)i * (size_t)k, top[i * TOP_N + TOP_WEIGHT] != 0 ? k : 0, op->first,
                                         top + i * TOP_N, sums + i * SUMS_N);
        loss_sums(&pl->o.loss, z + (size_t)i * (size_t)k, k, op->first, top + i * TOP_N, sums + i * SUMS_N);
    }
    return 0;
}

int cpu_step_xent_parts(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const int n = rows_of(pl, op->out), mine = pl->o.group->index * pl->o.batch; /* others count theirs */
    const float *sums = s->group.a, *top = s->group.b;
    memset(pl->metrics, 0, (size_t)pl->o.batch * METRIC_N * sizeof *pl->metrics);
    for (int i = 0; i < n; i++)
        loss_parts(&pl->o.loss, sums + i * SUMS_N, top + i * TOP_N, pl->p->classes, pl->args->smoothing,
                   (float *)s->group.y + i * LSE_N,
                   i >= mine && i < mine + pl->o.batch ? pl->metrics + (i - mine) * METRIC_N : NULL);
    cpu_give_metrics(pl, (size_t)pl->o.batch);
    return 0;
}

int cpu_step_xent_parts_bwd(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const int n = rows_of(pl, op->out), k = pl->p->tensors[op->in[0]].c;
    const size_t row = (size_t)k * store_size(s->store);
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (int i = 0; i < n; i++) {
        const float *lse = (const float *)s->group.b + i * LSE_N;
        char *out = (char *)s->group.y + (size_t)i * row;
        if (lse[LSE_WEIGHT] == 0)
            memset(out, 0, row);
        else
            cpu_row_gradient(pl, s->store, true, (const float *)s->group.a + (size_t)i * (size_t)k, k, op->first,
                             (double)lse[LSE_LSE],
                             (struct host_target){.label = (int)lse[LSE_CLASS],
                                                  .second = (int)lse[LSE_SECOND],
                                                  .share = (double)lse[LSE_SHARE]},
                             out);
    }
    return 0;
}
