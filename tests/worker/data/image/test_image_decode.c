/* Every kind of JPEG and PNG that data sets hold, and every way a file can be broken. Fixtures are made here with
 * libjpeg and libpng. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "tests/worker/data/fixture.h"
#include "worker/data/image/image.h"
#ifdef HAVE_PNG
#include <png.h>
#include <zlib.h>
#endif

static void decode_ok(const struct buf *b, int channels, struct image *im)
{
    struct err e = {0};
    if (image_decode(b->data, b->len, channels, im, &e) != 0)
        fail_msg("refused: %s", e.text);
}

static void decode_fails(const struct buf *b, const char *word)
{
    struct err e = {0};
    struct image im = {0};
    int rc = image_decode(b->data, b->len, 3, &im, &e);
    if (rc != ERR_DATA || !strstr(e.text, word))
        fail_msg("got %s '%s', expected ERR_DATA with '%s'", err_name(rc), e.text, word);
    assert_null(im.px);
}

static void check_near(const struct image *im, size_t at, int r, int g, int b, int slack)
{
    const uint8_t *p = im->px + at * 3;
    if (abs(p[0] - r) > slack || abs(p[1] - g) > slack || abs(p[2] - b) > slack)
        fail_msg("pixel %zu is (%d, %d, %d), expected (%d, %d, %d)", at, p[0], p[1], p[2], r, g, b);
}

static void a_colour_jpeg_comes_back_as_drawn(void **state)
{
    for (int progressive = 0; progressive < 2; progressive++) {
        struct buf b = {0};
        struct image im;
        fixture_jpeg(&b,
                     &(struct fixture){
                         .w = 33, .h = 17, .kind = FIXTURE_RGB, .colour = {200, 90, 30}, .progressive = progressive});
        decode_ok(&b, 3, &im);
        assert_int_equal(im.w, 33);
        assert_int_equal(im.h, 17);
        assert_int_equal(im.c, 3);
        check_near(&im, 0, 200, 90, 30, 3);
        check_near(&im, 33 * 17 - 1, 200, 90, 30, 3);
        image_free(&im);
        buf_free(&b);
    }
}

static void a_progressive_jpeg_equals_the_baseline_one(void **state)
{
    struct buf b[2] = {{0}, {0}};
    struct image im[2];
    for (int i = 0; i < 2; i++) {
        fixture_jpeg(&b[i],
                     &(struct fixture){.w = 40, .h = 40, .kind = FIXTURE_RGB, .textured = true, .progressive = i});
        decode_ok(&b[i], 3, &im[i]);
    }
    assert_memory_equal(im[0].px, im[1].px, 40 * 40 * 3);
    for (int i = 0; i < 2; i++) {
        image_free(&im[i]);
        buf_free(&b[i]);
    }
}

static void grey_is_replicated_and_colour_is_reduced_to_luma(void **state)
{
    struct buf b = {0};
    struct image im;
    fixture_jpeg(&b, &(struct fixture){.w = 9, .h = 9, .kind = FIXTURE_GREY, .colour = {77}});
    decode_ok(&b, 3, &im);
    check_near(&im, 40, 77, 77, 77, 1);
    image_free(&im);
    decode_ok(&b, 1, &im);
    assert_int_equal(im.c, 1);
    assert_in_range(im.px[40], 76, 78);
    image_free(&im);
    buf_clear(&b);
    fixture_jpeg(&b, &(struct fixture){.w = 9, .h = 9, .kind = FIXTURE_RGB, .colour = {255, 0, 0}});
    decode_ok(&b, 1, &im);
    assert_in_range(im.px[40], 74, 78); /* 0.299 * 255 = 76 */
    image_free(&im);
    buf_free(&b);
}

/* Stored inverted, as Adobe's programs do: 255 is no ink. c, m, y, k below are stored values; r = c * k / 255. */
static void cmyk_and_ycck_become_rgb(void **state)
{
    static const enum fixture_kind kinds[] = {FIXTURE_CMYK, FIXTURE_YCCK};
    for (int i = 0; i < 2; i++) {
        struct buf b = {0};
        struct image im;
        fixture_jpeg(&b, &(struct fixture){.w = 16, .h = 16, .kind = kinds[i], .colour = {255, 128, 51, 200}});
        decode_ok(&b, 3, &im);
        check_near(&im, 100, 200, 100, 40, 3);
        image_free(&im);
        decode_ok(&b, 1, &im);
        assert_in_range(im.px[100], 119, 126); /* .299 * 200 + .587 * 100 + .114 * 40 = 123 */
        image_free(&im);
        buf_free(&b);
    }
}

static void exif_orientation_is_ignored(void **state)
{
    struct buf b = {0};
    struct image im;
    fixture_jpeg(
        &b, &(struct fixture){.w = 30, .h = 10, .kind = FIXTURE_RGB, .colour = {9, 99, 199}, .exif_rotated = true});
    assert_non_null(memmem(b.data, b.len, "Exif", 4));
    decode_ok(&b, 3, &im);
    assert_int_equal(im.w, 30);
    assert_int_equal(im.h, 10);
    image_free(&im);
    buf_free(&b);
}

