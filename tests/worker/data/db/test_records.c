#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "worker/data/db/make_db.h"
#include "worker/data/db/record.h"
#include "worker/data/image/image.h"

static const enum record_format formats[] = {RECORD_DATUM, RECORD_TENSORPROTOS};

static void fails(const void *p, size_t n, const char *word)
{
    struct buf b = {0};
    struct err e = {0};
    int label;
    int rc = record_read(p, n, &b, &label, &e);
    if (rc != ERR_DATA || !strstr(e.text, word))
        fail_msg("got %s '%s', expected ERR_DATA with '%s'", err_name(rc), e.text, word);
    buf_free(&b);
}

static void a_file_comes_back_byte_for_byte(void **state)
{
    for (size_t i = 0; i < 2; i++) {
        struct buf rec = {0}, got = {0};
        struct err e = {0};
        int label = -1;
        assert_int_equal(record_write_encoded(formats[i], "\xff\xd8\xff\0\1", 5, 77, &rec, &e), 0);
        assert_int_equal(record_read(rec.data, rec.len, &got, &label, &e), 0);
        assert_int_equal(label, 77);
        assert_int_equal(got.len, 5);
        assert_memory_equal(got.data, "\xff\xd8\xff\0\1", 5);
        buf_free(&rec);
        buf_free(&got);
    }
}

static void pixels_come_back_whatever_the_order_in_the_record(void **state)
{
    for (int c = 1; c <= 3; c += 2)
        for (size_t i = 0; i < 2; i++) {
            uint8_t px[4 * 2 * 3];
            struct image im = {.px = px, .w = 4, .h = 2, .c = c}, back = {0};
            struct buf rec = {0}, got = {0};
            struct err e = {0};
            int label = -1;
            for (size_t k = 0; k < sizeof px; k++)
                px[k] = (uint8_t)(k * 7);
            assert_int_equal(record_write_raw(formats[i], &im, 3, &rec, &e), 0);
            assert_int_equal(record_read(rec.data, rec.len, &got, &label, &e), 0);
            assert_int_equal(image_decode(got.data, got.len, c, &back, &e), 0);
            assert_int_equal(back.w, 4);
            assert_int_equal(back.h, 2);
            assert_memory_equal(back.px, px, (size_t)(8 * c));
            image_free(&back);
            buf_free(&rec);
            buf_free(&got);
        }
}

/* Bytes as Caffe's own library writes them: channels 1, height 1, width 2, data "ab", label 5. */
static void a_datum_of_caffes_bytes_is_read(void **state)
{
    static const char datum[] = "\x08\x01\x10\x01\x18\x02\x22\x02"
                                "ab\x28\x05";
    struct buf got = {0};
    struct err e = {0};
    int label = -1;
    assert_int_equal(record_read(datum, sizeof datum - 1, &got, &label, &e), 0);
    assert_int_equal(label, 5);
    assert_string_equal(got.data, "P5\n2 1\n255\nab");
    buf_free(&got);
}

/* Three planes: blue, green, red. */
static void planes_of_a_datum_are_blue_first(void **state)
{
    static const char datum[] = "\x08\x03\x10\x01\x18\x01\x22\x03"
                                "bgr\x28\x00";
    struct buf got = {0};
    struct err e = {0};
    int label = -1;
    assert_int_equal(record_read(datum, sizeof datum - 1, &got, &label, &e), 0);
    assert_string_equal(got.data, "P6\n1 1\n255\nrgb");
    buf_free(&got);
}

