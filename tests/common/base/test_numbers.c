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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_become_ranges),
        cmocka_unit_test(a_text_is_cut_short),
        cmocka_unit_test(every_number_has_digits),
        cmocka_unit_test(hex_is_written_and_read),
    };
    return cmocka_run_group_tests_name("numbers", tests, NULL, NULL);
}
