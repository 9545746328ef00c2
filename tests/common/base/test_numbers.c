#include "common/base/numbers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const char *text_of(const int *v, int n, char *out, size_t cap)
{
    struct ranges r = {.out = out, .cap = cap};
    out[0] = '\0';
    for (int i = 0; i < n; i++)
        ranges_add(&r, v[i]);
    assert_int_equal(r.len, strlen(out));
    return out;
}

static void neighbours_become_ranges(void **state)
{
    const int v[] = {0, 1, 2, 5, 7, 8, 100};
    char out[64];
    (void)state;
    assert_string_equal(text_of(v, 0, out, sizeof out), "");
    assert_string_equal(text_of(v, 1, out, sizeof out), "0");
    assert_string_equal(text_of(v, 3, out, sizeof out), "0-2");
    assert_string_equal(text_of(v, 7, out, sizeof out), "0-2,5,7-8,100");
}

static void a_text_is_cut_short(void **state)
{
    const int v[] = {10, 12, 13, 15, 17};
    char out[6];
    (void)state;
    for (int n = 0; n <= 5; n++) {
        text_of(v, n, out, sizeof out);
        assert_true(strncmp(out, "10,12-13", strlen(out)) == 0);
    }
    assert_string_equal(out, "10,12");
}

static const char *digits_of(long long v)
{
    static char text[DIGITS_MAX + 1];
    *digits_write(text, v) = '\0';
    return text;
}

static void every_number_has_digits(void **state)
{
    (void)state;
    assert_string_equal(digits_of(0), "0");
    assert_string_equal(digits_of(-7), "-7");
    assert_string_equal(digits_of(1200), "1200");
    assert_string_equal(digits_of(INT64_MAX), "9223372036854775807");
    assert_string_equal(digits_of(INT64_MIN), "-9223372036854775808");
}

static void hex_is_written_and_read(void **state)
{
    char text[7];
    (void)state;
    hex_write(text, "\x00\x9a\xff", 3);
    assert_string_equal(text, "009aff");
    assert_int_equal(hex_byte("9A", 2), 0x9a);
    assert_int_equal(hex_byte("9a", 1), -1);
    assert_int_equal(hex_byte("9g", 2), -1);
    assert_int_equal(hex_byte("@9", 2), -1);
    assert_int_equal(hex_digit('\x10'), -1); /* a digit but for the bit that makes letters small */
}

static void base64_comes_back(void **state)
{
    static const char *const pairs[][2] = {
        {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"\xff\xfe/?", "//4vPw=="}};
    char text[16], bytes[16];
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const size_t n = strlen(pairs[i][0]);
        *base64_write(text, pairs[i][0], n) = 0;
        assert_string_equal(text, pairs[i][1]);
        assert_int_equal(base64_read(text, strlen(text), bytes, n), n);
        assert_memory_equal(bytes, pairs[i][0], n);
        assert_int_equal(base64_read(text, strlen(text), text, sizeof text), n); /* in its own place */
        assert_memory_equal(text, pairs[i][0], n);
    }
    assert_int_equal(base64_read("Zm9v", 4, bytes, 2), -1);
    assert_int_equal(base64_read("Zm-v", 4, bytes, sizeof bytes), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base64_comes_back),       cmocka_unit_test(neighbours_become_ranges),
        cmocka_unit_test(a_text_is_cut_short),     cmocka_unit_test(every_number_has_digits),
        cmocka_unit_test(hex_is_written_and_read),
    };
    return cmocka_run_group_tests_name("numbers", tests, NULL, NULL);
}
