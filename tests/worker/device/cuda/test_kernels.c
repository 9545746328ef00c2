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
    double *sums, *partial;
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
    t.partial = calloc(kernel_partial(&v), sizeof *t.partial);
    memset(t.partial, 0xff, kernel_partial(&v) * sizeof *t.partial); /* NaN */
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
    free(t->partial);
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
                                    .dy = t->dy,
                                    .y = t->y,
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
    for (int nhwc = 0; nhwc < 2; nhwc++) { /* 70 blocks of 64 rows, 70 samples */
        struct tensors t =
            make((struct view4){.n = 70, .c = nhwc ? 8 : 1, .h = 8, .w = 8, .nhwc = nhwc, .type = DT_F16});
        forward_sums(&t);
        backward_sums(&t);
        drop(&t);
    }
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

/* Padding channels are zeros, whatever was there before. */
static void images_are_normalised_into_padded_channels(void **state)
{
    enum { N = 2, H = 3, W = 5 };
    static const int padded[] = {3, 4, 8};
    uint8_t images[N * H * W * 3];
    (void)state;
    for (size_t i = 0; i < sizeof images; i++)
        images[i] = (uint8_t)(i * 37);
    for (size_t k = 0; k < 3; k++) {
        for (size_t y = 0; y < 3; y++) {
            const struct view4 v = {.n = N, .c = padded[k], .h = H, .w = W, .nhwc = true, .type = types[y]};
            const struct k_input a = {.y = v,
                                      .channels = 3,
                                      .images = images,
                                      .out = tensor_of(&v, (size_t)(N * H * W * padded[k]), 1),
                                      .mean = {0.5f, 0.25f, 0.125f},
                                      .std = {0.25f, 0.5f, 1}};
            assert_int_equal(0, kernel_launch(KERNEL_INPUT, &a, NULL));
            for (int i = 0; i < N * H * W * padded[k]; i++) {
                const int c = i % padded[k];
                const float x = c < 3 ? ((float)images[i / padded[k] * 3 + c] / 255.0f - a.mean[c]) / a.std[c] : 0;
                const double want = types[y] == DT_F32 ? (double)x : dtype_rounded(types[y], (double)x);
                assert_true(fake_get(a.out, types[y], (size_t)i) == want);
            }
            free(a.out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_exact_for_rows_of_any_width),
        cmocka_unit_test(and_for_more_blocks_than_are_summed_side_by_side),
        cmocka_unit_test(a_convolutions_sums_lose_what_does_not_count),
        cmocka_unit_test(images_are_normalised_into_padded_channels),
    };
    return cmocka_run_group_tests_name("kernels of the cuda device", tests, NULL, NULL);
}
