/* Kernels on the channels of positions, emulated, over sizes that conformance's small shapes do not reach: each way to
 * share a row among threads, more blocks than are summed side by side, wide heads; and the proof of an attention's
 * engine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/fake_math.h"
#include "worker/device/cuda/engines/prove.h"
#include "worker/device/cuda/graph.h"
#include "worker/device/cuda/kern/kernels.h"
#include "worker/device/cuda/plan.h"

static const enum dtype types[] = {DT_F32, DT_F16, DT_BF16};

/* In [-1, 1), representable in the type. */
static void *chance(size_t n, enum dtype type, uint32_t seed)
{
    void *p = aligned_alloc(256, (n * 4 + 255) / 256 * 256);
    for (size_t i = 0; i < n; i++) {
        uint32_t x = ((uint32_t)i + 1) * 2654435761u + seed * 40503u;
        x = (x ^ x >> 15) * 2246822519u;
        fake_set(p, type, i, (double)(int32_t)(x ^ x >> 13) / 0x1p31);
    }
    return p;
}

static void *garbage(size_t n)
{
    const size_t bytes = (n * 4 + 255) / 256 * 256;
    return memset(aligned_alloc(256, bytes), 0xff, bytes);
}

/* What storing costs, and sums in fp32. */
static void near(const char *what, enum dtype type, size_t i, double got, double want, double size)
{
    const double u = type == DT_F16 ? 0x1p-11 : type == DT_BF16 ? 0x1p-8 : 0;
    if (!(fabs(got - want) <= u * fabs(want) + 0x1p-18 * size + (type == DT_F16 ? 0x1p-25 : 0)))
        fail_msg("%s, type %d: [%zu] %g, expected %g", what, type, i, got, want);
}

/* --- norms */

struct norm {
    struct k_row_norm k;
    size_t n;
    void *x, *dy, *y, *dx;
    float *gamma, *beta, *dgamma, *dbeta;
};

static struct norm norm_of(unsigned rows, int c, enum dtype type, bool rms)
{
    struct norm t = {.k = {.rows = rows, .c = c, .type = type, .rms = rms, .eps = 1e-5f},
                     .n = (size_t)rows * (size_t)c};
    t.x = chance(t.n, type, 1);
    t.dy = chance(t.n, type, 2);
    t.y = garbage(t.n);
    t.dx = garbage(t.n);
    t.gamma = chance((size_t)c, DT_F32, 3);
    t.beta = chance((size_t)c, DT_F32, 4);
    t.dgamma = garbage((size_t)c);
    t.dbeta = garbage((size_t)c);
    t.k.x = t.x;
    t.k.gamma = t.gamma;
    t.k.beta = rms ? NULL : t.beta;
    t.k.partial.values = garbage(2 * kernel_norm_partial(&t.k));
    t.k.partial.counters = calloc(kernel_norm_counters(&t.k), sizeof(unsigned));
    return t;
}

