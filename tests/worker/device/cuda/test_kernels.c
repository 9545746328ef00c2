/* Kernels whose launches depend on the shape, emulated, over rows of every width and more blocks than are summed side
 * by side. Values are small whole numbers, so that sums are exact in any order and any type. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/worker/device/cuda/fake_math.h"
#include "worker/device/cuda/kern/kernels.h"

static const enum dtype types[] = {DT_F32, DT_F16, DT_BF16};

struct tensors {
    struct view4 v;
    size_t n;
    void *x, *dy, *y, *dz;
    float *weights, *mean;
    double *sums;
    struct k_partial partial;
};

static int whole(size_t i, unsigned salt)
{
    uint32_t x = (uint32_t)i * 2654435761u + salt * 40503u;
    x ^= x >> 15;
    x *= 2246822519u;
    return (int)((x ^ (x >> 13)) % 9) - 4;
}

static void *tensor_of(const struct view4 *v, size_t n, unsigned salt)
{
    void *p = aligned_alloc(256, (n * 4 + 255) / 256 * 256);
    for (size_t i = 0; i < n; i++)
        fake_set(p, v->type, i, whole(i, salt));
    return p;
}

/* Sample 1 counts nothing. */
static struct tensors make(struct view4 v)
{
    struct tensors t = {.v = v, .n = (size_t)v.n * (size_t)v.c * (size_t)v.h * (size_t)v.w};
    t.x = tensor_of(&v, t.n, 1);
    t.dy = tensor_of(&v, t.n, 2);
    t.y = tensor_of(&v, t.n, 3);
    t.dz = tensor_of(&v, t.n, 4);
    t.weights = calloc((size_t)v.n, sizeof *t.weights);
    for (int i = 0; i < v.n; i++)
        t.weights[i] = i == 1 ? 0 : 1;
    t.mean = calloc((size_t)v.c, sizeof *t.mean);
    for (int c = 0; c < v.c; c++)
        t.mean[c] = (float)whole((size_t)c, 5);
    t.sums = calloc(2 * (size_t)v.c + 1, sizeof *t.sums);
    t.partial.values = calloc(kernel_partial(&v), sizeof *t.partial.values);
    t.partial.counters = calloc(kernel_counters(&v), sizeof *t.partial.counters);
    memset(t.partial.values, 0xff, kernel_partial(&v) * sizeof *t.partial.values); /* NaN */
    return t;
}

static void drop(struct tensors *t)
{
    free(t->x);
    free(t->dy);
    free(t->y);
    free(t->dz);
    free(t->weights);
    free(t->mean);
    free(t->sums);
    free(t->partial.values);
    free(t->partial.counters);
}

static int channel_of(const struct view4 *v, size_t i)
{
    return (int)(v->nhwc ? i % (size_t)v->c : i / (size_t)(v->h * v->w) % (size_t)v->c);
}

static bool counts(const struct tensors *t, size_t i)
{
    return t->weights[i / (t->n / (size_t)t->v.n)] > 0;
}

static void assert_sums(const struct tensors *t, const double *want, const char *what)
{
    const size_t c = (size_t)t->v.c;
    for (size_t k = 0; k < kernel_counters(&t->v); k++)
        assert_int_equal(0, t->partial.counters[k]); /* for the next launch */
    for (size_t k = 0; k <= 2 * c; k++)
        if (t->sums[k] != want[k])
            fail_msg("%s of %d x %d x %d x %d, type %d, %s: sum %zu is %g, expected %g", what, t->v.n, t->v.c, t->v.h,
                     t->v.w, t->v.type, t->v.nhwc ? "nhwc" : "nchw", k, t->sums[k], want[k]);
}

static void forward_sums(struct tensors *t)
{
    const size_t c = (size_t)t->v.c;
    double *want = calloc(2 * c + 1, sizeof *want);
    for (size_t i = 0; i < t->n; i++) {
        const double x = fake_get(t->x, t->v.type, i);
        const size_t k = (size_t)channel_of(&t->v, i);
        want[k] += counts(t, i) ? x : 0;
        want[c + k] += counts(t, i) ? x * x : 0;
    }
    want[2 * c] = (double)((t->v.n - 1) * t->v.h * t->v.w);
    const struct k_bn_stats a = {.v = t->v, .x = t->x, .weights = t->weights, .sums = t->sums, .partial = t->partial};
    assert_int_equal(0, kernel_launch(KERNEL_BN_STATS, &a, NULL));
    assert_sums(t, want, "statistics");
    free(want);
}

