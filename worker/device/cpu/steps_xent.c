/* The loss of whole rows of logits, in double. Tensors are plain rows of fp32, (n, c). */
#include <string.h>

#include "worker/device/cpu/plan.h"

#define REAL double
#include "worker/device/xent_parts.h"

#define LOGIT float
#include "worker/device/loss_parts.h"

/* Of a sample that counts: its top and its sums over all classes. */
static void sums_of(const struct cpu_plan *pl, const float *z, const struct host_target *t, double top[TOP_N],
                    double sums[SUMS_N])
{
    top[TOP_MAX] = (double)pl->cpu->kern->largest(z, pl->p->classes);
    top[TOP_TARGET] = (double)z[t->label];
    top[TOP_CLASS] = t->label;
    top[TOP_WEIGHT] = 1;
    top[TOP_OTHER] = t->share > 0 ? (double)z[t->second] : 0;
    top[TOP_SECOND] = t->second;
    top[TOP_SHARE] = t->share;
    pl->cpu->kern->xent_sums(z, pl->p->classes, 0, top, sums);
    loss_sums(&pl->o.loss, z, pl->p->classes, 0, top, sums);
}

void cpu_give_metrics(struct cpu_plan *pl, size_t rows)
{
    static const enum metric written[] = {METRIC_LOSS, METRIC_TOP1, METRIC_TOP5, METRIC_COUNT};
    float *out = pl->reduce + pl->p->n_train + pl->p->n_stats; /* (METRIC_N) */
    const bool add = pl->args->accumulate || pl->args->add_metrics;
    for (size_t k = 0; k < sizeof written / sizeof *written && !pl->args->again; k++) {
        double sum = 0;
        for (size_t n = 0; n < rows; n++)
            sum += pl->metrics[n * METRIC_N + written[k]];
        out[written[k]] = (float)sum + (add ? out[written[k]] : 0);
    }
}

/* Each row's metrics by themselves, then summed in order: the same for any number of threads. */
int cpu_step_xent(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const int classes = pl->p->classes;
    const size_t per = input_row_labels(&pl->p->input), rows = (size_t)pl->o.batch * per;
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (size_t n = 0; n < rows; n++) {
        const struct host_target t = host_target(&pl->args->batch, per, n);
        double *m = pl->metrics + n * METRIC_N, top[TOP_N], sums[SUMS_N], lse[LSE_N];
        memset(m, 0, METRIC_N * sizeof *m);
        if (t.label < 0)
            continue;
        sums_of(pl, s->xent.logits + n * (size_t)classes, &t, top, sums);
        loss_parts(&pl->o.loss, sums, top, classes, pl->args->smoothing, lse, m);
    }
    cpu_give_metrics(pl, rows);
    return 0;
}

enum { RUN = 1024 }; /* logits whose gradients are in the cache when they are stored as halves */

/* Of the label's logit, or the second's, at place `at` of z[0..n); 0 where it is not in z. */
static float label_gradient(const struct cpu_plan *pl, const float *z, int n, double lse, const struct host_target *t,
                            int64_t at)
{
    const struct run_args *a = pl->args;
    return at < 0 || at >= n
               ? 0
               : (float)xent_parts_gradient((double)z[at], xent_parts_target(at, t->label, t->second, t->share), lse,
                                            pl->p->classes, a->smoothing, a->grad_scale);
}

/* Of logits z of the n classes from `first` on, in fp32; to may be z. */
static void other_slopes(const struct cpu_plan *pl, const float *z, int n, int first, double lse,
                         const struct host_target *t, float *to)
{
    const struct run_args *a = pl->args;
    const int second = t->share > 0 ? t->second : -1;
    for (int j = 0; j < n; j++)
        to[j] = (float)loss_slope(&pl->o.loss, (double)z[j], first + j, t->label, second, lse, pl->p->classes,
                                  a->smoothing, a->grad_scale);
}

/* The same of the plain rule. t: places of its labels in z, if they are there. */
static void slopes(const struct cpu_plan *pl, bool part, const float *z, int n, double lse, const struct host_target *t,
                   float *to)
{
    const struct run_args *a = pl->args;
    const struct kern *kern = pl->cpu->kern;
    const double shift = a->smoothing / pl->p->classes, scale = a->grad_scale;
    const int second = t->share > 0 ? t->second : -1;
    const float of_label = label_gradient(pl, z, n, lse, t, t->label),
                of_second = label_gradient(pl, z, n, lse, t, second);
    if (part)
        kern->xent_gradient_of_part(z, n, (float)lse, (float)shift, (float)scale, to);
    else
        kern->xent_gradient(z, n, lse, shift, scale, to);
    if (t->label >= 0 && t->label < n)
        to[t->label] = of_label;
    if (second >= 0 && second < n)
        to[second] = of_second;
}

void cpu_row_gradient(const struct cpu_plan *pl, enum store store, bool part, const float *z, int k, int first,
                      double lse, struct host_target t, void *out)
{
    float run[RUN];
    const bool plain = loss_is_plain(&pl->o.loss);
    for (int at = 0; at < k; at += RUN) {
        const int n = k - at < RUN ? k - at : RUN;
        float *to = store == STORE_F32 ? (float *)out + at : run;
        const struct host_target here = {t.label - first - at, t.second - first - at, t.share};
        if (plain)
            slopes(pl, part, z + at, n, lse, &here, to);
        else
            other_slopes(pl, z + at, n, first + at, lse, &t, to);
        if (store == STORE_BF16)
            pl->cpu->kern->give_rows(to, (uint16_t *)out + at, 1, n, 0, store);
        for (int j = 0; j < n && store != STORE_BF16 && store != STORE_F32; j++)
            ((float *)out)[at + j] = store_value(store, to[j]);
    }
}

int cpu_step_xent_bwd(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const int classes = pl->p->classes;
    const size_t row = (size_t)classes * store_size(s->store), per = input_row_labels(&pl->p->input),
                 rows = (size_t)pl->o.batch * per;
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (size_t n = 0; n < rows; n++) {
        const float *z = s->xent.logits + n * (size_t)classes;
        const struct host_target t = host_target(&pl->args->batch, per, n);
        char *out = (char *)s->xent.dlogits + n * row;
        double top[TOP_N], sums[SUMS_N];
        if (t.label < 0) {
            memset(out, 0, row);
            continue;
        }
        sums_of(pl, z, &t, top, sums);
        cpu_row_gradient(pl, s->store, false, z, classes, 0, top[TOP_MAX] + log(sums[SUMS_EXP]), t, out);
    }
    return 0;
}