static void drop(struct norm *t)
{
    void *all[] = {
        t->x, t->dy, t->y, t->dx, t->gamma, t->beta, t->dgamma, t->dbeta, t->k.partial.values, t->k.partial.counters};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void check_row(const struct norm *t, size_t row, double *dgamma, double *dbeta)
{
    const int c = t->k.c;
    const size_t at = row * (size_t)c;
    double mean = 0, squares = 0, plain = 0, projected = 0;
    for (int i = 0; i < c && !t->k.rms; i++)
        mean += fake_get(t->x, t->k.type, at + (size_t)i) / c;
    for (int i = 0; i < c; i++)
        squares += pow(fake_get(t->x, t->k.type, at + (size_t)i) - mean, 2) / c;
    const double inv = 1 / sqrt(squares + (double)t->k.eps);
    for (int i = 0; i < c; i++) {
        const double hat = (fake_get(t->x, t->k.type, at + (size_t)i) - mean) * inv,
                     dy = fake_get(t->dy, t->k.type, at + (size_t)i), g = dy * (double)t->gamma[i];
        plain += t->k.rms ? 0 : g / c;
        projected += g * hat / c;
        dgamma[i] += dy * hat;
        dbeta[i] += dy;
        near("norm", t->k.type, at + (size_t)i, fake_get(t->y, t->k.type, at + (size_t)i),
             hat * (double)t->gamma[i] + (t->k.rms ? 0 : (double)t->beta[i]), 4);
    }
    for (int i = 0; i < c; i++) {
        const double hat = (fake_get(t->x, t->k.type, at + (size_t)i) - mean) * inv,
                     g = fake_get(t->dy, t->k.type, at + (size_t)i) * (double)t->gamma[i];
        near("norm's dx", t->k.type, at + (size_t)i, fake_get(t->dx, t->k.type, at + (size_t)i),
             inv * (g - plain - hat * projected), 8);
    }
}

static void check_norm(unsigned rows, int c, enum dtype type, bool rms)
{
    struct norm t = norm_of(rows, c, type, rms);
    double *dgamma = calloc((size_t)c, sizeof *dgamma), *dbeta = calloc((size_t)c, sizeof *dbeta);
    float *first = calloc((size_t)c, sizeof *first);
    t.k.y = t.y;
    assert_int_equal(0, kernel_launch(KERNEL_ROW_NORM, &t.k, NULL));
    t.k.y = t.dx;
    t.k.dy = t.dy;
    t.k.dgamma = t.dgamma;
    t.k.dbeta = rms ? NULL : t.dbeta;
    for (int again = 0; again < 2; again++) { /* the same bits, and counters as they were */
        assert_int_equal(0, kernel_launch(KERNEL_ROW_NORM_BWD, &t.k, NULL));
        if (again)
            assert_memory_equal(first, t.dgamma, (size_t)c * sizeof *first);
        memcpy(first, t.dgamma, (size_t)c * sizeof *first);
    }
    for (size_t r = 0; r < rows; r++)
        check_row(&t, r, dgamma, dbeta);
    for (int i = 0; i < c; i++) {
        near("gamma's gradient", DT_F32, (size_t)i, (double)t.dgamma[i], dgamma[i], 4 * rows);
        if (!rms)
            near("beta's gradient", DT_F32, (size_t)i, (double)t.dbeta[i], dbeta[i], rows);
    }
    free(first);
    free(dgamma);
    free(dbeta);
    drop(&t);
}

static void rows_of_any_width_are_normalised(void **state)
{
    static const int widths[] = {7, 24, 96, 384, 768, 1000, 1536, 3072, 6144, 6152};
    (void)state;
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++)
        for (size_t y = 0; y < 3; y++)
            check_norm(widths[k] > 1000 ? 3 : 37, widths[k], types[y], k % 2 == 0);
}

static void and_more_blocks_than_are_summed_side_by_side(void **state)
{
    (void)state;
    check_norm(2200, 24, DT_F16, false); /* 128 rows a block: 18 blocks, two groups of them */
    check_norm(140, 7, DT_F32, false);   /* a block a row: 132, nine groups */
}

/* --- attention */

struct attention {
    struct k_attention k;
    size_t nx, ny;
    void *x, *y, *dy, *dx;
    float *lse, *delta;
};

static struct attention attention_of(int t, int heads, int kv_heads, int d, enum dtype type, bool causal)
{
    struct attention a = {.k = {.n = 1,
                                .t = t,
                                .heads = heads,
                                .kv_heads = kv_heads,
                                .d = d,
                                .scale = (float)(1 / sqrt(d)),
                                .causal = causal,
                                .type = type}};
    a.nx = (size_t)t * (size_t)((heads + 2 * kv_heads) * d);
    a.ny = (size_t)t * (size_t)(heads * d);
    a.x = chance(a.nx, type, 5);
    a.dy = chance(a.ny, type, 6);
    a.y = garbage(a.ny);
    a.dx = garbage(a.nx);
    a.lse = garbage((size_t)(t * heads));
    a.delta = garbage((size_t)(t * heads));
    a.k.x = a.x;
    return a;
}

