#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/base/err.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/ckpt/safetensors.h"

static const float weights[6] = {1, -2, 3.5f, 0, 1e-30f, 65504};
static const int64_t counter = 1234567890123;
static const uint8_t bytes[3] = {1, 2, 255};

static struct ckpt_tensor tensor(const char *name, enum dtype dtype, int ndim, int64_t a, int64_t b, const void *data)
{
    struct ckpt_tensor t = {.dtype = dtype, .ndim = ndim, .shape = {a, b}, .data = data};
    snprintf(t.name, sizeof t.name, "%s", name);
    return t;
}

/* A file with this header and data bytes of zeros; opened, expected to fail with code and a text that holds `says`. */
static void refuse(void **state, const char *header, size_t data, int code, const char *says)
{
    const char *path = scratch(state, "bad.safetensors");
    uint64_t n = strlen(header);
    char *file = calloc(1, 8 + n + data);
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n);
    scratch_write(path, file, 8 + n + data);
    free(file);
    struct safetensors *s = NULL;
    struct err e = {0};
    int rc = safetensors_open(&s, path, &e);
    if (rc != code || !strstr(e.text, says) || !strstr(e.text, path))
        fail_msg("%s: %s '%s' instead of %s '...%s...'", header, err_name(rc), e.text, err_name(code), says);
    assert_null(s);
}

