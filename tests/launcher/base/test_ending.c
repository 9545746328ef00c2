/* Signals and their names; and when what repeats is said (base/repeat.h). */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "launcher/base/ending.h"
#include "launcher/base/repeat.h"

static void signals_are_called_what_glibc_calls_them(void **state)
{
    (void)state;
    for (int signo = -1; signo <= SIGRTMAX + 1; signo++) {
        const char *known = sigabbrev_np(signo);
        char expected[32], out[32];
        if (known)
            snprintf(expected, sizeof expected, "SIG%s", known);
        else
            snprintf(expected, sizeof expected, "signal %d", signo);
        assert_string_equal(signal_text(signo, out, sizeof out), expected);
    }
}

static void what_repeats_is_said_at_once_and_then_after_pauses_that_double(void **state)
{
    (void)state;
    struct repeat r = {.first_ms = 10000, .most_ms = 60000};
    static const int said_s[] = {0, 10, 30, 70, 130, 190}; /* 10, 20, 40, 60, 60 s */
    int n = 0, unsaid, since = 0;
    for (int64_t ms = 0; ms < 240000; ms += 50, since++) /* twenty times a second */
        if (repeat_is_said(&r, 5000 + ms, &unsaid)) {
            assert_in_range(n, 0, 5);
            assert_int_equal(ms, 1000 * said_s[n++]);
            assert_int_equal(unsaid, since ? since - 1 : 0);
            since = 0;
        } else {
            assert_int_equal(unsaid, 0);
        }
    assert_int_equal(n, 6);
}

static void after_a_long_rest_the_pauses_begin_anew(void **state)
{
    (void)state;
    struct repeat r = {.first_ms = 10, .most_ms = 40};
    int unsaid;
    int64_t now = 1000;
    assert_true(repeat_is_said(&r, now, &unsaid)); /* next: 10 */
    assert_true(repeat_is_said(&r, now += 10, &unsaid));
    assert_false(repeat_is_said(&r, now + 19, &unsaid));
    assert_true(repeat_is_said(&r, now += 20 + 79, &unsaid)); /* not long enough: next after 40 */
    assert_int_equal(unsaid, 1);
    assert_false(repeat_is_said(&r, now + 39, &unsaid));
    assert_true(repeat_is_said(&r, now += 40 + 80, &unsaid));
    assert_int_equal(unsaid, 1);
    assert_false(repeat_is_said(&r, now + 9, &unsaid));
    assert_true(repeat_is_said(&r, now + 10, &unsaid));
}

static void sentences_that_differ_in_digits_are_the_same(void **state)
{
    (void)state;
    assert_true(repeat_is_same("", ""));
    assert_true(repeat_is_same("silent for 1200 ms", "silent for 22000 ms"));
    assert_true(repeat_is_same("error 5", "error 17"));
    assert_false(repeat_is_same("error 5", "error 5 of 6"));
    assert_false(repeat_is_same("a.b:29400: Connection refused", "a.b:29400: Connection reset by peer"));
    assert_false(repeat_is_same("", "a"));
    assert_false(repeat_is_same("a", ""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_are_called_what_glibc_calls_them),
        cmocka_unit_test(what_repeats_is_said_at_once_and_then_after_pauses_that_double),
        cmocka_unit_test(after_a_long_rest_the_pauses_begin_anew),
        cmocka_unit_test(sentences_that_differ_in_digits_are_the_same),
    };
    return cmocka_run_group_tests_name("ending", tests, NULL, NULL);
}
