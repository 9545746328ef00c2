#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/report/metrics.h"
#include "worker/report/plot.h"
#include "worker/report/plot_data.h"
#include "worker/report/plot_main.h"

/* A run of n steps with an evaluation every 50, and a restart at a third. */
static void make_run(const char *path, int n)
{
    struct metrics *m;
    double seconds;
    assert_int_equal(metrics_open(&m, path, 0, true, &seconds, NULL), 0);
    assert_int_equal(metrics_event(m, "start", 0, 0, NULL, NULL), 0);
    for (int i = 1; i <= n; i++) {
        struct metrics_step s = {
            .step = i, .loss = i == 7 ? NAN : 2 * exp(-i / 50.0), .acc1 = 100.0 * i / n, .rate = 80};
        struct metrics_eval v = {.step = i, .loss = 1, .acc1 = 90.0 * i / n};
        if (i == n / 3)
            for (int k = 0; k < 2; k++) /* told twice: one line */
                assert_int_equal(metrics_event(m, "resume", i - 1, 1, NULL, NULL), 0);
        assert_int_equal(metrics_step(m, &s, NULL), 0);
        if (i % 50 == 0)
            assert_int_equal(metrics_eval(m, &v, NULL), 0);
    }
    metrics_close(m);
}

static void a_run_is_read_for_plotting(void **state)
{
    const char *path = scratch(state, "metrics.jsonl");
    make_run(path, 300);
    struct plot_data d;
    struct err e = {0};
    if (plot_data_read(&d, path, 0.033, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(d.n_steps, 300);
    assert_int_equal(d.n_evals, 6);
    assert_int_equal(d.n_restarts, 1);
    assert_int_equal((int)d.restarts[0].step, 99);
    assert_int_equal(d.restarts[0].number, 1);
    assert_true(isnan(d.steps[6].raw[PLOT_LOSS]) && isfinite(d.steps[6].smooth[PLOT_LOSS]));
    /* a straight line stays one under a centred mean; the log holds ten digits */
    assert_true(fabs(d.steps[150].smooth[PLOT_ACC1] - d.steps[150].raw[PLOT_ACC1]) < 1e-7);
    assert_true(d.steps[299].smooth[PLOT_RATE] == 80);
    plot_data_free(&d);
}

static void smoothing_is_a_number_of_steps_or_a_share(void **state)
{
    const char *path = scratch(state, "metrics.jsonl");
    static const struct {
        double smoothing;
        int window; /* steps around the 101st that count */
    } cases[] = {{0, 1}, {1, 1}, {5, 5}, {0.1, 21}, {0.001, 5}, {1e9, 200}};
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 200; i++)
        fprintf(f, "{\"step\":%d,\"loss\":%d}\n", i + 1, i == 100);
    fclose(f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plot_data d;
        assert_int_equal(plot_data_read(&d, path, cases[i].smoothing, NULL), 0);
        int seen = 0;
        for (size_t k = 0; k < d.n_steps; k++)
            seen += d.steps[k].smooth[PLOT_LOSS] > 0;
        if (fabs(1 / d.steps[100].smooth[PLOT_LOSS] - cases[i].window) > (cases[i].window == 200 ? 1 : 1e-9))
            fail_msg("smoothing %g: a mean of %g steps", cases[i].smoothing, 1 / d.steps[100].smooth[PLOT_LOSS]);
        assert_true(cases[i].window > 1 || seen == 1);
        plot_data_free(&d);
    }
}

#define CSV_HEADER                                                                                                     \
    "# {\"arch\":\"resnet50\"}\ntime_spent,cumulative_time_spent,input_count,cumulative_input_count,"                  \
    "cumulative_batch_count,inputs_per_sec,accuracy,epoch,learning_rate,loss,test_accuracy\n"

static void a_csv_log_of_caffe2_is_read_for_plotting(void **state)
{
    const char *path = scratch(state, "resnet50_gpu1_b32_L10_lr0.10_v2_20260101_000000.log");
    static const char text[] =
        CSV_HEADER "2,2,320,320,10,160,0.25,0,0.1,2.1,0.5\n2,4,320,640,20,,0.5,1,0.1,1.5,-1\n3,7,32";
    scratch_write(path, text, sizeof text - 1); /* the last row is torn */
    struct plot_data d;
    struct err e = {0};
    if (plot_data_read(&d, path, 0.033, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(d.n_steps, 2);
    assert_int_equal((int)d.steps[1].step, 20);
    assert_true(d.steps[0].raw[PLOT_LOSS] == 2.1 && d.steps[1].raw[PLOT_ACC1] == 50 &&
                d.steps[0].raw[PLOT_RATE] == 160);
    assert_true(isnan(d.steps[1].raw[PLOT_RATE]));
    assert_true(d.steps[1].smooth[PLOT_LOSS] == 1.5); /* a row is a mean already */
    assert_int_equal(d.n_evals, 1);                   /* -1: nothing was evaluated */
    assert_true(d.evals[0].step == 10 && d.evals[0].acc1 == 50 && isnan(d.evals[0].loss));
    plot_data_free(&d);
}

static void expect_png(const char *path)
{
    size_t n;
    unsigned char *png = (unsigned char *)scratch_read(path, &n);
    assert_true(n > 10000);
    assert_memory_equal(png, "\x89PNG\r\n\x1a\n", 8);
    assert_int_equal(png[16] << 24 | png[17] << 16 | png[18] << 8 | png[19], 1200);
    assert_int_equal(png[20] << 24 | png[21] << 16 | png[22] << 8 | png[23], 900);
    free(png);
}

static int plot_one(const char *run, const char *png, struct err *e)
{
    return plot_draw(&run, 1, 0.033, png, e);
}

static int plot_or_skip(const char *jsonl, const char *png)
{
    struct err e = {0};
    int rc = plot_one(jsonl, png, &e);
    if (rc == -ENOENT && strstr(e.text, "not installed")) {
        print_message("# SKIP gnuplot is not installed\n");
        skip();
    }
    if (rc < 0)
        fail_msg("%s", e.text);
    return rc;
}

static void a_plot_is_a_png_of_the_stated_size_and_leaves_no_other_file(void **state)
{
    const char *path = scratch(state, "metrics.jsonl"), *png = scratch(state, "it's a \"plot\".png");
    make_run(path, 300);
    assert_int_equal(mkdir(scratch(state, "tmp"), 0700), 0);
    setenv("TMPDIR", scratch(state, "tmp"), 1);
    plot_or_skip(path, png);
    unsetenv("TMPDIR");
    expect_png(png);
    assert_int_equal(scratch_count(scratch(state, "tmp"), ""), 0);
    assert_int_equal(scratch_count(*state, ".tmp"), 0);
}

static void runs_of_one_step_or_of_many_can_be_drawn(void **state)
{
    int sizes[] = {1, 2, 7000};
    for (int i = 0; i < 3; i++) {
        const char *path = scratch(state, "%d.jsonl", sizes[i]), *png = scratch(state, "%d.png", sizes[i]);
        make_run(path, sizes[i]);
        plot_or_skip(path, png);
        expect_png(png);
    }
}

/* gnuplot stands for a script that keeps what it was told; returns that script's words (free()). */
static char *script_of(void **state, char *const *runs, size_t n)
{
    const char *fake = scratch(state, "bin/gnuplot");
    static const char text[] = "#!/bin/sh\n/bin/cp plot.gp ../kept\necho x >plot.png\n";
    mkdir(scratch(state, "bin"), 0700);
    scratch_write(fake, text, sizeof text - 1);
    assert_int_equal(chmod(fake, 0700), 0);
    char *old = strdup(getenv("PATH"));
    setenv("PATH", scratch(state, "bin"), 1);
    setenv("TMPDIR", *state, 1);
    struct err e = {0};
    int rc = plot_draw((const char *const *)runs, n, 0.033, scratch(state, "p.png"), &e);
    setenv("PATH", old, 1);
    unsetenv("TMPDIR");
    free(old);
    if (rc < 0)
        fail_msg("%s", e.text);
    size_t bytes;
    return scratch_read(scratch(state, "kept"), &bytes);
}

static void expect_lines(const char *script, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strstr(script, words[i]))
            fail_msg("'%s' is not in the script:\n%s", words[i], script);
}

static void several_runs_have_a_colour_and_a_name_each(void **state)
{
    static const char *const folders[] = {"fp32", "it's\n\"bf16\""};
    char *runs[3];
    for (int i = 0; i < 2; i++) {
        runs[i] = strdup(scratch(state, "%s", folders[i]));
        assert_int_equal(mkdir(runs[i], 0700), 0);
        make_run(scratch(state, "%s/metrics.jsonl", folders[i]), 100 * (i + 1));
    }
    runs[2] = strdup(scratch(state, "resnet50_gpu1_b32_L10_lr0.10_v2_20260101_000000.log"));
    static const char csv[] = CSV_HEADER "2,2,320,320,10,160,0.25,0,0.1,2.1,0.5\n";
    scratch_write(runs[2], csv, sizeof csv - 1);
    static const char *const words[] = {
        "'steps0.dat' using 1:3 with lines lw 2.5 lc rgb '#0072b2' title 'fp32 (90.00 %)'",
        "'steps1.dat' using 1:3 with lines lw 2.5 lc rgb '#d55e00' title 'it?s?\"bf16\" (90.00 %)'",
        "title 'resnet50_gpu1_b32_L10_lr0.10_v2_20260101_000000 (50.00 %)'",
        "'steps2.dat' using 1:5 with points",
        "'evals2.dat' using 1:3 with linespoints",
        "set xrange [0:202]",
        "dt 2 lc rgb '#777777' title 'test'",
    };
    char *script = script_of(state, runs, 3);
    expect_lines(script, words, sizeof words / sizeof *words);
    assert_null(strstr(script, "'evals2.dat' using 1:2")); /* its test loss is not known */
    free(script);
    struct err e = {0};
    const char *png = scratch(state, "three.png");
    if (plot_draw((const char *const *)runs, 3, 0.033, png, &e) == 0)
        expect_png(png);
    else
        assert_non_null(strstr(e.text, "not installed"));
    for (int i = 0; i < 3; i++)
        free(runs[i]);
}

static void runs_of_one_name_are_told_apart_by_their_paths(void **state)
{
    char *runs[2];
    static const char *const folders[] = {"a", "b"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mkdir(scratch(state, "%s", folders[i]), 0700), 0);
        runs[i] = strdup(scratch(state, "%s/run", folders[i]));
        assert_int_equal(mkdir(runs[i], 0700), 0);
        make_run(scratch(state, "%s/run/metrics.jsonl", folders[i]), 10);
    }
    static const char *const words[] = {"/a/run'", "/b/run'"};
    char *script = script_of(state, runs, 2);
    expect_lines(script, words, 2);
    free(script);
    for (int i = 0; i < 2; i++)
        free(runs[i]);
}

static void more_runs_than_colours_are_refused(void **state)
{
    const char *runs[8], *png = scratch(state, "p.png");
    make_run(scratch(state, "metrics.jsonl"), 10);
    for (int i = 0; i < 8; i++)
        runs[i] = *state;
    struct err e = {0};
    assert_int_equal(plot_draw(runs, 8, 0.033, png, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "8 runs in one picture: 1 to 7"));
    assert_int_equal(access(png, F_OK), -1);
}

static void without_gnuplot_the_error_names_the_package(void **state)
{
    const char *path = scratch(state, "metrics.jsonl"), *png = scratch(state, "plot.png");
    make_run(path, 3);
    char *old = strdup(getenv("PATH"));
    setenv("PATH", *state, 1);
    struct err e = {0};
    int rc = plot_one(path, png, &e);
    setenv("PATH", old, 1);
    free(old);
    assert_int_equal(rc, -ENOENT);
    assert_non_null(strstr(e.text, "gnuplot-nox"));
    assert_int_equal(access(png, F_OK), -1);
}

static void a_gnuplot_that_fails_is_quoted(void **state)
{
    const char *path = scratch(state, "metrics.jsonl"), *fake = scratch(state, "gnuplot");
    static const char script[] = "#!/bin/sh\necho 'no such terminal' >&2\nexit 3\n";
    make_run(path, 3);
    scratch_write(fake, script, sizeof script - 1);
    assert_int_equal(chmod(fake, 0700), 0);
    char *old = strdup(getenv("PATH"));
    setenv("PATH", *state, 1);
    struct err e = {0};
    int rc = plot_one(path, scratch(state, "plot.png"), &e);
    setenv("PATH", old, 1);
    free(old);
    assert_int_equal(rc, -EIO);
    assert_non_null(strstr(e.text, "code 3: no such terminal"));
}

static void logs_that_cannot_be_drawn_are_refused(void **state)
{
    static const struct {
        const char *text;
        int code;
        const char *says;
    } cases[] = {
        {"", ERR_DATA, "no training step"},
        {"{\"event\":\"start\",\"step\":0,\"restart\":0}\n", ERR_DATA, "no training step"},
        {"{\"step\":1,\"loss\":2}\n[1]\n", ERR_CORRUPT, "line 2"},
        {"{\"step\":1,\"loss\":\n", ERR_CORRUPT, "line 1"},
        {"a,b\n1,2\n", ERR_DATA, "neither metrics.jsonl nor a CSV log"},
        {CSV_HEADER "1,1,1,1,1,1,1,0,0.1,2,0\n1,1,1,1,x,1,1,0,0.1,2,0\n", ERR_CORRUPT, "line 4"},
        {CSV_HEADER, ERR_DATA, "no training step"},
    };
    const char *path = scratch(state, "m.jsonl"), *png = scratch(state, "p.png");
    struct err e = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch_write(path, cases[i].text, strlen(cases[i].text));
        int rc = plot_one(path, png, &e);
        if (rc != cases[i].code || !strstr(e.text, cases[i].says) || !strstr(e.text, path))
            fail_msg("case %zu: %s '%s' instead of '%s'", i, err_name(rc), e.text, cases[i].says);
    }
    assert_int_equal(plot_one(scratch(state, "none"), png, &e), ERR_DATA);
    assert_non_null(strstr(e.text, scratch(state, "none")));
    assert_int_equal(access(png, F_OK), -1);
}

