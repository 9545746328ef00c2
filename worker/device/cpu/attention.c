/* Attention, planned and run: products of oneDNN around a softmax of our own, for a block of queries at a time, so
 * that scores are never there for all queries. The backward pass makes scores and weights again, from the logarithms of
 * their sums.
 *
 *   forward   S = Q K^T, P = softmax(S), Y = P V                        for each sample, head and block
 *   backward  S = Q K^T, P, dP = dY V^T, dS = P (dP - rows of P . dP),
 *             dV += P^T dY, dQ = dS K, dK += dS^T Q                     blocks of all heads with the same keys in turn
 *
 * The threads share samples and heads, so each product is made for one thread; products hold pointers, so each thread
 * has its own. Layers of the same shape share them. */
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "worker/device/cpu/plan.h"

enum product { SCORES, VALUES, DP, DV, DQ, DK, PRODUCTS };
enum { BLOCK = 128 }; /* queries */

struct shape {
    int64_t t, d, heads, kv_heads; /* positions, channels of a head, heads */
    int causal, back;
    int in, out; /* enum dtype: of x and what is computed with; of the result */
};

struct attention {
    struct shape s;
    int64_t stride; /* values of a row of scores */
    int threads, blocks;
    struct dnn_kernel **product; /* (threads, blocks, PRODUCTS); NULL: not of this pass */
    size_t scratch;              /* bytes that any product takes */
    size_t rows;                 /* of a block, at most */
};

/* --- making */

static int64_t channels_of_x(const struct shape *s)
{
    return (s->heads + 2 * s->kv_heads) * s->d;
}

static int64_t first_of(const struct attention *a, int block)
{
    return a->s.t * block / a->blocks;
}

static int64_t keys_of(const struct attention *a, int block)
{
    return a->s.causal ? first_of(a, block + 1) : a->s.t;
}

/* Of a and b from row to row and from column to column, of c from row to row. */
static struct dnn_matmul with_strides(struct dnn_matmul p, int64_t a_row, int64_t a_col, int64_t b_row, int64_t b_col,
                                      int64_t c_row)
{
    p.a[0] = a_row, p.a[1] = a_col;
    p.b[0] = b_row, p.b[1] = b_col;
    p.c[0] = c_row, p.c[1] = 1;
    return p;
}

static struct dnn_matmul matmul_of(const struct attention *a, enum product which, int block)
{
    const int64_t m = first_of(a, block + 1) - first_of(a, block), n = keys_of(a, block), d = a->s.d, row = a->stride,
                  x = channels_of_x(&a->s), y = a->s.heads * d;
    const enum dtype in = (enum dtype)a->s.in, out = (enum dtype)a->s.out;
    struct dnn_matmul p = {.m = m, .n = d, .k = n, .in = in, .out = out};
    switch (which) {
    case SCORES:
    case DP:
        p.n = n, p.k = d, p.out = DT_F32;
        return with_strides(p, which == DP ? y : x, 1, 1, x, row);
    case VALUES:
        return with_strides(p, row, 1, x, 1, y);
    case DQ:
        return with_strides(p, row, 1, x, 1, x);
    default: /* DV, DK */
        p.m = n, p.k = m, p.add = true, p.out = DT_F32;
        return with_strides(p, 1, row, which == DV ? y : x, 1, d);
    }
}

static struct dnn_kernel **product_at(const struct attention *a, int thread, int block, enum product which)
{
    return &a->product[(thread * a->blocks + block) * PRODUCTS + (int)which];
}

static int make_products(struct cpu_plan *pl, struct attention *a, struct err *e)
{
    for (int thread = 0; thread < a->threads; thread++)
        for (int b = 0; b < a->blocks; b++)
            for (enum product k = SCORES; k < PRODUCTS; k++) {
                const struct dnn_matmul m = matmul_of(a, k, b);
                struct dnn_kernel **at = product_at(a, thread, b, k);
                if (k != SCORES && (k == VALUES) == (a->s.back != 0))
                    continue;
                TRY(dnn_matmul_create(pl->cpu->dnn, &m, at, e));
                const size_t scratch = dnn_bytes(*at, DNN_SCRATCH);
                a->scratch = scratch > a->scratch ? scratch : a->scratch;
            }
    return 0;
}

static void attention_destroy(struct attention *a)
{
    for (int i = 0; a->product && i < a->threads * a->blocks * PRODUCTS; i++)
        dnn_kernel_destroy(a->product[i]);
    free(a->product);
    free(a);
}

