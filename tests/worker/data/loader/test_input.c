/* Transforms against slow renderings of their definitions; and that neither a partial decode nor an instruction set can
 * be seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "tests/worker/data/fixture.h"
#include "worker/data/image/resample.h"
#include "worker/data/image/rng.h"
#include "worker/data/loader/input.h"

static struct rng dice(uint64_t test)
{
    return rng_stream(99, RNG_AUGMENT, test, 0);
}

static struct input_scratch *scratch; /* of all pictures here, as a thread of the loader has one */

static int open_scratch(void **state)
{
    (void)state;
    scratch = input_scratch_create();
    return scratch ? 0 : -1;
}

static int close_scratch(void **state)
{
    (void)state;
    input_scratch_destroy(scratch);
    return 0;
}

static struct rng *numbers(uint64_t seed, uint64_t pass, uint64_t id)
{
    static struct rng r;
    r = rng_stream(seed, RNG_AUGMENT, pass, id);
    return &r;
}

static int roll(struct rng *r, int lo, int hi)
{
    return lo + (int)rng_below(r, (uint64_t)(hi - lo + 1));
}

static struct image noise(struct rng *r, int w, int h, int c)
{
    struct image im = {.px = malloc((size_t)w * (size_t)h * (size_t)c), .w = w, .h = h, .c = c};
    for (int i = 0; i < w * h * c; i++)
        im.px[i] = (uint8_t)(rng_u64(r) % 5 == 0 ? 255 * (rng_u64(r) % 2) : rng_u64(r));
    return im;
}

static void as_pnm(const struct image *im, struct buf *out)
{
    buf_clear(out);
    buf_printf(out, "P%d\n%d %d\n255\n", im->c == 3 ? 6 : 5, im->w, im->h);
    buf_add(out, im->px, (size_t)im->w * (size_t)im->h * (size_t)im->c);
}

/* --- partial decode */

static int choose_rect(void *arg, int w, int h, struct rect *ret, struct err *e)
{
    *ret = *(const struct rect *)arg;
    assert_true(ret->x + ret->w <= w && ret->y + ret->h <= h);
    return 0;
}

static void check_part(const struct buf *file, const struct image *whole, struct rect want, const char *what)
{
    struct region part = {0};
    struct err e = {0};
    const struct want w = {.choose = choose_rect, .arg = &want};
    if (image_decode_part(file->data, file->len, whole->c, &w, &part, &e) < 0)
        fail_msg("%s: %s", what, e.text);
    const size_t c = (size_t)whole->c;
    for (int y = want.y; y < want.y + want.h; y++) {
        const uint8_t *a = whole->px + ((size_t)y * (size_t)whole->w + (size_t)want.x) * c;
        const uint8_t *b = part.im.px + ((size_t)(y - part.y) * (size_t)part.im.w + (size_t)(want.x - part.x)) * c;
        if (memcmp(a, b, (size_t)want.w * c) != 0)
            fail_msg("%s: %d x %d, part (%d, %d) %d x %d: row %d differs", what, whole->w, whole->h, want.x, want.y,
                     want.w, want.h, y);
    }
    image_free(&part.im);
}

static void check_parts(const struct fixture *f, struct rng *r, int channels, const char *what)
{
    struct buf file = {0};
    struct image whole;
    struct err e = {0};
    fixture_jpeg(&file, f);
    assert_int_equal(image_decode(file.data, file.len, channels, &whole, &e), 0);
    for (int i = 0; i < 12; i++) {
        struct rect want = {.w = roll(r, 1, f->w), .h = roll(r, 1, f->h)};
        want.x = roll(r, 0, f->w - want.w);
        want.y = roll(r, 0, f->h - want.h);
        check_part(&file, &whole, want, what);
    }
    image_free(&whole);
    buf_free(&file);
}

static void a_part_of_a_jpeg_has_the_bits_of_the_whole(void **state)
{
    static const int ratios[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {4, 2}};
    struct rng r = dice(1);
    for (size_t k = 0; k < sizeof ratios / sizeof *ratios; k++)
        for (int i = 0; i < 60; i++) {
            char what[64];
            struct fixture f = {.w = roll(&r, 1, 150), .h = roll(&r, 1, 150), .textured = true};
            f.across = ratios[k][0];
            f.down = ratios[k][1];
            f.restart = roll(&r, 0, 3);
            f.progressive = i % 10 == 0;
            snprintf(what, sizeof what, "chroma %d x %d%s", f.across, f.down, f.progressive ? ", progressive" : "");
            check_parts(&f, &r, 3, what);
        }
}

