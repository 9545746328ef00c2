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

#include "common/err.h"
#include "common/exitcode.h"
#include "tests/worker/ckpt/scratch.h"
#include "worker/report/metrics.h"
#include "worker/report/plot_data.h"
#include "worker/report/plot_main.h"

/* A run of n steps with an evaluation every 50, and a restart at a third. */
static void make_run(const char *path, int n)
{
    struct metrics *m;
    double seconds;
    assert_int_equal(metrics_open(&m, path, 0, &seconds, NULL), 0);
    assert_int_equal(metrics_event(m, "start", 0, 0, NULL, NULL), 0);
    for (int i = 1; i <= n; i++) {
        struct metrics_step s = {
            .step = i, .loss = i == 7 ? NAN : 2 * exp(-i / 50.0), .acc1 = 100.0 * i / n, .images_per_sec = 80};
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
    if (plot_data_read(&d, path, &e) < 0)
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

static int plot_or_skip(const char *jsonl, const char *png)
{
    struct err e = {0};
    int rc = metrics_plot(jsonl, png, &e);
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

static void without_gnuplot_the_error_names_the_package(void **state)
{
    const char *path = scratch(state, "metrics.jsonl"), *png = scratch(state, "plot.png");
    make_run(path, 3);
    char *old = strdup(getenv("PATH"));
    setenv("PATH", *state, 1);
    struct err e = {0};
    int rc = metrics_plot(path, png, &e);
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
    int rc = metrics_plot(path, scratch(state, "plot.png"), &e);
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
    };
    const char *path = scratch(state, "m.jsonl"), *png = scratch(state, "p.png");
    struct err e = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch_write(path, cases[i].text, strlen(cases[i].text));
        int rc = metrics_plot(path, png, &e);
        if (rc != cases[i].code || !strstr(e.text, cases[i].says) || !strstr(e.text, path))
            fail_msg("case %zu: %s '%s' instead of '%s'", i, err_name(rc), e.text, cases[i].says);
    }
    assert_int_equal(metrics_plot(scratch(state, "none"), png, &e), -ENOENT);
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
    assert_int_equal(run_main("a", "b", NULL), EXIT_USAGE_ERROR);
    assert_int_equal(run_main("--outt=x", *state, NULL), EXIT_USAGE_ERROR);
    assert_int_equal(run_main(*state, NULL, NULL), EXIT_DATA);
    assert_int_equal(run_main("--help", NULL, NULL), EXIT_OK);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_make, scratch_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_run_is_read_for_plotting),
        CASE(a_plot_is_a_png_of_the_stated_size_and_leaves_no_other_file),
        CASE(runs_of_one_step_or_of_many_can_be_drawn),
        CASE(without_gnuplot_the_error_names_the_package),
        CASE(a_gnuplot_that_fails_is_quoted),
        CASE(logs_that_cannot_be_drawn_are_refused),
        CASE(the_command_draws_into_the_run_folder_or_where_told),
        CASE(the_command_refuses_bad_arguments_and_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
