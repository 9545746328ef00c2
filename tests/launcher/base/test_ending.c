/* Signals and their names. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "launcher/base/ending.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(signals_are_called_what_glibc_calls_them)};
    return cmocka_run_group_tests_name("ending", tests, NULL, NULL);
}