static double at(const struct attention *a, const void *p, int t, int channel, bool of_x)
{
    const int width = (a->k.heads + (of_x ? 2 * a->k.kv_heads : 0)) * a->k.d;
    return fake_get(p, a->k.type, (size_t)t * (size_t)width + (size_t)channel);
}

/* One query of a head: its result, and what it adds to the gradients dx (t, width). */
static void query(const struct attention *a, int head, int i, double *p, double *dx)
{
    const struct k_attention *k = &a->k;
    const int d = k->d, q = head * d, kv = head / (k->heads / k->kv_heads), key = (k->heads + kv) * d,
              value = (k->heads + k->kv_heads + kv) * d, width = (k->heads + 2 * k->kv_heads) * d,
              seen = k->causal ? i + 1 : k->t;
    double sum = 0, mean = 0;
    for (int j = 0; j < seen; j++) {
        double s = 0;
        for (int c = 0; c < d; c++)
            s += at(a, a->x, i, q + c, true) * at(a, a->x, j, key + c, true);
        sum += p[j] = exp(s / sqrt(d));
    }
    near("logarithm", DT_F32, (size_t)(head * k->t + i), (double)a->lse[head * k->t + i], log(sum), 16);
    for (int j = 0; j < seen; j++)
        p[j] /= sum;
    for (int c = 0; c < d; c++) {
        double y = 0;
        for (int j = 0; j < seen; j++)
            y += p[j] * at(a, a->x, j, value + c, true);
        near("attention", k->type, (size_t)(i * d + c), at(a, a->y, i, q + c, false), y, 4);
    }
    for (int pass = 0; pass < 2; pass++)
        for (int j = 0; j < seen; j++) {
            double dp = 0;
            for (int c = 0; c < d; c++)
                dp += at(a, a->dy, i, q + c, false) * at(a, a->x, j, value + c, true);
            mean += pass ? 0 : p[j] * dp;
            for (int c = 0; c < d && pass; c++) {
                const double ds = p[j] * (dp - mean) / sqrt(d);
                dx[i * width + q + c] += ds * at(a, a->x, j, key + c, true);
                dx[j * width + key + c] += ds * at(a, a->x, i, q + c, true);
                dx[j * width + value + c] += p[j] * at(a, a->dy, i, q + c, false);
            }
        }
}

