/* Ops on the channels of positions, and elementwise functions. Values lie as (c, N, h, w): position i of sample s has
 * its channels N * h * w elements apart. */
#include <math.h>

#include "worker/device/drop.h"
#include "worker/device/ref/ref.h"

struct positions {
    size_t n, c, at; /* of the batch; channels; from one channel to the next */
};

static struct positions positions_of(const struct ref_plan *pl, int t)
{
    const size_t n = ref_samples(pl, t) * ref_plane(pl, t);
    return (struct positions){n, (size_t)pl->p->tensors[t].c, n};
}

/* --- norms */

struct moments {
    double mean, inv_std;
};

static struct moments moments_of(const double *x, const struct positions *p, const struct op *op)
{
    double mean = 0, squares = 0;
    for (size_t c = 0; c < p->c && !op->rms; c++)
        mean += x[c * p->at];
    mean /= (double)p->c;
    for (size_t c = 0; c < p->c; c++)
        squares += (x[c * p->at] - mean) * (x[c * p->at] - mean);
    return (struct moments){mean, 1 / sqrt(squares / (double)p->c + (double)op->eps)};
}

int ref_norm(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    int threads = pl->threads;
    const struct positions p = positions_of(pl, op->in[0]);
    const double *x = pl->value[op->in[0]], *gamma = ref_param(pl, op->param[0]),
                 *beta = op->param[1] >= 0 ? ref_param(pl, op->param[1]) : NULL;
    double *y = pl->value[op->out];
    PARALLEL_FOR
    for (size_t i = 0; i < p.n; i++) {
        const struct moments m = moments_of(x + i, &p, op);
        for (size_t c = 0; c < p.c; c++)
            y[c * p.at + i] = (x[c * p.at + i] - m.mean) * m.inv_std * gamma[c] + (beta ? beta[c] : 0);
    }
    return 0;
}

/* dgamma = sum of dy * xhat, dbeta = sum of dy over all positions. */
static void norm_gradients(struct ref_plan *pl, const struct op *op, bool add)
{
    const struct positions p = positions_of(pl, op->in[0]);
    const double *x = pl->value[op->in[0]], *dy = pl->value[op->in[1]];
    double *dgamma = program_gives(pl->p, op, 0) ? ref_gradient(pl, op->param[0]) : NULL,
           *dbeta = program_gives(pl->p, op, 1) ? ref_gradient(pl, op->param[1]) : NULL;
    for (size_t c = 0; c < p.c && !add; c++) {
        if (dgamma)
            dgamma[c] = 0;
        if (dbeta)
            dbeta[c] = 0;
    }
    for (size_t i = 0; i < p.n; i++) {
        const struct moments m = moments_of(x + i, &p, op);
        for (size_t c = 0; c < p.c; c++) {
            if (dgamma)
                dgamma[c] += dy[c * p.at + i] * (x[c * p.at + i] - m.mean) * m.inv_std;
            if (dbeta)
                dbeta[c] += dy[c * p.at + i];
        }
    }
}

/* dx = inv_std * (g - mean of g - xhat * mean of g * xhat), g = dy * gamma; of RMS without the mean of g. */
int ref_norm_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    int threads = pl->threads;
    const struct positions p = positions_of(pl, op->in[0]);
    const double *x = pl->value[op->in[0]], *dy = pl->value[op->in[1]], *gamma = ref_param(pl, op->param[0]);
    norm_gradients(pl, op, a->accumulate);
    if (op->out < 0)
        return 0;
    double *dx = pl->value[op->out];
    PARALLEL_FOR
    for (size_t i = 0; i < p.n; i++) {
        const struct moments m = moments_of(x + i, &p, op);
        double plain = 0, projected = 0;
        for (size_t c = 0; c < p.c; c++) {
            const double g = dy[c * p.at + i] * gamma[c];
            plain += op->rms ? 0 : g / (double)p.c;
            projected += g * (x[c * p.at + i] - m.mean) * m.inv_std / (double)p.c;
        }
        for (size_t c = 0; c < p.c; c++) {
            const double xhat = (x[c * p.at + i] - m.mean) * m.inv_std;
            dx[c * p.at + i] = m.inv_std * (dy[c * p.at + i] * gamma[c] - plain - xhat * projected);
        }
    }
    return 0;
}

