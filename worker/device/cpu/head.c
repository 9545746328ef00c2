/* The head over a vocabulary and its loss, planned and run: for some rows at a time (a row is a position of a sample)
 * logits = x . w^T, the loss of each row, dlogits in the place of logits, dx = dlogits . w, dw += dlogits^T . x. So
 * nothing of the size of all logits exists. Where a group has parts of the vocabulary, what a row's loss needs of all
 * its logits is combined while the block is there.
 *
 * Rows of a block of logits lie a padded stride apart. The columns of padding are written by nobody, and read by
 * nobody: products end at the vocabulary. */
#include <string.h>

#include "worker/device/cpu/plan.h"

#define REAL float
#include "worker/device/xent_parts.h"

enum { ROWS = HEAD_ROWS };
enum product { LOGITS, DX, DW, DW_ADD, PRODUCTS };

struct head {
    int64_t rows, c, v, per;        /* in all; channels; of the vocabulary, what is here; labels of a sample */
    int64_t mine;                   /* the first of this rank's rows: others count theirs */
    int64_t stride;                 /* logits from row to row */
    const struct plan_group *group; /* that has the vocabulary; NULL: all is here */
    float top[ROWS][TOP_N], sums[ROWS][SUMS_N];
    struct dnn_kernel *product[2][PRODUCTS]; /* of a whole block, and of the last one */
};

/* --- planning */

/* Vectors are aligned, and rows do not fall on the same lines of a cache. */
static int64_t stride_of(int64_t v)
{
    const int64_t stride = (v + 15) / 16 * 16;
    return stride * (int64_t)sizeof(float) % 4096 ? stride : stride + 16;
}

static struct dnn_matmul product_of(const struct cpu_plan *pl, const struct head *h, enum product which, int64_t rows,
                                    enum dtype dx)
{
    const enum dtype in = store_type(pl->store);
    switch (which) {
    case LOGITS:
        return (struct dnn_matmul){.m = rows,
                                   .n = h->v,
                                   .k = h->c,
                                   .a = {h->c, 1},
                                   .b = {1, h->c},
                                   .c = {h->stride, 1},
                                   .in = in,
                                   .out = DT_F32};
    case DX:
        return (struct dnn_matmul){
            .m = rows, .n = h->c, .k = h->v, .a = {h->stride, 1}, .b = {h->c, 1}, .c = {h->c, 1}, .in = in, .out = dx};
    default:
        return (struct dnn_matmul){.m = h->v,
                                   .n = h->c,
                                   .k = rows,
                                   .a = {1, h->stride},
                                   .b = {h->c, 1},
                                   .c = {h->c, 1},
                                   .add = which == DW_ADD,
                                   .in = in,
                                   .out = DT_F32};
    }
}

static bool wants(const struct cpu_plan *pl, const struct op *op, enum product which)
{
    const bool back = op->kind == OP_HEAD_BWD;
    return which == LOGITS || (back && (which == DX ? op->out >= 0 : program_gives(pl->p, op, 0)));
}

static int make_products(struct cpu_plan *pl, const struct op *op, struct head *h, struct step *s, struct err *e)
{
    int copy = NO_BUFFER;
    const int64_t sizes[2] = {h->rows < ROWS ? h->rows : ROWS, h->rows % ROWS};
    for (int k = 0; k < 2; k++)
        for (enum product p = LOGITS; p < PRODUCTS; p++) {
            const struct dnn_matmul m =
                product_of(pl, h, p, sizes[k], op->out < 0 ? DT_F32 : store_type(pl->values[op->out].store));
            if (sizes[k] == 0 || (k == 1 && h->rows < ROWS) || !wants(pl, op, p))
                continue;
            TRY(dnn_matmul_create(pl->cpu->dnn, &m, &h->product[k][p], e));
            TRY(cpu_plan_kernel(pl, h->product[k][p], e));
            if (p == DW || p == DW_ADD)
                TRY(dnn_bind(h->product[k][p], DNN_DST, pl->reduce + pl->p->params[op->param[0]].offset, e));
            else
                TRY(cpu_plan_weight(pl, op->param[0], h->product[k][p], DNN_WEIGHTS, &copy, e));
        }
    return cpu_plan_reach(pl, copy, &s->head.rounded, e);
}