static void a_part_of_a_grey_or_cmyk_jpeg_has_the_bits_of_the_whole(void **state)
{
    static const enum fixture_kind kinds[] = {FIXTURE_GREY, FIXTURE_CMYK, FIXTURE_YCCK, FIXTURE_RGB};
    struct rng r = dice(2);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int channels = 1; channels <= 3; channels += 2)
            for (int i = 0; i < 12; i++)
                check_parts(
                    &(struct fixture){.w = roll(&r, 1, 90), .h = roll(&r, 1, 90), .kind = kinds[k], .textured = true},
                    &r, channels, "kind");
}

/* Cut short or damaged outside of what is wanted, a file is refused all the same. */
static void damage_outside_of_the_part_is_damage(void **state)
{
    struct buf file = {0};
    struct rect top = {.w = 16, .h = 8};
    const struct want want = {.choose = choose_rect, .arg = &top};
    fixture_jpeg(&file, &(struct fixture){.w = 100, .h = 100, .textured = true});
    for (size_t cut = 2; cut < file.len / 2; cut += file.len / 9) {
        struct region part = {0};
        struct err e = {0};
        assert_int_equal(image_decode_part(file.data, file.len - cut, 3, &want, &part, &e), ERR_DATA);
        image_free(&part.im);
    }
    buf_free(&file);
}

/* --- scaling */

static void avx2_gives_the_bits_of_plain_c(void **state)
{
    struct resample_rows rows = {0};
    struct rng r = dice(3);
    if (resample_best() == &resample_plain) {
        print_message("# SKIP no AVX2\n");
        skip();
    }
    for (int i = 0; i < 400; i++) {
        struct image im = noise(&r, roll(&r, 1, 200), roll(&r, 1, 100), i % 4 ? 3 : 1);
        const int w = roll(&r, 1, 120), h = roll(&r, 1, 120);
        const struct crop c = {.w = roll(&r, 1, im.w), .h = roll(&r, 1, im.h), .flip = i % 2};
        struct crop at = c;
        at.x = roll(&r, 0, im.w - c.w);
        at.y = roll(&r, 0, im.h - c.h);
        const struct resample how = resample_crop(i / 2 % 2 ? FILTER_BICUBIC : FILTER_BILINEAR, &at, w, h);
        const struct region whole = {.im = im};
        const size_t n = (size_t)w * (size_t)h * (size_t)im.c;
        uint8_t *out[2] = {malloc(n), malloc(n)};
        struct resampler s;
        assert_int_equal(resampler_init(&s, &how, NULL), 0);
        for (int k = 0; k < 2; k++) {
            s.kernels = k ? &resample_plain : resample_best();
            assert_int_equal(resampler_run(&s, &whole, &rows, out[k], NULL), 0);
        }
        if (memcmp(out[0], out[1], n) != 0)
            fail_msg("%d x %d of %d x %d to %d x %d differs", c.w, c.h, im.w, im.h, w, h);
        free(out[0]);
        free(out[1]);
        resampler_free(&s);
        image_free(&im);
    }
    free(rows.at);
}

/* What the filter may read at most. */
static double overlap(double a0, double a1, double b0, double b1)
{
    const double lo = a0 > b0 ? a0 : b0, hi = a1 < b1 ? a1 : b1;
    return hi > lo ? hi - lo : 0;
}

/* OpenCV's INTER_AREA as its documentation defines it: every output pixel is the mean of the source over its square. */
static double area_mean(const struct image *im, int x, int y, int ch, int w, int h)
{
    const double sx = (double)im->w / w, sy = (double)im->h / h;
    double sum = 0;
    for (int v = 0; v < im->h; v++)
        for (int u = 0; u < im->w; u++) {
            const double share = overlap(u, u + 1, x * sx, (x + 1) * sx) * overlap(v, v + 1, y * sy, (y + 1) * sy);
            if (share > 0)
                sum += share * im->px[((size_t)v * (size_t)im->w + (size_t)u) * (size_t)im->c + (size_t)ch];
        }
    return sum / (sx * sy);
}

