/* What the kernel that turns images into the first activation writes, emulated: every element, over garbage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/worker/device/cuda/fake_math.h"
#include "worker/device/cuda/kern/kernels.h"
#include "worker/device/fold.h"

static const enum dtype types[] = {DT_F32, DT_F16, DT_BF16};

/* n elements of any type, NaN all of them. */
static void *garbage(size_t n)
{
    const size_t bytes = (n * sizeof(float) + 255) / 256 * 256;
    return memset(aligned_alloc(256, bytes), 0xff, bytes);
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
                                      .out = garbage((size_t)(N * H * W * padded[k])),
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

/* Pixels put together: each byte where device/fold.h wants it, zeros everywhere else, over what lay there before. */
static void images_are_folded_with_zeros_around_them(void **state)
{
    enum { N = 2, H = 6, W = 10, CHANNELS = 3 };
    static const struct fold folds[] = {{.size = {H / 2 + 3, W / 2 + 3}, .before = {2, 2}},
                                        {.size = {H / 2, W / 2 + 1}, .before = {0, 1}}};
    uint8_t images[N * H * W * CHANNELS];
    (void)state;
    for (size_t i = 0; i < sizeof images; i++)
        images[i] = (uint8_t)(i * 37);
    for (size_t k = 0; k < 6; k++) {
        const struct fold *f = &folds[k / 3];
        const enum dtype type = types[k % 3];
        const struct view4 v = {.n = N, .c = FOLD_PIXEL, .h = f->size[0], .w = f->size[1], .nhwc = true, .type = type};
        const size_t n = (size_t)(v.n * v.c * v.h * v.w);
        const struct k_input a = {.y = v,
                                  .channels = CHANNELS,
                                  .fold = {.h = H, .w = W, .top = f->before[0], .left = f->before[1]},
                                  .images = images,
                                  .out = garbage(n),
                                  .mean = {0.5f, 0.25f, 0.125f},
                                  .std = {0.25f, 0.5f, 1}};
        double *want = calloc(n, sizeof *want);
        for (int i = 0; i < N * H * W * CHANNELS; i++) {
            int c = i % CHANNELS, h = i / CHANNELS / W % H, w = i / CHANNELS % W;
            const double x = (double)(((float)images[i] / 255.0f - a.mean[c]) / a.std[c]);
            fold_place(f, &c, &h, &w);
            want[((i / CHANNELS / W / H * v.h + h) * v.w + w) * v.c + c] = type == DT_F32 ? x : dtype_rounded(type, x);
        }
        assert_int_equal(0, kernel_launch(KERNEL_INPUT, &a, NULL));
        for (size_t i = 0; i < n; i++)
            assert_true(fake_get(a.out, type, i) == want[i]);
        free(want);
        free(a.out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_are_normalised_into_padded_channels),
        cmocka_unit_test(images_are_folded_with_zeros_around_them),
    };
    return cmocka_run_group_tests_name("images on the cuda device", tests, NULL, NULL);
}