/* With the gradient that goes through the ReLU stored for others. */
static void backward_sums(struct tensors *t)
{
    const size_t c = (size_t)t->v.c;
    double *want = calloc(2 * c + 1, sizeof *want);
    for (size_t i = 0; i < t->n; i++) {
        const size_t k = (size_t)channel_of(&t->v, i);
        const double dz = fake_get(t->y, t->v.type, i) > 0 ? fake_get(t->dy, t->v.type, i) : 0;
        want[k] += counts(t, i) ? dz : 0;
        want[c + k] += counts(t, i) ? dz * (fake_get(t->x, t->v.type, i) - (double)t->mean[k]) : 0;
    }
    want[2 * c] = (double)((t->v.n - 1) * t->v.h * t->v.w);
    const struct k_bn_bwd_sums a = {.v = t->v,
                                    .x = t->x,
                                    .g = {.dy = t->dy, .y = t->y},
                                    .mean = t->mean,
                                    .weights = t->weights,
                                    .dz = t->dz,
                                    .sums = t->sums,
                                    .partial = t->partial};
    assert_int_equal(0, kernel_launch(KERNEL_BN_BWD_SUMS, &a, NULL));
    assert_sums(t, want, "gradients");
    for (size_t i = 0; i < t->n; i++)
        assert_true(fake_get(t->dz, t->v.type, i) ==
                    (fake_get(t->y, t->v.type, i) > 0 ? fake_get(t->dy, t->v.type, i) : 0));
    free(want);
}

static void sums_are_exact_for_rows_of_any_width(void **state)
{
    static const int channels[] = {1, 5, 8, 40, 72, 136, 264};
    (void)state;
    for (size_t k = 0; k < sizeof channels / sizeof *channels; k++) {
        for (size_t y = 0; y < 3; y++) {
            for (int nhwc = channels[k] > 40; nhwc < 2;
                 nhwc++) { /* NCHW: a channel is a block, whatever their number */
                struct tensors t =
                    make((struct view4){.n = 3, .c = channels[k], .h = 5, .w = 4, .nhwc = nhwc, .type = types[y]});
                forward_sums(&t);
                backward_sums(&t);
                drop(&t);
            }
        }
    }
}

static void and_for_more_blocks_than_are_summed_side_by_side(void **state)
{
    (void)state;
    for (int nhwc = 0; nhwc < 2; nhwc++) { /* 70 blocks of 64 rows, 70 samples: five groups of blocks */
        struct tensors t =
            make((struct view4){.n = 70, .c = nhwc ? 8 : 1, .h = 8, .w = 8, .nhwc = nhwc, .type = DT_F16});
        forward_sums(&t);
        backward_sums(&t);
        drop(&t);
    }
}

static float *floats(int n, unsigned salt)
{
    float *p = calloc((size_t)n, sizeof *p);
    for (int i = 0; i < n; i++)
        p[i] = (float)whole((size_t)i, salt);
    return p;
}

/* Two batch norms that one gradient reaches: the same as either alone. */
static void two_batch_norms_share_a_gradient(void **state)
{
    (void)state;
    for (size_t y = 0; y < 3; y++) {
        for (int nhwc = 0; nhwc < 2; nhwc++) {
            struct tensors t = make((struct view4){.n = 3, .c = 40, .h = 5, .w = 4, .nhwc = nhwc, .type = types[y]});
            float *mean2 = floats(40, 6);
            double one[2][81], two[2][81];
            struct k_bn_bwd_sums a = {.v = t.v,
                                      .x = t.x,
                                      .g = {.dy = t.dy, .y = t.y},
                                      .mean = t.mean,
                                      .weights = t.weights,
                                      .sums = one[0],
                                      .partial = t.partial};
            assert_int_equal(0, kernel_launch(KERNEL_BN_BWD_SUMS, &a, NULL));
            a.x = t.dz;
            a.mean = mean2;
            a.sums = one[1];
            assert_int_equal(0, kernel_launch(KERNEL_BN_BWD_SUMS, &a, NULL));
            a.x2 = a.x;
            a.mean2 = a.mean;
            a.x = t.x;
            a.mean = t.mean;
            a.sums = two[0];
            a.sums2 = two[1];
            assert_int_equal(0, kernel_launch(KERNEL_BN_BWD_SUMS, &a, NULL));
            assert_memory_equal(one, two, sizeof one);
            free(mean2);
            drop(&t);
        }
    }
}

