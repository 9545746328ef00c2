/* The history of many jobs on disk: it is written in turns of the loop, and read back whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "rendezvousd/history/history_impl.h"
#include "rendezvousd/jobs/jobs_watch.h"
#include "rendezvousd/state/state_dir.h"

enum { JOBS = 300, STEPS = 600 };

static char dir[64];
static uv_loop_t loop;
static struct state_dir *disk;
static struct history *history;
static struct jobs_watcher tell;

static void open_history(void)
{
    struct err e = {0};
    struct history_options o = {.loop = &loop, .max_jobs = JOBS};
    uint64_t epoch;
    assert_int_equal(state_dir_open(&disk, &loop, dir, &epoch, &e), 0);
    o.dir = disk;
    assert_int_equal(history_open(&history, &o, &e), 0);
    history_watcher(history, &tell);
}

static void close_history(void)
{
    history_close(history);
    state_dir_close(disk);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
}

static int begin(void **state)
{
    snprintf(dir, sizeof dir, "%s/test-history-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(dir));
    return uv_loop_init(&loop);
}

static int end(void **state)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return uv_loop_close(&loop) == 0 && system(command) == 0 ? 0 : -1;
}

static void name_of(int job, char out[LEADER_INSTANCE_LEN + 1])
{
    snprintf(out, LEADER_INSTANCE_LEN + 1, "%0*d", LEADER_INSTANCE_LEN, job);
}

/* A job that runs, and has told so many steps. */
static void run_job(int job, int steps)
{
    char instance[LEADER_INSTANCE_LEN + 1], fields[64];
    name_of(job, instance);
    tell.changed(tell.arg, &(struct jobs_facts){.run = "r",
                                                .instance = instance,
                                                .principal = "p",
                                                .state = "running",
                                                .round = 1,
                                                .nodes = 1,
                                                .world_size = 1});
    for (int i = 1; i <= steps; i++) {
        const int n = snprintf(fields, sizeof fields, "step=%d base=0 steps=%d loss=%.5f", i, i, 1.0 / i);
        tell.reported(tell.arg, instance, "n", fields, (size_t)n);
    }
}

static int count_dirty(void)
{
    int n = 0;
    for (const struct record *r = history->live; r; r = r->next)
        n += r->dirty;
    return n;
}

static void curves_of_many_jobs_do_not_hold_the_loop_up(void **state)
{
    open_history();
    for (int i = 0; i < JOBS; i++)
        run_job(i, STEPS);
    assert_int_equal(count_dirty(), JOBS);
    uv_timer_start(history->timer, history->timer->timer_cb, 0, 0); /* it is due */
    uv_run(&loop, UV_RUN_NOWAIT);
    assert_in_range(count_dirty(), 1, JOBS - 1);
    while (count_dirty() > 0)
        uv_run(&loop, UV_RUN_ONCE);
    close_history();

    open_history();
    for (int i = 0; i < JOBS; i++) {
        char instance[LEADER_INSTANCE_LEN + 1];
        struct record *r;
        name_of(i, instance);
        HASH_FIND_STR(history->all, instance, r);
        assert_non_null(r);
        assert_true(r->now.step == STEPS);
        assert_true(r->curve.n > CURVE_MAX / 4 && r->curve.v[r->curve.n - 1].step == STEPS);
    }
    close_history();
}

static void what_is_left_at_the_end_is_written_then(void **state)
{
    open_history();
    run_job(0, 1);
    run_job(1, 1);
    assert_int_equal(count_dirty(), 2);
    close_history();
    open_history();
    assert_int_equal(HASH_COUNT(history->all), 2);
    close_history();
}

static void tell_restart(const char *cause)
{
    char instance[LEADER_INSTANCE_LEN + 1];
    struct leader_restart restart = {.round = 1, .cause = {.rank = 0, .exit_code = 7}};
    struct jobs_facts f = {
        .run = "r", .instance = instance, .principal = "p", .state = "running", .round = 1, .restart = &restart};
    name_of(0, instance);
    tell.changed(tell.arg, &f);
    f.round = 2;
    f.restarts = 1;
    snprintf(restart.cause.text, sizeof restart.cause.text, "%s", cause);
    tell.changed(tell.arg, &f);
}

static void a_long_cause_is_cut_between_characters(void **state)
{
    char cause[200] = "a", expected[128] = "";
    for (int i = 0; i < 80; i++)
        strcat(cause, "\xc3\xbc");
    memcpy(expected, cause, 115); /* one byte more would have room */
    strcat(expected, "...");
    open_history();
    tell_restart(cause);
    assert_int_equal(history->live->mark_count, 1);
    assert_string_equal(history->live->marks[0].why, expected);
    close_history();
}

static void bytes_of_a_cause_that_are_no_utf8_are_question_marks(void **state)
{
    open_history();
    tell_restart("Z\xfcrich");
    assert_string_equal(history->live->marks[0].why, "Z?rich");
    close_history();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(curves_of_many_jobs_do_not_hold_the_loop_up, begin, end),
        cmocka_unit_test_setup_teardown(what_is_left_at_the_end_is_written_then, begin, end),
        cmocka_unit_test_setup_teardown(a_long_cause_is_cut_between_characters, begin, end),
        cmocka_unit_test_setup_teardown(bytes_of_a_cause_that_are_no_utf8_are_question_marks, begin, end),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
