/* Linear layers, whole or in parts that a group shares, and a bias that comes after a sum over the group: products of
 * plain matrices (dnn_matmul_create()), x (n,c), y (n,k), of the rows of all ranks that the tensors have. A layer of
 * each position (op.each) has a row for each, of NHWC tensors.
 *
 * Weights (k,c) are read where they lie in the arena, and their gradients are written there: at millions of classes a
 * copy of either would be most of the memory. Halves take one copy, of the rounded weights, for all products. */
#include <string.h>

#include "worker/device/cpu/plan.h"
#include "worker/device/half.h"

struct shape {
    int64_t n, c, k;
    int64_t each; /* rows of a sample */
};

static struct shape shape_of(const struct cpu_plan *pl, const struct op *op)
{
    const struct op *fwd = op->fwd >= 0 ? &pl->p->ops[op->fwd] : op;
    const struct layout x = cpu_plan_layout(pl, fwd->in[0], LAYOUT_PLAIN);
    const int64_t positions = (int64_t)x.h * x.w, each = fwd->each ? positions : 1;
    return (struct shape){x.n * each, x.c * positions / each, pl->p->tensors[fwd->out].c, each};
}

static float *param(const struct cpu_plan *pl, int i)
{
    return pl->params + pl->p->params[i].offset;
}

static float *gradient(const struct cpu_plan *pl, int i)
{
    return pl->reduce + pl->p->params[i].offset;
}

/* --- weights as halves */

static void round_weight(const struct cpu_plan *pl, int i, bool past, void *to)
{
    pl->cpu->kern->give(param(pl, i), to, pl->p->params[i].count, past, pl->store, pl->cpu->threads);
}

void cpu_plan_round_weight(const struct cpu_plan *pl, int i, void *to)
{
    round_weight(pl, i, false, to);
}

void cpu_plan_round_weights(struct cpu_plan *pl)
{
    enum { CACHES = 32 << 20 }; /* copies that are larger in all are not found there when they are read */
    for (int i = 0; i < pl->p->nparams; i++)
        if (pl->rounded[i])
            round_weight(pl, i, pl->rounded_bytes > CACHES, pl->rounded[i]);
}

int cpu_plan_weight(struct cpu_plan *pl, int i, struct dnn_kernel *k, enum dnn_slot slot, int *buffer, struct err *e)
{
    const size_t bytes = pl->p->params[i].count * store_size(pl->store);
    if (pl->store == STORE_F32)
        return dnn_bind(k, slot, param(pl, i), e);
    if (pl->o.needs || (pl->o.fresh_weights && !pl->o.keep_all)) {
        if (*buffer == NO_BUFFER)
            TRY(*buffer = cpu_plan_buffer(pl, bytes, e));
        return cpu_plan_use_kernel(pl, *buffer, k, slot, e);
    }
    if (!pl->rounded[i]) {
        TRY(cpu_plan_run_block(pl, bytes, &pl->rounded[i], e));
        pl->rounded_bytes += bytes;
    }
    return dnn_bind(k, slot, pl->rounded[i], e);
}

static int use_weight(struct cpu_plan *pl, struct step *s, int i, enum dnn_slot slot, struct err *e)
{
    int buffer = NO_BUFFER;
    TRY(cpu_plan_weight(pl, i, s->kernel, slot, &buffer, e));
    return cpu_plan_reach(pl, buffer, &s->linear.rounded, e);
}

/* --- planning */

/* Of tensor t of op. */
static int block_of(const struct cpu_plan *pl, const struct op *op, int t)
{
    return op->each ? pl->p->tensors[t].c : LAYOUT_PLAIN;
}

/* The buffer of tensor t as rows, of halves where those are computed with. */
static int rows_of(struct cpu_plan *pl, int i, int t, struct err *e)
{
    const int block = block_of(pl, &pl->p->ops[i], t);
    TRY(cpu_plan_value(pl, t, block, e));
    return cpu_plan_operand(pl, i, t, block, e);
}

static int product(struct cpu_plan *pl, const struct dnn_matmul *m, struct dnn_kernel **ret, struct err *e)
{
    TRY(dnn_matmul_create(pl->cpu->dnn, m, ret, e));
    return cpu_plan_kernel(pl, *ret, e);
}

/* Rows of b that lie a multiple of a page apart fall on the same few lines of the first cache, and oneDNN copies them
 * only where that multiple is a power of two: with 768 x 3072 floats a product takes 64 ms instead of 24 that way. Of
 * layers of positions alone, whose weights are small. */
