/* Resampling against Pillow's own results, crops against torchvision's rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/data/fixture.h"
#include "tests/worker/data/image/pillow_golden.h"
#include "worker/data/image/image.h"
#include "worker/data/image/portable_math.h"
#include "worker/data/image/rng.h"

static struct image pattern(int w, int h, int c)
{
    struct image im = {.px = malloc((size_t)w * (size_t)h * (size_t)c), .w = w, .h = h, .c = c};
    uint8_t *p = im.px;
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int k = 0; k < c; k++)
                *p++ = (uint8_t)(x * 7 + y * 13 + k * 50 + ((x * y * 31) ^ (x * 17)) % 97);
    return im;
}

static void check_bytes(const char *what, const uint8_t *got, const uint8_t *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s: byte %zu is %u, Pillow has %u", what, i, got[i], want[i]);
}

static void resizing_equals_pillow_to_the_bit(void **state)
{
    static const struct {
        const char *name;
        int sw, sh, c;
        double box[4];
        int w, h;
        const uint8_t *want;
        size_t n;
    } cases[] = {
        {"shrink", 40, 30, 3, {0, 0, 40, 30}, 7, 5, golden_shrink, sizeof golden_shrink},
        {"enlarge", 10, 8, 3, {0, 0, 10, 8}, 13, 11, golden_enlarge, sizeof golden_enlarge},
        {"fractional box",
         40,
         30,
         3,
         {3.25, 2.5, 35.75, 27.125},
         9,
         8,
         golden_fractional_box,
         sizeof golden_fractional_box},
        {"grey", 33, 21, 1, {0, 0, 33, 21}, 11, 30, golden_grey, sizeof golden_grey},
        {"one pixel", 1, 1, 3, {0, 0, 1, 1}, 2, 2, golden_one_pixel, sizeof golden_one_pixel},
        {"rows only", 12, 50, 1, {0, 0, 12, 50}, 12, 9, golden_rows_only, sizeof golden_rows_only},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct image im = pattern(cases[i].sw, cases[i].sh, cases[i].c);
        size_t n = (size_t)cases[i].w * (size_t)cases[i].h * (size_t)cases[i].c;
        uint8_t *out = malloc(n);
        const double *b = cases[i].box;
        assert_int_equal(n, cases[i].n);
        assert_int_equal(image_resize(&im, b[0], b[1], b[2], b[3], cases[i].w, cases[i].h, false, out, &e), 0);
        check_bytes(cases[i].name, out, cases[i].want, n);
        free(out);
        image_free(&im);
    }
}

static void evaluation_is_a_resize_of_the_short_side_and_a_central_crop(void **state)
{
    uint8_t out[15 * 15 * 3];
    struct image im = pattern(47, 31, 3);
    assert_int_equal(fixture_eval(&im, 12, 8, out), 0);
    check_bytes("wide", out, golden_eval_wide, sizeof golden_eval_wide);
    image_free(&im);
    im = pattern(31, 48, 1);
    assert_int_equal(fixture_eval(&im, 20, 15, out), 0);
    check_bytes("tall", out, golden_eval_tall, sizeof golden_eval_tall);
    assert_int_equal(fixture_eval(&im, 7, 8, out), -EINVAL);
    image_free(&im);
}

static void a_flip_mirrors_left_and_right_only(void **state)
{
    struct image im = pattern(9, 6, 3);
    uint8_t plain[4 * 5 * 3], flipped[4 * 5 * 3];
    assert_int_equal(image_resize(&im, 0, 0, 9, 6, 5, 4, false, plain, NULL), 0);
    assert_int_equal(image_resize(&im, 0, 0, 9, 6, 5, 4, true, flipped, NULL), 0);
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 5; x++)
            assert_memory_equal(plain + (y * 5 + x) * 3, flipped + (y * 5 + 4 - x) * 3, 3);
    image_free(&im);
}

static void a_crop_sees_nothing_outside_itself(void **state)
{
    struct image im = pattern(20, 20, 3), cut = pattern(8, 6, 3);
    const struct crop c = {.x = 5, .y = 7, .w = 8, .h = 6};
    for (int y = 0; y < 6; y++)
        memcpy(cut.px + y * 8 * 3, im.px + ((7 + y) * 20 + 5) * 3, 8 * 3);
    uint8_t a[3 * 3 * 3], b[3 * 3 * 3];
    assert_int_equal(fixture_crop_resize(&im, &c, 3, 3, a), 0);
    assert_int_equal(image_resize(&cut, 0, 0, 8, 6, 3, 3, false, b, NULL), 0);
    check_bytes("crop", a, b, sizeof a);
    image_free(&im);
    image_free(&cut);
}

static const struct augment torch_defaults = {0.08, 1, 3.0 / 4, 4.0 / 3, 0.5};

static struct rng *numbers(uint64_t seed, uint64_t pass, uint64_t id)
{
    static struct rng r;
    r = rng_stream(seed, RNG_AUGMENT, pass, id);
    return &r;
}

static void check_crop(struct crop got, struct crop want)
{
    if (memcmp(&got, &want, sizeof(int) * 4) != 0 || got.flip != want.flip)
        fail_msg("crop %d,%d %dx%d flip %d, expected %d,%d %dx%d flip %d", got.x, got.y, got.w, got.h, got.flip, want.x,
                 want.y, want.w, want.h, want.flip);
}

/* Expected values from an independent Python rendering of Philox and of torchvision's get_params(). */
static void crops_have_their_golden_values(void **state)
{
    const struct augment *a = &torch_defaults;
    check_crop(augment_crop(a, numbers(0, 0, 0), 500, 375), (struct crop){135, 28, 335, 319, false});
    check_crop(augment_crop(a, numbers(0, 3, 17), 64, 64), (struct crop){1, 0, 62, 57, true});
    check_crop(augment_crop(a, numbers(9, 1ull << 33, 1281166), 1, 7), (struct crop){0, 4, 1, 1, false});
}