static void what_is_written_is_read_back(void **state)
{
    const char *path = scratch(state, "a.safetensors");
    const struct ckpt_tensor t[] = {
        tensor("z.weight", DT_F32, 2, 2, 3, weights),
        tensor("bn.num_batches_tracked", DT_I64, 0, 0, 0, &counter),
        tensor("empty", DT_F32, 2, 0, 7, NULL),
        tensor("a \"quoted\\ name\"", DT_U8, 1, 3, 0, bytes),
    };
    uint32_t crc[4], got;
    struct safetensors *s;
    struct err e = {0};
    if (safetensors_write(path, t, 4, crc, &e) < 0 || safetensors_open(&s, path, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(safetensors_count(s), 4);
    for (int i = 0; i < 4; i++) {
        char room[64];
        int at = safetensors_find(s, t[i].name);
        assert_in_range(at, 0, 3);
        const struct ckpt_tensor *have = safetensors_at(s, (size_t)at);
        assert_int_equal(have->dtype, t[i].dtype);
        assert_int_equal(have->ndim, t[i].ndim);
        assert_memory_equal(have->shape, t[i].shape, sizeof(int64_t) * (size_t)t[i].ndim);
        assert_int_equal(safetensors_read(s, (size_t)at, room, &got, &e), 0);
        assert_int_equal(got, crc[i]);
        int64_t size;
        assert_int_equal(ckpt_tensor_bytes(have, &size), 0);
        if (size)
            assert_memory_equal(room, t[i].data, (size_t)size);
    }
    assert_int_equal(safetensors_find(s, "b"), -1);
    safetensors_close(s);
}

static void the_bytes_of_a_file_are_those_of_the_format(void **state)
{
    const char *path = scratch(state, "golden.safetensors");
    const struct ckpt_tensor t[] = {tensor("b", DT_U8, 1, 3, 0, bytes), tensor("a", DT_I64, 0, 0, 0, &counter)};
    struct err e;
    assert_int_equal(safetensors_write(path, t, 2, NULL, &e), 0);
    static const char want[] =
        "\x90\0\0\0\0\0\0\0"
        "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}       "
        "\xcb\x04\xfb\x71\x1f\x01\0\0\x01\x02\xff";
    size_t n;
    char *have = scratch_read(path, &n);
    assert_int_equal(n, sizeof want - 1);
    assert_memory_equal(have, want, n);
    free(have);
}

static void the_order_of_the_input_does_not_change_the_file(void **state)
{
    const struct ckpt_tensor t[] = {tensor("x", DT_F32, 2, 2, 3, weights), tensor("y", DT_U8, 1, 3, 0, bytes)};
    const struct ckpt_tensor u[] = {t[1], t[0]};
    struct err e;
    size_t n, m;
    assert_int_equal(safetensors_write(scratch(state, "1"), t, 2, NULL, &e), 0);
    assert_int_equal(safetensors_write(scratch(state, "2"), u, 2, NULL, &e), 0);
    char *a = scratch_read(scratch(state, "1"), &n), *b = scratch_read(scratch(state, "2"), &m);
    assert_int_equal(n, m);
    assert_memory_equal(a, b, n);
    free(a);
    free(b);
}

static void tensors_that_cannot_be_stored_are_refused_and_leave_no_file(void **state)
{
    const char *path = scratch(state, "no");
    struct ckpt_tensor long_name = tensor("x", DT_U8, 1, 3, 0, bytes);
    memset(long_name.name, 'n', sizeof long_name.name);
    const struct {
        struct ckpt_tensor t[2];
        int code;
        const char *says;
    } cases[] = {
        {{tensor("twice", DT_U8, 1, 3, 0, bytes), tensor("twice", DT_U8, 1, 3, 0, bytes)}, -EEXIST, "'twice'"},
        {{tensor("", DT_U8, 1, 3, 0, bytes)}, -EINVAL, "cannot be named ''"},
        {{tensor("__metadata__", DT_U8, 1, 3, 0, bytes)}, -EINVAL, "'__metadata__'"},
        {{tensor("minus", DT_U8, 1, -3, 0, bytes)}, -EINVAL, "U8 [-3]"},
        {{tensor("huge", DT_F32, 2, INT64_MAX / 2, 3, bytes)}, -EINVAL, "'huge'"},
        {{tensor("no data", DT_U8, 1, 3, 0, NULL)}, -EINVAL, "'no data'"},
        {{long_name}, -EINVAL, "longer than 111"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct ckpt_tensor t[2] = {cases[i].t[0], cases[i].t[1]};
        int rc = safetensors_write(path, t, t[1].name[0] ? 2 : 1, NULL, &e);
        if (rc != cases[i].code || !strstr(e.text, cases[i].says))
            fail_msg("case %zu: %s '%s' instead of %s '%s'", i, err_name(rc), e.text, err_name(cases[i].code),
                     cases[i].says);
        assert_int_equal(access(path, F_OK), -1);
    }
}

static void an_existing_file_is_not_overwritten(void **state)
{
    const char *path = scratch(state, "old");
    scratch_write(path, "old", 3);
    struct err e;
    assert_int_equal(safetensors_write(path, NULL, 0, NULL, &e), -EEXIST);
    assert_non_null(strstr(e.text, path));
    size_t n;
    char *have = scratch_read(path, &n);
    assert_string_equal(have, "old");
    free(have);
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void malformed_headers_are_refused_with_a_reason(void **state)
{
    refuse(state, "", 0, ERR_CORRUPT, "not a JSON object");
    refuse(state, "{\"a\":", 0, ERR_CORRUPT, "not a JSON object");
    refuse(state, "[]", 0, ERR_CORRUPT, "not a JSON object");
    refuse(state, "{}x", 0, ERR_CORRUPT, "after the JSON object");
    refuse(state, "{\"a\":5}", 0, ERR_CORRUPT, "'a' has no dtype");
    refuse(state, "{\"a\":{\"dtype\":\"F32\"}}", 0, ERR_CORRUPT, "'a' has no shape");
    refuse(state, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, ERR_CORRUPT, "'a' has no data_offsets");
    refuse(state, "{\"a\":" T("F32", "[1]", "[0]") "}", 4, ERR_CORRUPT, "data_offsets");
    refuse(state, "{\"a\":" T("F32", "[1.5]", "[0,6]") "}", 6, ERR_CORRUPT, "whole numbers");
    refuse(state, "{\"a\":" T("F32", "[-1]", "[0,4]") "}", 4, ERR_CORRUPT, "whole numbers");
    refuse(state, "{\"a\":" T("F32", "[1e300]", "[0,4]") "}", 4, ERR_CORRUPT, "whole numbers");
    refuse(state, "{\"a\":" T("BOOL", "[1]", "[0,1]") "}", 2, ERR_CORRUPT, "holds 2 bytes of data");
    refuse(state, "{\"a\":" T("I16", "[1]", "[0,1]") "}", 1, ERR_CORRUPT, "needs 2 bytes");
    refuse(state, "{\"a\":" T("F8_E4M3", "[1]", "[0,1]") "}", 1, ERR_REFUSED, "'F8_E4M3', which is not read");
    refuse(state, "{\"a\":" T("U8", "[1,1,1,1,1]", "[0,1]") "}", 1, ERR_CORRUPT, "more than 4 dimensions");
    refuse(state, "{\"\":" T("U8", "[1]", "[0,1]") "}", 1, ERR_CORRUPT, "0 bytes");
}

static void types_that_no_weights_are_of_are_passed_over(void **state)
{
    const char *path = scratch(state, "a.safetensors"), *first = NULL;
    const char header[] =
        "{\"mask\":" T("BOOL", "[3]", "[0,3]") ",\"w\":" T("U8", "[2]", "[3,5]") ",\"n\":" T("I16", "[]", "[5,7]") "}";
    const uint64_t n = strlen(header);
    char file[512] = {0};
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n);
    memcpy(file + 8 + n, "\1\1\1\2\3\4\4", 7);
    scratch_write(path, file, 8 + n + 7);
    struct safetensors *s = NULL;
    struct err e = {0};
    uint8_t w[2];
    assert_int_equal(safetensors_open(&s, path, &e), 0);
    assert_int_equal(safetensors_count(s), 1);
    assert_int_equal(safetensors_passed_over(s, &first), 2);
    assert_string_equal(first, "'mask', of type BOOL");
    assert_int_equal(safetensors_find(s, "mask"), -1);
    assert_int_equal(safetensors_read(s, (size_t)safetensors_find(s, "w"), w, NULL, &e), 0);
    assert_memory_equal(w, "\2\3", 2);
    safetensors_close(s);
}

static void offsets_must_fit_shapes_and_the_file(void **state)
{
    refuse(state, "{\"a\":" T("F32", "[2]", "[0,4]") "}", 4, ERR_CORRUPT, "F32 [2], needs 8 bytes");
    refuse(state, "{\"a\":" T("U8", "[4]", "[4,0]") "}", 4, ERR_CORRUPT, "needs 4 bytes");
    refuse(state, "{\"a\":" T("U8", "[4]", "[1,5]") "}", 5, ERR_CORRUPT, "instead of 0");
    refuse(state, "{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[2,6]") "}", 6, ERR_CORRUPT,
           "'b' begins");
    refuse(state, "{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[6,10]") "}", 10, ERR_CORRUPT,
           "'b' begins");
    refuse(state, "{\"a\":" T("U8", "[4]", "[0,4]") "}", 3, ERR_CORRUPT, "3 bytes of data");
    refuse(state, "{\"a\":" T("U8", "[4]", "[0,4]") "}", 5, ERR_CORRUPT, "5 bytes of data");
    refuse(state, "{\"a\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", 0, ERR_CORRUPT, "overflows");
    refuse(state, "{\"a\":" T("U8", "[2]", "[0,2]") ",\"a\":" T("U8", "[2]", "[2,4]") "}", 4, ERR_CORRUPT,
           "two tensors named 'a'");
}

/* Else a tree of its values, forty times as large as its text, would be made first. */
static void an_entry_that_is_longer_than_any_tensors_is_refused(void **state)
{
    char header[8192] = "{\"a\":{\"x\":[";
    size_t n = strlen(header);
    for (; n < 6000; n += 3)
        memcpy(header + n, "[],", 3);
    strcpy(header + n, "[]]}}");
    refuse(state, header, 0, ERR_CORRUPT, "bytes, at most 4096 are taken");
}

static void foreign_and_short_files_are_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } cases[] = {
        {"", 0, "shorter than 8 bytes"},
        {"\x10\0\0", 3, "shorter than 8 bytes"},
        {"\x10\0\0\0\0\0\0\0{}", 10, "does not fit"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "exceeds 100 MB"},
        {"PK\3\4\x14\0\0\0\0\0\0\0 a zip file", 22, "exceeds 100 MB"},
        {"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16, "exceeds 100 MB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = scratch(state, "foreign");
        scratch_write(path, cases[i].bytes, cases[i].n);
        struct safetensors *s;
        struct err e = {0};
        int rc = safetensors_open(&s, path, &e);
        if (rc != ERR_CORRUPT || !strstr(e.text, cases[i].says))
            fail_msg("case %zu: %s '%s' instead of '%s'", i, err_name(rc), e.text, cases[i].says);
    }
    struct safetensors *s;
    struct err e;
    assert_int_equal(safetensors_open(&s, scratch(state, "nothing"), &e), -ENOENT);
    assert_int_equal(mkfifo(scratch(state, "fifo"), 0600), 0);
    assert_int_equal(safetensors_open(&s, scratch(state, "fifo"), &e), ERR_CORRUPT);
}