/* plot_main() with these arguments; its output does not belong into TAP. */
static int run_main(const char *a, const char *b, const char *c)
{
    char *argv[] = {strdup("plot"), a ? strdup(a) : NULL, b ? strdup(b) : NULL, c ? strdup(c) : NULL, NULL};
    int argc = 1 + (a != NULL) + (b != NULL) + (c != NULL);
    fflush(NULL);
    int out = dup(1), err = dup(2);
    assert_non_null(freopen("/dev/null", "w", stdout));
    assert_int_equal(dup2(1, 2), 2);
    int rc = plot_main(argc, argv);
    fflush(NULL);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    for (int i = 0; i < argc; i++)
        free(argv[i]);
    return rc;
}

static void the_command_draws_into_the_run_folder_or_where_told(void **state)
{
    make_run(scratch(state, "metrics.jsonl"), 60);
    plot_or_skip(scratch(state, "metrics.jsonl"), scratch(state, "probe.png"));
    assert_int_equal(run_main(*state, NULL, NULL), EXIT_OK);
    expect_png(scratch(state, "plot.png"));
    assert_int_equal(run_main(*state, "--out", scratch(state, "other.png")), EXIT_OK);
    expect_png(scratch(state, "other.png"));
    assert_int_equal(run_main(*state, "--out", scratch(state, "no/folder.png")), EXIT_CANT_CREATE);
}

