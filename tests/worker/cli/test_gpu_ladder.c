/* The rungs of trainer gpu-doctor, climbed by a stand-in for trainer: a script that leaves a loss where it is told to
 * log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/cli/gpu_ladder.h"

#define PATIENCE_MS 60000

/* Losses are 1.5, but with one option. */
static const char stand_in[] =
    "#!/bin/sh\n"
    "loss=1.5\n"
    "for a in \"$@\"; do\n"
    "  case \"$a\" in\n"
    "  --log-dir=*) dir=\"${a#--log-dir=}\" ;;\n"
    "  --sync-bn) loss=3.5; echo the stand-in says so ;;\n"
    "  esac\n"
    "done\n"
    "[ -z \"$dir\" ] || echo \"{\\\"step\\\":1,\\\"loss\\\":$loss,\\\"lr\\\":0.1}\" >\"$dir/metrics.jsonl\"\n";

static struct gpu_ladder ladder(void **state, int gpus)
{
    const char *self = scratch(state, "a program");
    scratch_write(self, stand_in, sizeof stand_in - 1);
    assert_int_equal(chmod(self, 0755), 0);
    return (struct gpu_ladder){.out = scratch(state, "a folder"),
                               .self = self,
                               .deadline_ms = clock_deadline(10 * PATIENCE_MS),
                               .rung_ms = PATIENCE_MS,
                               .gpus = gpus,
                               .steps = 3,
                               .batch = 2,
                               .arch = "resnet18",
                               .image_size = 32};
}

static void rungs_run_in_folders_of_any_name_and_the_first_that_differs_is_named(void **state)
{
    struct gpu_ladder l = ladder(state, 2);
    struct err why = {0}, e = {0};
    struct gpu_ladder_end end;
    assert_int_equal(gpu_ladder_climb(&l, &end, &why, &e), 0);
    assert_non_null(end.rung);
    assert_string_equal(end.rung, "two ranks");
    assert_false(end.no_time);
    assert_non_null(strstr(why.text, "its last loss is 3.5000, that of the first rung with its network 1.5000"));
}

/* Debug logs are long: what is told is their last line all the same. */
static void the_last_line_of_a_long_log_is_told(void **state)
{
    static const char talks[] = "#!/bin/sh\nhead -c 3000000 /dev/zero\necho\necho no such kernel\nexit 3\n",
                      is_silent[] = "#!/bin/sh\nexit 4\n";
    struct gpu_ladder l = ladder(state, 1);
    struct err why = {0}, e = {0};
    struct gpu_ladder_end end;
    scratch_write(l.self, talks, sizeof talks - 1);
    assert_int_equal(gpu_ladder_climb(&l, &end, &why, &e), 0);
    assert_string_equal(why.text, "exit status 3: no such kernel");
    scratch_write(l.self, is_silent, sizeof is_silent - 1);
    assert_int_equal(gpu_ladder_climb(&l, &end, &why, &e), 0);
    assert_string_equal(why.text, "exit status 4: (it said nothing)");
}

static const char sleeps[] = "#!/bin/sh\nexec sleep 1000\n";

static void a_rung_that_takes_too_long_is_ended_and_has_failed(void **state)
{
    struct gpu_ladder l = ladder(state, 1);
    struct err why = {0}, e = {0};
    struct gpu_ladder_end end;
    scratch_write(l.self, sleeps, sizeof sleeps - 1);
    l.rung_ms = 50;
    assert_int_equal(gpu_ladder_climb(&l, &end, &why, &e), 0);
    assert_string_equal(end.rung, "device");
    assert_false(end.no_time);
    assert_int_equal(why.code, -ETIMEDOUT);
}

static void a_rung_that_the_end_of_all_time_cuts_off_has_not_failed(void **state)
{
    struct gpu_ladder l = ladder(state, 1);
    struct err why = {0}, e = {0};
    struct gpu_ladder_end end;
    scratch_write(l.self, sleeps, sizeof sleeps - 1);
    l.deadline_ms = clock_deadline(50);
    assert_int_equal(gpu_ladder_climb(&l, &end, &why, &e), 0);
    assert_string_equal(end.rung, "device");
    assert_true(end.no_time);
}

static void without_time_no_rung_begins(void **state)
{
    struct gpu_ladder l = ladder(state, 1);
    struct err why = {0}, e = {0};
    struct gpu_ladder_end end;
    l.deadline_ms = clock_ms();
    assert_int_equal(gpu_ladder_climb(&l, &end, &why, &e), 0);
    assert_string_equal(end.rung, "device");
    assert_true(end.no_time);
    assert_string_equal(why.text, "no time was left to begin it");
    assert_int_not_equal(access(scratch(state, "a folder/rung-1"), F_OK), 0);
}

static void what_an_earlier_climb_left_is_gone(void **state)
{
    struct gpu_ladder l = ladder(state, 1);
    struct err why = {0}, e = {0};
    struct gpu_ladder_end end;
    assert_int_equal(gpu_ladder_climb(&l, &end, &why, &e), 0);
    assert_int_equal(access(scratch(state, "a folder/rung-6/log"), F_OK), 0);
    assert_int_equal(access(scratch(state, "a folder/rung-6/metrics.jsonl"), F_OK), 0);
    l.deadline_ms = clock_ms();
    assert_int_equal(gpu_ladder_climb(&l, &end, &why, &e), 0);
    assert_int_not_equal(access(scratch(state, "a folder/rung-6/log"), F_OK), 0);
    assert_int_not_equal(access(scratch(state, "a folder/rung-6/metrics.jsonl"), F_OK), 0);
}

static bool readable(int fd)
{
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PATIENCE_MS) == 1;
}

/* The rung says that it runs, and holds a pipe open for as long as it does. */
static void who_is_killed_takes_the_rung_along(void **state)
{
    struct gpu_ladder l = ladder(state, 1);
    struct err why = {0}, e = {0};
    struct gpu_ladder_end end;
    char script[256], got;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(fcntl(ends[1], F_SETFD, 0), 0); /* the rung inherits it */
    const int n = snprintf(script, sizeof script, "#!/bin/sh\necho >&%d\nexec sleep 1000\n", ends[1]);
    scratch_write(l.self, script, (size_t)n);
    const pid_t climber = fork();
    assert_true(climber >= 0);
    if (climber == 0)
        _exit(gpu_ladder_climb(&l, &end, &why, &e) == 0 ? 0 : 1);
    close(ends[1]);
    assert_true(readable(ends[0]));
    assert_int_equal(read(ends[0], &got, 1), 1);
    assert_int_equal(kill(climber, SIGKILL), 0);
    assert_int_equal(waitpid(climber, NULL, 0), climber);
    assert_true(readable(ends[0])); /* its end: nobody holds the pipe any more */
    assert_int_equal(read(ends[0], &got, 1), 0);
    close(ends[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rungs_run_in_folders_of_any_name_and_the_first_that_differs_is_named,
                                        scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(the_last_line_of_a_long_log_is_told, scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(a_rung_that_takes_too_long_is_ended_and_has_failed, scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(a_rung_that_the_end_of_all_time_cuts_off_has_not_failed, scratch_make,
                                        scratch_drop),
        cmocka_unit_test_setup_teardown(without_time_no_rung_begins, scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(what_an_earlier_climb_left_is_gone, scratch_make, scratch_drop),
        cmocka_unit_test_setup_teardown(who_is_killed_takes_the_rung_along, scratch_make, scratch_drop),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