/* Whatever bytes are flipped or cut off, reading ends with an answer, not with a crash. */
static void no_damaged_header_crashes_the_reader(void **state)
{
    const char *path = scratch(state, "a"), *bad = scratch(state, "b");
    const struct ckpt_tensor t[] = {tensor("x", DT_F32, 2, 2, 3, weights), tensor("y", DT_I64, 0, 0, 0, &counter)};
    struct err e;
    size_t n;
    assert_int_equal(safetensors_write(path, t, 2, NULL, &e), 0);
    char *file = scratch_read(path, &n);
    int refused = 0, opened = 0;
    uint32_t x = 1;
    for (int i = 0; i < 600; i++) {
        char *copy = malloc(n);
        memcpy(copy, file, n);
        for (int k = 0; k < 1 + i % 3; k++)
            x = x * 1664525 + 1013904223, copy[(x >> 8) % n] ^= (char)(1 << (x & 7));
        scratch_write(bad, copy, i % 5 ? n : (x >> 8) % n);
        free(copy);
        struct safetensors *s;
        if (safetensors_open(&s, bad, &e) < 0) {
            refused++;
            continue;
        }
        opened++;
        for (size_t k = 0; k < safetensors_count(s); k++) {
            char room[64];
            assert_int_equal(safetensors_read(s, k, room, NULL, &e), 0);
        }
        safetensors_close(s);
    }
    free(file);
    assert_true(refused > 150 && opened > 30); /* both kinds were met */
}