static int make_head(struct cpu_plan *pl, const struct op *op, struct head **ret, struct err *e)
{
    const struct layout x = cpu_plan_layout(pl, op->in[0], LAYOUT_PLAIN);
    void *memory;
    TRY(cpu_plan_block(pl, sizeof **ret, &memory, e));
    *ret = memory;
    **ret = (struct head){.per = (int64_t)x.h * x.w, .c = x.c, .v = pl->p->params[op->param[0]].shape[0]};
    if (op->in[1] >= 0) {
        (*ret)->group = pl->o.group;
        (*ret)->mine = pl->o.group->index * pl->o.batch * (*ret)->per;
    }
    (*ret)->rows = x.n * (*ret)->per;
    (*ret)->stride = stride_of((*ret)->v);
    return 0;
}

/* Memory of a block of logits, and of their gradients where these are halves. */
static int take_block(struct cpu_plan *pl, struct step *s, const struct head *h, struct err *e)
{
    const size_t n = (size_t)(h->rows < ROWS ? h->rows : ROWS) * (size_t)h->stride;
    const int z = cpu_plan_buffer(pl, n * sizeof(float), e);
    TRY(z);
    TRY(cpu_plan_use(pl, z, &s->head.z, e));
    if (pl->store != STORE_BF16)
        return cpu_plan_use(pl, z, &s->head.dz, e);
    const int dz = cpu_plan_buffer(pl, n * sizeof(uint16_t), e);
    TRY(dz);
    return cpu_plan_use(pl, dz, &s->head.dz, e);
}

int cpu_plan_emit_head(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    struct head *h;
    struct step *s;
    if (op->kind == OP_HEAD && host_left_to_backward(pl->p, &pl->ops, op))
        return 0;
    const int c = pl->p->tensors[op->in[0]].c;
    TRY(cpu_plan_value(pl, op->in[0], c, e));
    const int x = cpu_plan_operand(pl, i, op->in[0], c, e);
    TRY(x);
    const int labels = op->in[1] < 0 ? NO_BUFFER : cpu_plan_settle(pl, i, op->in[1], LABEL_N, e);
    TRY(labels < NO_BUFFER ? labels : 0);
    TRY(op->out < 0 ? 0 : cpu_plan_value(pl, op->out, c, e));
    TRY(make_head(pl, op, &h, e));
    TRY(cpu_plan_step(pl, cpu_step_head, op_name(op->kind), i, &s, e));
    s->head.of = h;
    TRY(make_products(pl, op, h, s, e));
    s->kernel = h->product[0][LOGITS];
    TRY(take_block(pl, s, h, e));
    TRY(cpu_plan_read_op(pl, i, e));
    TRY(cpu_plan_reach(pl, x, &s->head.x, e));
    TRY(cpu_plan_reach(pl, labels, &s->head.labels, e));
    return op->out < 0 ? 0 : cpu_plan_reach(pl, pl->values[op->out].buffer, &s->head.dx, e);
}

/* --- running */

enum { TOPS = 1, SUMS = 2, LOSS = 4 }; /* what is made of a row's logits */

static void row_loss(struct cpu_plan *pl, const struct step *s, struct head *h, int64_t row, int64_t r, unsigned make)
{
    const struct op *op = &pl->p->ops[s->op];
    const int v = (int)h->v;
    const float *z = s->head.z + r * h->stride;
    float lse[LSE_N];
    if (make & TOPS) {
        const int of = s->head.labels ? (int)s->head.labels[row * LABEL_N + LABEL_CLASS]
                                      : host_label(&pl->args->batch, (size_t)h->per, (size_t)row);
        const float label[LABEL_N] = {[LABEL_CLASS] = (float)of, [LABEL_WEIGHT] = of < 0 ? 0 : 1};
        xent_top(z, v, op->first, label, of < 0 ? 0 : pl->cpu->kern->largest(z, v), h->top[r]);
    }
    const bool counts = h->top[r][TOP_WEIGHT] != 0;
    if (make & SUMS)
        pl->cpu->kern->xent_sums_of_part(z, counts ? v : 0, op->first, h->top[r], h->sums[r]);
    if (!(make & LOSS))
        return;
    double *metrics = NULL;
    if (row >= h->mine && row - h->mine < pl->o.batch * h->per) {
        metrics = pl->metrics + (row - h->mine) * METRIC_N;
        memset(metrics, 0, METRIC_N * sizeof *metrics);
    }
    xent_parts(h->sums[r], h->top[r], pl->p->classes, pl->args->smoothing, lse, metrics);
    char *dz = (char *)s->head.dz + (size_t)(r * h->stride) * store_size(pl->store);
    if (!counts)
        memset(dz, 0, (size_t)v * store_size(pl->store));
    else if (op->kind == OP_HEAD_BWD)
        cpu_row_gradient(pl, pl->store, true, z, v, op->first, (double)lse[LSE_LSE],
                         (struct host_target){.label = (int)lse[LSE_CLASS]}, dz);
}

