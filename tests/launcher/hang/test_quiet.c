/* Signs of life of workers that tell nothing, by a virtual clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "launcher/hang/quiet.h"

#define MS INT64_C(1000000)
#define S (1000 * MS)

static struct quiet_mark m;
static struct quiet_sample s;
static int64_t now;

static void begin(void)
{
    m = (struct quiet_mark){0};
    s = (struct quiet_sample){.cpu_ns = 3 * S, .bytes = 100};
    now = 1000 * S;
    assert_true(quiet_is_sign(&m, now, &s));
}

/* Looks each second of a process that uses cpu_ns in it; how many were signs. */
static int look(int seconds, int64_t cpu_ns)
{
    int signs = 0;
    for (int i = 0; i < seconds; i++) {
        now += S;
        s.cpu_ns += cpu_ns;
        signs += quiet_is_sign(&m, now, &s);
    }
    return signs;
}

static void background_threads_are_no_sign_of_life(void **state)
{
    begin();
    assert_int_equal(look(600, 0), 0);
    assert_int_equal(look(600, 10 * MS), 0); /* 1 % of a core */
    assert_int_equal(m.ns, 1000 * S);
}

static void work_is_one_within_a_look(void **state)
{
    begin();
    assert_int_equal(look(10, 100 * MS), 10);
    assert_int_equal(m.ns, now);
    look(300, 0);
    assert_int_equal(look(10, 800 * MS), 10); /* at once, however long the silence before */
}

static void a_slow_one_gives_one_now_and_then(void **state)
{
    begin();
    assert_true(look(600, 30 * MS) >= 60); /* 3 % of a core */
}

static void each_byte_is_a_sign(void **state)
{
    begin();
    look(100, 0);
    s.bytes++;
    assert_int_equal(look(1, 0), 1);
}

/* Its time went with a child that nobody waited for: what comes after counts again. */
static void time_that_goes_with_a_child_is_no_sign_and_hides_none(void **state)
{
    begin();
    s.cpu_ns = 1 * S;
    assert_int_equal(look(1, 0), 0);
    assert_int_equal(look(1, 200 * MS), 1);
}

static void looks_are_a_tenth_of_the_time(void **state)
{
    assert_int_equal(quiet_look_ns(20 * S), 2 * S);
    assert_int_equal(quiet_look_ns(100 * MS), QUIET_LOOK_MIN_NS);
    assert_int_equal(quiet_look_ns(3600 * S), QUIET_LOOK_MAX_NS);
}

/* --- all ranks */

#define WORLD 4

static struct quiet_rank v[WORLD];
static struct hang_verdict verdict;

static void all_wait_in(const char *place)
{
    now = 1000 * S;
    memset(v, 0, sizeof v);
    for (int r = 0; r < WORLD; r++) {
        v[r] = (struct quiet_rank){.heard_ns = now, .since_ns = now - 30 * S};
        snprintf(v[r].wait, sizeof v[r].wait, "%s", place);
    }
}

static void a_rank_that_lives_or_is_not_heard_of_excuses_all(void **state)
{
    all_wait_in("futex");
    assert_true(quiet_all(v, WORLD, now, 30 * S, 5 * S));
    v[3].since_ns += S;
    assert_false(quiet_all(v, WORLD, now, 30 * S, 5 * S));
    all_wait_in("futex");
    v[2].heard_ns = now - 6 * S;
    assert_false(quiet_all(v, WORLD, now, 30 * S, 5 * S));
    v[2].heard_ns = 0;
    assert_false(quiet_all(v, WORLD, now, 30 * S, 5 * S));
}

static void a_stopped_rank_is_blamed_first(void **state)
{
    all_wait_in("futex");
    snprintf(v[0].wait, sizeof v[0].wait, "nanosleep");
    v[2].stopped = true;
    quiet_judge(v, WORLD, 30.04, &verdict);
    assert_int_equal(verdict.rank, 2);
    assert_false(verdict.all);
    assert_string_equal(verdict.cause, "rank 2 hung while stopped by a signal");
    assert_string_equal(verdict.text, "no worker has given a sign of life for 30.0 s: rank 0 waits in nanosleep; ranks "
                                      "1,3 wait in futex; rank 2 stopped by a signal");
}

