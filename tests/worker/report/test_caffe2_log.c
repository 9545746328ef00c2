#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/report/caffe2_log.h"

#define HEADER                                                                                                         \
    "time_spent,cumulative_time_spent,input_count,cumulative_input_count,cumulative_batch_count,inputs_per_sec,"       \
    "accuracy,epoch,learning_rate,loss,test_accuracy"

static struct caffe2_log_options options(void **state)
{
    return (struct caffe2_log_options){.dir = *state,
                                       .arch = "resnet50",
                                       .devices = 2,
                                       .batch = 64,
                                       .labels = 1000,
                                       .lr = 0.1,
                                       .parameters = "trainer --gpus 2"};
}

static struct caffe2_row row(int64_t epoch)
{
    return (struct caffe2_row){.time_spent = 50.25,
                               .cumulative_time_spent = 50.25 * (double)(epoch + 1),
                               .input_count = 4000,
                               .cumulative_input_count = 4000 * (epoch + 1),
                               .cumulative_batch_count = 63 * (epoch + 1),
                               .inputs_per_sec = 4000 / 50.25,
                               .accuracy = 0.5,
                               .epoch = epoch,
                               .learning_rate = 0.1,
                               .loss = 1.5,
                               .test_accuracy = -1};
}

static struct caffe2_log *must_open(const struct caffe2_log_options *o, int64_t first, double *seconds)
{
    struct caffe2_log *l;
    struct err e = {0};
    if (caffe2_log_open(&l, o, first, seconds, &e) < 0)
        fail_msg("%s", e.text);
    return l;
}

/* A log with rows of epochs 0..n-1; its path is copied out. */
static void make_log(const struct caffe2_log_options *o, int n, char *path)
{
    double seconds;
    struct caffe2_log *l = must_open(o, 0, &seconds);
    for (int i = 0; i < n; i++) {
        struct caffe2_row r = row(i);
        assert_int_equal(caffe2_log_row(l, &r, NULL), 0);
    }
    strcpy(path, caffe2_log_path(l));
    caffe2_log_close(l);
}

static void expect_text(const char *path, const char *want)
{
    size_t n;
    char *have = scratch_read(path, &n);
    assert_string_equal(have, want);
    free(have);
}

static void the_name_is_the_one_of_the_seed(void **state)
{
    struct caffe2_log_options o = options(state);
    char path[4096];
    make_log(&o, 0, path);
    regex_t re;
    assert_int_equal(regcomp(&re, "/resnet50_gpu2_b64_L1000_lr0\\.10_v2_20[0-9]{6}_[0-9]{6}\\.log$", REG_EXTENDED), 0);
    if (regexec(&re, path, 0, NULL, 0) != 0)
        fail_msg("%s does not look like resnet50_gpu2_b64_L1000_lr0.10_v2_20170411_141617.log", path);
    regfree(&re);
}

static void parameters_header_and_rows_are_in_the_seeds_order(void **state)
{
    struct caffe2_log_options o = options(state);
    o.parameters = "two\nlines";
    char path[4096];
    make_log(&o, 2, path);
    expect_text(path, "# two lines\n" HEADER "\n"
                      "50.250000,50.250000,4000,4000,63,79.602,0.5,0,0.1,1.5,-1\n"
                      "50.250000,100.500000,4000,8000,126,79.602,0.5,1,0.1,1.5,-1\n");
}

static void on_resume_rows_of_redone_epochs_are_cut_off(void **state)
{
    struct caffe2_log_options o = options(state);
    char path[4096];
    double seconds = -1;
    make_log(&o, 4, path);
    o.devices = 3; /* resized meanwhile: still the same log */
    struct caffe2_log *l = must_open(&o, 2, &seconds);
    assert_string_equal(caffe2_log_path(l), path);
    assert_true(seconds == 100.5);
    struct caffe2_row r = row(2);
    r.loss = 0.25;
    assert_int_equal(caffe2_log_row(l, &r, NULL), 0);
    caffe2_log_close(l);
    expect_text(path, "# trainer --gpus 2\n" HEADER "\n"
                      "50.250000,50.250000,4000,4000,63,79.602,0.5,0,0.1,1.5,-1\n"
                      "50.250000,100.500000,4000,8000,126,79.602,0.5,1,0.1,1.5,-1\n"
                      "50.250000,150.750000,4000,12000,189,79.602,0.5,2,0.1,0.25,-1\n");
}

static void a_torn_last_row_is_cut_off(void **state)
{
    struct caffe2_log_options o = options(state);
    char path[4096];
    double seconds;
    make_log(&o, 1, path);
    size_t n;
    char *good = scratch_read(path, &n);
    char *torn = malloc(n + 12);
    memcpy(torn, good, n);
    memcpy(torn + n, "50.250000,100", 12);
    scratch_write(path, torn, n + 12);
    caffe2_log_close(must_open(&o, 2, &seconds));
    assert_true(seconds == 50.25);
    expect_text(path, good);
    free(good);
    free(torn);
}

