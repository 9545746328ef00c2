#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"

static char said[4096];

static void keep(void *arg, const char *line, size_t n)
{
    (void)arg;
    assert_true(n < sizeof said);
    memcpy(said, line, n);
    said[n] = 0;
}

static void a_message_is_one_line_whatever_stands_in_it(void **state)
{
    (void)state;
    log_warn("jobs", "run=%s is over", "a\nb\r\x1b[2J\x7f\tz\u00e9");
    assert_non_null(strstr(said, " warn jobs: run=a?b??[2J??z\u00e9 is over\n"));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
}

static void a_message_that_is_too_long_ends_with_its_line(void **state)
{
    char text[5000];
    (void)state;
    memset(text, '\n', sizeof text - 1);
    text[sizeof text - 1] = 0;
    log_warn("jobs", "%s", text);
    assert_int_equal(strlen(said), 2047);
    assert_ptr_equal(strchr(said, '\n'), said + 2046);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_one_line_whatever_stands_in_it),
        cmocka_unit_test(a_message_that_is_too_long_ends_with_its_line),
    };
    log_redirect(keep, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
