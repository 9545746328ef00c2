/* What a node tells of its workers' pages and of its host; how a host is measured. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/crun/crun_page.h"
#include "common/include/crun.h"
#include "launcher/observe/gauges.h"
#include "launcher/observe/node_report.h"

#define MS INT64_C(1000000)

static struct crun_page pages[3];
static struct node_report told;
static struct buf out;

static struct crun_page *page_of(const void *arg, int local)
{
    return local < 2 ? &pages[local] : NULL;
}

static int begin(void **state)
{
    memset(pages, 0, sizeof pages);
    told = (struct node_report){0};
    buf_free(&out);
    return 0;
}

static struct node_report_view view(bool leads)
{
    return (struct node_report_view){
        .round = 1, .rank_base = 4, .workers = 3, .leads = leads, .page = page_of, .logs = "", .ras = ""};
}

static const char *write_it(const struct node_report_view *v)
{
    buf_clear(&out);
    assert_int_equal(node_report_write(&told, v, &out), 0);
    return out.len ? out.data : "";
}

static void step(int i, uint64_t n, int64_t at_ms, int64_t waited_ms)
{
    pages[i].step = n;
    pages[i].last_step_ns = at_ms * MS;
    pages[i].wait_ns = waited_ms * MS;
}

static void workers_that_tell_nothing_are_not_told_of(void **state)
{
    const struct node_report_view v = view(true);
    assert_string_equal(write_it(&v), "");
}

static void step_times_are_means_since_the_report_before(void **state)
{
    struct node_report_view v = view(false);
    step(0, 10, 1000, 0);
    assert_string_equal(write_it(&v), "step=10 base=4 steps=10,,");
    step(0, 14, 1200, 0);
    step(1, 9, 1190, 0);
    assert_string_equal(write_it(&v), "step=14 base=4 steps=14,9, step_ms=50,,");
    pages[1].figures_set = 1u << CRUN_FIGURE_WAIT_S;
    step(0, 14, 1200, 0); /* stands */
    step(1, 11, 1390, 30);
    assert_string_equal(write_it(&v), "step=14 base=4 steps=14,11, step_ms=,100, wait_ms=,15,");
    v.round = 2; /* others: nothing is known of their steps before */
    step(0, 14, 1300, 0);
    assert_string_equal(write_it(&v), "step=14 base=4 steps=14,11,");
}

static void the_first_worker_of_group_rank_0_speaks_for_the_job(void **state)
{
    struct node_report_view v = view(true);
    v.logs = "/logs of/r";
    step(0, 3, 1000, 0);
    crun_page_set_real(&pages[0].images_per_s, 310.5);
    crun_page_set_real(&pages[0].loss, 2.25);
    pages[0].has_metrics = 1; /* crun_metrics() of an older libcrun */
    assert_string_equal(write_it(&v), "step=3 base=4 steps=3,, loss=2.25 images_per_s=310.5 logs=/logs%20of/r");
    crun_page_set_real(&pages[0].figure[CRUN_FIGURE_LOSS], 2);
    crun_page_set_real(&pages[0].figure[CRUN_FIGURE_EVAL_ACCURACY], 0.5);
    pages[0].figures_set = 1u << CRUN_FIGURE_LOSS | 1u << CRUN_FIGURE_EVAL_ACCURACY;
    assert_string_equal(write_it(&v),
                        "step=3 base=4 steps=3,, loss=2 images_per_s=310.5 eval_accuracy=0.5 logs=/logs%20of/r");
    crun_page_set_real(&pages[0].figure[CRUN_FIGURE_LOSS], NAN); /* nothing that a rendezvous takes */
    assert_string_equal(write_it(&v), "step=3 base=4 steps=3,, images_per_s=310.5 eval_accuracy=0.5 logs=/logs%20of/r");
    v.leads = false;
    assert_string_equal(write_it(&v), "step=3 base=4 steps=3,,");
}

static void name_it(int i, const char *name, const char *unit, double v)
{
    snprintf(pages[0].metric[i].name, sizeof pages[0].metric[i].name, "%s", name);
    snprintf(pages[0].metric[i].unit, sizeof pages[0].metric[i].unit, "%s", unit);
    crun_page_set_real(&pages[0].metric[i].value, v);
}

/* A worker may write what it likes: nothing of that is passed on but what crun_metric() would have taken. */
static void what_the_program_names_is_told_with_its_unit(void **state)
{
    struct node_report_view v = view(true);
    name_it(0, "tokens", "tokens/s", 310000);
    name_it(1, "lr", "", 0.125);
    name_it(2, "a,b:c", "", 1);
    name_it(3, "x", "a unit", 1);
    name_it(4, "", "", 1);
    name_it(5, "grad_norm", "", NAN);
    memset(pages[0].metric[6].name, 'n', sizeof pages[0].metric[6].name);
    pages[0].metrics = 1000;
    name_it(7, "last", "%", 2);
    assert_string_equal(write_it(&v),
                        "metrics=tokens:310000:tokens/s,lr:0.125:,nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn:0:,last:2:%25");
    v.leads = false;
    assert_string_equal(write_it(&v), "");
}

