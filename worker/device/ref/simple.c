/* The ops without parameters. Values lie as (c, N, h, w): a plane is (h, w), and there are c * N of them. */
#include <string.h>

#include "worker/device/host_common.h"
#include "worker/device/ref/ref.h"

/* Channel c of pixel i of row s. rows: pictures (n, plane, c) */
static double input_value(const struct ref_plan *pl, const struct batch *b, size_t s, size_t c, size_t i)
{
    const struct input *in = &pl->p->input;
    const size_t plane = (size_t)in->height * (size_t)in->width, channels = (size_t)in->channels;
    const struct batch_mix *m = b->mix ? &b->mix[s] : NULL;
    const uint8_t *own = (const uint8_t *)b->rows + (s * plane + i) * channels + c;
    const double mean = (double)in->mean[c], std = (double)in->std[c], v = (*own / 255.0 - mean) / std;
    if (!mix_changes(m))
        return v;
    const uint8_t *other = own + (int64_t)m->partner * (int64_t)(plane * channels);
    return mix_value(m, (int)(i % (size_t)in->width), (int)(i / (size_t)in->width), v, (*other / 255.0 - mean) / std);
}

int ref_input(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    int threads = pl->threads;
    size_t n = (size_t)pl->n, plane = ref_plane(pl, op->out), channels = (size_t)pl->p->input.channels;
    double *x = pl->value[op->out]; /* (c, n, plane) */
    PARALLEL_FOR
    for (size_t s = 0; s < n; s++)
        for (size_t c = 0; c < channels; c++)
            for (size_t i = 0; i < plane; i++)
                x[(c * n + s) * plane + i] = input_value(pl, &a->batch, s, c, i);
    return 0;
}

int ref_add(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const double *l = pl->value[op->in[0]], *r = pl->value[op->in[1]];
    size_t elements = ref_elements(pl, op->out);
    for (size_t i = 0; i < elements; i++)
        pl->value[op->out][i] = l[i] + r[i];
    return 0;
}

int ref_relu(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const double *x = pl->value[op->in[0]];
    size_t elements = ref_elements(pl, op->out);
    for (size_t i = 0; i < elements; i++)
        pl->value[op->out][i] = x[i] > 0 || x[i] != x[i] ? x[i] : 0; /* NaN stays */
    return 0;
}

int ref_relu_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const double *y = pl->value[op->in[0]], *dy = pl->value[op->in[1]];
    size_t elements = ref_elements(pl, op->out);
    for (size_t i = 0; i < elements; i++)
        pl->value[op->out][i] = y[i] > 0 ? dy[i] : 0;
    return 0;
}

/* Index within the h x w plane of the largest element of a pooling window, the first of equals in row order; NaN
 * wins. */
static size_t window_top(const double *x, int h, int w, const struct op *op, int oy, int ox)
{
    size_t top = SIZE_MAX;
    for (int ky = 0; ky < op->kh; ky++)
        for (int kx = 0; kx < op->kw; kx++) {
            int iy = oy * op->sh + ky - op->ph, ix = ox * op->sw + kx - op->pw;
            if (iy < 0 || iy >= h || ix < 0 || ix >= w)
                continue;
            size_t at = (size_t)iy * (size_t)w + (size_t)ix;
            if (top == SIZE_MAX || x[at] > x[top] || (x[at] != x[at] && x[top] == x[top]))
                top = at;
        }
    return top;
}

int ref_maxpool(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    int threads = pl->threads;
    const struct tensor *in = &pl->p->tensors[op->in[0]], *out = &pl->p->tensors[op->out];
    size_t planes = (size_t)pl->n * (size_t)in->c, from = ref_plane(pl, op->in[0]), to = ref_plane(pl, op->out);
    PARALLEL_FOR
    for (size_t k = 0; k < planes; k++) {
        const double *x = pl->value[op->in[0]] + k * from;
        double *y = pl->value[op->out] + k * to;
        for (int oy = 0; oy < out->h; oy++)
            for (int ox = 0; ox < out->w; ox++)
                *y++ = x[window_top(x, in->h, in->w, op, oy, ox)];
    }
    return 0;
}

