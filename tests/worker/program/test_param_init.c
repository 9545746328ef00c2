/* Initial values. The fixed numbers were computed by a separate implementation (Philox and the quantile of the normal
 * distribution in Python's statistics.NormalDist): normal within 4e-16 relative of it, uniform equal. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/program/program.h"

static struct param param_of(const char *name, enum param_init init, double scale)
{
    struct param p = {.init = init, .init_scale = scale};
    strcpy(p.name, name);
    return p;
}

static const struct golden {
    uint64_t seed;
    const char *name;
    size_t i;
    double normal, uniform;
} golden[] = {
    {0, "conv1.weight", 0, 0.66238135286350219, 0.49227314880468209},
    {0, "conv1.weight", 1, 1.8603251280666948, 0.93716045950642202},
    {0, "conv1.weight", 9407, 1.6152183916365888, 0.8937365909141326},
    {42, "layer4.1.conv2.weight", 2359295, 0.59971023443569094, 0.4513006336840466},
    {(uint64_t)1 << 40, "conv1.weight", (size_t)1 << 33, 2.0662260396521943, 0.96119285879863869},
};

static void assert_same(double got, double expected)
{
    if (got != expected)
        print_error("got %.17g, expected %.17g\n", got, expected);
    assert_true(got == expected);
}

static void values_are_the_known_ones_bit_for_bit(void **state)
{
    for (size_t k = 0; k < sizeof golden / sizeof *golden; k++) {
        const struct golden *g = &golden[k];
        struct param normal = param_of(g->name, INIT_NORMAL, 1), uniform = param_of(g->name, INIT_UNIFORM, 1);
        assert_same(param_initial(&normal, g->seed, g->i), g->normal);
        assert_same(param_initial(&uniform, g->seed, g->i), g->uniform);
        normal.init_scale = 0.25;
        assert_same(param_initial(&normal, g->seed, g->i), g->normal / 4);
    }
}

/* Rows and columns of a whole that another rank might hold. */
static void a_part_has_the_values_of_the_whole(void **state)
{
    struct param whole = param_of("fc.weight", INIT_UNIFORM, 0.3);
    whole.ndim = 2, whole.shape[0] = 7, whole.shape[1] = 150, whole.count = 1050;
    for (int dim = 0; dim < 2; dim++) {
        struct param part = whole;
        double out[1050];
        part.sharded = true, part.shard_dim = dim, part.shard_first = 3, part.shard_whole = whole.shape[dim];
        part.shape[dim] = 4;
        part.count = (size_t)(part.shape[0] * part.shape[1]);
        assert_int_equal(param_whole_size(&part, dim), whole.shape[dim]);
        param_initial_fill(&part, 9, 5, part.count - 5, out + 5);
        for (size_t i = 5; i < part.count; i++) {
            const size_t row = i / (size_t)part.shape[1] + (dim == 0 ? 3 : 0),
                         column = i % (size_t)part.shape[1] + (dim == 1 ? 3 : 0);
            assert_same(out[i], param_initial(&whole, 9, row * 150 + column));
            assert_same(out[i], param_initial(&part, 9, i));
        }
    }
}

static void zeros_and_ones_are_that(void **state)
{
    struct param zeros = param_of("a", INIT_ZEROS, 3), ones = param_of("a", INIT_ONES, 3);
    assert_same(param_initial(&zeros, 1, 5), 0);
    assert_same(param_initial(&ones, 1, 5), 1);
    const struct param constant = param_of("a", INIT_CONSTANT, 1e-6);
    assert_same(param_initial(&constant, 1, 5), 1e-6);
}

/* Of MAE's, with what the C library makes of sines and powers: to some units in the last place. */
static void a_table_has_the_sines_of_columns_and_rows(void **state)
{
    enum { EXTRA = 2, H = 40, W = 300, C = 24 };
    const struct param p = {.name = "table",
                            .ndim = 3,
                            .shape = {1, EXTRA + H * W, C},
                            .count = (size_t)(EXTRA + H * W) * C,
                            .init = INIT_SINCOS2D,
                            .grid = {EXTRA, H, W}};
    static double out[(EXTRA + H * W) * C], part[100];
    (void)state;
    param_initial_fill(&p, 1, 0, p.count, out);
    for (size_t i = 0; i < p.count; i++) {
        const size_t at = i / C - EXTRA, c = i % C;
        const double rate = pow(10000, -(double)(c % (C / 4)) / (C / 4)),
                     angle = rate * (double)(c < C / 2 ? at % W : at / W),
                     want = i / C < EXTRA     ? 0
                            : c / (C / 4) % 2 ? cos(angle)
                                              : sin(angle);
        assert_true(fabs(out[i] - want) <= 1e-15 * fmax(1, angle));
    }
    param_initial_fill(&p, 7, 1234, 100, part);
    assert_memory_equal(part, out + 1234, sizeof part);
}

/* Of the normal distribution within two deviations the variance is 0.7737; its sampling error 0.0023 of n = 100,000. */
static void truncated_values_stay_within_two_deviations(void **state)
{
    enum { N = 100000 };
    struct param p = param_of("x", INIT_TRUNCATED, 0.02);
    double most = 0, squares = 0;
    static double x[N];
    param_initial_fill(&p, 5, 0, N, x);
    for (size_t i = 0; i < N; i++) {
        const double v = x[i] / 0.02;
        most = fmax(most, fabs(v));
        squares += v * v;
    }
    assert_true(most > 1.99 && most <= 2);
    assert_true(fabs(squares / N - 0.7737) < 0.01);
}