static void the_host_is_told_of(void **state)
{
    struct node_report_view v = view(false);
    const struct gauges_host host = {.cpu = 0.25, .memory_used = UINT64_C(3) << 30, .memory_total = UINT64_C(8) << 30};
    const struct gauges_gpus gpus = {.n = 2, .v = {{97, 10, 20}, {0, 1, 20}}};
    v.host = &host;
    v.gpus = &gpus;
    assert_string_equal(write_it(&v), "cpu=0.25 mem=3072 mem_total=8192 gpus=97:10:20,0:1:20");
}

static void a_job_tells_a_hundred_times_a_second_at_most(void **state)
{
    assert_int_equal(node_report_pause_ms(1, 1000, true), 2000);
    assert_int_equal(node_report_pause_ms(200, 1000, true), 2000);
    assert_int_equal(node_report_pause_ms(10000, 1000, true), 100000);
    assert_int_equal(node_report_pause_ms(1, 1000, false), 10000);
}

static void the_kernels_figures_are_read(void **state)
{
    uint64_t a, b;
    assert_true(gauges_parse_stat("cpu  100 10 40 800 50 0 0 0 7 0\ncpu0 1 2 3 4", &a, &b));
    assert_int_equal(a, 150);
    assert_int_equal(b, 1000);
    assert_false(gauges_parse_stat("cpu0 1 2 3 4", &a, &b));
    assert_false(gauges_parse_stat("cpu  1 2", &a, &b));
    assert_true(gauges_parse_meminfo("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n", &a, &b));
    assert_int_equal(a, 600 << 10);
    assert_int_equal(b, 1000 << 10);
    assert_false(gauges_parse_meminfo("MemTotal:  1000 kB\n", &a, &b));
}

static void old_measurements_and_half_written_ones_do_not_count(void **state)
{
    struct gauges_page p = {0};
    struct gauges_host host = {.cpu = 0.5};
    struct gauges_gpus gpus = {.n = GAUGES_GPUS, .v = {[GAUGES_GPUS - 1] = {1, 2, 3}}};
    assert_false(gauges_read_host(&p, clock_ms(), &host));
    gauges_write_host(&p, 1000, &host);
    host.cpu = 0;
    assert_true(gauges_read_host(&p, 1000 + GAUGES_OLD_MS, &host) && host.cpu == 0.5);
    assert_false(gauges_read_host(&p, 1001 + GAUGES_OLD_MS, &host));
    p.host_count = 3;
    assert_false(gauges_read_host(&p, 1000, &host));
    gauges_write_gpus(&p, 1000, &gpus);
    gpus = (struct gauges_gpus){0};
    assert_true(gauges_read_gpus(&p, 1000, &gpus) && gpus.v[GAUGES_GPUS - 1].memory_total == 3);
    gpus.n = GAUGES_GPUS + 1;
    gauges_write_gpus(&p, 1000, &gpus);
    assert_false(gauges_read_gpus(&p, 1000, &gpus));
}

static struct gauges_page shared;

static void *run_gauges(void *end_fd)
{
    gauges_process(&shared, *(const int *)end_fd);
    return NULL;
}

/* Its count is odd: another one takes its place. */
static void a_writer_that_was_killed_in_the_middle_is_followed_by_another(void **state)
{
    int end[2];
    pthread_t thread;
    struct gauges_host host;
    const int64_t deadline = clock_deadline(60000);
    shared.host_count = 1;
    assert_int_equal(pipe(end), 0);
    assert_int_equal(pthread_create(&thread, NULL, run_gauges, &end[0]), 0);
    while (!gauges_read_host(&shared, clock_ms(), &host) && clock_left(deadline) > 0)
        poll(NULL, 0, 5);
    assert_true(gauges_read_host(&shared, clock_ms(), &host));
    assert_true(host.memory_total > 0);
    close(end[1]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    close(end[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(workers_that_tell_nothing_are_not_told_of, begin),
        cmocka_unit_test_setup(step_times_are_means_since_the_report_before, begin),
        cmocka_unit_test_setup(the_first_worker_of_group_rank_0_speaks_for_the_job, begin),
        cmocka_unit_test_setup(what_the_program_names_is_told_with_its_unit, begin),
        cmocka_unit_test_setup(the_host_is_told_of, begin),
        cmocka_unit_test(a_job_tells_a_hundred_times_a_second_at_most),
        cmocka_unit_test(the_kernels_figures_are_read),
        cmocka_unit_test(old_measurements_and_half_written_ones_do_not_count),
        cmocka_unit_test(a_writer_that_was_killed_in_the_middle_is_followed_by_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