void cpu_plan_close_attentions(struct cpu_plan *pl)
{
    for (int i = 0; i < pl->nattentions; i++)
        attention_destroy(pl->attentions[i]);
    free(pl->attentions);
}

/* The one of the plan that has this shape, or a new one. */
static int attention_of(struct cpu_plan *pl, const struct shape *s, struct attention **ret, struct err *e)
{
    for (int i = 0; i < pl->nattentions; i++)
        if (memcmp(&pl->attentions[i]->s, s, sizeof *s) == 0) {
            *ret = pl->attentions[i];
            return 0;
        }
    TRY(ARRAY_GROW(pl->attentions, pl->cap_attentions, (size_t)pl->nattentions + 1, "attentions of a plan", e));
    struct attention *a = calloc(1, sizeof *a);
    if (!a)
        return err_set(e, -ENOMEM, "no memory for an attention");
    pl->attentions[pl->nattentions++] = a;
    a->s = *s;
    a->threads = pl->cpu->threads;
    a->blocks = (int)((s->t + BLOCK - 1) / BLOCK);
    a->stride = (s->t + 15) / 16 * 16 + 16;
    for (int b = 0; b < a->blocks; b++) {
        const size_t rows = (size_t)(first_of(a, b + 1) - first_of(a, b));
        a->rows = rows > a->rows ? rows : a->rows;
    }
    a->product = calloc((size_t)a->threads * (size_t)a->blocks * PRODUCTS, sizeof(struct dnn_kernel *));
    if (!a->product)
        return err_set(e, -ENOMEM, "no memory for an attention");
    omp_set_num_threads(1); /* oneDNN asks for it when a product is made */
    const int rc = make_products(pl, a, e);
    omp_set_num_threads(pl->cpu->threads);
    *ret = a;
    return rc;
}

/* --- memory of a thread: scores and their gradient in floats, weights and gradients of scores as operands, gradients
 * of keys and values in floats, scratch of oneDNN */

struct room {
    float *scores, *dp, *dk, *dv;
    void *p, *ds, *scratch;
};

static size_t padded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Bytes in all; with a room, where its parts begin. */
static size_t lay_out(const struct attention *a, char *memory, struct room *r)
{
    const size_t block = a->rows * (size_t)a->stride, keys = (size_t)(a->s.t * a->s.d), back = a->s.back ? 1 : 0;
    const size_t operand = dtype_size((enum dtype)a->s.in);
    const size_t sizes[] = {block * sizeof(float),
                            back * block * sizeof(float),
                            back * keys * sizeof(float),
                            back * keys * sizeof(float),
                            block * operand,
                            back * block * operand,
                            a->scratch};
    void *at[7];
    size_t bytes = 0;
    for (int i = 0; i < 7; i++) {
        at[i] = memory ? memory + bytes : NULL;
        bytes += padded(sizes[i]);
    }
    *r = (struct room){at[0], at[1], at[2], at[3], at[4], at[5], at[6]};
    return bytes;
}

static int run_product(const struct attention *a, int thread, int block, enum product which, const void *src,
                       const void *weights, void *dst, void *scratch, struct err *e)
{
    struct dnn_kernel *k = *product_at(a, thread, block, which);
    TRY(dnn_bind(k, DNN_SRC, (void *)(uintptr_t)src, e));
    TRY(dnn_bind(k, DNN_WEIGHTS, (void *)(uintptr_t)weights, e));
    TRY(dnn_bind(k, DNN_DST, dst, e));
    TRY(dnn_bind(k, DNN_SCRATCH, scratch, e));
    return dnn_run(k, e);
}

/* --- planning */

static int emit(struct cpu_plan *pl, int i, int x, int dy, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const bool back = op->kind == OP_ATTENTION_BWD;
    const struct tensor *in = &pl->p->tensors[op->in[0]];
    const struct value *y = &pl->values[op->out];
    struct shape shape;
    struct attention *a = NULL;
    struct room r;
    memset(&shape, 0, sizeof shape); /* it is compared as bytes */
    shape.t = (int64_t)in->h * in->w;
    shape.d = in->c / (op->heads + 2 * op->kv_heads);
    shape.heads = op->heads;
    shape.kv_heads = op->kv_heads;
    shape.causal = op->causal;
    shape.back = back;
    shape.in = store_type(pl->values[op->in[0]].store);
    shape.out = store_type(y->store);
    TRY(attention_of(pl, &shape, &a, e));
    s->attention.of = a;
    s->store = y->store;
    const size_t floats = lay_out(a, NULL, &r) * (size_t)a->threads / sizeof(float);
    pl->plane_floats = floats > pl->plane_floats ? floats : pl->plane_floats;
    TRY(cpu_plan_reach(pl, x, &s->attention.x, e));
    TRY(cpu_plan_reach(pl, dy, &s->attention.dy, e));
    TRY(cpu_plan_reach(pl, y->buffer, &s->attention.y, e));
    return cpu_plan_reach(pl, pl->index_buffer[back ? op->fwd : i], &s->attention.lse, e);
}