static void what_is_no_record_is_told(void **state)
{
    fails("", 0, "neither a Datum nor TensorProtos");
    fails("\x08", 1, "neither a Datum nor TensorProtos");
    fails("\x0a\xff\xff\xff\xff\x7f", 6, "neither a Datum nor TensorProtos");
    fails("\x22\x01x", 3, "a Datum without a label");
    fails("\x28\x01", 2, "a Datum without data (float_data is not read)");
    fails("\x08\x03\x10\x02\x18\x02\x22\x03"
          "abc\x28\x00",
          13, "3 channels holds 3 bytes");
    fails("\x08\x02\x10\x01\x18\x01\x22\x02"
          "ab\x28\x00",
          12, "2 channels");
    fails("\x08\x01\x10\xff\xff\xff\xff\x07\x18\xff\xff\xff\xff\x07\x22\x01"
          "a\x28\x00",
          19, "pixels");
}

/* What others' data bases hold, each in a sentence of its own. */
static void records_of_other_kinds_are_told_apart(void **state)
{
    fails("RIFF\x10\0\0\0WEBPVP8 ", 16, "but a WebP image");
    fails("\x80\4\x95\0", 4, "but a pickled object");
    fails("\xff\xd8\xff\xe0", 4, "but a JPEG image");
    fails("\x08\x01\x10\x01\x18\x01\x35\0\0\x80\x3f\x28\x01", 13, "a Datum with float_data");
    fails("\x22\x04\xff\xd8\xff\xe0\x28\x01", 8, "not marked as encoded, whose data is a JPEG image");
    /* TensorProtos: planes; INT64 label; floats */
    fails("\x0a\x0c\x0a\x03\x03\x02\x02\x10\x03\x2a\x03"
          "abc\x0a\x04\x10\x02\x20\x05",
          20, "is 3 x 2 x 2: planes (CHW) are not read");
    fails("\x0a\x02\x10\x04\x0a\x04\x10\x0a\x50\x05", 10,
          "no label (0 integers; expected one, as INT32: this is INT64)");
    fails("\x0a\x02\x10\x01\x0a\x04\x10\x02\x20\x05", 10, "no picture (type 1, floats");
}

static void no_cut_or_flipped_record_does_harm(void **state)
{
    for (size_t i = 0; i < 2; i++) {
        struct buf rec = {0}, got = {0};
        struct err e = {0};
        int label;
        assert_int_equal(record_write_encoded(formats[i], "0123456789", 10, 300, &rec, &e), 0);
        for (size_t n = 0; n < rec.len; n++) {
            buf_clear(&got);
            record_read(rec.data, n, &got, &label, &e);
            for (int bit = 0; bit < 8; bit++) {
                rec.data[n] = (char)(rec.data[n] ^ (1 << bit));
                buf_clear(&got);
                record_read(rec.data, rec.len, &got, &label, &e);
                rec.data[n] = (char)(rec.data[n] ^ (1 << bit));
            }
        }
        buf_free(&rec);
        buf_free(&got);
    }
}

/* LMDB and LevelDB are written in the order of keys. */
static void keys_rise_with_the_places_of_pictures(void **state)
{
    static const size_t all[] = {10, 100000000, 100000001, 4000000000};
    char before[MAKE_DB_KEY_MAX], key[MAKE_DB_KEY_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (size_t digit = 10; digit < all[i]; digit *= 10) {
            make_db_key(before, digit - 1, all[i], "z");
            const size_t length = make_db_key(key, digit, all[i], "a");
            assert_int_equal(length, strlen(key));
            assert_true(strcmp(before, key) < 0);
        }
    make_db_key(key, 7, 100000000, "a");
    assert_string_equal(key, "00000007_a");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_comes_back_byte_for_byte),
        cmocka_unit_test(pixels_come_back_whatever_the_order_in_the_record),
        cmocka_unit_test(a_datum_of_caffes_bytes_is_read),
        cmocka_unit_test(planes_of_a_datum_are_blue_first),
        cmocka_unit_test(what_is_no_record_is_told),
        cmocka_unit_test(records_of_other_kinds_are_told_apart),
        cmocka_unit_test(keys_rise_with_the_places_of_pictures),
        cmocka_unit_test(no_cut_or_flipped_record_does_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
