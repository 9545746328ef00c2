/* Curves stay bounded and keep their shape, what nodes told is taken apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/json/json_write.h"
#include "rendezvousd/history/curve.h"
#include "rendezvousd/history/node_figures.h"

static struct curve_point point(float t, uint32_t step, float loss)
{
    struct curve_point p = {.t_s = t, .step = step, .v[CURVE_LOSS] = loss};
    for (int i = 1; i < CURVE_N; i++)
        p.v[i] = NAN;
    return p;
}

static void add(struct curve *c, float t, uint32_t step, float loss)
{
    const struct curve_point p = point(t, step, loss);
    assert_int_equal(curve_add(c, &p), 0);
}

static void few_points_are_kept_as_they_are(void **state)
{
    struct curve c = {0};
    for (uint32_t i = 0; i < CURVE_MAX; i++)
        add(&c, (float)i, 10 * i, (float)i);
    assert_int_equal(c.n, CURVE_MAX);
    for (uint32_t i = 0; i < c.n; i++)
        assert_true(c.v[i].step == 10 * i && c.v[i].v[CURVE_LOSS] == (float)i && isnan(c.v[i].v[CURVE_RATE]));
    curve_free(&c);
}

/* A straight line stays one, from its beginning to its end, whatever its length. */
static void many_points_keep_their_shape(void **state)
{
    for (uint32_t n = CURVE_MAX; n < 300000; n = 3 * n + 7) {
        struct curve c = {0};
        for (uint32_t i = 0; i <= n; i++)
            add(&c, (float)i, i, (float)i);
        assert_in_range(c.n, CURVE_MAX / 2, CURVE_MAX);
        assert_int_equal(c.v[c.n - 1].step, n);
        for (uint32_t i = 0; i < c.n; i++) {
            const float from = i ? (float)c.v[i - 1].step : -1, to = (float)c.v[i].step;
            assert_true(c.v[i].v[CURVE_LOSS] > from && c.v[i].v[CURVE_LOSS] <= to);
            assert_true(to - from <= (float)c.stride);
        }
        curve_end(&c);
        assert_in_range(c.n, CURVE_KEPT / 2, CURVE_KEPT);
        assert_int_equal(c.cap, c.n);
        assert_int_equal(c.v[c.n - 1].step, n);
        curve_free(&c);
    }
}

static void what_is_not_known_takes_no_part_in_a_mean(void **state)
{
    struct curve c = {0};
    for (uint32_t i = 0; i <= CURVE_MAX; i++)
        add(&c, (float)i, i, i % 2 ? NAN : 5);
    for (uint32_t i = 0; i < c.n; i++)
        assert_true(c.v[i].v[CURVE_LOSS] == 5);
    curve_free(&c);
}

static void a_restart_is_not_smoothed_away(void **state)
{
    struct curve c = {0};
    uint32_t step = 0, backs = 0;
    for (uint32_t i = 0; i < 5000; i++, step++) {
        if (i == 2500)
            step -= 1000;
        add(&c, (float)i, step, (float)step);
    }
    for (uint32_t i = 1; i < c.n; i++) {
        backs += c.v[i].step < c.v[i - 1].step;
        assert_true(c.v[i].t_s > c.v[i - 1].t_s);
    }
    assert_int_equal(backs, 1);
    curve_free(&c);
}

static void the_speed_is_that_of_the_newest_stretch(void **state)
{
    struct curve c = {0};
    assert_true(curve_steps_per_s(&c, 10) == 0);
    for (uint32_t i = 0; i < 100; i++)
        add(&c, (float)i, 1000 + i, 1); /* one a second */
    for (uint32_t i = 0; i < 10; i++)
        add(&c, 100 + (float)i, 50 + 4 * i, 1); /* after a restart four */
    const double speed = curve_steps_per_s(&c, 109);
    assert_true(speed > 3.9 && speed < 4.1);
    assert_true(curve_steps_per_s(&c, 200) < 1); /* and it stands */
    curve_free(&c);
}

static void take(struct node_figures *f, const char *fields)
{
    assert_int_equal(node_figures_take(f, fields, strlen(fields)), 0);
}

static void a_report_is_taken_apart(void **state)
{
    struct node_figures f = {.base = -1};
    take(&f, "step=7 base=8 steps=7,6,,x step_ms=1.5,2,, wait_ms=0.25 cpu=0.5 mem=10 mem_total=20 gpus=97:1:2,5::");
    assert_int_equal(f.base, 8);
    assert_int_equal(f.n, 4);
    assert_true(f.ranks[0].step == 7 && f.ranks[1].step == 6 && isnan(f.ranks[2].step) && isnan(f.ranks[3].step));
    assert_true(f.ranks[1].step_ms == 2 && isnan(f.ranks[2].step_ms) && f.ranks[0].wait_ms == 0.25f);
    assert_true(isnan(f.ranks[1].wait_ms) && node_figures_slowest(&f) == 2);
    assert_true(f.cpu == 0.5f && f.memory_mib == 10 && f.total_mib == 20 && f.n_gpus == 2);
    assert_true(f.gpus[0].percent == 97 && f.gpus[0].total_mib == 2 && f.gpus[1].percent == 5);
    assert_true(isnan(f.gpus[1].memory_mib));
    take(&f, "cpu=nan"); /* ranks and GPUs are what they were */
    assert_true(isnan(f.cpu) && f.n == 4 && f.n_gpus == 2);
    node_figures_free(&f);
}

static void a_report_takes_no_more_than_it_may(void **state)
{
    struct node_figures f = {.base = -1};
    char text[16384] = "steps=";
    size_t n = strlen(text);
    for (int i = 0; i < 5000; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "1,");
    take(&f, text);
    assert_int_equal(f.n, NODE_FIGURES_RANKS);
    memcpy(text, "gpus= ", 6);
    text[5] = '1';
    take(&f, text);
    assert_int_equal(f.n_gpus, NODE_FIGURES_GPUS);
    struct buf out = {0};
    struct json_write w = {.out = &out};
    size_t room = 10;
    node_figures_write_ranks(&f, &room, &w); /* it has not told which they are */
    assert_int_equal(room, 10);
    f.base = 0;
    f.node = strdup("n\"1");
    node_figures_write_ranks(&f, &room, &w);
    assert_int_equal(room, 0);
    assert_non_null(strstr(out.data, "{\"rank\":9,\"node\":\"n\\\"1\",\"step\":1,\"step_ms\":null,\"wait_ms\":null}"));
    assert_null(strstr(out.data, "\"rank\":10"));
    buf_free(&out);
    node_figures_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_points_are_kept_as_they_are),           cmocka_unit_test(many_points_keep_their_shape),
        cmocka_unit_test(what_is_not_known_takes_no_part_in_a_mean), cmocka_unit_test(a_restart_is_not_smoothed_away),
        cmocka_unit_test(the_speed_is_that_of_the_newest_stretch),   cmocka_unit_test(a_report_is_taken_apart),
        cmocka_unit_test(a_report_takes_no_more_than_it_may),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