/* --- element by element */

/* x / (1 + e^-2u) is x / 2 * (1 + tanh u). */
static double tanh_argument(double x)
{
    return sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double act(enum op_act kind, double x)
{
    switch (kind) {
    case ACT_GELU:
        return x * 0.5 * erfc(-x * M_SQRT1_2);
    case ACT_GELU_TANH:
        return x * sigmoid(2 * tanh_argument(x));
    case ACT_SILU:
        return x * sigmoid(x);
    }
    return NAN;
}

/* Its derivative at x. */
static double slope(enum op_act kind, double x)
{
    switch (kind) {
    case ACT_GELU:
        return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    case ACT_GELU_TANH: {
        const double s = sigmoid(2 * tanh_argument(x));
        return s + x * s * (1 - s) * 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    }
    case ACT_SILU:
        return sigmoid(x) * (1 + x * (1 - sigmoid(x)));
    }
    return NAN;
}

int ref_act(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    int threads = pl->threads;
    const double *x = pl->value[op->in[0]];
    double *y = pl->value[op->out];
    const size_t n = ref_elements(pl, op->out);
    PARALLEL_FOR
    for (size_t i = 0; i < n; i++)
        y[i] = act(op->act, x[i]);
    return 0;
}

int ref_act_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    int threads = pl->threads;
    const double *x = pl->value[op->in[0]], *dy = pl->value[op->in[1]];
    double *dx = pl->value[op->out];
    const size_t n = ref_elements(pl, op->out);
    PARALLEL_FOR
    for (size_t i = 0; i < n; i++)
        dx[i] = dy[i] * slope(op->act, x[i]);
    return 0;
}

int ref_scale(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const struct positions p = positions_of(pl, op->in[0]);
    const double *x = pl->value[op->in[0]], *by = ref_param(pl, op->param[0]);
    for (size_t i = 0; i < p.c * p.n; i++)
        pl->value[op->out][i] = x[i] * by[i / p.n];
    return 0;
}

int ref_scale_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const struct positions p = positions_of(pl, op->in[0]);
    const double *x = pl->value[op->in[0]], *dy = pl->value[op->in[1]], *by = ref_param(pl, op->param[0]);
    double *to = ref_gradient(pl, op->param[0]);
    for (size_t c = 0; c < p.c; c++) {
        double sum = 0;
        for (size_t i = c * p.n; i < (c + 1) * p.n; i++) {
            sum += dy[i] * x[i];
            if (op->out >= 0)
                pl->value[op->out][i] = dy[i] * by[c];
        }
        to[c] = sum + (a->accumulate ? to[c] : 0);
    }
    return 0;
}

/* --- what is dropped */

/* Of this rank's samples, or of those of the group. */
static uint32_t sample_of(const struct run_args *a, const double *rows, size_t s, size_t n)
{
    return rows ? (uint32_t)rows[SAMPLE_HIGH * n + s] << 16 | (uint32_t)rows[SAMPLE_LOW * n + s] : a->batch.samples[s];
}

int ref_drop(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    int threads = pl->threads;
    const double *x = pl->value[op->in[0]], kept = 1 / (1 - (double)op->rate);
    double *y = pl->value[op->out];
    const size_t n = ref_samples(pl, op->out), channels = (size_t)pl->p->tensors[op->out].c,
                 plane = ref_plane(pl, op->out), whole = op->whole ? (size_t)op->whole : channels;
    const double *rows = op->in[1] >= 0 ? pl->value[op->in[1]] : NULL; /* (SAMPLE_N, n) */
    const struct drop_key key = drop_key(a->seed, a->step, op->layer);
    const uint32_t bound = drop_bound(op->rate);
    PARALLEL_FOR
    for (size_t s = 0; s < n; s++)
        for (size_t c = 0; c < channels; c++)
            for (size_t i = 0; i < plane; i++) {
                const size_t at = (c * n + s) * plane + i,
                             element = op->samples ? 0 : i * whole + (size_t)op->first + c;
                const bool stays = !pl->training || drop_word(key, sample_of(a, rows, s, n), element) >= bound;
                y[at] = stays ? x[at] * (pl->training ? kept : 1) : 0;
            }
    return 0;
}

int ref_drop_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    return ref_drop(pl, op, a, e);
}
