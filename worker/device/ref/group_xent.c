/* The loss over parts of the logits (program/split.h). Values lie as (c, n), those of a row n apart: of a sample, or of
 * one of its positions. */
#include "worker/device/ref/ref.h"

#define REAL double
#include "worker/device/xent_parts.h"

#include "worker/device/loss_parts.h"

/* The first `count` channels of row s of tensor t, side by side. */
static double *row(const struct ref_plan *pl, int t, size_t s, size_t count, double *out)
{
    const size_t n = ref_samples(pl, t) * ref_plane(pl, t);
    for (size_t j = 0; j < count; j++)
        out[j] = pl->value[t][j * n + s];
    return out;
}

static void put_row(struct ref_plan *pl, int t, size_t s, const double *in)
{
    const size_t n = ref_samples(pl, t) * ref_plane(pl, t), count = (size_t)pl->p->tensors[t].c;
    for (size_t j = 0; j < count; j++)
        pl->value[t][j * n + s] = in[j];
}

int ref_labels(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t per = ref_plane(pl, op->out), rows = (size_t)pl->n * per;
    for (size_t r = 0; r < rows; r++) {
        const struct host_target t = host_target(&a->batch, per, r);
        const double label[LABEL_N] = {
            [LABEL_CLASS] = t.label, [LABEL_WEIGHT] = t.label >= 0, [LABEL_SECOND] = t.second, [LABEL_SHARE] = t.share};
        put_row(pl, op->out, r, label);
    }
    return 0;
}

int ref_numbers(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    for (size_t s = 0; s < (size_t)pl->n; s++) {
        const uint32_t number = a->batch.samples ? a->batch.samples[s] : 0; /* else nothing is drawn */
        const double parts[SAMPLE_N] = {[SAMPLE_HIGH] = number >> 16, [SAMPLE_LOW] = number & 0xffff};
        put_row(pl, op->out, s, parts);
    }
    return 0;
}

int ref_xent_top(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t samples = ref_samples(pl, op->out), k = (size_t)pl->p->tensors[op->in[0]].c;
    for (size_t s = 0; s < samples; s++) {
        double label[LABEL_N], top[TOP_N];
        const double *z = row(pl, op->in[0], s, k, pl->scratch);
        xent_top(z, (int)k, op->first, row(pl, op->in[1], s, LABEL_N, label), host_largest(z, (int)k), top);
        put_row(pl, op->out, s, top);
    }
    return 0;
}

int ref_xent_sums(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t samples = ref_samples(pl, op->out), k = (size_t)pl->p->tensors[op->in[0]].c;
    for (size_t s = 0; s < samples; s++) {
        double top[TOP_N], sums[SUMS_N];
        const double *z = row(pl, op->in[0], s, k, pl->scratch);
        xent_sums(z, (int)k, op->first, row(pl, op->in[1], s, TOP_N, top), sums);
        loss_sums(&pl->o.loss, z, (int)k, op->first, top, sums);
        put_row(pl, op->out, s, sums);
    }
    return 0;
}

int ref_xent_parts(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t samples = ref_samples(pl, op->out), n = (size_t)pl->n;
    const size_t mine = pl->group ? (size_t)pl->group->index * n : 0; /* others count theirs */
    double counted[METRIC_N] = {0};
    for (size_t s = 0; s < samples; s++) {
        double sums[SUMS_N], top[TOP_N], lse[LSE_N];
        loss_parts(&pl->o.loss, row(pl, op->in[0], s, SUMS_N, sums), row(pl, op->in[1], s, TOP_N, top), pl->p->classes,
                   a->smoothing, lse, s >= mine && s - mine < n ? counted : NULL);
        put_row(pl, op->out, s, lse);
    }
    ref_give_metrics(pl, counted, a);
    return 0;
}

int ref_xent_parts_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t samples = ref_samples(pl, op->out), k = (size_t)pl->p->tensors[op->in[0]].c;
    for (size_t s = 0; s < samples; s++) {
        double lse[LSE_N], *z = row(pl, op->in[0], s, k, pl->scratch);
        row(pl, op->in[1], s, LSE_N, lse);
        loss_row_gradient(&pl->o.loss, z, (int)k, op->first, lse, pl->p->classes, a->smoothing, a->grad_scale);
        put_row(pl, op->out, s, z);
    }
    return 0;
}