static void check_attention(int t, int heads, int kv_heads, int d, enum dtype type, bool causal)
{
    struct attention a = attention_of(t, heads, kv_heads, d, type, causal);
    double *p = calloc((size_t)t, sizeof *p), *dx = calloc(a.nx, sizeof *dx);
    a.k.out = a.y;
    a.k.lse = a.lse;
    assert_int_equal(0, kernel_launch(KERNEL_ATTENTION, &a.k, NULL));
    a.k.out = a.dx;
    a.k.y = a.y;
    a.k.dy = a.dy;
    a.k.delta = a.delta;
    assert_int_equal(0, kernel_launch(KERNEL_ATTENTION_BWD_QUERIES, &a.k, NULL));
    assert_int_equal(0, kernel_launch(KERNEL_ATTENTION_BWD_KEYS, &a.k, NULL));
    for (int head = 0; head < heads; head++)
        for (int i = 0; i < t; i++)
            query(&a, head, i, p, dx);
    for (size_t i = 0; i < a.nx; i++)
        near("attention's dx", type, i, fake_get(a.dx, type, i), dx[i], 32);
    void *all[] = {a.x, a.y, a.dy, a.dx, a.lse, a.delta, p, dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void heads_of_any_size_attend(void **state)
{
    (void)state;
    check_attention(70, 2, 1, 128, DT_F32, true);
    check_attention(33, 3, 3, 72, DT_BF16, false);
    check_attention(197, 1, 1, 64, DT_F16, false);
}

/* --- the proof of an engine */

static enum fake_wrong wrong_now;
static enum fake_wrong wrong(void *ctx, const struct gpu_dnn *d)
{
    (void)ctx;
    (void)d;
    return wrong_now;
}

struct proof {
    struct device *d;
    struct cuda_plan pl;
    struct prover v;
    struct gpu_dnn dnn;
};

static void open_proof(struct proof *p, enum cudnn_pattern pattern, enum dtype type)
{
    struct gpu *g;
    *p = (struct proof){0};
    assert_int_equal(0, fake_gpu_open(&g, &(struct fake_options){.wrong = wrong}));
    MUST(cuda_open_on(&p->d, g, NULL, &(struct cuda_options){0}, e));
    p->pl.cuda = (struct cuda *)p->d;
    p->v.pl = &p->pl;
    p->dnn = (struct gpu_dnn){.pattern = pattern,
                              .shape = {.n = 2,
                                        .c = 16,
                                        .h = 197,
                                        .w = 1,
                                        .k = 2,
                                        .r = 1,
                                        .s = 1,
                                        .stride = {1, 1},
                                        .type = type,
                                        .nhwc = true,
                                        .groups = 1}};
    const struct k_product product = graph_product(&p->dnn);
    for (int i = 0; graph_role(pattern, i); i++) {
        const enum role r = graph_role(pattern, i);
        MUST(p->d->ops->alloc(p->d, graph_elements(&product, r) * dtype_size(graph_type(&product, r)), &p->dnn.slot[i],
                              e));
    }
}

/* Runs the engine, which errs so; what the proof says. */
static int verdict(struct proof *p, enum fake_wrong how, struct err *ret)
{
    double ratio;
    struct gpu *g = p->pl.cuda->gpu;
    wrong_now = how;
    MUST(prove_poison(&p->v, &p->dnn, e));
    MUST(g->ops->dnn(g, p->pl.cuda->compute, &p->dnn, NULL, e));
    return prove_result(&p->v, &p->dnn, &ratio, ret);
}

static void engines_of_attention_are_proven(void **state)
{
    static const enum cudnn_pattern patterns[] = {DNN_SDPA, DNN_SDPA_BWD, DNN_SDPA_BWD_FAST};
    static const enum fake_wrong bad[] = {FAKE_NO_TAIL, FAKE_COARSE, FAKE_SCALED, FAKE_INFINITE};
    (void)state;
    for (size_t i = 0; i < 6; i++) {
        struct proof p;
        struct err why;
        open_proof(&p, patterns[i / 2], i % 2 ? DT_BF16 : DT_F16);
        MUST(prove_begin(&p.v, &p.dnn, e));
        assert_int_equal(0, verdict(&p, FAKE_RIGHT, &why));
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
            assert_int_equal(ERR_MISMATCH, verdict(&p, bad[k], &why));
        prove_finish(&p.v);
        p.d->ops->close(p.d);
    }
}

/* Of two runs of the backward pass one bit differs. */
static void equal_bits_of_two_runs_are_looked_at(void **state)
{
    struct proof p;
    struct err why;
    (void)state;
    open_proof(&p, DNN_SDPA_BWD, DT_BF16);
    MUST(prove_begin(&p.v, &p.dnn, e));
    assert_int_equal(0, verdict(&p, FAKE_RIGHT, &why));
    MUST(prove_remember(&p.v, &p.dnn, e));
    assert_int_equal(0, verdict(&p, FAKE_RIGHT, &why));
    assert_int_equal(0, prove_same(&p.v, &p.dnn, &why));
    assert_int_equal(0, verdict(&p, FAKE_BIT, &why));
    assert_int_equal(ERR_MISMATCH, prove_same(&p.v, &p.dnn, &why));
    prove_finish(&p.v);
    p.d->ops->close(p.d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_any_width_are_normalised),
        cmocka_unit_test(and_more_blocks_than_are_summed_side_by_side),
        cmocka_unit_test(heads_of_any_size_attend),
        cmocka_unit_test(engines_of_attention_are_proven),
        cmocka_unit_test(equal_bits_of_two_runs_are_looked_at),
    };
    return cmocka_run_group_tests_name("positions on the cuda device", tests, NULL, NULL);
}