static bool should_pack(const struct op *op, const struct dnn_matmul *m)
{
    enum { PAGE = 4096, SOME = 64 };
    return op->each && m->b[1] == 1 && m->m >= SOME && m->b[0] * (int64_t)dtype_size(m->in) % PAGE == 0;
}

/* A step that packs b for product k, which the next step runs; its buffer. */
static int emit_pack(struct cpu_plan *pl, int i, const struct dnn_matmul *m, const struct dnn_kernel *k,
                     struct step **ret, struct err *e)
{
    struct dnn_kernel *pack;
    TRY(dnn_matmul_pack_create(pl->cpu->dnn, m, k, &pack, e));
    TRY(cpu_plan_kernel(pl, pack, e));
    const int b = cpu_plan_buffer(pl, dnn_bytes(k, DNN_WEIGHTS), e);
    TRY(b);
    TRY(cpu_plan_step(pl, cpu_step_linear, "pack", i, ret, e));
    (*ret)->kernel = pack;
    TRY(cpu_plan_use_kernel(pl, b, pack, DNN_DST, e));
    return b;
}

/* The weight of op i, for product k of the next step; its buffer. */
static int packed_weight(struct cpu_plan *pl, int i, const struct dnn_matmul *m, const struct dnn_kernel *k,
                         struct err *e)
{
    struct step *s;
    const int b = emit_pack(pl, i, m, k, &s, e);
    TRY(b);
    TRY(use_weight(pl, s, pl->p->ops[i].param[0], DNN_SRC, e));
    TRY(cpu_plan_read_param(pl, pl->p->ops[i].param[0], e));
    return b;
}

/* y = x . w^T + bias, or dx = dy . w */
int cpu_plan_emit_linear(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct shape h = shape_of(pl, op);
    const bool back = op->kind == OP_LINEAR_BWD_DATA;
    const int64_t depth = back ? h.k : h.c, width = back ? h.c : h.k;
    struct dnn_kernel *k;
    struct step *s;
    int packed = NO_BUFFER;
    const int x = rows_of(pl, i, op->in[0], e);
    TRY(x);
    TRY(cpu_plan_value(pl, op->out, block_of(pl, op, op->out), e));
    const struct value *y = &pl->values[op->out];
    struct dnn_matmul m = {.m = h.n,
                           .n = width,
                           .k = depth,
                           .a = {depth, 1},
                           .b = {back ? h.c : 1, back ? 1 : h.c},
                           .c = {width, 1},
                           .bias = !back && op->param[1] >= 0,
                           .in = store_type(pl->store),
                           .out = store_type(y->store)};
    m.packs = should_pack(op, &m);
    TRY(product(pl, &m, &k, e));
    TRY(m.packs ? packed = packed_weight(pl, i, &m, k, e) : 0);
    TRY(cpu_plan_step(pl, cpu_step_linear, op_name(op->kind), i, &s, e));
    s->kernel = k;
    TRY(cpu_plan_use_kernel(pl, x, k, DNN_SRC, e));
    TRY(cpu_plan_use_kernel(pl, y->buffer, k, DNN_DST, e));
    TRY(m.packs ? cpu_plan_use_kernel(pl, packed, k, DNN_WEIGHTS, e) : use_weight(pl, s, op->param[0], DNN_WEIGHTS, e));
    TRY(m.bias ? dnn_bind(k, DNN_BIAS, param(pl, op->param[1]), e) : 0);
    if (store_rounds(y->store)) {
        s->count = layout_count(&y->layout);
        TRY(cpu_plan_use(pl, y->buffer, &s->out, e));
    }
    return m.packs ? 0 : cpu_plan_read_op(pl, i, e);
}

/* A product that writes, and (n: 2) one that adds. They read the same of what is packed, or nothing is. */
static int gradient_products(struct cpu_plan *pl, struct dnn_matmul *m, int n, struct dnn_kernel *ret[2], struct err *e)
{
    for (int k = 0; k < n; k++) {
        m->add = k > 0;
        TRY(product(pl, m, &ret[k], e));
    }
    if (!m->packs || n < 2 || dnn_same_weights(ret[0], ret[1]))
        return 0;
    m->packs = false;
    return gradient_products(pl, m, n, ret, e);
}

