/* Attention, and what makes sequences of positions: a position more, a table of positions, one position alone.
 *
 *   scores (i,j) = q(i) . k(j) / sqrt(D),  p(i,:) = softmax over j,  y(i) = sum over j of p(i,j) v(j)
 *   dv(j)       += p(i,j) dy(i)
 *   ds(i,j)      = p(i,j) (dp(i,j) - sum over j of p(i,j) dp(i,j)),  dp(i,j) = dy(i) . v(j)
 *   dq(i)        = sum over j of ds(i,j) k(j) / sqrt(D),  dk(j) += ds(i,j) q(i) / sqrt(D)
 *
 * Values lie as (c, N, positions): channels of a position are N * positions elements apart. */
#include <math.h>
#include <string.h>

#include "worker/device/ref/ref.h"

struct heads {
    size_t n, t, d, heads, per; /* samples, positions, channels of a head, heads; of which `per` share keys */
    size_t at;                  /* from channel to channel */
    double scale;
    bool causal;
};

static struct heads heads_of(const struct ref_plan *pl, const struct op *op)
{
    const size_t n = ref_samples(pl, op->in[0]), t = ref_plane(pl, op->in[0]),
                 d = (size_t)(pl->p->tensors[op->in[0]].c / (op->heads + 2 * op->kv_heads));
    return (struct heads){.n = n,
                          .t = t,
                          .d = d,
                          .heads = (size_t)op->heads,
                          .per = (size_t)(op->heads / op->kv_heads),
                          .at = n * t,
                          .scale = 1 / sqrt((double)d),
                          .causal = op->causal};
}

size_t ref_attention_elements(const struct ref_plan *pl, const struct op *op)
{
    if (op->kind != OP_ATTENTION && op->kind != OP_ATTENTION_BWD)
        return 0;
    const struct heads h = heads_of(pl, op);
    return h.n * (h.heads / h.per) * 2 * h.t;
}

/* Channel 0 of the queries, keys and values of a sample, for a head of the queries. */
struct of_head {
    size_t q, k, v;
};

static struct of_head of_head(const struct heads *h, size_t sample, size_t head)
{
    const size_t kv = head / h->per, kv_heads = h->heads / h->per;
    return (struct of_head){head * h->d * h->at + sample * h->t, (h->heads + kv) * h->d * h->at + sample * h->t,
                            (h->heads + kv_heads + kv) * h->d * h->at + sample * h->t};
}

static double dot(const struct heads *h, const double *a, const double *b)
{
    double sum = 0;
    for (size_t d = 0; d < h->d; d++)
        sum += a[d * h->at] * b[d * h->at];
    return sum;
}

/* Keys that query i sees: those before the result. p (t): their weights. */
static size_t weigh(const struct heads *h, const double *q, const double *k, size_t i, double *p)
{
    const size_t n = h->causal ? i + 1 : h->t;
    double most = -INFINITY, sum = 0;
    for (size_t j = 0; j < n; j++) {
        p[j] = dot(h, q + i, k + j) * h->scale;
        most = p[j] > most ? p[j] : most;
    }
    for (size_t j = 0; j < n; j++)
        sum += p[j] = exp(p[j] - most);
    for (size_t j = 0; j < n; j++)
        p[j] /= sum;
    return n;
}

int ref_attention(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    int threads = pl->threads;
    const struct heads h = heads_of(pl, op);
    const double *x = pl->value[op->in[0]];
    double *y = pl->value[op->out];
    const size_t groups = h.heads / h.per;
    PARALLEL_FOR
    for (size_t job = 0; job < h.n * groups; job++)
        for (size_t head = job % groups * h.per; head < (job % groups + 1) * h.per; head++) {
            const size_t s = job / groups;
            const struct of_head at = of_head(&h, s, head);
            double *p = pl->scratch + job * 2 * h.t, *to = y + head * h.d * h.at + s * h.t;
            for (size_t i = 0; i < h.t; i++) {
                const size_t n = weigh(&h, x + at.q, x + at.k, i, p);
                for (size_t d = 0; d < h.d; d++) {
                    double sum = 0;
                    for (size_t j = 0; j < n; j++)
                        sum += p[j] * x[at.v + d * h.at + j];
                    to[d * h.at + i] = sum;
                }
            }
        }
    return 0;
}

/* Query i of a head: its dq, and its share of dk and dv. p, ds: (t). */
static void query_bwd(const struct heads *h, const double *x, const double *dy, struct of_head at, size_t i, double *p,
                      double *ds, double *dx)
{
    const size_t n = weigh(h, x + at.q, x + at.k, i, p);
    double mean = 0;
    for (size_t j = 0; j < n; j++) {
        ds[j] = dot(h, dy + i, x + at.v + j);
        mean += p[j] * ds[j];
    }
    for (size_t j = 0; j < n; j++)
        ds[j] = p[j] * (ds[j] - mean) * h->scale;
    for (size_t d = 0; d < h->d; d++) {
        double sum = 0;
        for (size_t j = 0; j < n; j++) {
            sum += ds[j] * x[at.k + d * h->at + j];
            dx[at.k + d * h->at + j] += ds[j] * x[at.q + d * h->at + i];
            dx[at.v + d * h->at + j] += p[j] * dy[d * h->at + i];
        }
        dx[at.q + d * h->at + i] = sum;
    }
}

