#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/err.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/report/metrics.h"

static struct metrics *must_open(const char *path, int64_t first, double *seconds)
{
    struct metrics *m;
    struct err e = {0};
    if (metrics_open(&m, path, first, true, seconds, &e) < 0)
        fail_msg("%s", e.text);
    return m;
}

static void put_steps(struct metrics *m, int64_t from, int64_t to)
{
    for (int64_t i = from; i <= to; i++) {
        struct metrics_step s = {.step = i, .epoch = (double)i / 4, .loss = 1.0 / (double)i, .seconds = (double)i * 2};
        assert_int_equal(metrics_step(m, &s, NULL), 0);
    }
}

/* "step" of every line, "e" behind events, in one string. */
static void expect_steps(const char *path, const char *want)
{
    size_t n;
    char have[512] = "", *text = scratch_read(path, &n);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        cJSON *o = cJSON_Parse(line), *step = cJSON_GetObjectItem(o, "step");
        if (!cJSON_IsObject(o))
            fail_msg("not JSON: %s", line);
        if (have[0])
            strcat(have, " ");
        if (step)
            sprintf(have + strlen(have), "%d", step->valueint);
        if (cJSON_HasObjectItem(o, "event"))
            strcat(have, "e");
        cJSON_Delete(o);
    }
    free(text);
    assert_string_equal(have, want);
}

static void losses_read_back_exactly(void **state)
{
    const char *path = scratch(state, "m.jsonl");
    double seconds = -1;
    struct metrics *m = must_open(path, 0, &seconds);
    struct metrics_step s = {.step = 1, .loss = 2.0 / 3 + 0x1p-52};
    assert_int_equal(metrics_step(m, &s, NULL), 0);
    metrics_close(m);
    size_t n;
    char *text = scratch_read(path, &n);
    cJSON *o = cJSON_Parse(text);
    double back = cJSON_GetNumberValue(cJSON_GetObjectItem(o, "loss"));
    cJSON_Delete(o);
    free(text);
    assert_memory_equal(&back, &s.loss, sizeof back);
}

static void each_kind_of_line_is_written_as_documented(void **state)
{
    const char *path = scratch(state, "m.jsonl");
    double seconds = -1;
    struct metrics *m = must_open(path, 0, &seconds);
    struct metrics_step s = {.step = 120,
                             .epoch = 1.905,
                             .loss = NAN,
                             .acc1 = 54.7,
                             .acc5 = 92.2,
                             .lr = 0.09,
                             .rate = 81.2,
                             .data_wait = 0.01,
                             .comm_wait = 0.04,
                             .seconds = 98.1};
    struct metrics_eval v = {
        .step = 126, .epoch = 2, .loss = 1.1, .acc1 = 60.1, .acc5 = 95, .seconds = 103.2, .counted = 1000};
    assert_int_equal(metrics_step(m, &s, NULL), 0);
    assert_int_equal(metrics_eval(m, &v, NULL), 0);
    assert_int_equal(metrics_event(m, "re\"start\n", 126, 1, NULL, NULL), 0);
    metrics_close(m);
    assert_true(seconds == 0);
    size_t n;
    char *text = scratch_read(path, &n), *event = strstr(text, "{\"event\"");
    assert_non_null(event);
    cJSON *o = cJSON_Parse(event);
    assert_string_equal(cJSON_GetObjectItem(o, "event")->valuestring, "re\"start\n");
    assert_int_equal(cJSON_GetObjectItem(o, "restart")->valueint, 1);
    assert_int_equal(strlen(cJSON_GetObjectItem(o, "time")->valuestring), 24);
    cJSON_Delete(o);
    *event = 0;
    assert_string_equal(text, "{\"step\":120,\"epoch\":1.905,\"loss\":null,\"acc1\":54.7,\"acc5\":92.2,\"lr\":0.09,"
                              "\"images_per_sec\":81.2,\"data_wait\":0.01,\"comm_wait\":0.04,\"seconds\":98.1,"
                              "\"bad_samples\":0}\n"
                              "{\"step\":126,\"epoch\":2,\"test_loss\":1.1,\"test_acc1\":60.1,\"test_acc5\":95,"
                              "\"test_images\":1000,\"seconds\":103.2,\"bad_samples\":0}\n");
    free(text);
}

static void on_resume_later_steps_are_cut_off_and_time_goes_on(void **state)
{
    const char *path = scratch(state, "m.jsonl");
    double seconds;
    struct metrics *m = must_open(path, 0, &seconds);
    put_steps(m, 1, 9);
    metrics_close(m);
    m = must_open(path, 6, &seconds);
    assert_true(seconds == 12);
    assert_int_equal(metrics_event(m, "resume", 6, 1, NULL, NULL), 0);
    put_steps(m, 7, 8);
    metrics_close(m);
    expect_steps(path, "1 2 3 4 5 6 6e 7 8");
}

