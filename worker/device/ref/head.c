/* Tokens: their rows of a table, and the loss of a head over a vocabulary, of which the logits of some rows are there
 * at a time. Values lie as (c, N, positions): the channels of a row, a position of a sample, are N * positions
 * apart. */
#include <string.h>

#include "worker/device/half.h"
#include "worker/device/ref/ref.h"

enum { ROWS = 64 }; /* of a block of logits */

int ref_tokens(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const int32_t *tokens = a->batch.rows;
    const size_t n = ref_elements(pl, op->out);
    for (size_t i = 0; i < n; i++)
        pl->value[op->out][i] = tokens[i];
    return 0;
}

int ref_embed(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t rows = ref_elements(pl, op->in[0]), c = (size_t)pl->p->tensors[op->out].c;
    const double *table = ref_param(pl, op->param[0]); /* (V, c) */
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < c; j++)
            pl->value[op->out][j * rows + r] = table[(size_t)pl->value[op->in[0]][r] * c + j];
    return 0;
}

int ref_embed_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t rows = ref_elements(pl, op->in[0]), c = (size_t)pl->p->tensors[op->in[1]].c;
    double *to = ref_gradient(pl, op->param[0]);
    if (!a->accumulate && !op->adds)
        memset(to, 0, pl->p->params[op->param[0]].count * sizeof *to);
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < c; j++)
            to[(size_t)pl->value[op->in[0]][r] * c + j] += pl->value[op->in[1]][j * rows + r];
    return 0;
}

struct head {
    size_t rows, c, v, per; /* in all; channels; vocabulary; labels of a sample */
    const double *x, *table;
    double *z; /* (ROWS, v): logits of a block, and then their gradients */
};

static struct head head_of(const struct ref_plan *pl, const struct op *op)
{
    const size_t per = ref_plane(pl, op->in[0]);
    return (struct head){.rows = ref_samples(pl, op->in[0]) * per,
                         .c = (size_t)pl->p->tensors[op->in[0]].c,
                         .v = (size_t)pl->p->classes,
                         .per = per,
                         .x = pl->value[op->in[0]],
                         .table = ref_param(pl, op->param[0]),
                         .z = pl->scratch};
}

size_t ref_head_elements(const struct ref_plan *pl, const struct op *op)
{
    return op->kind == OP_HEAD || op->kind == OP_HEAD_BWD ? ROWS * (size_t)pl->p->classes : 0;
}

/* Logits of `n` rows from the first on, and what they add to the metrics. */
static void block_loss(const struct ref_plan *pl, const struct head *h, size_t first, size_t n,
                       const struct run_args *a, double *sums)
{
    const struct matrix x = {h->x + first, 1, h->rows}, table = {h->table, 1, h->c};
    ref_gemm(pl->threads, n, h->v, h->c, x, table, h->z, h->v, false);
    for (size_t r = 0; r < n; r++) {
        const int label = host_label(&a->batch, h->per, first + r);
        if (label >= 0)
            host_xent(h->z + r * h->v, pl->p->classes, label, a->smoothing, sums);
    }
}

/* The logits of the block become their gradients, which are operands of products. */
static void block_gradient(const struct ref_plan *pl, const struct head *h, size_t first, size_t n,
                           const struct run_args *a)
{
    for (size_t r = 0; r < n; r++) {
        double *z = h->z + r * h->v;
        const int label = host_label(&a->batch, h->per, first + r);
        if (label < 0)
            memset(z, 0, h->v * sizeof *z);
        else
            host_xent_backward(z, pl->p->classes, label, a->smoothing, a->grad_scale, z);
        for (size_t j = 0; j < h->v && half_compute(&pl->o); j++)
            z[j] = dtype_rounded(pl->o.compute, z[j]);
    }
}

static size_t at_once(const struct head *h, size_t first)
{
    return h->rows - first < ROWS ? h->rows - first : ROWS;
}

int ref_head(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const struct head h = head_of(pl, op);
    double sums[METRIC_N] = {0};
    if (host_left_to_backward(pl->p, &pl->ops, op))
        return 0;
    for (size_t first = 0; first < h.rows; first += ROWS)
        block_loss(pl, &h, first, at_once(&h, first), a, sums);
    ref_give_metrics(pl, sums, a);
    return 0;
}

int ref_head_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const struct head h = head_of(pl, op);
    const struct matrix back = {h.table, 1, h.c}, dz = {h.z, 1, h.v};
    double sums[METRIC_N] = {0}, *to = program_gives(pl->p, op, 0) ? ref_gradient(pl, op->param[0]) : NULL;
    for (size_t first = 0; first < h.rows; first += ROWS) {
        const size_t n = at_once(&h, first);
        const struct matrix x = {h.x + first, 1, h.rows};
        block_loss(pl, &h, first, n, a, sums);
        block_gradient(pl, &h, first, n, a);
        if (op->out >= 0)
            ref_gemm(pl->threads, h.c, n, h.v, back, dz, pl->value[op->out] + first, h.rows, false);
        if (to)
            ref_gemm(pl->threads, h.v, h.c, n, dz, x, to, h.c, first > 0 || a->accumulate || op->adds);
    }
    ref_give_metrics(pl, sums, a);
    return 0;
}
