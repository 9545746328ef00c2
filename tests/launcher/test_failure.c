/* The failure report and the time line of a restart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "launcher/failure.h"
#include "launcher/timeline.h"

static struct failure_worker killed(int rank, unsigned order, int signo)
{
    return (struct failure_worker){.rank = rank,
                                   .local_rank = rank,
                                   .pid = 100 + rank,
                                   .ended = true,
                                   .order = order,
                                   .ended_ns = order * 1000000,
                                   .ending = {.signaled = true, .value = signo}};
}

static struct failure_worker exited(int rank, unsigned order, int code)
{
    struct failure_worker w = killed(rank, order, 0);
    w.ending = (struct ending){.value = code};
    return w;
}

static void the_first_death_is_the_culprit(void **state)
{
    struct failure_worker w[] = {exited(0, 3, 1), killed(1, 2, SIGKILL), exited(2, 1, 0)};
    assert_int_equal(failure_first(w, 3), 1);
}

static void workers_that_we_stopped_or_that_ended_well_or_still_run_are_no_culprits(void **state)
{
    struct failure_worker w[] = {killed(0, 1, SIGTERM), exited(1, 2, 0), exited(2, 0, 7)};
    w[0].told_to_stop = true;
    w[2].ended = false;
    assert_int_equal(failure_first(w, 3), -1);
}

static void the_report_names_culprit_followers_message_and_last_lines(void **state)
{
    struct failure_worker w[] = {killed(0, 3, SIGTERM), killed(1, 1, SIGSEGV), exited(2, 2, 1)};
    struct lines_tail tail = {0};
    struct buf out;
    w[0].told_to_stop = true;
    w[1].ending.core = true;
    lines_tail_add(&tail, "bad", 3);
    lines_tail_add(&tail, "worse\x1b[0m", 9);
    const struct failure_job j = {.run_id = "j",
                                  .host = "h",
                                  .program = "p",
                                  .round = 2,
                                  .restarts = 1,
                                  .max_restarts = 1,
                                  .message = "it broke",
                                  .message_from = "error.json",
                                  .tail = &tail};
    buf_init(&out, 0);
    assert_int_equal(failure_render(&j, w, 3, &out), 0);
    assert_string_equal(out.data, "crun: p failed: rank 1 killed by SIGSEGV (core dumped)\n"
                                  "  job       j, round 2, 1 of 1 restarts used\n"
                                  "  culprit   rank 1 (local rank 1), pid 101 on h\n"
                                  "  message   it broke (error.json)\n"
                                  "  then      rank 2 (pid 102) exited with code 1, 1.0 ms later\n"
                                  "  stderr    last lines:\n"
                                  "    | bad\n"
                                  "    | worse?[0m\n");
    buf_free(&out);
    lines_tail_free(&tail);
}

static void a_message_cannot_pass_for_lines_of_ours_nor_steer_a_terminal(void **state)
{
    struct failure_worker w[] = {exited(0, 1, 1)};
    struct buf out;
    const struct failure_job j = {
        .program = "p", .message = "a\x1b[2J\x7f\ncrun: all is well\n", .message_from = "error.json"};
    buf_init(&out, 0);
    assert_int_equal(failure_render(&j, w, 1, &out), 0);
    if (!strstr(out.data, "\n  message   a?[2J?\n            crun: all is well (error.json)\n"))
        fail_msg("'%s'", out.data);
    buf_free(&out);
}

static void without_a_culprit_there_is_no_report(void **state)
{
    struct failure_worker w[] = {exited(0, 1, 0)};
    struct buf out;
    buf_init(&out, 0);
    assert_int_equal(failure_render(&(struct failure_job){.program = "p"}, w, 1, &out), 0);
    assert_int_equal(out.len, 0);
    buf_free(&out);
}

static void endings_are_codes_as_a_shell_sees_them(void **state)
{
    char text[64];
    assert_int_equal(ending_code((struct ending){.value = 3}), 3);
    assert_int_equal(ending_code((struct ending){.signaled = true, .value = SIGKILL}), 137);
    assert_string_equal(ending_text((struct ending){.value = 3}, text, sizeof text), "exited with code 3");
    assert_string_equal(ending_text((struct ending){.signaled = true, .value = SIGRTMIN + 3}, text, sizeof text),
                        "killed by signal 37");
}

static void the_time_line_shows_each_part_and_the_first_step_only_if_there_was_one(void **state)
{
    char text[256];
    struct timeline t = {.woken = 1000000,
                         .told = 1200000,
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
    t.max_restarts = -1; /* within a window */
    t.told = 0;          /* a part that did not happen takes no time */
    assert_non_null(strstr(timeline_text(&t, text, sizeof text),
                           "restart 1 (rank 1 killed by SIGKILL): detect 0.0 ms, stop 0.0 ms, "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_death_is_the_culprit),
        cmocka_unit_test(workers_that_we_stopped_or_that_ended_well_or_still_run_are_no_culprits),
        cmocka_unit_test(the_report_names_culprit_followers_message_and_last_lines),
        cmocka_unit_test(a_message_cannot_pass_for_lines_of_ours_nor_steer_a_terminal),
        cmocka_unit_test(without_a_culprit_there_is_no_report),
        cmocka_unit_test(endings_are_codes_as_a_shell_sees_them),
        cmocka_unit_test(the_time_line_shows_each_part_and_the_first_step_only_if_there_was_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