/* The mask that forward keeps of a ReLU and the ReLU's result say the same to backward. */
static void a_mask_stands_for_what_a_relu_wrote(void **state)
{
    (void)state;
    for (size_t y = 0; y < 3; y++) {
        for (int c = 5; c <= 40; c += 35) {
            struct tensors t = make((struct view4){.n = 3, .c = c, .h = 5, .w = 4, .nhwc = true, .type = types[y]});
            uint8_t *mask = calloc(kernel_mask(&t.v), 1);
            float *scale = floats(c, 7), *shift = floats(c, 8);
            const struct k_bn_apply a = {
                .v = t.v, .x = t.x, .scale = scale, .shift = shift, .y = t.y, .mask = mask, .relu = true};
            double by_mask[81], by_result[81];
            assert_int_equal(0, kernel_launch(KERNEL_BN_APPLY, &a, NULL));
            struct k_bn_bwd_sums b = {.v = t.v,
                                      .x = t.x,
                                      .g = {.dy = t.dy, .y = t.y},
                                      .mean = t.mean,
                                      .sums = by_result,
                                      .partial = t.partial};
            assert_int_equal(0, kernel_launch(KERNEL_BN_BWD_SUMS, &b, NULL));
            b.g.y = NULL;
            b.g.mask = mask;
            b.sums = by_mask;
            assert_int_equal(0, kernel_launch(KERNEL_BN_BWD_SUMS, &b, NULL));
            assert_memory_equal(by_result, by_mask, sizeof(double) * (2 * (size_t)c + 1));
            free(mask);
            free(scale);
            free(shift);
            drop(&t);
        }
    }
}

/* One kernel for batch norm, ReLU and pooling, beside the three of them: forward and backward, maps of even and odd
 * sides. */
static void pool_at_once(struct view4 x)
{
    struct tensors t = make(x);
    struct view4 p = x;
    p.h = (x.h + 1) / 2;
    p.w = (x.w + 1) / 2;
    const size_t n = (size_t)p.n * (size_t)p.c * (size_t)p.h * (size_t)p.w;
    float *scale = floats(x.c, 7), *shift = floats(x.c, 8);
    uint8_t *index = calloc(n, 1), *index1 = calloc(n, 1);
    void *y = tensor_of(&p, n, 9), *y1 = tensor_of(&p, n, 10), *dy = tensor_of(&p, n, 11), *g = tensor_of(&x, t.n, 12);
    double three[2 * 64 + 1], one[2 * 64 + 1];
    const struct k_bn_apply apply = {.v = x, .x = t.x, .scale = scale, .shift = shift, .y = t.y, .relu = true};
    struct k_pool pool = {.x = x, .y = p, .in = t.y, .out = y, .index = index, 3, 3, 2, 2, 1, 1};
    const struct k_bn_pool all = {
        .x = x, .y = p, .in = t.x, .scale = scale, .shift = shift, .out = y1, .index = index1};
    assert_true(kernel_pools(&x, 3, 2, 1));
    assert_int_equal(0, kernel_launch(KERNEL_BN_APPLY, &apply, NULL));
    assert_int_equal(0, kernel_launch(KERNEL_MAXPOOL, &pool, NULL));
    assert_int_equal(0, kernel_launch(KERNEL_BN_POOL, &all, NULL));
    for (size_t i = 0; i < n; i++) {
        assert_true(fake_get(y, x.type, i) == fake_get(y1, x.type, i));
        assert_int_equal(fake_get(y, x.type, i) > 0 ? index[i] : 255, index1[i]);
    }
    pool.in = dy;
    pool.out = g;
    assert_int_equal(0, kernel_launch(KERNEL_MAXPOOL_BWD, &pool, NULL));
    struct k_bn_bwd_sums b = {.v = x,
                              .x = t.x,
                              .g = {.dy = g, .y = t.y},
                              .mean = t.mean,
                              .weights = t.weights,
                              .sums = three,
                              .partial = t.partial};
    assert_int_equal(0, kernel_launch(KERNEL_BN_BWD_SUMS, &b, NULL));
    b.g = (struct k_bn_gradient){.dy = dy, .index = index1, .pooled = p};
    b.sums = one;
    assert_int_equal(0, kernel_launch(KERNEL_BN_BWD_SUMS, &b, NULL));
    for (int k = 0; k <= 2 * x.c; k++)
        if (three[k] != one[k])
            fail_msg("%d x %d, type %d: sum %d is %g, expected %g", x.h, x.w, x.type, k, one[k], three[k]);
    float gamma[64], invstd[64], dgamma[64], dbeta[64];
    for (int i = 0; i < x.c; i++)
        gamma[i] = invstd[i] = 1;
    void *dx = tensor_of(&x, t.n, 13), *dx1 = tensor_of(&x, t.n, 14);
    struct k_bn_bwd_apply w = {.v = x,
                               .g = {.dy = g, .y = t.y},
                               .own = {.x = t.x,
                                       .from = {.sums = three},
                                       .local = {.sums = three},
                                       .gamma = gamma,
                                       .mean = t.mean,
                                       .invstd = invstd,
                                       .dgamma = dgamma,
                                       .dbeta = dbeta,
                                       .dx = dx},
                               .weights = t.weights};
    assert_int_equal(0, kernel_launch(KERNEL_BN_BWD_APPLY, &w, NULL));
    w.g = b.g;
    w.own.dx = dx1;
    assert_int_equal(0, kernel_launch(KERNEL_BN_BWD_APPLY, &w, NULL));
    for (size_t i = 0; i < t.n; i++)
        assert_true(fake_get(dx, x.type, i) == fake_get(dx1, x.type, i));
    void *mine[] = {scale, shift, index, index1, y, y1, dy, g, dx, dx1};
    for (size_t i = 0; i < sizeof mine / sizeof *mine; i++)
        free(mine[i]);
    drop(&t);
}

