#include "tests/bench/products.h"

#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "worker/device/host_common.h"

enum { QUERIES = 128 }; /* of a block, as in worker/device/cpu/attention.c */

/* Memory lives as long as the process. */
static int bind_all(struct dnn_kernel *k, struct err *e)
{
    for (enum dnn_slot slot = DNN_SRC; slot < DNN_SLOTS; slot++) {
        void *memory;
        if (!dnn_bytes(k, slot))
            continue;
        TRY(host_alloc(dnn_bytes(k, slot), &memory, e));
        memset(memory, 0x3d, dnn_bytes(k, slot)); /* numbers of ordinary size in both types */
        TRY(dnn_bind(k, slot, memory, e));
    }
    return 0;
}

static int make(struct products *s, struct product *t, struct err *e)
{
    const int alone = t->runs > 0;
    omp_set_num_threads(alone ? 1 : s->threads); /* oneDNN asks for it when a product is made */
    int rc = 0;
    for (int i = 0; i < (alone ? s->threads : 1) && rc == 0; i++) {
        rc = dnn_matmul_create(s->dnn, &t->m, &t->kernel[i], e);
        if (rc == 0)
            rc = bind_all(t->kernel[i], e);
    }
    omp_set_num_threads(s->threads);
    return rc;
}

static int add(struct products *s, const char *name, const struct dnn_matmul *m, int runs, struct err *e)
{
    for (int i = 0; i < s->n; i++)
        if (memcmp(&s->at[i].m, m, sizeof *m) == 0 && s->at[i].runs == runs && strcmp(s->at[i].name, name) == 0) {
            s->at[i].count++;
            return 0;
        }
    if (s->n == PRODUCTS_MAX || s->threads > PRODUCTS_THREADS)
        return err_set(e, -E2BIG, "more than %d products, or %d threads", PRODUCTS_MAX, PRODUCTS_THREADS);
    struct product *t = &s->at[s->n++];
    *t = (struct product){.name = name, .count = 1, .runs = runs};
    memcpy(&t->m, m, sizeof *m); /* compared as bytes */
    return make(s, t, e);
}

static int add_linear(struct products *s, const struct program *p, const struct op *op, int batch, enum dtype type,
                      struct err *e)
{
    const struct op *fwd = op->fwd >= 0 ? &p->ops[op->fwd] : op;
    const struct tensor *x = &p->tensors[fwd->in[0]];
    const int64_t positions = (int64_t)x->h * x->w, each = fwd->each ? positions : 1, rows = batch * each,
                  c = x->c * positions / each, k = p->tensors[fwd->out].c;
    const bool back = op->kind == OP_LINEAR_BWD_DATA;
    struct dnn_matmul m;
    memset(&m, 0, sizeof m);
    m.in = type;
    m.packs = fwd->each;
    if (op->kind == OP_LINEAR_BWD_PARAM) {
        m.m = k, m.n = c, m.k = rows, m.out = DT_F32;
        m.a[0] = 1, m.a[1] = k, m.b[0] = c, m.b[1] = 1, m.c[0] = c, m.c[1] = 1;
        return add(s, "by weights", &m, 0, e);
    }
    m.m = rows, m.n = back ? c : k, m.k = back ? k : c, m.out = type;
    m.a[0] = m.k, m.a[1] = 1, m.b[0] = back ? c : 1, m.b[1] = back ? 1 : c, m.c[0] = m.n, m.c[1] = 1;
    m.bias = !back && op->param[1] >= 0;
    return add(s, back ? "by data" : "forward", &m, 0, e);
}

/* Blocks of 1,024 rows, as in worker/device/cpu/head.c. */
static int add_vocabulary(struct products *s, const struct program *p, const struct op *op, int batch, enum dtype type,
                          struct err *e)
{
    const struct tensor *x = &p->tensors[op->in[0]];
    const int64_t all = (int64_t)batch * x->h * x->w, c = x->c, v = p->classes, stride = (v + 15) / 16 * 16;
    for (int64_t first = 0; first < all; first += 1024) {
        const int64_t rows = all - first < 1024 ? all - first : 1024;
        const struct dnn_matmul each[] = {
            {.m = rows, .n = v, .k = c, .a = {c, 1}, .b = {1, c}, .c = {stride, 1}, .in = type, .out = DT_F32},
            {.m = rows, .n = c, .k = v, .a = {stride, 1}, .b = {c, 1}, .c = {c, 1}, .in = type, .out = type},
            {.m = v, .n = c, .k = rows, .a = {1, stride}, .b = {c, 1}, .c = {c, 1}, .in = type, .out = DT_F32}};
        static const char *const names[] = {"head forward", "head by data", "head by weights"};
        for (int k = 0; k < 3; k++) {
            struct dnn_matmul m;
            memset(&m, 0, sizeof m);
            m.m = each[k].m, m.n = each[k].n, m.k = each[k].k, m.in = type, m.out = each[k].out;
            memcpy(m.a, each[k].a, sizeof m.a), memcpy(m.b, each[k].b, sizeof m.b), memcpy(m.c, each[k].c, sizeof m.c);
            TRY(add(s, names[k], &m, 0, e));
        }
    }
    return 0;
}

struct heads {
    int64_t t, d, x, y, stride; /* positions, channels of a head, of x, of y, values of a row of scores */
    enum dtype type;
    int runs;
};