static void check_caffe2(const struct input_options *o, const struct image *im, const uint8_t *got, int x0, int y0,
                         int w, int h, bool flip)
{
    for (int y = 0; y < o->size; y++)
        for (int x = 0; x < o->size; x++)
            for (int ch = 0; ch < im->c; ch++) {
                const int from = im->c == 3 ? 2 - ch : ch; /* BGR */
                const double want = area_mean(im, x0 + (flip ? o->size - 1 - x : x), y0 + y, from, w, h);
                const double d = got[((size_t)y * (size_t)o->size + (size_t)x) * (size_t)im->c + (size_t)ch] - want;
                if (!(d >= -0.5 - 1e-9 && d <= 0.5 + 1e-9))
                    fail_msg("%d x %d to %d x %d: pixel (%d, %d) channel %d is off by %g", im->w, im->h, w, h, x, y, ch,
                             d);
            }
}

static void caffe2_scales_by_area_and_takes_the_centre_in_bgr(void **state)
{
    static const int sizes[][2] = {{61, 40}, {40, 61}, {32, 32}, {16, 16}, {17, 11}, {48, 32}, {9, 90}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct rng r = dice(4 + i);
        struct input_options o = {.kind = INPUT_CAFFE2, .size = 12, .scale = 16, .channels = i == 3 ? 1 : 3};
        struct image im = noise(&r, sizes[i][0], sizes[i][1], o.channels);
        struct buf file = {0};
        uint8_t got[12 * 12 * 3];
        as_pnm(&im, &file);
        assert_int_equal(input_check(&o, NULL), 0);
        assert_int_equal(input_load(&o, scratch, file.data, file.len, (struct showing){0}, got, NULL), 0);
        const int w = im.w < im.h ? 16 : 16 * im.w / im.h, h = im.w < im.h ? 16 * im.h / im.w : 16;
        check_caffe2(&o, &im, got, (w - 12) / 2, (h - 12) / 2, w, h, false);
        buf_free(&file);
        image_free(&im);
    }
}

/* In training: every place and both directions come up, and each is a true crop. */
static void caffe2_crops_and_flips_at_random_in_training(void **state)
{
    struct input_options o = {.kind = INPUT_CAFFE2, .size = 14, .scale = 16, .channels = 3, .training = true};
    struct rng r = dice(20);
    struct image im = noise(&r, 20, 16, 3);
    struct buf file = {0};
    static uint8_t crops[7 * 3 * 2][14 * 14 * 3];
    int times[7 * 3 * 2] = {0}, n = 0;
    as_pnm(&im, &file);
    assert_int_equal(input_check(&o, NULL), 0);
    for (uint64_t id = 0; id < 4200; id++) {
        uint8_t got[14 * 14 * 3];
        int k = 0;
        assert_int_equal(input_load(&o, scratch, file.data, file.len, (struct showing){1, (uint32_t)id, 0}, got, NULL),
                         0);
        while (k < n && memcmp(crops[k], got, sizeof got) != 0)
            k++;
        if (k == n) {
            assert_true(n < 42);
            memcpy(crops[n++], got, sizeof got);
        }
        times[k]++;
    }
    assert_int_equal(n, 42); /* 7 x 3 places, mirrored or not */
    for (int k = 0; k < n; k++)
        assert_in_range(times[k], 60, 150); /* 100 expected, deviation 10 */
    for (int x = 0; x <= 6; x++)
        for (int flip = 0; flip < 2; flip++) {
            int found = 0;
            for (int k = 0; k < n; k++) {
                const uint8_t *corner = crops[k] + (flip ? 13 * 3 : 0), *src = im.px + ((size_t)2 * 20 + (size_t)x) * 3;
                found += corner[0] == src[2] && corner[1] == src[1] && corner[2] == src[0];
            }
            assert_true(found >= 1);
        }
    buf_free(&file);
    image_free(&im);
}

static void plain_changes_nothing_of_a_picture_of_its_size(void **state)
{
    struct rng r = dice(21);
    for (int c = 1; c <= 3; c += 2)
        for (int training = 0; training < 2; training++) {
            struct input_options o = {.kind = INPUT_PLAIN, .size = 28, .channels = c, .training = training};
            struct image im = noise(&r, 28, 28, c);
            struct buf file = {0};
            uint8_t got[28 * 28 * 3];
            as_pnm(&im, &file);
            assert_int_equal(input_check(&o, NULL), 0);
            assert_int_equal(input_load(&o, scratch, file.data, file.len, (struct showing){5, 6, 0}, got, NULL), 0);
            assert_memory_equal(got, im.px, 28 * 28 * (size_t)c);
            buf_free(&file);
            image_free(&im);
        }
}