static void the_newest_log_of_this_arch_is_resumed(void **state)
{
    const char *names[] = {"resnet50_gpu1_b64_L1000_lr0.10_v2_20250101_000000.log",
                           "resnet50_gpu8_b64_L1000_lr0.10_v2_20250102_000000.log",
                           "resnet18_gpu1_b64_L1000_lr0.10_v2_20260101_000000.log",
                           "resnet50_gpu1_b64_L1000_lr0.10_v2_20260101_000000.txt",
                           "resnet50_gpu1_b64_L1000_v2_20260101_000000.log",
                           "resnet50_gpu1_b64_L1000_lr0.10_v2_2026010_000000.log"};
    static const char text[] = "# p\n" HEADER "\n1,1,1,1,1,1,1,0,1,1,1\n";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        scratch_write(scratch(state, "%s", names[i]), text, sizeof text - 1);
    struct caffe2_log_options o = options(state);
    double seconds;
    struct caffe2_log *l = must_open(&o, 1, &seconds);
    assert_string_equal(caffe2_log_path(l), scratch(state, "%s", names[1]));
    caffe2_log_close(l);
    expect_text(scratch(state, "%s", names[1]), text);
}

static void without_resume_a_log_with_rows_is_left_alone(void **state)
{
    struct caffe2_log_options o = options(state);
    char first[4096], second[4096], third[4096];
    make_log(&o, 1, first);
    make_log(&o, 0, second); /* within the same second: another name */
    assert_string_not_equal(first, second);
    make_log(&o, 1, third); /* the empty one is used again */
    assert_string_equal(third, second);
    o.resume = true;
    double seconds;
    struct caffe2_log *l = must_open(&o, 0, &seconds);
    assert_string_equal(caffe2_log_path(l), third);
    caffe2_log_close(l);
    expect_text(third, "# trainer --gpus 2\n" HEADER "\n");
}

static void two_runs_started_in_one_second_have_a_file_each(void **state)
{
    struct caffe2_log_options o = options(state);
    double seconds;
    struct caffe2_log *a = must_open(&o, 0, &seconds), *b = must_open(&o, 0, &seconds);
    assert_string_not_equal(caffe2_log_path(a), caffe2_log_path(b)); /* a's has no row yet, but a lives */
    struct caffe2_row r = row(0);
    assert_int_equal(caffe2_log_row(a, &r, NULL), 0);
    expect_text(caffe2_log_path(b), "# trainer --gpus 2\n" HEADER "\n");
    caffe2_log_close(a);
    caffe2_log_close(b);
}

static void a_foreign_file_of_that_name_is_not_touched(void **state)
{
    const char *path = scratch(state, "resnet50_gpu2_b64_L1000_lr0.10_v2_20250101_000000.log");
    scratch_write(path, "my notes\n", 9);
    struct caffe2_log_options o = options(state);
    double seconds = -1;
    struct caffe2_log *l = must_open(&o, 3, &seconds);
    assert_string_not_equal(caffe2_log_path(l), path);
    assert_true(seconds == 0);
    caffe2_log_close(l);
    expect_text(path, "my notes\n");
}

static void bad_folders_and_names_are_refused(void **state)
{
    struct caffe2_log *l = NULL;
    struct err e = {0};
    double seconds;
    struct caffe2_log_options o = options(state);
    o.arch = "../resnet";
    assert_int_equal(caffe2_log_open(&l, &o, 0, &seconds, &e), -EINVAL);
    assert_non_null(strstr(e.text, "'../resnet'"));
    o.arch = "resnet50";
    o.dir = scratch(state, "missing");
    assert_int_equal(caffe2_log_open(&l, &o, 0, &seconds, &e), -ENOENT);
    assert_non_null(strstr(e.text, o.dir));
    assert_null(l);
}

static void extreme_numbers_fit_into_a_row(void **state)
{
    struct caffe2_log_options o = options(state);
    double seconds;
    struct caffe2_log *l = must_open(&o, 0, &seconds);
    struct caffe2_row r = {.time_spent = 1.7e308,
                           .cumulative_time_spent = -1.7e308,
                           .inputs_per_sec = 1.7e308,
                           .input_count = INT64_MIN,
                           .cumulative_input_count = INT64_MIN,
                           .epoch = INT64_MIN,
                           .cumulative_batch_count = INT64_MIN,
                           .loss = -1.23456789e-300};
    assert_int_equal(caffe2_log_row(l, &r, NULL), 0);
    size_t n;
    char *text = scratch_read(caffe2_log_path(l), &n);
    assert_int_equal(text[n - 1], '\n');
    assert_non_null(strstr(text, "-1.23456789e-300,0\n"));
    free(text);
    caffe2_log_close(l);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_name_is_the_one_of_the_seed),
        CASE(parameters_header_and_rows_are_in_the_seeds_order),
        CASE(on_resume_rows_of_redone_epochs_are_cut_off),
        CASE(a_torn_last_row_is_cut_off),
        CASE(the_newest_log_of_this_arch_is_resumed),
        CASE(without_resume_a_log_with_rows_is_left_alone),
        CASE(two_runs_started_in_one_second_have_a_file_each),
        CASE(a_foreign_file_of_that_name_is_not_touched),
        CASE(bad_folders_and_names_are_refused),
        CASE(extreme_numbers_fit_into_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
