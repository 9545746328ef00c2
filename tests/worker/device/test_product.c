/* Products of matrices: as they lie in memory; and in the place of convolutions of NHWC tensors, where rows of pixels
 * are where they belong, and the gradients are those of a convolution. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "worker/device/cpu/dnnl_wrap.h"
#include "worker/device/cpu/product.h"
#include "worker/device/half.h"

enum { N = 3, H = 9, W = 6, C = 12, K = 20, THREADS = 2 };

static struct dnn_shape shape(int window, int stride, int pad, enum dtype t)
{
    return (struct dnn_shape){.training = true,
                              .n = N,
                              .c = C,
                              .h = H,
                              .w = W,
                              .k = K,
                              .oh = (H + 2 * pad - window) / stride + 1,
                              .ow = (W + 2 * pad - window) / stride + 1,
                              .kh = window,
                              .kw = window,
                              .sh = stride,
                              .sw = stride,
                              .ph = pad,
                              .pw = pad,
                              .src_type = t,
                              .dst_type = t};
}

static const int windows[][3] = {{1, 1, 0}, {1, 2, 0}, {1, 3, 0}, {3, 1, 1},
                                 {3, 2, 1}, {3, 1, 0}, {5, 2, 2}, {7, 1, 3}};
enum { WINDOWS = sizeof windows / sizeof *windows };

/* Numbers that bf16 has. */
static float number(int seed, size_t i)
{
    return (float)((int)((i * 37 + (size_t)seed * 101) % 61) - 30) / 32;
}

static size_t size_of(enum dtype t)
{
    return t == DT_BF16 ? 2 : 4;
}