static void a_slice_equals_the_whole(void **state)
{
    enum { N = 1001 };
    static double whole[N], part[N];
    struct param p = param_of("fc.weight", INIT_NORMAL, 0.02);
    param_initial_fill(&p, 7, 0, N, whole);
    for (size_t first = 0, n = 1; first < N; first += n, n = n * 2 + 1) {
        n = n < N - first ? n : N - first;
        param_initial_fill(&p, 7, first, n, part + first);
    }
    assert_memory_equal(whole, part, sizeof whole);
    assert_same(param_initial(&p, 7, 500), whole[500]);
}

static void name_and_seed_change_the_values(void **state)
{
    struct param a = param_of("layer1.0.conv1.weight", INIT_NORMAL, 1),
                 b = param_of("layer1.0.conv2.weight", INIT_NORMAL, 1);
    assert_true(param_initial(&a, 0, 0) != param_initial(&b, 0, 0));
    assert_true(param_initial(&a, 0, 0) != param_initial(&a, 1, 0));
    assert_true(param_initial(&a, 0, 0) != param_initial(&a, (uint64_t)1 << 32, 0));
}

/* Sampling error of n = 200,000: mean 0.0022, variance 0.0032, tail counts sqrt(expected). Four of each. */
static void normal_values_have_the_moments_and_tails_of_the_normal_distribution(void **state)
{
    enum { N = 200000 };
    struct param p = param_of("x", INIT_NORMAL, 1);
    double sum = 0, squares = 0;
    int beyond_two = 0, beyond_three = 0;
    static double x[N];
    param_initial_fill(&p, 7, 0, N, x);
    for (size_t i = 0; i < N; i++) {
        const double v = x[i];
        sum += v;
        squares += v * v;
        beyond_two += fabs(v) > 2;
        beyond_three += fabs(v) > 3;
    }
    if (fabs(sum / N) >= 0.009 || fabs(squares / N - 1) >= 0.0128)
        print_error("mean %g, variance %g\n", sum / N, squares / N);
    assert_true(fabs(sum / N) < 0.009);
    assert_true(fabs(squares / N - 1) < 0.0128);
    assert_in_range(beyond_two, 9100 - 4 * 95, 9100 + 4 * 95); /* 0.0455 */
    assert_in_range(beyond_three, 540 - 4 * 23, 540 + 4 * 23); /* 0.0027 */
}

/* The same draw, of the middle of the distribution: both lie at the same share of theirs. The variance of a normal
 * distribution cut at 2 is 1 - 4 phi(2) / (1 - 2 Phi(-2)); four sampling errors of it. */
static void truncated_values_are_those_of_a_normal_distribution_without_its_tails(void **state)
{
    enum { N = 200000 };
    struct param normal = param_of("x", INIT_NORMAL, 1), cut = param_of("x", INIT_TRUNCATED, 1);
    static double x[N], y[N];
    const double tail = 0.5 * erfc(sqrt(2));
    double squares = 0, most = 0;
    param_initial_fill(&normal, 7, 0, N, x);
    param_initial_fill(&cut, 7, 0, N, y);
    for (size_t i = 0; i < N; i++) {
        const double share = 0.5 * erfc(-x[i] / sqrt(2)), of_cut = 0.5 * erfc(-y[i] / sqrt(2));
        assert_true(fabs(of_cut - (tail + share * (1 - 2 * tail))) < 1e-14);
        squares += y[i] * y[i];
        most = fabs(y[i]) > most ? fabs(y[i]) : most;
    }
    assert_true(most <= 2 && most > 1.999);
    assert_true(fabs(squares / N - 0.7737413) < 0.008);
    cut.init_scale = 0.25;
    assert_same(param_initial(&cut, 7, 500), y[500] / 4);
}

static void uniform_values_fill_their_range_and_stay_in_it(void **state)
{
    enum { N = 100000 };
    struct param p = param_of("x", INIT_UNIFORM, 0.5);
    double low = 1, high = -1, sum = 0;
    static double x[N];
    param_initial_fill(&p, 3, 0, N, x);
    for (size_t i = 0; i < N; i++) {
        const double v = x[i];
        low = v < low ? v : low;
        high = v > high ? v : high;
        sum += v;
    }
    assert_true(low >= -0.5 && low < -0.4999);
    assert_true(high < 0.5 && high > 0.4999);
    assert_true(fabs(sum / N) < 4 * 0.5 / sqrt(3.0 * N));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_the_known_ones_bit_for_bit),
        cmocka_unit_test(a_part_has_the_values_of_the_whole),
        cmocka_unit_test(zeros_and_ones_are_that),
        cmocka_unit_test(a_table_has_the_sines_of_columns_and_rows),
        cmocka_unit_test(truncated_values_stay_within_two_deviations),
        cmocka_unit_test(a_slice_equals_the_whole),
        cmocka_unit_test(name_and_seed_change_the_values),
        cmocka_unit_test(normal_values_have_the_moments_and_tails_of_the_normal_distribution),
        cmocka_unit_test(truncated_values_are_those_of_a_normal_distribution_without_its_tails),
        cmocka_unit_test(uniform_values_fill_their_range_and_stay_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