static void the_command_refuses_bad_arguments_and_folders(void **state)
{
    assert_int_equal(run_main(NULL, NULL, NULL), EXIT_USAGE_ERROR);
    assert_int_equal(run_main("a", "b", NULL), EXIT_DATA);
    assert_int_equal(run_main("--smooth", "2.5", *state), EXIT_USAGE_ERROR);
    assert_int_equal(run_main("--smooth", "-1", *state), EXIT_USAGE_ERROR);
    assert_int_equal(run_main("--smooth", "much", *state), EXIT_USAGE_ERROR);
    assert_int_equal(run_main("--outt=x", *state, NULL), EXIT_USAGE_ERROR);
    assert_int_equal(run_main(*state, NULL, NULL), EXIT_DATA);
    assert_int_equal(run_main("--help", NULL, NULL), EXIT_OK);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_run_is_read_for_plotting),
        CASE(smoothing_is_a_number_of_steps_or_a_share),
        CASE(a_csv_log_of_caffe2_is_read_for_plotting),
        CASE(a_plot_is_a_png_of_the_stated_size_and_leaves_no_other_file),
        CASE(runs_of_one_step_or_of_many_can_be_drawn),
        CASE(several_runs_have_a_colour_and_a_name_each),
        CASE(runs_of_one_name_are_told_apart_by_their_paths),
        CASE(more_runs_than_colours_are_refused),
        CASE(without_gnuplot_the_error_names_the_package),
        CASE(a_gnuplot_that_fails_is_quoted),
        CASE(logs_that_cannot_be_drawn_are_refused),
        CASE(the_command_draws_into_the_run_folder_or_where_told),
        CASE(the_command_refuses_bad_arguments_and_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