static void cifar_pads_by_4_and_crops_at_random_in_training(void **state)
{
    struct input_options o = {.kind = INPUT_CIFAR, .size = 32, .channels = 3, .training = true};
    struct rng r = dice(22);
    struct image im = noise(&r, 32, 32, 3);
    struct buf file = {0};
    static int times[9][9][2];
    as_pnm(&im, &file);
    assert_int_equal(input_check(&o, NULL), 0);
    for (uint64_t id = 0; id < 3240; id++) {
        uint8_t got[32][32][3];
        int found = 0;
        assert_int_equal(
            input_load(&o, scratch, file.data, file.len, (struct showing){0, (uint32_t)id, 0}, &got[0][0][0], NULL), 0);
        for (int at = 0; at < 9 * 9 * 2 && !found; at++) {
            const int dy = at / 18 - 4, dx = at / 2 % 9 - 4, flip = at % 2;
            bool same = true;
            for (int p = 0; p < 32 * 32 && same; p++) {
                static const uint8_t zero[3];
                const int sy = p / 32 + dy, x = p % 32, sx = (flip ? 31 - x : x) + dx;
                const bool inside = sy >= 0 && sy < 32 && sx >= 0 && sx < 32;
                same = memcmp(got[p / 32][x], inside ? im.px + ((size_t)sy * 32 + (size_t)sx) * 3 : zero, 3) == 0;
            }
            if (same)
                times[dy + 4][dx + 4][flip] += found = 1;
        }
        assert_int_equal(found, 1);
    }
    for (int i = 0; i < 162; i++)
        assert_in_range((&times[0][0][0])[i], 3, 50); /* 20 expected, deviation 4.5 */
    o.training = false;
    uint8_t got[32 * 32 * 3];
    assert_int_equal(input_load(&o, scratch, file.data, file.len, (struct showing){0}, got, NULL), 0);
    assert_memory_equal(got, im.px, sizeof got);
    buf_free(&file);
    image_free(&im);
}

/* Any size of picture and of crop: whole-picture and partial decodes end in the same bits. */
static void torch_input_equals_decode_then_crop_then_resize(void **state)
{
    struct rng r = dice(23);
    for (int i = 0; i < 120; i++) {
        struct fixture f = {.w = roll(&r, 1, 200), .h = roll(&r, 1, 200), .textured = true};
        struct input_options o = {.size = roll(&r, 1, 64),
                                  .channels = i % 5 ? 3 : 1,
                                  .training = i % 2,
                                  .augment = {0.08, 1, 3.0 / 4, 4.0 / 3, 0.5}};
        struct buf file = {0};
        struct image im;
        const size_t n = (size_t)o.size * (size_t)o.size * (size_t)o.channels;
        uint8_t *want = malloc(n), *got = malloc(n);
        fixture_jpeg(&file, &f);
        assert_int_equal(input_check(&o, NULL), 0);
        assert_int_equal(image_decode(file.data, file.len, o.channels, &im, NULL), 0);
        struct crop c = augment_crop(&o.augment, numbers(0, 2, (uint64_t)i), im.w, im.h);
        assert_int_equal(o.training ? fixture_crop_resize(&im, &c, o.size, o.size, want)
                                    : fixture_eval(&im, o.scale, o.size, want),
                         0);
        assert_int_equal(input_load(&o, scratch, file.data, file.len, (struct showing){2, (uint32_t)i, 0}, got, NULL),
                         0);
        assert_memory_equal(got, want, n);
        free(want);
        free(got);
        image_free(&im);
        buf_free(&file);
    }
}

