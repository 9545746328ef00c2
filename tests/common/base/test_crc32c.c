#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "common/base/crc32c.h"

/* RFC 3720, B.4, and the check value of the CRC catalogue. */
static void known_values_come_out(void **state)
{
    (void)state;
    unsigned char b[32] = {0};
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(crc32c(0, b, 32), 0x8a9136aau);
    memset(b, 0xff, 32);
    assert_int_equal(crc32c(0, b, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        b[i] = (unsigned char)i;
    assert_int_equal(crc32c(0, b, 32), 0x46dd794eu);
    assert_int_equal(crc32c(0, b, 0), 0);
}

static void tables_and_instruction_agree_at_every_length_and_alignment(void **state)
{
    (void)state;
    unsigned char b[300];
    uint32_t x = 12345;
    for (size_t i = 0; i < sizeof b; i++)
        b[i] = (unsigned char)((x = x * 1664525 + 1013904223) >> 24);
    for (size_t from = 0; from < 9; from++)
        for (size_t n = 0; n < 280; n++)
            assert_int_equal(crc32c(7, b + from, n), crc32c_portable(7, b + from, n));
}

static void pieces_give_the_sum_of_the_whole(void **state)
{
    (void)state;
    const char *text = "the quick brown fox jumps over the lazy dog";
    size_t n = strlen(text);
    for (size_t cut = 0; cut <= n; cut++)
        assert_int_equal(crc32c(crc32c(0, text, cut), text + cut, n - cut), crc32c(0, text, n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_values_come_out),
        cmocka_unit_test(tables_and_instruction_agree_at_every_length_and_alignment),
        cmocka_unit_test(pieces_give_the_sum_of_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
