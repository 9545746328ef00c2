#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"

static void it_grows_and_stays_terminated(void **state)
{
    struct buf b = {0};
    assert_int_equal(buf_add(&b, NULL, 0), 0);
    assert_string_equal(b.data, "");
    for (int i = 0; i < 1000; i++)
        assert_int_equal(buf_printf(&b, "%03d,", i), 0);
    assert_int_equal(b.len, 4000);
    assert_memory_equal(b.data + 3996, "999,", 5);
    buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_int_equal(buf_addstr(&b, "x"), 0);
    assert_string_equal(b.data, "x");
    buf_free(&b);
    buf_free(&b);
}

static void nothing_is_added_beyond_the_limit(void **state)
{
    struct buf b;
    buf_init(&b, 10);
    assert_int_equal(buf_add(&b, "0123456789", 10), 0);
    assert_int_equal(buf_add(&b, "x", 1), -E2BIG);
    assert_int_equal(buf_printf(&b, "%d", 1), -E2BIG);
    assert_int_equal(buf_reserve(&b, SIZE_MAX), -E2BIG);
    assert_string_equal(b.data, "0123456789");
    buf_free(&b);
}

static void consuming_drops_the_begin(void **state)
{
    struct buf b = {0};
    assert_int_equal(buf_add(&b, "a\0bc", 4), 0);
    buf_consume(&b, 2);
    assert_int_equal(b.len, 2);
    assert_string_equal(b.data, "bc");
    buf_consume(&b, 2);
    assert_string_equal(b.data, "");
    buf_free(&b);
}

static void errors_collect_context_in_front(void **state)
{
    struct err e = {0};
    assert_int_equal(err_set(&e, ERR_CORRUPT, "byte %d", 7), ERR_CORRUPT);
    assert_int_equal(err_wrap(&e, "read '%s'", "f"), ERR_CORRUPT);
    assert_string_equal(e.text, "read 'f': byte 7");
    assert_int_equal(err_errno(&e, ENOENT, "open '%s'", "g"), -ENOENT);
    assert_string_equal(e.text, "open 'g': No such file or directory");
    assert_string_equal(err_name(-ENOENT), "ENOENT");
    assert_string_equal(err_name(ERR_FENCED), "ERR_FENCED");
    for (int i = 0; i < 600; i++)
        err_wrap(&e, "more");
    assert_int_equal(strlen(e.text), sizeof e.text - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_grows_and_stays_terminated),
        cmocka_unit_test(nothing_is_added_beyond_the_limit),
        cmocka_unit_test(consuming_drops_the_begin),
        cmocka_unit_test(errors_collect_context_in_front),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