static void every_size_of_input_comes_out(void **state)
{
    static const int sizes[] = {32, 64, 227};
    struct buf file = {0};
    fixture_jpeg(&file, &(struct fixture){.w = 300, .h = 231, .colour = {200, 100, 50}});
    uint8_t *got = malloc(227 * 227 * 3);
    for (int i = 0; i < 3; i++)
        for (int kind = INPUT_TORCH; kind <= INPUT_CIFAR; kind++)
            for (int channels = 1; channels <= 3; channels += 2) {
                struct input_options o = {.kind = (enum input_kind)kind, .size = sizes[i], .channels = channels};
                const int n = sizes[i] * sizes[i] * channels;
                memset(got, 0, (size_t)n);
                assert_int_equal(input_check(&o, NULL), 0);
                assert_int_equal(input_load(&o, scratch, file.data, file.len, (struct showing){0}, got, NULL), 0);
                const int first = channels == 1 ? 124 : kind == INPUT_CAFFE2 ? 50 : 200;
                assert_in_range(got[0], first - 4, first + 4);
                assert_memory_equal(got, got + n - channels, (size_t)channels);
            }
    free(got);
    buf_free(&file);
}

static void a_crop_above_the_scaled_picture_is_refused_with_both_numbers(void **state)
{
    struct input_options o = {.kind = INPUT_CAFFE2, .size = 299, .channels = 3};
    struct err e = {0};
    assert_int_equal(input_check(&o, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "--image-size 299"));
    assert_non_null(strstr(e.text, "--scale 256"));
    o.scale = 320;
    assert_int_equal(input_check(&o, &e), 0);
}

static void caffe2_numbers_are_x_less_128_over_128(void **state)
{
    float mean[4], std[4];
    input_normalization(INPUT_CAFFE2, 3, mean, std);
    for (int x = 0; x < 256; x += 51)
        for (int c = 0; c < 3; c++)
            assert_true(fabs(((double)x / 255 - (double)mean[c]) / (double)std[c] - (x - 128) / 128.0) < 1e-6);
    input_normalization(INPUT_PLAIN, 1, mean, std);
    assert_true(mean[0] == 0 && std[0] == 1);
}

/* Nothing of 13 million pixels stays when their picture is done: decoded in part, as a whole, or for a cache. */
static void large_pictures_leave_no_memory_behind(void **state)
{
    (void)state;
    struct input_options o = {.kind = INPUT_PLAIN, .size = 8, .channels = 3};
    struct buf jpeg = {0}, pnm = {0};
    struct err e = {0};
    struct image whole, im = {.px = calloc(4000 * 3300, 3), .w = 4000, .h = 3300, .c = 3};
    uint8_t px[8 * 8 * 3];
    fixture_jpeg(&jpeg, &(struct fixture){.w = im.w, .h = im.h, .kind = FIXTURE_RGB});
    as_pnm(&im, &pnm);
    const size_t before = mallinfo2().hblkhd; /* in mappings of their own, as all of this size are */
    for (int i = 0; i < 3; i++) {
        const struct buf *file = i == 0 ? &jpeg : &pnm;
        if (i < 2)
            assert_int_equal(input_load(&o, scratch, file->data, file->len, (struct showing){0}, px, &e), 0);
        else if (input_decode(&o, scratch, file->data, file->len, &whole, &e) != 0 ||
                 input_transform(&o, scratch, &whole, (struct showing){0}, px, &e) != 0)
            fail_msg("%s", e.text);
        if (mallinfo2().hblkhd > before + (32 << 20))
            fail_msg("case %d leaves %zu bytes", i, mallinfo2().hblkhd - before);
    }
    free(im.px);
    buf_free(&jpeg);
    buf_free(&pnm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_of_a_jpeg_has_the_bits_of_the_whole),
        cmocka_unit_test(a_part_of_a_grey_or_cmyk_jpeg_has_the_bits_of_the_whole),
        cmocka_unit_test(damage_outside_of_the_part_is_damage),
        cmocka_unit_test(avx2_gives_the_bits_of_plain_c),
        cmocka_unit_test(caffe2_scales_by_area_and_takes_the_centre_in_bgr),
        cmocka_unit_test(caffe2_crops_and_flips_at_random_in_training),
        cmocka_unit_test(plain_changes_nothing_of_a_picture_of_its_size),
        cmocka_unit_test(cifar_pads_by_4_and_crops_at_random_in_training),
        cmocka_unit_test(torch_input_equals_decode_then_crop_then_resize),
        cmocka_unit_test(every_size_of_input_comes_out),
        cmocka_unit_test(a_crop_above_the_scaled_picture_is_refused_with_both_numbers),
        cmocka_unit_test(large_pictures_leave_no_memory_behind),
        cmocka_unit_test(caffe2_numbers_are_x_less_128_over_128),
    };
    return cmocka_run_group_tests(tests, open_scratch, close_scratch);
}