static void stray_bytes_after_the_picture_do_no_harm(void **state)
{
    struct buf b = {0};
    struct image im;
    fixture_jpeg(&b, &(struct fixture){.w = 16, .h = 16, .kind = FIXTURE_RGB});
    buf_addstr(&b, "trailing notes of some camera");
    decode_ok(&b, 3, &im);
    image_free(&im);
    buf_free(&b);
}

static void a_truncated_jpeg_is_refused_wherever_it_ends(void **state)
{
    struct buf b = {0};
    fixture_jpeg(&b, &(struct fixture){.w = 48, .h = 48, .kind = FIXTURE_RGB, .textured = true});
    size_t whole = b.len;
    for (size_t n = 0; n + 2 <= whole; n += 7) {
        b.len = n;
        decode_fails(&b, "");
    }
    b.len = whole / 2;
    decode_fails(&b, "not a whole JPEG image");
    buf_free(&b);
}

static void a_corrupt_jpeg_is_refused_and_nothing_is_printed(void **state)
{
    struct buf b = {0};
    fixture_jpeg(&b, &(struct fixture){.w = 64, .h = 64, .kind = FIXTURE_RGB, .textured = true});
    memset(b.data + b.len / 2, 0xff, 40); /* no entropy code has so many */
    int quiet = fixture_capture_stderr();
    decode_fails(&b, "not a whole JPEG image");
    assert_int_equal(fixture_captured_bytes(quiet), 0);
    buf_free(&b);
}

/* Any byte anywhere may be wrong: refused or not, never a crash; the sanitizers watch. */
static void no_flipped_byte_crashes_the_decoder(void **state)
{
    struct buf b = {0};
    fixture_jpeg(&b, &(struct fixture){.w = 24, .h = 24, .kind = FIXTURE_RGB, .textured = true, .progressive = true});
    int refused = 0;
    for (size_t i = 2; i < b.len; i++) {
        struct image im = {0};
        b.data[i] = (char)(b.data[i] ^ 0x55);
        refused += image_decode(b.data, b.len, 3, &im, NULL) < 0;
        b.data[i] = (char)(b.data[i] ^ 0x55);
        image_free(&im);
    }
    assert_in_range(refused, 1, b.len);
    buf_free(&b);
}

static void text_and_nothing_are_not_images(void **state)
{
    struct buf b = {0};
    decode_fails(&b, "empty");
    buf_addstr(&b, "<html>404</html>");
    decode_fails(&b, "neither a JPEG nor a PNG");
    buf_free(&b);
}

static void what_the_first_bytes_are_of_is_told(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *word;
    } cases[] = {
        {"RIFF\x10\0\0\0WEBPVP8 ", 16, "WebP image"},
        {"GIF89a", 6, "but a GIF image"},
        {"BM6\0\0\0", 6, "but a BMP image"},
        {"II*\0", 4, "but a TIFF image"},
        {" \n<!DOCTYPE html>", 17, "but HTML"},
        {"\x1f\x8b\x08", 3, "but a gzip file"},
        {"P3\n1 1\n255\n", 11, "but a PPM image as text"},
        {"\0\1\2\3", 4, "but bytes that begin with 00 01 02 03"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b = {0};
        buf_add(&b, cases[i].bytes, cases[i].n);
        decode_fails(&b, cases[i].word);
        buf_free(&b);
    }
}

/* A progressive file of a kilobyte would take a gigabyte of coefficients. */
static void pixels_that_the_bytes_cannot_hold_are_refused_by_the_header(void **state)
{
    struct buf b = {0};
    fixture_jpeg(&b, &(struct fixture){.w = 16, .h = 16, .kind = FIXTURE_RGB, .progressive = true});
    unsigned char *sof = memmem(b.data, b.len, "\xff\xc2", 2);
    assert_non_null(sof);
    memcpy(sof + 5, "\x32\xc8\x32\xc8", 4); /* height, width */
    decode_fails(&b, "bytes for 13000 x 13000 pixels");
    buf_free(&b);
}

static void an_image_of_60000_by_60000_is_refused_by_its_header(void **state)
{
    struct buf b = {0};
    fixture_jpeg(&b, &(struct fixture){.w = 16, .h = 16, .kind = FIXTURE_RGB});
    unsigned char *sof = memmem(b.data, b.len, "\xff\xc0", 2);
    assert_non_null(sof);
    memcpy(sof + 5, "\xea\x60\xea\x60", 4); /* height, width */
    decode_fails(&b, "60000 x 60000 pixels exceeds the limit");
    buf_free(&b);
}

#ifdef HAVE_PNG
static void make_png(struct buf *out, uint32_t format, const void *px, uint32_t w, uint32_t h)
{
    png_image im = {.version = PNG_IMAGE_VERSION, .width = w, .height = h, .format = format};
    png_alloc_size_t n = PNG_IMAGE_PNG_SIZE_MAX(im);
    void *data = malloc(n);
    assert_true(png_image_write_to_memory(&im, data, &n, 0, px, 0, NULL));
    buf_add(out, data, n);
    free(data);
}