static void files_of_others_with_metadata_are_read(void **state)
{
    static const char file[] =
        "\x66\0\0\0\0\0\0\0"
        "{ \"__metadata__\": {\"format\":\"pt\"}, \"w\": {\"shape\":[2], \"data_offsets\":[0, 4],"
        " \"dtype\":\"BF16\"} }   \x80\x3f\x00\xc0";
    const char *path = scratch(state, "pt");
    char copy[sizeof file];
    memcpy(copy, file, sizeof file);
    copy[0] = (char)(sizeof file - 1 - 8 - 4);
    scratch_write(path, copy, sizeof file - 1);
    struct safetensors *s;
    struct err e = {0};
    if (safetensors_open(&s, path, &e) < 0)
        fail_msg("%s", e.text);
    uint16_t v[2];
    assert_int_equal(safetensors_count(s), 1);
    assert_int_equal(safetensors_at(s, 0)->dtype, DT_BF16);
    assert_int_equal(safetensors_read(s, 0, v, NULL, &e), 0);
    assert_true(f32_from_bf16(v[0]) == 1.0f && f32_from_bf16(v[1]) == -2.0f);
    safetensors_close(s);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(what_is_written_is_read_back),
        CASE(the_bytes_of_a_file_are_those_of_the_format),
        CASE(the_order_of_the_input_does_not_change_the_file),
        CASE(tensors_that_cannot_be_stored_are_refused_and_leave_no_file),
        CASE(an_existing_file_is_not_overwritten),
        CASE(malformed_headers_are_refused_with_a_reason),
        CASE(types_that_no_weights_are_of_are_passed_over),
        CASE(offsets_must_fit_shapes_and_the_file),
        CASE(an_entry_that_is_longer_than_any_tensors_is_refused),
        CASE(foreign_and_short_files_are_refused),
        CASE(no_damaged_header_crashes_the_reader),
        CASE(files_of_others_with_metadata_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