/* Of a (m,k), b (k,n) and c (m,n): from row to row, of a and b from column to column. */
static int add_of_head(struct products *s, const char *name, const struct heads *h, const int64_t size[3],
                       const int64_t a[2], const int64_t b[2], int64_t c, bool sums, bool add_to, struct err *e)
{
    struct dnn_matmul m;
    memset(&m, 0, sizeof m);
    m.m = size[0], m.n = size[1], m.k = size[2];
    m.a[0] = a[0], m.a[1] = a[1], m.b[0] = b[0], m.b[1] = b[1], m.c[0] = c, m.c[1] = 1;
    m.in = h->type, m.out = sums ? DT_F32 : h->type;
    m.add = add_to;
    return add(s, name, &m, h->runs, e);
}

#define PAIR(...) ((const int64_t[]){__VA_ARGS__})

/* Queries [from, end) of a head. */
static int add_block(struct products *s, const struct heads *h, int64_t rows, int64_t keys, bool back, struct err *e)
{
    const int64_t *scores = PAIR(rows, keys, h->d), *values = PAIR(rows, h->d, keys), *sums = PAIR(keys, h->d, rows);
    TRY(add_of_head(s, "scores", h, scores, PAIR(h->x, 1), PAIR(1, h->x), h->stride, true, false, e));
    if (!back)
        return add_of_head(s, "values", h, values, PAIR(h->stride, 1), PAIR(h->x, 1), h->y, false, false, e);
    TRY(add_of_head(s, "d weights", h, scores, PAIR(h->y, 1), PAIR(1, h->x), h->stride, true, false, e));
    TRY(add_of_head(s, "d queries", h, values, PAIR(h->stride, 1), PAIR(h->x, 1), h->x, false, false, e));
    TRY(add_of_head(s, "d keys", h, sums, PAIR(1, h->stride), PAIR(h->x, 1), h->d, true, true, e));
    return add_of_head(s, "d values", h, sums, PAIR(1, h->stride), PAIR(h->y, 1), h->d, true, true, e);
}

static int add_attention(struct products *s, const struct program *p, const struct op *op, int batch, enum dtype type,
                         struct err *e)
{
    const struct op *fwd = op->fwd >= 0 ? &p->ops[op->fwd] : op;
    const struct tensor *x = &p->tensors[fwd->in[0]];
    const int64_t t = (int64_t)x->h * x->w, d = x->c / (fwd->heads + 2 * fwd->kv_heads);
    const struct heads h = {.t = t,
                            .d = d,
                            .x = x->c,
                            .y = fwd->heads * d,
                            .stride = (t + 15) / 16 * 16 + 16,
                            .type = type,
                            .runs = (batch * fwd->heads + s->threads - 1) / s->threads};
    const int64_t blocks = (t + QUERIES - 1) / QUERIES;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t first = t * b / blocks, end = t * (b + 1) / blocks;
        TRY(add_block(s, &h, end - first, fwd->causal ? end : t, op->kind == OP_ATTENTION_BWD, e));
    }
    return 0;
}

int products_add(struct products *s, const struct program *p, int i, int batch, enum dtype type, struct err *e)
{
    const struct op *op = &p->ops[i];
    switch (op->kind) {
    case OP_LINEAR:
    case OP_LINEAR_BWD_DATA:
    case OP_LINEAR_BWD_PARAM:
        return add_linear(s, p, op, batch, type, e);
    case OP_ATTENTION:
    case OP_ATTENTION_BWD:
        return add_attention(s, p, op, batch, type, e);
    case OP_HEAD_BWD:
        return add_vocabulary(s, p, op, batch, type, e);
    default:
        return 0;
    }
}

int products_run(struct products *s, int i, double *ret_seconds, struct err *e)
{
    struct product *t = &s->at[i];
    int failed = 0;
    const int64_t start = clock_ns();
    if (!t->runs)
        TRY(dnn_run(t->kernel[0], e));
#pragma omp parallel num_threads(s->threads) reduction(| : failed) if (t->runs)
    for (int k = 0; k < t->runs; k++) {
        struct err none;
        failed |= dnn_run(t->kernel[omp_get_thread_num()], &none) < 0;
    }
    *ret_seconds = (double)(clock_ns() - start) * 1e-9;
    if (failed)
        return err_set(e, -EIO, "a product failed");
    if (t->best <= 0 || *ret_seconds < t->best)
        t->best = *ret_seconds;
    return 0;
}

void products_print(const struct products *s)
{
    for (int i = 0; i < s->n; i++) {
        const struct product *t = &s->at[i];
        const double flop =
            2.0 * (double)t->m.m * (double)t->m.n * (double)t->m.k * (t->runs ? t->runs * s->threads : 1);
        printf("  %9.3f ms x %d  %6.0f GF/s  %-10s (%lld,%lld) . (%lld,%lld)%s  %s\n", 1e3 * t->best, t->count,
               flop / t->best * 1e-9, t->name, (long long)t->m.m, (long long)t->m.k, (long long)t->m.k,
               (long long)t->m.n, t->runs ? " of each head" : "", dnn_implementation(t->kernel[0]));
    }
}

void products_close(struct products *s)
{
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < PRODUCTS_THREADS; k++)
            dnn_kernel_destroy(s->at[i].kernel[k]);
}