static void the_stem_is_pooled_at_once(void **state)
{
    (void)state;
    for (size_t y = 0; y < 3; y++)
        for (int side = 6; side <= 7; side++)
            pool_at_once((struct view4){.n = 3, .c = 64, .h = side, .w = 13 - side, .nhwc = true, .type = types[y]});
}

/* Sums that a convolution made: those of the samples that do not count are taken out again. */
static void a_convolutions_sums_lose_what_does_not_count(void **state)
{
    (void)state;
    for (int all = 0; all < 2; all++) {
        struct tensors t = make((struct view4){.n = 3, .c = 264, .h = 5, .w = 4, .nhwc = true, .type = DT_F16});
        float first[264] = {0}, second[264] = {0};
        double want[2 * 264 + 1] = {0};
        t.weights[1] = (float)all;
        for (size_t i = 0; i < t.n; i++) {
            const double x = fake_get(t.x, DT_F16, i);
            const int c = channel_of(&t.v, i);
            first[c] += (float)x;
            second[c] += (float)(x * x);
            want[c] += counts(&t, i) ? x : 0;
            want[264 + c] += counts(&t, i) ? x * x : 0;
        }
        want[2 * 264] = (2 + all) * 5 * 4;
        const struct k_bn_gather a = {
            .v = t.v, .x = t.x, .first = first, .second = second, .weights = t.weights, .sums = t.sums};
        assert_int_equal(0, kernel_launch(KERNEL_BN_GATHER, &a, NULL));
        assert_sums(&t, want, "sums of a convolution");
        drop(&t);
    }
}

static uint64_t checksum_of(const void *x, size_t n, enum dtype type)
{
    uint64_t parts[KERNEL_BAD_BLOCKS], sum = 0;
    const struct k_checksum k = {.n = n, .type = type, .x = x, .out = parts};
    assert_int_equal(0, kernel_launch(KERNEL_CHECKSUM, &k, NULL));
    for (int i = 0; i < kernel_bad_blocks(n); i++)
        sum += parts[i];
    return sum;
}

/* The same each time; another with any bit, with two words in each other's place, with a word more of 0. */
static void a_checksum_sees_every_bit_and_where_it_is(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 3, 256, 1025, 300001};
    for (size_t y = 0; y < 3; y++) {
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            const size_t n = sizes[k], size = dtype_size(types[y]);
            uint8_t *x = calloc(n + 1, size), word[4];
            for (size_t i = 0; i < n * size; i++)
                x[i] = (uint8_t)(i * 37 + i / 256);
            const uint64_t first = checksum_of(x, n, types[y]);
            assert_true(first == checksum_of(x, n, types[y]));
            assert_true(first != checksum_of(x, n + 1, types[y]));
            for (size_t bit = 0; bit < 8 * size; bit++) {
                const size_t at = (bit % 3 ? n - 1 : n / 2) * size + bit / 8;
                x[at] ^= (uint8_t)(1u << bit % 8);
                assert_true(first != checksum_of(x, n, types[y]));
                x[at] ^= (uint8_t)(1u << bit % 8);
            }
            if (n > 1) {
                memcpy(word, x, size);
                memcpy(x, x + (n - 1) * size, size);
                memcpy(x + (n - 1) * size, word, size);
                assert_true(first != checksum_of(x, n, types[y]));
            }
            free(x);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_exact_for_rows_of_any_width),
        cmocka_unit_test(and_for_more_blocks_than_are_summed_side_by_side),
        cmocka_unit_test(two_batch_norms_share_a_gradient),
        cmocka_unit_test(a_mask_stands_for_what_a_relu_wrote),
        cmocka_unit_test(the_stem_is_pooled_at_once),
        cmocka_unit_test(a_convolutions_sums_lose_what_does_not_count),
        cmocka_unit_test(a_checksum_sees_every_bit_and_where_it_is),
    };
    return cmocka_run_group_tests_name("kernels of the cuda device", tests, NULL, NULL);
}