int ref_maxpool_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    int threads = pl->threads;
    const struct tensor *in = &pl->p->tensors[op->in[0]], *out = &pl->p->tensors[op->in[1]];
    size_t planes = (size_t)pl->n * (size_t)in->c, from = ref_plane(pl, op->in[0]), to = ref_plane(pl, op->in[1]);
    PARALLEL_FOR
    for (size_t k = 0; k < planes; k++) {
        const double *x = pl->value[op->in[0]] + k * from, *dy = pl->value[op->in[1]] + k * to;
        double *dx = pl->value[op->out] + k * from;
        memset(dx, 0, from * sizeof *dx);
        for (int oy = 0; oy < out->h; oy++)
            for (int ox = 0; ox < out->w; ox++)
                dx[window_top(x, in->h, in->w, op, oy, ox)] += *dy++;
    }
    return 0;
}

int ref_avgpool(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    size_t plane = ref_plane(pl, op->in[0]), planes = ref_elements(pl, op->out);
    for (size_t k = 0; k < planes; k++) {
        double sum = 0;
        for (size_t i = 0; i < plane; i++)
            sum += pl->value[op->in[0]][k * plane + i];
        pl->value[op->out][k] = sum / (double)plane;
    }
    return 0;
}

int ref_avgpool_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    size_t plane = ref_plane(pl, op->out), planes = ref_elements(pl, op->in[0]);
    for (size_t k = 0; k < planes; k++)
        for (size_t i = 0; i < plane; i++)
            pl->value[op->out][k * plane + i] = pl->value[op->in[0]][k] / (double)plane;
    return 0;
}

int ref_mul(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const double *l = pl->value[op->in[0]], *r = pl->value[op->in[1]];
    const size_t elements = ref_elements(pl, op->out);
    for (size_t i = 0; i < elements; i++)
        pl->value[op->out][i] = l[i] * r[i];
    return 0;
}

/* The logits of row r, which lie `rows` apart in (classes, rows), side by side: (classes). */
static double *gather(struct ref_plan *pl, const double *logits, size_t rows, size_t r)
{
    for (size_t j = 0; j < (size_t)pl->p->classes; j++)
        pl->scratch[j] = logits[j * rows + r];
    return pl->scratch;
}

int ref_xent(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t per = ref_plane(pl, op->in[0]), rows = (size_t)pl->n * per;
    double sums[METRIC_N] = {0};
    for (size_t r = 0; r < rows; r++) {
        const struct host_target t = host_target(&a->batch, per, r);
        if (t.label >= 0)
            host_xent(&pl->o.loss, gather(pl, pl->value[op->in[0]], rows, r), pl->p->classes, t, a->smoothing, sums);
    }
    ref_give_metrics(pl, sums, a);
    return 0;
}

void ref_give_metrics(struct ref_plan *pl, const double sums[METRIC_N], const struct run_args *a)
{
    double *metrics = pl->reduce + pl->p->n_train + pl->p->n_stats;
    for (int m = 0; m < METRIC_N && !a->again; m++)
        metrics[m] = sums[m] + (a->accumulate || a->add_metrics ? metrics[m] : 0);
}

int ref_xent_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t per = ref_plane(pl, op->in[0]), rows = (size_t)pl->n * per;
    double *dlogits = pl->value[op->out]; /* (classes, rows) */
    memset(dlogits, 0, ref_elements(pl, op->out) * sizeof *dlogits);
    for (size_t r = 0; r < rows; r++) {
        const struct host_target t = host_target(&a->batch, per, r);
        if (t.label < 0)
            continue;
        double *z = gather(pl, pl->value[op->in[0]], rows, r);
        host_xent_backward(&pl->o.loss, z, pl->p->classes, t, a->smoothing, a->grad_scale);
        for (size_t j = 0; j < (size_t)pl->p->classes; j++)
            dlogits[j * rows + r] = z[j];
    }
    return 0;
}