int cpu_plan_emit_attention(struct cpu_plan *pl, int i, struct err *e)
{
    const struct op *op = &pl->p->ops[i];
    const bool back = op->kind == OP_ATTENTION_BWD;
    const int f = back ? op->fwd : i, cx = pl->p->tensors[op->in[0]].c,
              cy = cx / (op->heads + 2 * op->kv_heads) * op->heads;
    struct step *s;
    if (back && pl->index_buffer[f] == NO_BUFFER)
        return err_set(e, -ENOTSUP, "the slice holds the backward of an attention, but not its forward operation");
    const int x = cpu_plan_settle(pl, i, op->in[0], cx, e);
    TRY(x);
    const int dy = back ? cpu_plan_settle(pl, i, op->in[1], cy, e) : NO_BUFFER;
    if (dy < NO_BUFFER)
        return dy;
    TRY(cpu_plan_value(pl, op->out, back ? cx : cy, e));
    TRY(cpu_plan_same_stores(pl, i, op->in[0], op->in[1], e));
    TRY(cpu_plan_same_stores(pl, i, op->in[0], op->out, e));
    if (!back) {
        const struct layout l = cpu_plan_layout(pl, op->out, cy);
        const int lse = cpu_plan_buffer(pl, (size_t)l.n * (size_t)(l.h * l.w * op->heads) * sizeof(float), e);
        TRY(lse);
        pl->index_buffer[i] = lse;
    }
    TRY(cpu_plan_step(pl, cpu_step_attention, op_name(op->kind), i, &s, e));
    return emit(pl, i, x, dy, s, e);
}

/* --- running */

/* What a step is about, and where its tensors' parts lie. */
struct task {
    struct cpu_plan *pl;
    const struct step *s;
    const struct attention *a;
    enum store operand;
    size_t size, out; /* bytes of an operand, of a value of the result */
};

static const char *of_x(const struct task *k, int64_t sample, int64_t position, int64_t channel)
{
    const struct shape *s = &k->a->s;
    return (const char *)k->s->attention.x +
           (size_t)((sample * s->t + position) * channels_of_x(s) + channel) * k->size;
}

static struct room room_of(const struct task *k, int thread)
{
    struct room r;
    const size_t bytes = lay_out(k->a, NULL, &r);
    (void)lay_out(k->a, (char *)k->pl->plane + (size_t)thread * bytes, &r);
    return r;
}

static struct softmax_job softmax_of(const struct task *k, const struct room *r, int64_t sample, int64_t head,
                                     int block)
{
    const struct attention *a = k->a;
    const int64_t first = first_of(a, block);
    return (struct softmax_job){.rows = (int)(first_of(a, block + 1) - first),
                                .n = (int)keys_of(a, block),
                                .first = (int)first,
                                .causal = a->s.causal,
                                .stride = (size_t)a->stride,
                                .scale = 1 / sqrtf((float)a->s.d),
                                .scores = r->scores,
                                .p = r->p,
                                .lse = k->s->attention.lse + (sample * a->s.heads + head) * a->s.t + first,
                                .dp = r->dp,
                                .ds = r->ds};
}

static int forward(const struct task *k, int64_t sample, int64_t head, int block, int thread, struct err *e)
{
    const struct attention *a = k->a;
    const struct shape *s = &a->s;
    const struct room r = room_of(k, thread);
    const int64_t first = first_of(a, block), kv = head / (s->heads / s->kv_heads);
    const struct softmax_job j = softmax_of(k, &r, sample, head, block);
    char *y = (char *)k->s->attention.y + (size_t)((sample * s->t + first) * s->heads * s->d + head * s->d) * k->out;
    TRY(run_product(a, thread, block, SCORES, of_x(k, sample, first, head * s->d),
                    of_x(k, sample, 0, (s->heads + kv) * s->d), r.scores, r.scratch, e));
    k->pl->cpu->kern->softmax(&j, k->operand);
    return run_product(a, thread, block, VALUES, r.p, of_x(k, sample, 0, (s->heads + s->kv_heads + kv) * s->d), y,
                       r.scratch, e);
}

