/* The line that tells where the time of a restart went. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <limits.h>
#include <string.h>

#include "launcher/observe/timeline.h"

static void the_time_line_shows_each_part_and_the_first_step_only_if_there_was_one(void **state)
{
    char text[256];
    struct timeline t = {.woken = 1000000,
                         .detected = 1200000,
                         .gone = 4300000,
                         .round = 4400000,
                         .spawned = 5300000,
                         .restart = 1,
                         .max_restarts = 3,
                         .cause = "rank 1 killed by SIGKILL"};
    assert_string_equal(
        timeline_text(&t, text, sizeof text),
        "restart 1/3 (rank 1 killed by SIGKILL): detect 0.2 ms, stop 3.1 ms, rendezvous 0.1 ms, spawn 0.9 ms");
    t.first_step = 817300000;
    assert_non_null(strstr(timeline_text(&t, text, sizeof text), "spawn 0.9 ms, first step 812 ms"));
    t.met = 405300000;
    assert_non_null(strstr(timeline_text(&t, text, sizeof text), "spawn 0.9 ms, ranks met 400 ms, first step 812 ms"));
    t.max_restarts = -1; /* within a window */
    t.detected = 0;      /* a part that did not happen takes no time */
    assert_non_null(strstr(timeline_text(&t, text, sizeof text),
                           "restart 1 (rank 1 killed by SIGKILL): detect 0.0 ms, stop 0.0 ms, "));
}

static void workers_that_went_on_are_counted(void **state)
{
    char text[256];
    struct timeline t = {.restart = 2, .max_restarts = 3, .cause = "rank 1 killed by SIGKILL", .kept = 3};
    assert_ptr_equal(
        strstr(timeline_text(&t, text, sizeof text), "restart 2/3 (rank 1 killed by SIGKILL), kept 3 workers: detect"),
        text);
    t.kept = 1;
    assert_non_null(strstr(timeline_text(&t, text, sizeof text), ", kept 1 worker: detect"));
}

/* As long as the rendezvous' words are. */
static void a_cause_is_whole(void **state)
{
    (void)state;
    char text[TIMELINE_TEXT_MAX];
    const int64_t hour = 3600 * INT64_C(1000000000);
    struct timeline t = {.woken = 1,
                         .detected = hour,
                         .gone = 2 * hour,
                         .round = 3 * hour,
                         .spawned = 4 * hour,
                         .met = 5 * hour,
                         .first_step = 5 * hour,
                         .restart = INT_MAX,
                         .max_restarts = INT_MAX,
                         .kept = RDZV_SLOTS_MAX};
    assert_int_equal(sizeof t.cause, sizeof((struct rdzv_cause *)0)->text);
    memset(t.cause, 'x', sizeof t.cause - 1);
    timeline_text(&t, text, sizeof text);
    assert_non_null(strstr(text, t.cause));
    assert_non_null(strstr(text, "x), kept 4096 workers: detect 3600000.0 ms"));
    assert_non_null(strstr(text, ", first step 3600000 ms"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_time_line_shows_each_part_and_the_first_step_only_if_there_was_one),
        cmocka_unit_test(workers_that_went_on_are_counted),
        cmocka_unit_test(a_cause_is_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