static void a_png_is_known_by_its_content_and_loses_its_alpha(void **state)
{
    static const uint8_t rgba[] = {10, 20, 30, 255, 40, 50, 60, 0}, rgb[] = {10, 20, 30, 40, 50, 60};
    struct buf b = {0};
    struct image im;
    make_png(&b, PNG_FORMAT_RGBA, rgba, 2, 1);
    decode_ok(&b, 3, &im);
    assert_int_equal(im.w, 2);
    assert_memory_equal(im.px, rgb, sizeof rgb);
    image_free(&im);
    buf_free(&b);
}

static void a_grey_png_is_replicated(void **state)
{
    static const uint8_t grey[] = {0, 100, 255, 7, 8, 9};
    struct buf b = {0};
    struct image im;
    make_png(&b, PNG_FORMAT_GRAY, grey, 3, 2);
    decode_ok(&b, 1, &im);
    assert_memory_equal(im.px, grey, sizeof grey);
    image_free(&im);
    decode_ok(&b, 3, &im);
    for (size_t i = 0; i < sizeof grey; i++)
        check_near(&im, i, grey[i], grey[i], grey[i], 0);
    image_free(&im);
    buf_free(&b);
}

static void a_broken_png_is_refused(void **state)
{
    uint8_t px[20 * 20 * 3];
    struct buf b = {0};
    for (size_t i = 0; i < sizeof px; i++)
        px[i] = (uint8_t)(i * i >> 3);
    make_png(&b, PNG_FORMAT_RGB, px, 20, 20);
    size_t whole = b.len;
    for (size_t n = 8; n < whole; n += 5) {
        b.len = n;
        decode_fails(&b, "not a whole PNG image");
    }
    b.len = whole;
    b.data[whole / 2] = (char)(b.data[whole / 2] ^ 1);
    decode_fails(&b, "not a whole PNG image");
    buf_free(&b);
}
/* libpng would take the memory first: a gigabyte for the one, half of that for the other. */
static void sizes_that_a_png_does_not_hold_are_refused(void **state)
{
    static const uint8_t px[12] = {0};
    struct buf b = {0};
    make_png(&b, PNG_FORMAT_RGB, px, 2, 2);
    unsigned char *idat = memmem(b.data, b.len, "IDAT", 4);
    assert_non_null(idat);
    const unsigned char text[] = "\x40\0\0\0iTXtComment";
    const size_t before = (size_t)(idat - 4 - (unsigned char *)b.data);
    struct buf chunk = {0}, size = {0};
    buf_add(&chunk, b.data, before);
    buf_add(&chunk, text, sizeof text - 1);
    buf_add(&chunk, b.data + before, b.len - before);
    decode_fails(&chunk, "a chunk of 1073741824 bytes, of which ");
    buf_add(&size, b.data, b.len);
    memcpy(size.data + 16, "\0\0\x32\xc8\0\0\x32\xc8", 8);
    const uint32_t sum = (uint32_t)crc32(0, (unsigned char *)size.data + 12, 17);
    memcpy(size.data + 29, (uint8_t[]){(uint8_t)(sum >> 24), (uint8_t)(sum >> 16), (uint8_t)(sum >> 8), (uint8_t)sum},
           4);
    decode_fails(&size, "bytes for 13000 x 13000 pixels");
    buf_free(&size);
    buf_free(&chunk);
    buf_free(&b);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_colour_jpeg_comes_back_as_drawn),
        cmocka_unit_test(a_progressive_jpeg_equals_the_baseline_one),
        cmocka_unit_test(grey_is_replicated_and_colour_is_reduced_to_luma),
        cmocka_unit_test(cmyk_and_ycck_become_rgb),
        cmocka_unit_test(exif_orientation_is_ignored),
        cmocka_unit_test(stray_bytes_after_the_picture_do_no_harm),
        cmocka_unit_test(a_truncated_jpeg_is_refused_wherever_it_ends),
        cmocka_unit_test(a_corrupt_jpeg_is_refused_and_nothing_is_printed),
        cmocka_unit_test(no_flipped_byte_crashes_the_decoder),
        cmocka_unit_test(text_and_nothing_are_not_images),
        cmocka_unit_test(what_the_first_bytes_are_of_is_told),
        cmocka_unit_test(pixels_that_the_bytes_cannot_hold_are_refused_by_the_header),
        cmocka_unit_test(an_image_of_60000_by_60000_is_refused_by_its_header),
#ifdef HAVE_PNG
        cmocka_unit_test(a_png_is_known_by_its_content_and_loses_its_alpha),
        cmocka_unit_test(a_grey_png_is_replicated),
        cmocka_unit_test(a_broken_png_is_refused),
        cmocka_unit_test(sizes_that_a_png_does_not_hold_are_refused),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