static void the_one_that_waits_elsewhere_is_blamed(void **state)
{
    all_wait_in("futex");
    snprintf(v[0].wait, sizeof v[0].wait, "nanosleep");
    quiet_judge(v, WORLD, 30, &verdict);
    assert_int_equal(verdict.rank, 0);
    assert_string_equal(verdict.where, "in nanosleep");
    v[0].gone = true; /* it has ended, the others wait on */
    quiet_judge(v, WORLD, 30, &verdict);
    assert_true(verdict.all);
    assert_string_equal(verdict.text, "no worker has given a sign of life for 30.0 s: ranks 1-3 wait in futex");
}

static void of_two_nobody_stands_out(void **state)
{
    all_wait_in("futex");
    snprintf(v[0].wait, sizeof v[0].wait, "nanosleep");
    quiet_judge(v, 2, 30, &verdict);
    assert_true(verdict.all);
    snprintf(v[1].wait, sizeof v[1].wait, "nanosleep"); /* two and two */
    quiet_judge(v, WORLD, 30, &verdict);
    assert_true(verdict.all);
    assert_string_equal(verdict.cause, "all ranks hung without a sign of life");
}

static void what_a_node_tells_comes_back(void **state)
{
    struct buf text = {0};
    struct quiet_rank of[2] = {{.since_ns = 0, .stopped = true, .wait = "do_signal_stop"}, {.gone = true, .wait = "?"}};
    int base, n;
    all_wait_in("futex");
    of[0].since_ns = of[1].since_ns = now - 31 * S;
    assert_int_equal(quiet_write(&text, now, 2, of, 2), 0);
    assert_true(quiet_parse(text.data, text.len, now, v, WORLD, &base, &n));
    assert_int_equal(base, 2);
    assert_int_equal(n, 2);
    assert_true(v[2].stopped && v[3].gone && !v[2].gone && !v[3].stopped);
    assert_string_equal(v[2].wait, "do_signal_stop");
    assert_int_equal(v[3].since_ns, now - 31 * S);
    assert_string_equal(v[1].wait, "futex");
    buf_free(&text);
}

static void nonsense_is_refused_and_changes_nothing(void **state)
{
    const char *const bad[] = {
        "",        "1000",   "1000 0", "x 0 S:futex",  "-1 0 S:futex",       "1 4 S:f", "1 3 S:f S:f", "1 -1 S:f",
        "1 0 Q:f", "1 0 S:", "1 0 S",  "1 0x S:futex", "9999999999999 0 S:f"};
    int base, n;
    all_wait_in("futex");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(quiet_parse(bad[i], strlen(bad[i]), now, v, WORLD, &base, &n));
    assert_true(quiet_all(v, WORLD, now, 30 * S, 5 * S));
    assert_true(quiet_parse("1 0 S:\033[31m", 11, now, v, WORLD, &base, &n));
    assert_string_equal(v[0].wait, "?[31m");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(background_threads_are_no_sign_of_life),
        cmocka_unit_test(work_is_one_within_a_look),
        cmocka_unit_test(a_slow_one_gives_one_now_and_then),
        cmocka_unit_test(each_byte_is_a_sign),
        cmocka_unit_test(time_that_goes_with_a_child_is_no_sign_and_hides_none),
        cmocka_unit_test(looks_are_a_tenth_of_the_time),
        cmocka_unit_test(a_rank_that_lives_or_is_not_heard_of_excuses_all),
        cmocka_unit_test(a_stopped_rank_is_blamed_first),
        cmocka_unit_test(the_one_that_waits_elsewhere_is_blamed),
        cmocka_unit_test(of_two_nobody_stands_out),
        cmocka_unit_test(what_a_node_tells_comes_back),
        cmocka_unit_test(nonsense_is_refused_and_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
