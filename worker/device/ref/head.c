/* Tokens: their rows of a table, and the loss of a head over a vocabulary, of which the logits of some rows are there
 * at a time. Values lie as (c, N, positions): the channels of a row, a position of a sample, are N * positions
 * apart. */
#include <string.h>

#include "common/base/err.h"
#include "worker/device/half.h"
#include "worker/device/ref/ref.h"

#define REAL double
#include "worker/device/xent_parts.h"

int ref_tokens(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const int32_t *tokens = a->batch.rows;
    const size_t n = ref_elements(pl, op->out);
    for (size_t i = 0; i < n; i++)
        pl->value[op->out][i] = tokens[i];
    return 0;
}

/* The row of the part of a table that is here, which has c channels; NULL: another rank has it. */
static double *row_of(const struct ref_plan *pl, const struct op *op, double *table, double token)
{
    const struct param *q = &pl->p->params[op->param[0]];
    const int64_t at = (int64_t)token - op->first;
    return at < 0 || at >= q->shape[0] ? NULL : table + (size_t)at * (size_t)q->shape[1];
}

int ref_embed(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t rows = ref_elements(pl, op->in[0]), c = (size_t)pl->p->tensors[op->out].c;
    for (size_t r = 0; r < rows; r++) {
        const double *from = row_of(pl, op, pl->params + pl->p->params[op->param[0]].offset, pl->value[op->in[0]][r]);
        for (size_t j = 0; j < c; j++)
            pl->value[op->out][j * rows + r] = from ? from[j] : 0;
    }
    return 0;
}

int ref_embed_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const size_t rows = ref_elements(pl, op->in[0]), c = (size_t)pl->p->tensors[op->in[1]].c;
    double *table = ref_gradient(pl, op->param[0]);
    if (!a->accumulate && !op->adds)
        memset(table, 0, pl->p->params[op->param[0]].count * sizeof *table);
    for (size_t r = 0; r < rows; r++) {
        double *to = row_of(pl, op, table, pl->value[op->in[0]][r]);
        for (size_t j = 0; j < c && to; j++)
            to[j] += pl->value[op->in[1]][j * rows + r];
    }
    return 0;
}

struct head {
    size_t rows, c, v, per; /* in all; channels; of the vocabulary, what is here; labels of a sample */
    size_t mine;            /* the first of this rank's rows: others count theirs */
    const double *x, *table;
    const double *labels; /* (LABEL_N, rows) of a group; NULL: the batch has them */
    double *z;            /* (ROWS, v): logits of a block, and then their gradients */
    double *top, *sums;   /* (ROWS, TOP_N), (ROWS, SUMS_N) of the block */
};

static struct head head_of(const struct ref_plan *pl, const struct op *op)
{
    const size_t per = ref_plane(pl, op->in[0]), v = (size_t)pl->p->params[op->param[0]].shape[0];
    return (struct head){.rows = ref_samples(pl, op->in[0]) * per,
                         .c = (size_t)pl->p->tensors[op->in[0]].c,
                         .v = v,
                         .per = per,
                         .mine = op->in[1] >= 0 && pl->group ? (size_t)(pl->group->index * pl->n) * per : 0,
                         .x = pl->value[op->in[0]],
                         .table = ref_param(pl, op->param[0]),
                         .labels = op->in[1] < 0 ? NULL : pl->value[op->in[1]],
                         .z = pl->scratch,
                         .top = pl->scratch + HEAD_ROWS * v,
                         .sums = pl->scratch + HEAD_ROWS * (v + TOP_N)};
}

size_t ref_head_elements(const struct ref_plan *pl, const struct op *op)
{
    const bool is = op->kind == OP_HEAD || op->kind == OP_HEAD_BWD;
    return is ? HEAD_ROWS * ((size_t)pl->p->params[op->param[0]].shape[0] + TOP_N + SUMS_N) : 0;
}

static int label_of(const struct head *h, const struct run_args *a, size_t r)
{
    return h->labels ? (int)h->labels[LABEL_CLASS * h->rows + r] : host_label(&a->batch, h->per, r);
}