static void an_extreme_picture_gets_the_central_fallback(void **state)
{
    struct augment whole = {1, 1, 3.0 / 4, 4.0 / 3, 0};
    check_crop(augment_crop(&whole, numbers(1, 2, 3), 3000, 100), (struct crop){1433, 0, 133, 100, false});
    check_crop(augment_crop(&whole, numbers(1, 2, 3), 100, 3000), (struct crop){0, 1433, 100, 133, false});
}

static void crops_stay_inside_and_keep_their_share_and_ratio(void **state)
{
    int flips = 0, n = 20000;
    double share = 0;
    for (int i = 0; i < n; i++) {
        int w = 200, h = 200;
        struct crop c = augment_crop(&torch_defaults, numbers(5, 1, (uint64_t)i), w, h);
        assert_true(c.x >= 0 && c.y >= 0 && c.w >= 1 && c.h >= 1 && c.x + c.w <= w && c.y + c.h <= h);
        double s = (double)c.w * c.h / (w * h), ratio = (double)c.w / c.h;
        if (s < 0.075 || ratio < 0.73 || ratio > 1.37)
            fail_msg("crop %d: share %g ratio %g", i, s, ratio);
        share += s;
        flips += c.flip;
    }
    /* The mean of U(0.08, 1) is 0.54, less what the largest lose to rejection; 20,000 draws: 4 standard errors are
     * below 0.01. */
    if (share / n < 0.48 || share / n > 0.54)
        fail_msg("mean share %g, expected 0.48 to 0.54", share / n);
    if (flips < n / 2 - 300 || flips > n / 2 + 300)
        fail_msg("%d flips of %d", flips, n);
}

static void portable_functions_agree_with_libm(void **state)
{
    for (double x = -5; x <= 5; x += 0.0137) {
        assert_float_equal(pm_exp(x) / exp(x), 1.0, 1e-13);
        assert_float_equal(pm_sin(x), sin(x), 1e-12);
        assert_float_equal(pm_cos(x), cos(x), 1e-12);
        assert_float_equal(pm_log(exp(x)), x, 1e-13);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resizing_equals_pillow_to_the_bit),
        cmocka_unit_test(evaluation_is_a_resize_of_the_short_side_and_a_central_crop),
        cmocka_unit_test(a_flip_mirrors_left_and_right_only),
        cmocka_unit_test(a_crop_sees_nothing_outside_itself),
        cmocka_unit_test(crops_have_their_golden_values),
        cmocka_unit_test(an_extreme_picture_gets_the_central_fallback),
        cmocka_unit_test(crops_stay_inside_and_keep_their_share_and_ratio),
        cmocka_unit_test(portable_functions_agree_with_libm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