/* Survivors of a round, and replicas that went back, stand at the first step of the epoch behind it. */
static void an_evaluation_goes_where_it_is_done_again_alone(void **state)
{
    const char *path = scratch(state, "m.jsonl");
    const struct metrics_eval v = {.step = 4, .epoch = 1, .counted = 13};
    double seconds;
    struct metrics *m = must_open(path, 0, &seconds);
    put_steps(m, 1, 4);
    assert_int_equal(metrics_eval(m, &v, NULL), 0);
    put_steps(m, 5, 6);
    metrics_close(m);
    assert_int_equal(metrics_open(&m, path, 4, false, &seconds, NULL), 0);
    metrics_close(m);
    expect_steps(path, "1 2 3 4 4");
    metrics_close(must_open(path, 4, &seconds));
    expect_steps(path, "1 2 3 4");
}

static void lines_without_a_step_are_kept_when_they_lie_behind_the_cut(void **state)
{
    const char *path = scratch(state, "m.jsonl");
    static const char text[] = "{\"step\":1,\"seconds\":5}\n{\"step\":2,\"seconds\":6}\n{\"event\":\"note\"}\n"
                               "{\"step\":3}\n{\"event\":\"resume\",\"step\":1}\n{\"step\":2}\n";
    scratch_write(path, text, sizeof text - 1);
    double seconds;
    struct metrics *m = must_open(path, 1, &seconds);
    assert_true(seconds == 5);
    put_steps(m, 2, 2);
    metrics_close(m);
    expect_steps(path, "1 e 1e 2");
    assert_int_equal(scratch_count(*state, ".tmp"), 0);
}

static void a_restart_before_the_first_step_keeps_events_only(void **state)
{
    const char *path = scratch(state, "m.jsonl");
    double seconds;
    struct metrics *m = must_open(path, 0, &seconds);
    assert_int_equal(metrics_event(m, "start", 0, 0, NULL, NULL), 0);
    put_steps(m, 1, 3);
    metrics_close(m);
    m = must_open(path, 0, &seconds);
    assert_true(seconds == 0);
    metrics_close(m);
    expect_steps(path, "0e");
}

static void a_torn_last_line_is_cut_off(void **state)
{
    const char *path = scratch(state, "m.jsonl");
    static const char text[] = "{\"step\":1,\"seconds\":5}\n{\"step\":2,\"seconds\":6}\n{\"step\":2,\"sec";
    scratch_write(path, text, sizeof text - 1);
    double seconds;
    metrics_close(must_open(path, 5, &seconds));
    assert_true(seconds == 6);
    expect_steps(path, "1 2");
}

static void a_step_inside_a_string_is_no_step(void **state)
{
    const char *path = scratch(state, "m.jsonl");
    double seconds;
    struct metrics *m = must_open(path, 0, &seconds);
    assert_int_equal(metrics_event(m, "\"step\":99", 1, 0, NULL, NULL), 0);
    metrics_close(m);
    metrics_close(must_open(path, 5, &seconds));
    expect_steps(path, "1e");
}

static void files_that_cannot_be_used_are_refused(void **state)
{
    struct metrics *m;
    struct err e = {0};
    double seconds;
    assert_int_equal(metrics_open(&m, scratch(state, "no/m.jsonl"), 0, true, &seconds, &e), -ENOENT);
    assert_non_null(strstr(e.text, "no/m.jsonl"));
    assert_int_equal(metrics_open(&m, *state, 0, true, &seconds, &e), -EISDIR);
    assert_int_equal(mkfifo(scratch(state, "fifo"), 0600), 0);
    assert_int_equal(metrics_open(&m, scratch(state, "fifo"), 0, true, &seconds, &e), -EINVAL);
    char *line = malloc(70000);
    memset(line, 'x', 70000);
    scratch_write(scratch(state, "long"), line, 70000);
    free(line);
    assert_int_equal(metrics_open(&m, scratch(state, "long"), 0, true, &seconds, &e), ERR_CORRUPT);
    assert_non_null(strstr(e.text, "longer than"));
}

/* In a child: the limit lets three lines through and a part of the fourth. */
static int fill_up(const char *path)
{
    struct rlimit limit = {.rlim_cur = 500, .rlim_max = 500};
    double seconds;
    struct err e = {0};
    struct metrics *m = must_open(path, 0, &seconds);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    struct metrics_step s = {.step = 1};
    int rc = 0;
    for (int i = 0; i < 10 && rc == 0; i++)
        rc = metrics_step(m, &s, &e);
    metrics_close(m);
    return rc == -EFBIG && strstr(e.text, path) ? 0 : 1;
}

static void a_full_disk_leaves_whole_lines(void **state)
{
    const char *path = scratch(state, "m.jsonl");
    pid_t pid = fork();
    if (pid == 0)
        _exit(fill_up(path));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    size_t n;
    char *text = scratch_read(path, &n);
    assert_true(n > 0 && n < 500);
    assert_int_equal(text[n - 1], '\n');
    free(text);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(losses_read_back_exactly),
        CASE(each_kind_of_line_is_written_as_documented),
        CASE(on_resume_later_steps_are_cut_off_and_time_goes_on),
        CASE(an_evaluation_goes_where_it_is_done_again_alone),
        CASE(lines_without_a_step_are_kept_when_they_lie_behind_the_cut),
        CASE(a_restart_before_the_first_step_keeps_events_only),
        CASE(a_torn_last_line_is_cut_off),
        CASE(a_step_inside_a_string_is_no_step),
        CASE(files_that_cannot_be_used_are_refused),
        CASE(a_full_disk_leaves_whole_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
