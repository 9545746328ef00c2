/* --rdzv-conf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/base/err.h"
#include "launcher/config/rdzv_conf.h"

static void defaults_are_torchruns_but_for_the_heartbeat(void **state)
{
    static const char *const empty[] = {NULL, ""};
    for (size_t i = 0; i < 2; i++) {
        struct rdzv_conf c;
        assert_int_equal(rdzv_conf_parse(empty[i], &c, NULL), 0);
        assert_int_equal(c.join_timeout_ms, 600000);
        assert_int_equal(c.last_call_timeout_ms, 30000);
        assert_int_equal(c.close_timeout_ms, 30000);
        assert_int_equal(c.keep_alive_interval_ms, 1000);
        assert_int_equal(c.keep_alive_max_attempt, 3);
        assert_int_equal(c.daemon_grace_ms, 60000);
        assert_int_equal(c.is_host, -1);
        assert_int_equal(c.rank, -1);
        assert_false(c.join_timeout_typed);
        for (size_t k = 0; k < RDZV_CONF_UNUSED_N; k++)
            assert_null(c.unused[k]);
    }
}

static void keys_are_taken_as_torchrun_takes_them(void **state)
{
    struct rdzv_conf c;
    struct err e;
    assert_int_equal(rdzv_conf_parse("join_timeout=5,last_call_timeout='2.5',keep_alive_interval=\"200ms\" , "
                                     "keep_alive_max_attempt=4,is_host=True,rank=3,store_type=file,close_timeout=1,"
                                     "use_libuv=1,read_timeout=60,daemon_grace=9",
                                     &c, &e),
                     0);
    assert_int_equal(c.join_timeout_ms, 5000);
    assert_true(c.join_timeout_typed);
    assert_int_equal(c.last_call_timeout_ms, 2500);
    assert_int_equal(c.keep_alive_interval_ms, 200);
    assert_int_equal(c.keep_alive_max_attempt, 4);
    assert_int_equal(c.is_host, 1);
    assert_int_equal(c.rank, 3);
    assert_true(c.store_type_file);
    assert_int_equal(c.daemon_grace_ms, 9000);
    assert_null(c.unused[0]);
    assert_string_equal(c.unused[1], "read_timeout");
    assert_string_equal(c.unused[2], "use_libuv");
    assert_int_equal(rdzv_conf_parse("is_host=y", &c, &e), 0);
    assert_int_equal(c.is_host, 1);
    assert_int_equal(rdzv_conf_parse("is_host=F,allow_unsafe=TRUE,max_lag=1.5", &c, &e), 0);
    assert_int_equal(c.is_host, 0);
    assert_int_equal(c.allow_unsafe, 1);
    assert_int_equal(c.max_lag_ms, 1500);
    assert_int_equal(rdzv_conf_parse("timeout=7,is_host=0", &c, &e), 0);
    assert_int_equal(c.join_timeout_ms, 7000);
    assert_int_equal(c.is_host, 0);
}

/* As torchrun does; but it says nothing of them. */
static void keys_that_are_not_known_are_passed_over_and_told(void **state)
{
    static const struct {
        const char *text, *told;
    } cases[] = {{"jion_timeout=5", "'jion_timeout', did you mean 'join_timeout'?"},
                 {"is_hots=1,colour=5", "'is_hots', did you mean 'is_host'?"},
                 {"colour=5", "'colour'"},
                 {"rank=1", ""}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rdzv_conf c;
        assert_int_equal(rdzv_conf_parse(cases[i].text, &c, NULL), 0);
        assert_string_equal(c.unknown, cases[i].told);
    }
}

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"join_timeout", "'join_timeout': expected key=value"},
        {"join_timeout=", "'join_timeout': expected key=value"},
        {"=5", "expected key=value"},
        {"join_timeout=5,,rank=1", "expected key=value"},
        {"join_timeout=soon", "join_timeout: 'soon' is not a duration"},
        {"join_timeout=0", "join_timeout: 0 is out of range"},
        {"join_timeout=8d", "join_timeout: 8d is out of range, expected 1ms to 7d"},
        {"keep_alive_interval=10s,keep_alive_max_attempt=61",
         "keep_alive_interval x keep_alive_max_attempt: 10 s x 61 is out of range, expected at most 10m"},
        {"join_timeout=-1", "join_timeout: '-1' is not a duration"},
        {"keep_alive_max_attempt=0", "keep_alive_max_attempt: 0 is out of range"},
        {"is_host=maybe", "is_host: 'maybe' is neither true nor false, expected 1, true, 0 or false"},
        {"is_host=on", "is_host: 'on' is neither true nor false"},
        {"allow_unsafe=yes", "allow_unsafe: 'yes' is neither true nor false, expected 1, true, 0 or false"},
        {"allow_unsafe=t", "allow_unsafe: 't' is neither true nor false"},
        {"max_lag=1e3", "max_lag: '1e3' is not a duration, expected seconds or a number with ms, s, m, h or d"},
        {"join_timeout=0x10", "join_timeout: '0x10' is not a duration"},
        {"last_call_timeout=inf", "last_call_timeout: 'inf' is not a duration"},
        {"keep_alive_interval=+1", "keep_alive_interval: '+1' is not a duration"},
        {"keep_alive_max_attempt=1e1", "keep_alive_max_attempt: '1e1' is not a whole number"},
        {"keep_alive_max_attempt=0x3", "keep_alive_max_attempt: '0x3' is not a whole number"},
        {"rank=-1", "rank: -1 is out of range"},
        {"store_type=hash", "store_type: 'hash' is not one of tcp, file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rdzv_conf c;
        struct err e = {0};
        int rc = rdzv_conf_parse(cases[i].text, &c, &e);
        if (rc != ERR_USAGE || !strstr(e.text, cases[i].part))
            fail_msg("%s: %d '%s'", cases[i].text, rc, e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_torchruns_but_for_the_heartbeat),
        cmocka_unit_test(keys_are_taken_as_torchrun_takes_them),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(keys_that_are_not_known_are_passed_over_and_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
