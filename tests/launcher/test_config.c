/* The command line of crun, and what follows from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/err.h"
#include "launcher/config.h"

/* Stands before that of the C library. */
static bool no_random_numbers;
ssize_t getrandom(void *out, size_t n, unsigned flags)
{
    errno = ENOSYS;
    return no_random_numbers ? -1 : (ssize_t)syscall(SYS_getrandom, out, n, flags);
}

static int read_two(const char *option, const char *value, struct config *c, struct err *e)
{
    struct arg_result r;
    char *argv[] = {(char *)"crun", (char *)option, (char *)value, (char *)"true", NULL};
    *e = (struct err){0};
    return config_read(c, &r, 4, argv, e);
}

static void the_rendezvous_waits_longer_than_a_stop_may_take(void **state)
{
    static const struct {
        const char *timeout;
        int64_t least_ms;
    } cases[] = {{"0", 600000}, {"30", 600000}, {"600", 630001}, {"700", 730001}, {"7d", 7 * 86400000LL + 30001}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config c;
        struct err e;
        assert_int_equal(read_two("--shutdown-timeout", cases[i].timeout, &c, &e), 0);
        if (config_join_timeout_ms(&c) < cases[i].least_ms)
            fail_msg("%s: %lld ms", cases[i].timeout, (long long)config_join_timeout_ms(&c));
    }
}

static void options_of_torchrun_that_are_absent_are_refused_by_a_sentence(void **state)
{
    static const char *const names[] = {"--rdzv_backend",
                                        "--rdzv-endpoint",
                                        "--rdzv_conf",
                                        "--node_rank",
                                        "--master_addr",
                                        "--master_port",
                                        "-m",
                                        "--module",
                                        "--no-python",
                                        "--no_python",
                                        "--redirects",
                                        "-r",
                                        "--tee",
                                        "-t",
                                        "--local-addr",
                                        "--monitor_interval",
                                        "--monitor-interval",
                                        "--start-method"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct config c;
        struct err e;
        int rc = read_two(names[i], "1", &c, &e);
        if (rc != ERR_USAGE || !strstr(e.text, ": this version of crun "))
            fail_msg("%s: %d '%s'", names[i], rc, e.text);
    }
}

static void control_characters_are_refused_and_not_printed(void **state)
{
    static const char *const options[] = {"--run-id", "--role"};
    for (size_t i = 0; i < 2; i++) {
        struct config c;
        struct err e;
        char expected[128];
        assert_int_equal(read_two(options[i], "a\033[2J", &c, &e), ERR_USAGE);
        snprintf(expected, sizeof expected, "%s: expected no control characters, got one of code 27 at position 2",
                 options[i]);
        assert_string_equal(e.text, expected);
        assert_int_equal(read_two(options[i], "\xc3\xbc 1", &c, &e), 0);
    }
}

static void a_run_id_is_random_or_an_error(void **state)
{
    struct config a, b;
    struct err e;
    assert_int_equal(read_two("--nnodes", "1", &a, &e), 0);
    assert_int_equal(read_two("--nnodes", "1", &b, &e), 0);
    assert_int_equal(strlen(a.run_id), 32);
    assert_string_not_equal(a.run_id, b.run_id);
    no_random_numbers = true;
    int rc = read_two("--nnodes", "1", &a, &e);
    no_random_numbers = false;
    assert_int_equal(rc, ERR_USAGE);
    assert_non_null(strstr(e.text, "expected --run-id"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rendezvous_waits_longer_than_a_stop_may_take),
        cmocka_unit_test(options_of_torchrun_that_are_absent_are_refused_by_a_sentence),
        cmocka_unit_test(control_characters_are_refused_and_not_printed),
        cmocka_unit_test(a_run_id_is_random_or_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