static void rows_loss(struct cpu_plan *pl, const struct step *s, int64_t first, int64_t n, unsigned make)
{
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (int64_t r = 0; r < n; r++)
        row_loss(pl, s, s->head.of, first + r, r, make);
}

/* Of `n` rows from `first` on, whose logits are there: metrics of each, and gradients in the backward pass. */
static int block_loss(struct cpu_plan *pl, const struct step *s, int64_t first, int64_t n, struct err *e)
{
    struct head *h = s->head.of;
    const struct plan_group *g = h->group;
    if (!g) {
        rows_loss(pl, s, first, n, TOPS | SUMS | LOSS); /* all of a row, while it is in the cache */
        return 0;
    }
    rows_loss(pl, s, first, n, TOPS);
    if (g->max(g->ctx, h->top, (size_t)n * TOP_N, DT_F32, NULL, e) < 0)
        return err_wrap(e, "maxima of a head over a group");
    rows_loss(pl, s, first, n, SUMS);
    if (g->sum(g->ctx, h->sums, (size_t)n * SUMS_N, DT_F32, NULL, e) < 0)
        return err_wrap(e, "sums of a head over a group");
    rows_loss(pl, s, first, n, LOSS);
    return 0;
}

static int run_product(const struct head *h, enum product which, int64_t n, const void *src, const void *weights,
                       void *dst, struct err *e)
{
    struct dnn_kernel *k = h->product[n < ROWS && h->rows > ROWS][which];
    TRY(dnn_bind(k, DNN_SRC, (void *)(uintptr_t)src, e));
    TRY(weights ? dnn_bind(k, DNN_WEIGHTS, (void *)(uintptr_t)weights, e) : 0);
    TRY(dst ? dnn_bind(k, DNN_DST, dst, e) : 0);
    return dnn_run(k, e);
}

static int run_block(struct cpu_plan *pl, struct step *s, int64_t first, int64_t n, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct head *h = s->head.of;
    const char *x = (const char *)s->head.x + (size_t)(first * h->c) * store_size(pl->store);
    TRY(run_product(h, LOGITS, n, x, NULL, s->head.z, e));
    TRY(block_loss(pl, s, first, n, e));
    if (wants(pl, op, DX)) {
        const size_t at = (size_t)(first * h->c) * store_size(pl->values[op->out].store);
        TRY(run_product(h, DX, n, s->head.dz, NULL, (char *)s->head.dx + at, e));
    }
    const bool add = first > 0 || pl->args->accumulate || op->adds;
    return wants(pl, op, DW) ? run_product(h, add ? DW_ADD : DW, n, s->head.dz, x, NULL, e) : 0;
}

int cpu_step_head(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct head *h = s->head.of;
    if (s->head.rounded)
        cpu_plan_round_weight(pl, op->param[0], s->head.rounded);
    for (int64_t first = 0; first < h->rows; first += ROWS)
        TRY(run_block(pl, s, first, h->rows - first < ROWS ? h->rows - first : ROWS, e));
    cpu_give_metrics(pl, (size_t)(pl->o.batch * h->per));
    if (op->kind == OP_HEAD)
        return 0;
    if (op->out >= 0 && store_rounds(pl->values[op->out].store))
        pl->cpu->kern->round(s->head.dx, (size_t)(h->rows * h->c), pl->values[op->out].store, pl->cpu->threads);
    return cpu_plan_ready(pl, s->op, e);
}