int ref_attention_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    int threads = pl->threads;
    const struct heads h = heads_of(pl, op);
    const double *x = pl->value[op->in[0]], *dy = pl->value[op->in[1]];
    double *dx = pl->value[op->out];
    const size_t groups = h.heads / h.per;
    memset(dx, 0, ref_elements(pl, op->out) * sizeof *dx);
    PARALLEL_FOR
    for (size_t job = 0; job < h.n * groups; job++)
        for (size_t head = job % groups * h.per; head < (job % groups + 1) * h.per; head++) {
            const size_t s = job / groups;
            double *p = pl->scratch + job * 2 * h.t;
            for (size_t i = 0; i < h.t; i++)
                query_bwd(&h, x, dy + head * h.d * h.at + s * h.t, of_head(&h, s, head), i, p, p + h.t, dx);
        }
    return 0;
}

/* --- positions */

struct sequence { /* of tensor t */
    size_t c, n, t;
};

static struct sequence sequence_of(const struct ref_plan *pl, int t)
{
    return (struct sequence){(size_t)pl->p->tensors[t].c, ref_samples(pl, t), ref_plane(pl, t)};
}

int ref_prepend(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const struct sequence s = sequence_of(pl, op->in[0]);
    const double *token = ref_param(pl, op->param[0]);
    for (size_t i = 0; i < s.c * s.n; i++) {
        double *y = pl->value[op->out] + i * (s.t + 1);
        y[0] = token[i / s.n];
        memcpy(y + 1, pl->value[op->in[0]] + i * s.t, s.t * sizeof *y);
    }
    return 0;
}

int ref_prepend_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const struct sequence s = sequence_of(pl, op->in[0]);
    const double *dy = pl->value[op->in[0]];
    double *to = op->param[0] >= 0 ? ref_gradient(pl, op->param[0]) : NULL;
    for (size_t c = 0; c < s.c; c++) {
        double sum = 0;
        for (size_t i = c * s.n; i < (c + 1) * s.n; i++) {
            sum += dy[i * s.t];
            if (op->out >= 0)
                memcpy(pl->value[op->out] + i * (s.t - 1), dy + i * s.t + 1, (s.t - 1) * sizeof *dy);
        }
        if (to)
            to[c] = sum + (a->accumulate ? to[c] : 0);
    }
    return 0;
}

int ref_position(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const struct sequence s = sequence_of(pl, op->in[0]);
    const double *x = pl->value[op->in[0]], *table = ref_param(pl, op->param[0]); /* (t, c) */
    for (size_t i = 0; i < s.c * s.n * s.t; i++)
        pl->value[op->out][i] = x[i] + table[i % s.t * s.c + i / s.t / s.n];
    return 0;
}

int ref_position_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const struct sequence s = sequence_of(pl, op->in[0]);
    const double *dy = pl->value[op->in[0]];
    double *to = ref_gradient(pl, op->param[0]);
    const size_t count = pl->p->params[op->param[0]].count; /* rows behind the last position are used by none */
    for (size_t k = 0; k < count; k++) {
        double sum = 0;
        for (size_t n = 0; n < s.n && k < s.t * s.c; n++)
            sum += dy[(k % s.c * s.n + n) * s.t + k / s.c];
        to[k] = sum + (a->accumulate ? to[k] : 0);
    }
    return 0;
}

int ref_pick(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const struct sequence s = sequence_of(pl, op->in[0]);
    for (size_t i = 0; i < s.c * s.n; i++)
        pl->value[op->out][i] = pl->value[op->in[0]][i * s.t + (size_t)op->first];
    return 0;
}

int ref_pick_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const struct sequence s = sequence_of(pl, op->out);
    memset(pl->value[op->out], 0, s.c * s.n * s.t * sizeof(double));
    for (size_t i = 0; i < s.c * s.n; i++)
        pl->value[op->out][i * s.t + (size_t)op->first] = pl->value[op->in[0]][i];
    return 0;
}

/* Rotate-half: with an angle of position * base^(-2j/D) for channels j and j + D/2 of a head. */
static void turn(struct ref_plan *pl, const struct op *op, double sign)
{
    int threads = pl->threads;
    const struct sequence s = sequence_of(pl, op->out);
    const double *x = pl->value[op->in[0]];
    double *y = pl->value[op->out];
    const size_t all = (size_t)(op->heads + 2 * op->kv_heads), d = s.c / all, at = s.n * s.t,
                 turned = d * (size_t)(op->heads + op->kv_heads);
    PARALLEL_FOR
    for (size_t c = 0; c < s.c; c++) {
        const size_t j = c % d % (d / 2);
        const bool low = c % d < d / 2;
        const double *other = low ? x + (c + d / 2) * at : x + (c - d / 2) * at;
        for (size_t i = 0; i < at; i++) {
            const double angle = c < turned ? (double)(i % s.t) * pow(op->base, -2.0 * (double)j / (double)d) : 0;
            y[c * at + i] =
                c < turned ? x[c * at + i] * cos(angle) + (low ? -sign : sign) * other[i] * sin(angle) : x[c * at + i];
        }
    }
}

int ref_rope(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    turn(pl, op, 1);
    return 0;
}

int ref_rope_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    turn(pl, op, -1);
    return 0;
}