/* dw = dy^T . x, into the arena or added to it. Where each rank's sum is rounded before it is added it is made in a
 * buffer, of each rank's rows. */
int cpu_plan_emit_linear_bwd_param(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const struct shape h = shape_of(pl, op);
    const bool rounds = half_gradients(&pl->o, op);
    struct dnn_matmul m = {.m = h.k,
                           .n = h.c,
                           .k = rounds ? pl->o.batch * h.each : h.n,
                           .a = {1, h.k},
                           .b = {h.c, 1},
                           .c = {h.c, 1},
                           .in = store_type(pl->store),
                           .out = DT_F32};
    struct step *s;
    const int x = rows_of(pl, i, op->in[0], e), dy = x < 0 ? x : rows_of(pl, i, op->in[1], e);
    TRY(dy);
    struct dnn_kernel *both[2] = {NULL, NULL};
    int b = x;
    m.packs = !rounds && should_pack(op, &m);
    TRY(gradient_products(pl, &m, rounds ? 1 : 2, both, e));
    if (m.packs) {
        TRY(b = emit_pack(pl, i, &m, both[0], &s, e));
        TRY(cpu_plan_use_kernel(pl, x, s->kernel, DNN_SRC, e));
    }
    TRY(cpu_plan_step(pl, cpu_step_linear_bwd_param, op_name(op->kind), i, &s, e));
    s->kernel = both[0];
    s->reorder_add = both[1];
    TRY(cpu_plan_use(pl, x, &s->linear.x, e));
    TRY(cpu_plan_use(pl, dy, &s->linear.dy, e));
    if (op->each && op->param[1] >= 0)
        cpu_plan_need_sums(pl, (int)h.k);
    if (rounds) {
        const int sum = cpu_plan_buffer(pl, pl->p->params[op->param[0]].count * sizeof(float), e);
        TRY(sum);
        TRY(cpu_plan_use_kernel(pl, sum, s->kernel, DNN_DST, e));
        return cpu_plan_use(pl, sum, &s->out, e);
    }
    for (int k = 0; k < 2; k++) {
        TRY(cpu_plan_use_kernel(pl, dy, both[k], DNN_SRC, e));
        TRY(cpu_plan_use_kernel(pl, b, both[k], DNN_WEIGHTS, e));
        TRY(dnn_bind(both[k], DNN_DST, gradient(pl, op->param[0]), e));
    }
    return 0;
}

/* --- running */

int cpu_step_linear(struct cpu_plan *pl, struct step *s, struct err *e)
{
    if (s->linear.rounded)
        cpu_plan_round_weight(pl, pl->p->ops[s->op].param[0], s->linear.rounded);
    return cpu_step_dnn(pl, s, e);
}

/* Rounded for each rank's rows by themselves, as if each rank had summed its own. Halves of this kind lie in floats. */
static int add_rounded(struct cpu_plan *pl, struct step *s, const struct shape *h, float *arena, struct err *e)
{
    const size_t each = (size_t)(pl->o.batch * h->each), count = (size_t)h->k * (size_t)h->c;
    for (size_t first = 0; first < (size_t)h->n; first += each) {
        TRY(dnn_bind(s->kernel, DNN_SRC, (float *)s->linear.dy + first * (size_t)h->k, e));
        TRY(dnn_bind(s->kernel, DNN_WEIGHTS, (float *)s->linear.x + first * (size_t)h->c, e));
        TRY(dnn_run(s->kernel, e));
        pl->cpu->kern->round(s->out, count, pl->store, pl->cpu->threads);
        if (first == 0 && !pl->args->accumulate)
            memcpy(arena, s->out, count * sizeof *arena);
        else
            pl->cpu->kern->accumulate(arena, s->out, count, pl->cpu->threads);
    }
    return 0;
}

/* Sums over rows of dy, (n,k), from row `first` on. */
static void add_bias_gradient(float *to, const void *dy, bool bf16, size_t first, size_t n, size_t k, bool add,
                              enum store rounds, int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads)
    for (size_t j = 0; j < k; j++) {
        float sum = 0;
        for (size_t i = first; i < first + n; i++)
            sum += bf16 ? f32_from_bf16(((const uint16_t *)dy)[i * k + j]) : ((const float *)dy)[i * k + j];
        to[j] = store_value(rounds, sum) + (add ? to[j] : 0);
    }
}