/* The group's maximum, or sum, of `n` numbers. */
static int combine(const struct ref_plan *pl, const struct head *h, bool max, double *x, size_t n, struct err *e)
{
    const struct plan_group *g = h->labels ? pl->group : NULL;
    return g && (max ? g->max : g->sum)(g->ctx, x, n, DT_F64, NULL, e) < 0 ? err_wrap(e, "combine a head over a group")
                                                                           : 0;
}

/* Logits of `n` rows from the first on, and what they add to the metrics. The logits become their gradients, if there
 * are to be any: operands of products. */
static int block_loss(const struct ref_plan *pl, const struct op *op, const struct head *h, size_t first, size_t n,
                      const struct run_args *a, double *metrics, struct err *e)
{
    const struct matrix x = {h->x + first, 1, h->rows}, table = {h->table, 1, h->c};
    const int v = (int)h->v;
    ref_gemm(pl->threads, n, h->v, h->c, x, table, h->z, h->v, false);
    for (size_t r = 0; r < n; r++) {
        const int label = label_of(h, a, first + r);
        xent_top(h->z + r * h->v, v, op->first, (double[LABEL_N]){[LABEL_CLASS] = label, [LABEL_WEIGHT] = label >= 0},
                 host_largest(h->z + r * h->v, v), h->top + r * TOP_N);
    }
    TRY(combine(pl, h, true, h->top, n * TOP_N, e));
    for (size_t r = 0; r < n; r++)
        xent_sums(h->z + r * h->v, v, op->first, h->top + r * TOP_N, h->sums + r * SUMS_N);
    TRY(combine(pl, h, false, h->sums, n * SUMS_N, e));
    for (size_t r = 0; r < n; r++) {
        const bool counts = first + r >= h->mine && first + r - h->mine < (size_t)pl->n * h->per;
        double lse[LSE_N];
        xent_parts(h->sums + r * SUMS_N, h->top + r * TOP_N, pl->p->classes, a->smoothing, lse,
                   counts ? metrics : NULL);
        if (op->kind == OP_HEAD_BWD)
            xent_row_gradient(h->z + r * h->v, v, op->first, lse, pl->p->classes, a->smoothing, a->grad_scale);
    }
    for (size_t i = 0; i < n * h->v && op->kind == OP_HEAD_BWD && half_compute(&pl->o); i++)
        h->z[i] = dtype_rounded(pl->o.compute, h->z[i]);
    return 0;
}

static size_t at_once(const struct head *h, size_t first)
{
    return h->rows - first < HEAD_ROWS ? h->rows - first : HEAD_ROWS;
}

int ref_head(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const struct head h = head_of(pl, op);
    double metrics[METRIC_N] = {0};
    if (host_left_to_backward(pl->p, &pl->ops, op))
        return 0;
    for (size_t first = 0; first < h.rows; first += HEAD_ROWS)
        TRY(block_loss(pl, op, &h, first, at_once(&h, first), a, metrics, e));
    ref_give_metrics(pl, metrics, a);
    return 0;
}

int ref_head_bwd(struct ref_plan *pl, const struct op *op, const struct run_args *a, struct err *e)
{
    const struct head h = head_of(pl, op);
    const struct matrix back = {h.table, 1, h.c}, dz = {h.z, 1, h.v};
    double metrics[METRIC_N] = {0}, *to = program_gives(pl->p, op, 0) ? ref_gradient(pl, op->param[0]) : NULL;
    for (size_t first = 0; first < h.rows; first += HEAD_ROWS) {
        const size_t n = at_once(&h, first);
        const struct matrix x = {h.x + first, 1, h.rows};
        TRY(block_loss(pl, op, &h, first, n, a, metrics, e));
        if (op->out >= 0)
            ref_gemm(pl->threads, h.c, n, h.v, back, dz, pl->value[op->out] + first, h.rows, false);
        if (to)
            ref_gemm(pl->threads, h.v, h.c, n, dz, x, to, h.c, first > 0 || a->accumulate || op->adds);
    }
    ref_give_metrics(pl, metrics, a);
    return 0;
}
