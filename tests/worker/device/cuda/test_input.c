/* What the kernel that turns images into the first activation writes, emulated: every element, over garbage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/worker/device/cuda/fake_math.h"
#include "worker/device/cuda/kern/kernels.h"
#include "worker/device/fold.h"
#include "worker/device/mix.h"

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

/* Erased, mixed, cut, and with a partner that is erased: plain, padded and folded. */
static void images_are_erased_and_mixed(void **state)
{
    enum { N = 4, H = 6, W = 10, CHANNELS = 3 };
    static const struct fold fold = {.size = {H / 2 + 3, W / 2 + 3}, .before = {2, 2}};
    static const struct batch_mix mix[N] = {{.partner = 2, .share = 0.3F, .keep = 0.7F, .erase = {1, 0, 4, 3}},
                                            {.partner = -1, .share = 0.2F, .keep = 1, .box = {2, 1, 8, 5}},
                                            {.erase = {0, 2, W, H}},
                                            {0}};
    static const int padded[] = {3, 4, 8, 0};
    uint8_t images[N * H * W * CHANNELS];
    (void)state;
    for (size_t i = 0; i < sizeof images; i++)
        images[i] = (uint8_t)(i * 37 + i / 11);
    for (size_t k = 0; k < 8; k++) {
        const bool folded = padded[k / 2] == 0, nhwc = k % 2 == 0 || folded;
        const struct view4 v = {.n = N,
                                .c = folded ? FOLD_PIXEL : padded[k / 2],
                                .h = folded ? fold.size[0] : H,
                                .w = folded ? fold.size[1] : W,
                                .nhwc = nhwc,
                                .type = DT_F32};
        const size_t n = (size_t)(v.n * v.c * v.h * v.w);
        struct k_input a = {.y = v,
                            .channels = CHANNELS,
                            .images = images,
                            .mix = mix,
                            .out = garbage(n),
                            .mean = {0.5f, 0.25f, 0.125f},
                            .std = {0.25f, 0.5f, 1}};
        if (folded)
            a.fold = (struct k_input_fold){.h = H, .w = W, .top = fold.before[0], .left = fold.before[1]};
        assert_int_equal(0, kernel_launch(KERNEL_INPUT, &a, NULL));
        for (int i = 0; i < N * H * W * CHANNELS; i++) {
            int c = i % CHANNELS, h = i / CHANNELS / W % H, w = i / CHANNELS % W, row = i / CHANNELS / W / H;
            const struct batch_mix *m = &mix[row];
            const uint8_t *own = &images[i], *other = own + m->partner * H * W * CHANNELS;
            const double x = (*own / 255.0 - (double)a.mean[c]) / (double)a.std[c],
                         y = (*other / 255.0 - (double)a.mean[c]) / (double)a.std[c], want = mix_value(m, w, h, x, y);
            if (folded)
                fold_place(&fold, &c, &h, &w);
            const size_t at = nhwc ? ((size_t)(row * v.h + h) * (size_t)v.w + (size_t)w) * (size_t)v.c + (size_t)c
                                   : ((size_t)(row * v.c + c) * (size_t)v.h + (size_t)h) * (size_t)v.w + (size_t)w;
            if (!(fabs(fake_get(a.out, DT_F32, at) - want) < 1e-5))
                fail_msg("case %zu: row %d, channel %d of (%d, %d) is %g, not %g", k, row, c, w, h,
                         fake_get(a.out, DT_F32, at), want);
        }
        free(a.out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_are_normalised_into_padded_channels),
        cmocka_unit_test(images_are_folded_with_zeros_around_them),
        cmocka_unit_test(images_are_erased_and_mixed),
    };
    return cmocka_run_group_tests_name("images on the cuda device", tests, NULL, NULL);
}