/* The same of many rows: by vectors, and row after row. */
static void add_bias_gradient_of_positions(struct cpu_plan *pl, float *to, const void *dy, bool bf16, size_t first,
                                           size_t n, size_t k, bool add, enum store rounds)
{
    const struct columns_job j = {.rows = n,
                                  .c = (int)k,
                                  .x = (const char *)dy + first * k * store_size(bf16 ? STORE_BF16 : STORE_F32),
                                  .sums = pl->partial + kern_sums((int)k, pl->cpu->threads),
                                  .partial = pl->partial,
                                  .runs = pl->plane};
    pl->cpu->kern->columns(&j, bf16 ? STORE_BF16 : STORE_F32, pl->cpu->threads);
    for (size_t i = 0; i < k; i++)
        to[i] = store_value(rounds, (float)j.sums[i]) + (add ? to[i] : 0);
}

/* dy (n,k), n rows of `each` a sample. */
static void bias_gradient(struct cpu_plan *pl, const struct op *op, int bias, const void *dy, bool bf16, size_t n,
                          size_t each)
{
    const bool rounds = half_gradients(&pl->o, op);
    const size_t some = rounds ? (size_t)pl->o.batch * each : n, k = pl->p->params[bias].count;
    const enum store store = rounds ? pl->store : STORE_F32;
    for (size_t first = 0; first < n; first += some) {
        const bool add = first > 0 || pl->args->accumulate;
        if (op->each || each > 1)
            add_bias_gradient_of_positions(pl, gradient(pl, bias), dy, bf16, first, some, k, add, store);
        else
            add_bias_gradient(gradient(pl, bias), dy, bf16, first, some, k, add, store, pl->cpu->threads);
    }
}

int cpu_step_linear_bwd_param(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct shape h = shape_of(pl, op);
    TRY(s->out ? add_rounded(pl, s, &h, gradient(pl, op->param[0]), e)
               : dnn_run(pl->args->accumulate ? s->reorder_add : s->kernel, e));
    if (op->param[1] >= 0)
        bias_gradient(pl, op, op->param[1], s->linear.dy, pl->store == STORE_BF16, (size_t)h.n, (size_t)h.each);
    return cpu_plan_ready(pl, s->op, e);
}

int cpu_step_bias(struct cpu_plan *pl, struct step *s, struct err *e)
{
    (void)e;
    const struct op *op = &pl->p->ops[s->op];
    const struct layout l = cpu_plan_layout(pl, op->out, LAYOUT_PLAIN);
    const size_t k = (size_t)l.c, n = (size_t)l.n * (size_t)(l.h * l.w);
    const float *bias = param(pl, op->param[0]);
#pragma omp parallel for schedule(static) num_threads(pl->cpu->threads)
    for (size_t i = 0; i < n; i++) {
        const float *x = (const float *)s->group.a + i * k;
        for (size_t j = 0; j < k; j++)
            if (s->store == STORE_BF16)
                ((uint16_t *)s->group.y)[i * k + j] = bf16_from_f32(x[j] + bias[j]);
            else
                ((float *)s->group.y)[i * k + j] = x[j] + bias[j];
    }
    if (store_rounds(s->store))
        pl->cpu->kern->round(s->group.y, n * k, s->store, pl->cpu->threads);
    return 0;
}

/* Rows are samples, or positions of samples, whose channels lie side by side. */
int cpu_plan_emit_bias_bwd(struct cpu_plan *pl, int i, struct err *e)
{
    const int t = pl->p->ops[i].in[0], c = pl->p->tensors[t].c;
    const bool positions = pl->p->tensors[t].h * pl->p->tensors[t].w > 1;
    const int block = positions ? c : LAYOUT_PLAIN;
    struct step *s;
    TRY(cpu_plan_value(pl, t, block, e));
    const int dy = cpu_plan_operand(pl, i, t, block, e);
    TRY(dy);
    TRY(cpu_plan_step(pl, cpu_step_bias_bwd, "bias_bwd", i, &s, e));
    if (positions)
        cpu_plan_need_sums(pl, c);
    return cpu_plan_use(pl, dy, &s->group.a, e);
}

int cpu_step_bias_bwd(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct layout l = cpu_plan_layout(pl, op->in[0], LAYOUT_PLAIN);
    const size_t each = (size_t)(l.h * l.w);
    bias_gradient(pl, op, op->param[0], s->group.a, pl->values[op->in[0]].store == STORE_BF16, (size_t)l.n * each,
                  each);
    return cpu_plan_ready(pl, s->op, e);
}