static float at(const void *x, enum dtype t, size_t i)
{
    return t == DT_BF16 ? f32_from_bf16(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}

static void *make(size_t count, enum dtype t, int seed)
{
    void *to = malloc(count * size_of(t));
    for (size_t i = 0; i < count; i++)
        if (t == DT_BF16)
            ((uint16_t *)to)[i] = bf16_from_f32(number(seed, i));
        else
            ((float *)to)[i] = number(seed, i);
    return to;
}

static size_t count_x(const struct dnn_shape *s)
{
    return (size_t)(s->n * s->h * s->w * s->c);
}

static size_t count_y(const struct dnn_shape *s)
{
    return (size_t)(s->n * s->oh * s->ow * s->k);
}

/* The pixel of x that output pixel p sees at (ky, kx) of its window, or -1: padding. */
static int seen(const struct dnn_shape *s, int p, int ky, int kx)
{
    const int n = p / (s->oh * s->ow), y = p / s->ow % s->oh * s->sh - s->ph + ky, x = p % s->ow * s->sw - s->pw + kx;
    return y < 0 || y >= s->h || x < 0 || x >= s->w ? -1 : (n * s->h + y) * s->w + x;
}

static void unfolds(const struct dnn_shape *s, int threads)
{
    const size_t bytes = product_unfolded_bytes(s);
    void *x = make(count_x(s), s->src_type, 1), *rows = malloc(bytes);
    size_t i = 0;
    memset(rows, 0x5a, bytes);
    product_unfold(s, x, rows, threads);
    for (int p = 0; p < s->n * s->oh * s->ow; p++)
        for (int k = 0; k < s->kh * s->kw; k++)
            for (int c = 0; c < s->c; c++, i++) {
                const int from = seen(s, p, k / s->kw, k % s->kw);
                const float want = from < 0 ? 0 : at(x, s->src_type, (size_t)(from * s->c + c));
                if (at(rows, s->src_type, i) != want)
                    fail_msg("%dx%d/%d: pixel %d, place %d, channel %d: %g instead of %g", s->kh, s->kw, s->sh, p, k, c,
                             (double)at(rows, s->src_type, i), (double)want);
            }
    assert_int_equal(i * size_of(s->src_type), bytes);
    free(x);
    free(rows);
}

static void a_row_has_what_the_window_sees(void **state)
{
    (void)state;
    for (size_t i = 0; i < WINDOWS; i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            const struct dnn_shape a = shape(windows[i][0], windows[i][1], windows[i][2], DT_F32),
                                   b = shape(windows[i][0], windows[i][1], windows[i][2], DT_BF16);
            unfolds(&a, threads);
            unfolds(&b, threads);
        }
}

static void spreads(const struct dnn_shape *s)
{
    const size_t count = count_x(s);
    void *rows = make(product_unfolded_bytes(s) / size_of(s->src_type), s->src_type, 2);
    void *x = malloc(count * size_of(s->src_type));
    float *want = calloc(count, sizeof *want);
    memset(x, 0x5a, count * size_of(s->src_type));
    product_spread(s, rows, x, THREADS);
    for (int p = 0; p < s->n * s->oh * s->ow; p++)
        for (int c = 0; c < s->c; c++)
            want[seen(s, p, 0, 0) * s->c + c] = at(rows, s->src_type, (size_t)(p * s->c + c));
    for (size_t i = 0; i < count; i++)
        if (at(x, s->src_type, i) != want[i])
            fail_msg("stride %d: element %zu: %g instead of %g", s->sh, i, (double)at(x, s->src_type, i),
                     (double)want[i]);
    free(rows);
    free(x);
    free(want);
}

static void rows_are_spread_over_zeros(void **state)
{
    (void)state;
    for (int stride = 1; stride <= 4; stride++) {
        const struct dnn_shape a = shape(1, stride, 0, DT_F32), b = shape(1, stride, 0, DT_BF16);
        spreads(&a);
        spreads(&b);
    }
}

/* --- gradients */

static void bind(struct dnn_kernel *k, enum dnn_slot slot, void *memory)
{
    struct err e = {0};
    if (dnn_bind(k, slot, memory, &e) < 0)
        fail_msg("%s", e.text);
}

static void run(struct dnn_kernel *k)
{
    struct err e = {0};
    void *scratch = malloc(dnn_bytes(k, DNN_SCRATCH) + 1);
    bind(k, DNN_SCRATCH, scratch);
    if (dnn_run(k, &e) < 0)
        fail_msg("%s", e.text);
    free(scratch);
}

static void close_to(const struct dnn_shape *s, const char *what, size_t i, double got, double want, double rel)
{
    if (!(fabs(got - want) <= rel * fabs(want) + 1e-4))
        fail_msg("%dx%d/%d, %s: element %zu: %g instead of %g", s->kh, s->kw, s->sh, what, i, got, want);
}

/* From the weights of k into an arena, or from there. */
static void reorder(struct dnn *d, struct dnn_kernel *k, bool to_plain, bool add, void *from, void *to)
{
    struct err e = {0};
    struct dnn_kernel *r;
    if (dnn_weights_reorder_create(d, k, to_plain, add, &r, &e) < 0)
        fail_msg("%s", e.text);
    bind(r, DNN_SRC, from);
    bind(r, DNN_DST, to);
    run(r);
    dnn_kernel_destroy(r);
}

/* One element of dw (k,c,kh,kw). */
static double weight_gradient(const struct dnn_shape *s, const void *x, const void *dy, size_t i)
{
    const int kx = (int)i % s->kw, ky = (int)i / s->kw % s->kh, c = (int)i / s->kw / s->kh % s->c,
              k = (int)i / s->kw / s->kh / s->c;
    double sum = 0;
    for (int p = 0; p < s->n * s->oh * s->ow; p++) {
        const int from = seen(s, p, ky, kx);
        if (from >= 0)
            sum += (double)at(x, s->src_type, (size_t)(from * s->c + c)) *
                   (double)at(dy, s->dst_type, (size_t)(p * s->k + k));
    }
    return sum;
}

static void by_weights(struct dnn *d, const struct dnn_shape *s)
{
    const size_t count = (size_t)(s->k * s->c * s->kh * s->kw);
    struct err e = {0};
    struct dnn_kernel *k;
    if (dnn_product_create(d, s, DNN_BWD_WEIGHTS, &k, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(dnn_bytes(k, DNN_WEIGHTS), count * sizeof(float));
    assert_int_equal(dnn_bytes(k, DNN_SRC), product_unfolded_bytes(s));
    assert_int_equal(dnn_bytes(k, DNN_DST), count_y(s) * size_of(s->dst_type));
    assert_int_equal(dnn_bytes(k, DNN_BIAS), 0);
    assert_int_equal(dnn_block(k, DNN_SRC), s->c);
    assert_int_equal(dnn_block(k, DNN_DST), s->k);
    void *x = make(count_x(s), s->src_type, 3), *dy = make(count_y(s), s->dst_type, 4), *rows = x;
    float *dw = malloc(count * sizeof *dw), *arena = malloc(count * sizeof *arena);
    if (!product_is_whole(s)) {
        rows = malloc(product_unfolded_bytes(s));
        product_unfold(s, x, rows, THREADS);
    }
    bind(k, DNN_SRC, rows);
    bind(k, DNN_DST, dy);
    bind(k, DNN_WEIGHTS, dw);
    run(k);
    reorder(d, k, true, false, dw, arena);
    for (size_t i = 0; i < count; i++)
        close_to(s, "by weights", i, (double)arena[i], weight_gradient(s, x, dy, i), 1e-5);
    reorder(d, k, true, true, dw, arena);
    for (size_t i = 0; i < count; i++)
        close_to(s, "by weights, added", i, (double)arena[i], 2 * weight_gradient(s, x, dy, i), 1e-5);
    dnn_kernel_destroy(k);
    if (rows != x)
        free(rows);
    free(x);
    free(dy);
    free(dw);
    free(arena);
}

static void by_data(struct dnn *d, const struct dnn_shape *s)
{
    struct err e = {0};
    struct dnn_kernel *k;
    if (dnn_product_create(d, s, DNN_BWD_DATA, &k, &e) < 0)
        fail_msg("%s", e.text);
    void *arena = make((size_t)(s->k * s->c), DT_F32, 5), *w = malloc(dnn_bytes(k, DNN_WEIGHTS));
    void *dy = make(count_y(s), s->dst_type, 6), *rows = malloc(product_unfolded_bytes(s));
    void *dx = malloc(count_x(s) * size_of(s->src_type));
    reorder(d, k, false, false, arena, w);
    bind(k, DNN_SRC, rows);
    bind(k, DNN_DST, dy);
    bind(k, DNN_WEIGHTS, w);
    run(k);
    product_spread(s, rows, dx, THREADS);
    for (int p = 0; p < s->n * s->oh * s->ow; p++)
        for (int c = 0; c < s->c; c++) {
            double want = 0;
            for (int j = 0; j < s->k; j++)
                want += (double)at(dy, s->dst_type, (size_t)(p * s->k + j)) *
                        (double)((float *)arena)[(size_t)(j * s->c + c)];
            const size_t i = (size_t)(seen(s, p, 0, 0) * s->c + c);
            close_to(s, "by data", i, (double)at(dx, s->src_type, i), want, s->src_type == DT_BF16 ? 0x1p-8 : 1e-5);
        }
    dnn_kernel_destroy(k);
    free(arena);
    free(w);
    free(dy);
    free(rows);
    free(dx);
}

static void all_gradients(struct dnn *d, enum dtype t)
{
    for (size_t i = 0; i < WINDOWS; i++) {
        const struct dnn_shape s = shape(windows[i][0], windows[i][1], windows[i][2], t);
        by_weights(d, &s);
        if (s.kh == 1)
            by_data(d, &s);
    }
}

static void gradients_are_those_of_a_convolution(void **state)
{
    all_gradients(*state, DT_F32);
}

static void and_so_in_bf16(void **state)
{
    if (!dnn_native_bf16(*state)) {
        print_message("# no bf16 units in this processor\n");
        skip();
    }
    all_gradients(*state, DT_BF16);
}

enum { ROWS = 5, COLUMNS = 7, DEPTH = 33, BETWEEN = 3 }; /* elements between lines that belong to nobody */

/* Element (row, column) of a matrix in memory with these strides. */
static size_t place(const int64_t by[2], int row, int column)
{
    return (size_t)(row * by[0] + column * by[1]);
}

/* One product; each bit of `how` turns a matrix, or asks for more than the product. */
static void multiply(struct dnn *d, int rows, int columns, int how, enum dtype in, enum dtype out)
{
    struct err e = {0};
    struct dnn_kernel *k;
    const struct dnn_matmul m = {.m = rows,
                                 .n = columns,
                                 .k = DEPTH,
                                 .a = {how & 1 ? 1 : DEPTH + BETWEEN, how & 1 ? rows + BETWEEN : 1},
                                 .b = {how & 2 ? 1 : columns + BETWEEN, how & 2 ? DEPTH + BETWEEN : 1},
                                 .c = {columns + BETWEEN, 1},
                                 .bias = (how & 4) != 0,
                                 .add = (how & 8) != 0,
                                 .in = in,
                                 .out = out};
    enum { MOST = (DEPTH + BETWEEN) * (DEPTH + BETWEEN) };
    void *a = make(MOST, in, 7), *b = make(MOST, in, 8), *c = make(MOST, out, 9), *before = make(MOST, out, 9);
    float *bias = make((size_t)columns, DT_F32, 10);
    if (dnn_matmul_create(d, &m, &k, &e) < 0)
        fail_msg("%s", e.text);
    bind(k, DNN_SRC, a);
    bind(k, DNN_WEIGHTS, b);
    bind(k, DNN_BIAS, bias);
    bind(k, DNN_DST, c);
    run(k);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns + BETWEEN && place(m.c, i, j) < MOST; j++) {
            const size_t to = place(m.c, i, j);
            double want = (double)at(before, out, to), size = 0;
            if (j < columns) {
                want = (m.bias ? (double)bias[j] : 0) + (m.add ? want : 0);
                for (int l = 0; l < DEPTH; l++) {
                    const double term = (double)at(a, in, place(m.a, i, l)) * (double)at(b, in, place(m.b, l, j));
                    want += term;
                    size += fabs(term);
                }
            }
            /* a sum of so many terms in fp32, stored once */
            const double bound = (DEPTH + 2) * 0x1p-24 * (size + 2) + (out == DT_BF16 ? 0x1p-8 * fabs(want) : 0);
            if (!(fabs((double)at(c, out, to) - want) <= bound))
                fail_msg("%d x %d, product %d: element %d, %d is %g, expected %g", rows, columns, how, i, j,
                         (double)at(c, out, to), want);
        }
    dnn_kernel_destroy(k);
    free(a);
    free(b);
    free(c);
    free(before);
    free(bias);
}

static void multiply_all(struct dnn *d, int rows, int columns)
{
    for (int how = 0; how < 16; how++)
        multiply(d, rows, columns, how, DT_F32, DT_F32);
    if (!dnn_native_bf16(d))
        return;
    for (int how = 0; how < 16; how++)
        multiply(d, rows, columns, how, DT_BF16, DT_F32);
    for (int how = 0; how < 8; how++)
        multiply(d, rows, columns, how, DT_BF16, DT_BF16);
}

static void a_product_takes_matrices_as_they_lie(void **state)
{
    multiply_all(*state, ROWS, COLUMNS);
}

/* oneDNN 3.7 took those of a single row or column for dense ones. */
static void and_those_of_one_row_or_column(void **state)
{
    multiply_all(*state, 1, COLUMNS);
    multiply_all(*state, ROWS, 1);
    multiply_all(*state, 1, 1);
}

static void assert_none(struct dnn *d, const struct dnn_shape *s, enum dnn_dir dir)
{
    struct err e = {0};
    struct dnn_kernel *k;
    assert_int_equal(dnn_product_create(d, s, dir, &k, &e), -ENOTSUP);
    assert_false(product_pays(s, dir, true));
}

static void other_kernels_have_no_product(void **state)
{
    struct dnn_shape s = shape(1, 1, 0, DT_F32);
    assert_none(*state, &s, DNN_FORWARD);
    s.bias = true;
    assert_none(*state, &s, DNN_BWD_WEIGHTS);
    s = shape(3, 1, 1, DT_F32);
    assert_none(*state, &s, DNN_BWD_DATA);
}

/* --- which */

static struct dnn_shape map(int c, int k, int w, int window, int stride, enum dtype t)
{
    struct dnn_shape s = shape(window, stride, window / 2, t);
    s.c = c;
    s.k = k;
    s.h = s.w = w;
    s.oh = s.ow = w / stride;
    return s;
}

static void assert_pays(bool weights, bool data, bool amx, const struct dnn_shape *s)
{
    if (product_pays(s, DNN_BWD_WEIGHTS, amx) != weights || product_pays(s, DNN_BWD_DATA, amx) != data)
        fail_msg("%d to %d channels, %d wide, %dx%d/%d, %s: a product takes the wrong one's place", s->c, s->k, s->w,
                 s->kh, s->kw, s->sh, amx ? "with AMX units" : "without AMX units");
}

static void where_it_pays(void **state)
{
    (void)state;
    static const struct {
        int c, k, w, window, stride;
        bool tiles_weights, tiles_data, weights, data;
    } cases[] = {{64, 256, 56, 1, 1, true, true, false, false},    {256, 1024, 14, 1, 1, true, true, true, false},
                 {2048, 512, 7, 1, 1, true, true, true, true},     {256, 512, 56, 1, 2, true, true, false, false},
                 {1024, 2048, 14, 1, 2, true, true, true, true},   {64, 64, 56, 3, 1, false, false, false, false},
                 {128, 128, 56, 3, 2, false, false, false, false}, {256, 256, 28, 3, 2, true, false, false, false},
                 {512, 512, 7, 3, 1, true, false, false, false},   {256, 256, 14, 3, 1, true, false, false, false},
                 {128, 128, 8, 3, 1, false, false, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dnn_shape s = map(cases[i].c, cases[i].k, cases[i].w, cases[i].window, cases[i].stride, DT_BF16);
        assert_pays(cases[i].tiles_weights, cases[i].tiles_data, true, &s);
        assert_pays(cases[i].weights, cases[i].data, false, &s);
        s.src_type = s.dst_type = DT_F32;
        assert_pays(cases[i].weights, cases[i].data, true, &s);
    }
}

static int open_dnn(void **state)
{
    struct err e = {0};
    struct dnn *d = NULL;
    const int rc = dnn_open(&d, &e);
    *state = d;
    return rc;
}

static int close_dnn(void **state)
{
    dnn_close(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_has_what_the_window_sees),       cmocka_unit_test(rows_are_spread_over_zeros),
        cmocka_unit_test(gradients_are_those_of_a_convolution), cmocka_unit_test(and_so_in_bf16),
        cmocka_unit_test(other_kernels_have_no_product),        cmocka_unit_test(where_it_pays),
        cmocka_unit_test(a_product_takes_matrices_as_they_lie), cmocka_unit_test(and_those_of_one_row_or_column),
    };
    return cmocka_run_group_tests_name("products of matrices", tests, open_dnn, close_dnn);
}