static int block_bwd(const struct task *k, const struct room *r, int64_t sample, int64_t head, int block, int thread,
                     struct err *e)
{
    const struct attention *a = k->a;
    const struct shape *s = &a->s;
    const int64_t first = first_of(a, block), kv = head / (s->heads / s->kv_heads);
    const void *q = of_x(k, sample, first, head * s->d), *keys = of_x(k, sample, 0, (s->heads + kv) * s->d),
               *values = of_x(k, sample, 0, (s->heads + s->kv_heads + kv) * s->d);
    const char *dy =
        (const char *)k->s->attention.dy + (size_t)((sample * s->t + first) * s->heads * s->d + head * s->d) * k->size;
    char *dq = (char *)k->s->attention.y + (size_t)((sample * s->t + first) * channels_of_x(s) + head * s->d) * k->out;
    const struct softmax_job j = softmax_of(k, r, sample, head, block);
    TRY(run_product(a, thread, block, SCORES, q, keys, r->scores, r->scratch, e));
    TRY(run_product(a, thread, block, DP, dy, values, r->dp, r->scratch, e));
    k->pl->cpu->kern->softmax_bwd(&j, k->operand);
    TRY(run_product(a, thread, block, DV, r->p, dy, r->dv, r->scratch, e));
    TRY(run_product(a, thread, block, DQ, r->ds, keys, dq, r->scratch, e));
    return run_product(a, thread, block, DK, r->ds, q, r->dk, r->scratch, e);
}

static int backward(const struct task *k, int64_t sample, int64_t kv, int thread, struct err *e)
{
    const struct shape *s = &k->a->s;
    const struct room r = room_of(k, thread);
    const int64_t per = s->heads / s->kv_heads, x = channels_of_x(s);
    const size_t keys = (size_t)(s->t * s->d);
    char *dx = (char *)k->s->attention.y + (size_t)(sample * s->t * x) * k->out;
    memset(r.dk, 0, keys * sizeof(float));
    memset(r.dv, 0, keys * sizeof(float));
    for (int64_t head = kv * per; head < (kv + 1) * per; head++)
        for (int b = 0; b < k->a->blocks; b++)
            TRY(block_bwd(k, &r, sample, head, b, thread, e));
    k->pl->cpu->kern->give_rows(r.dk, dx + (size_t)((s->heads + kv) * s->d) * k->out, (size_t)s->t, (int)s->d,
                                (size_t)x, k->s->store);
    k->pl->cpu->kern->give_rows(r.dv, dx + (size_t)((s->heads + s->kv_heads + kv) * s->d) * k->out, (size_t)s->t,
                                (int)s->d, (size_t)x, k->s->store);
    return 0;
}

int cpu_step_attention(struct cpu_plan *pl, struct step *s, struct err *e)
{
    const struct op *op = &pl->p->ops[s->op];
    const struct attention *a = s->attention.of;
    const struct task k = {.pl = pl,
                           .s = s,
                           .a = a,
                           .operand = a->s.in == DT_BF16 ? STORE_BF16 : STORE_F32,
                           .size = dtype_size((enum dtype)a->s.in),
                           .out = dtype_size((enum dtype)a->s.out)};
    const struct layout l = cpu_plan_layout(pl, op->out, pl->p->tensors[op->out].c);
    const int64_t each = a->s.back ? a->s.kv_heads : a->s.heads * a->blocks, items = l.n * each;
    int rc = 0;
#pragma omp parallel for schedule(static) num_threads(a->threads)
    for (int64_t item = 0; item < items; item++) {
        const int thread = omp_get_thread_num();
        const int64_t sample = item / each, of = item % each;
        struct err why = {0};
        const int failed = a->s.back ? backward(&k, sample, of, thread, &why)
                                     : forward(&k, sample, of / a->blocks, (int)(of % a->blocks), thread, &why);
        if (failed < 0) {
#pragma omp critical(attention)
            {
                rc = failed;
                if (e)
                    *e = why;
            }
        }
    }
    if (rc == 0 && store_rounds(s->store))
        pl->cpu->kern->round(s->attention.y, layout_count(&l), s->store, pl->cpu->threads);
    return rc;
}
