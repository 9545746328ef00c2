/* What is drawn: how often, how much, and that it stays where it may be. Seeds are fixed, so a bound of a chi-square
 * test is one that a right table passes, and one wrong entry does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/data/augment/mix.h"
#include "worker/data/augment/policy.h"
#include "worker/data/image/rng.h"

enum { DRAWS = 62000, SIZE = 176 };

static struct policy policy(const char *text)
{
    struct policy p;
    struct err e;
    if (policy_parse(text, &p, &e) < 0)
        fail_msg("%s: %s", text, e.text);
    return p;
}

/* Draw i. */
static int draw(const struct policy *p, const struct jitter *j, int i, struct drawn out[POLICY_DRAWN_MOST])
{
    struct rng r = rng_stream_of(7, RNG_POLICY, 3, (uint64_t)i, 0);
    return policy_draw(p, j, SIZE, &r, out);
}

/* Counts against shares that add up to 1: four deviations above the mean of the distribution. */
static void check_counts(const char *what, const double *counts, const double *shares, int n, double total)
{
    double square = 0;
    for (int i = 0; i < n; i++)
        square += (counts[i] - shares[i] * total) * (counts[i] - shares[i] * total) / (shares[i] * total);
    print_message("# %s: chi-square %.1f of %d degrees\n", what, square, n - 1);
    if (square > n - 1 + 4 * sqrt(2.0 * (n - 1)))
        fail_msg("%s: chi-square %g of %d degrees", what, square, n - 1);
}

static void even(double *shares, int n)
{
    for (int i = 0; i < n; i++)
        shares[i] = 1.0 / n;
}

static void trivial_draws_operations_magnitudes_and_signs_evenly(void **state)
{
    const struct policy p = policy("trivial");
    const struct jitter none = {{0}};
    double ops[PICTURE_OPS_N] = {0}, bins[31] = {0}, signs[2] = {0}, shares[31];
    (void)state;
    for (int i = 0; i < DRAWS; i++) {
        struct drawn d[POLICY_DRAWN_MOST];
        assert_int_equal(draw(&p, &none, i, d), 1);
        assert_false(d[0].cut_out);
        ops[d[0].op]++;
        if (d[0].op != PICTURE_SHEAR_X && d[0].op != PICTURE_ROTATE)
            continue;
        const double last = d[0].op == PICTURE_ROTATE ? 135 : (double)0.99F;
        bins[(int)rint(fabs(d[0].value) / last * 30)]++;
        if (d[0].value != 0)
            signs[d[0].value < 0]++;
    }
    even(shares, 14);
    memmove(ops + PICTURE_SOLARIZE_ADD, ops + PICTURE_AUTOCONTRAST, 2 * sizeof *ops); /* it has all but that */
    check_counts("operations", ops, shares, 14, DRAWS);
    even(shares, 31);
    check_counts("magnitudes", bins, shares, 31, ops[PICTURE_SHEAR_X] + ops[PICTURE_ROTATE]);
    even(shares, 2);
    check_counts("signs", signs, shares, 2, signs[0] + signs[1]);
}

static void timm_does_half_of_what_it_draws_around_a_magnitude(void **state)
{
    const struct policy p = policy("rand-timm:n=2,m=7,mstd=0.5,inc");
    const struct jitter none = {{0}};
    double done[2] = {0}, between[2] = {0}, sum = 0, squares = 0, n = 0, shares[2];
    (void)state;
    for (int i = 0; i < DRAWS; i++) {
        struct drawn d[POLICY_DRAWN_MOST];
        assert_int_equal(draw(&p, &none, i, d), 2);
        for (int k = 0; k < 2; k++) {
            done[d[k].op != PICTURE_IDENTITY]++;
            between[d[k].bicubic] += d[k].op == PICTURE_ROTATE;
            if (d[k].op == PICTURE_ROTATE) {
                const double level = fabs(d[k].value) / 3;
                sum += level;
                squares += level * level;
                n++;
            }
            if (d[k].op == PICTURE_COLOR) /* no weaker at a higher level */
                assert_true(fabs(d[k].value - 1) > 0.35 && fabs(d[k].value - 1) <= 0.9 + 1e-12);
            if (d[k].op == PICTURE_POSTERIZE)
                assert_true(d[k].value == 4 - trunc(0.4 * 7) || d[k].value == 1 || d[k].value == 3);
        }
    }
    even(shares, 2);
    check_counts("done and left", done, shares, 2, 2.0 * DRAWS);
    check_counts("bilinear and bicubic", between, shares, 2, n);
    const double mean = sum / n, deviation = sqrt(squares / n - mean * mean);
    print_message("# levels %.3f +- %.3f of %g\n", mean, deviation, n);
    assert_true(fabs(mean - 7) < 4 * 0.5 / sqrt(n) && fabs(deviation - 0.5) < 0.03);
}

static void the_other_policies_draw_what_they_say(void **state)
{
    const struct policy rand = policy("rand:n=3,m=15"), big = policy("rand-big-vision:n=1,m=15"),
                        three = policy("three");
    const struct jitter none = {{0}}, jitter = {{0.4, 0, 0.3}};
    double ops[PICTURE_OPS_N + 1] = {0}, grey = 0, shares[16];
    (void)state;
    for (int i = 0; i < DRAWS / 4; i++) {
        struct drawn d[POLICY_DRAWN_MOST];
        assert_int_equal(draw(&rand, &none, i, d), 3);
        for (int k = 0; k < 3; k++)
            if (d[k].op == PICTURE_TRANSLATE_X) /* whole pixels: torch.linspace(0, 150 / 331 * 176, 31)[15] */
                assert_true(fabs(d[k].value) == 39);
        assert_int_equal(draw(&big, &none, i, d), 1);
        ops[d[0].cut_out ? PICTURE_OPS_N : (int)d[0].op]++;
        if (d[0].cut_out)
            assert_true(d[0].half == 60 && d[0].x >= 0 && d[0].x < SIZE && d[0].y >= 0 && d[0].y < SIZE);
        assert_int_equal(draw(&three, &jitter, i, d), 3);
        grey += d[0].op == PICTURE_GREY;
        for (int k = 1; k < 3; k++) {
            const double by = d[k].op == PICTURE_BRIGHTNESS ? 0.4 : 0.3;
            assert_true(d[k].op == PICTURE_BRIGHTNESS || d[k].op == PICTURE_COLOR);
            assert_true(fabs(d[k].value - 1) <= by);
        }
        assert_true(d[1].op != d[2].op);
    }
    double drawn[16];
    int n = 0;
    for (int i = 0; i <= PICTURE_OPS_N; i++)
        if (ops[i] > 0 && n < 16)
            drawn[n++] = ops[i];
    assert_int_equal(n, 16);
    even(shares, 16);
    check_counts("big_vision's", drawn, shares, 16, DRAWS / 4);
    check_counts("3-Augment's grey", (double[]){grey, DRAWS / 4 - grey}, (double[]){1.0 / 3, 2.0 / 3}, 2, DRAWS / 4);
}

static void policies_are_printed_as_they_are_read(void **state)
{
    static const char *const same[] = {"none",
                                       "trivial",
                                       "trivial:bilinear",
                                       "rand:n=2,m=9",
                                       "rand:n=1,m=3,bilinear",
                                       "rand-timm:n=2,m=6.5,mstd=0.5,inc",
                                       "rand-timm:n=2,m=9,mstd=0,bilinear",
                                       "rand-big-vision:n=2,m=15",
                                       "three"};
    static const char *const bad[] = {"trivial:n=2",     "rand:m=9.5",  "rand:m=31", "rand-timm:m=11",
                                      "rand:inc",        "three:n=1",   "rand:n=0",  "rand:n=17",
                                      "rand:bilinear=1", "autoaugment", "",          "rand:"};
    char text[128];
    struct jitter j;
    struct policy p;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        p = policy(same[i]);
        policy_print(&p, text, sizeof text);
        assert_string_equal(text, same[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (policy_parse(bad[i], &p, &e) != ERR_USAGE)
            fail_msg("'%s' was taken", bad[i]);
    assert_int_equal(jitter_parse("0.4", &j, &e), 0);
    jitter_print(&j, text, sizeof text);
    assert_string_equal(text, "0.4,0.4,0.4");
    assert_true(jitter_parse("0.4,1", &j, &e) == ERR_USAGE && jitter_parse("1,2,3,4", &j, &e) == ERR_USAGE);
    assert_true(jitter_parse("-1", &j, &e) < 0);
}

/* --- erasing and mixing */

static void boxes_are_erased_as_often_and_as_large_as_asked(void **state)
{
    double erased[2] = {0}, area = 0;
    (void)state;
    for (int i = 0; i < DRAWS; i++) {
        struct rng r = rng_stream_of(7, RNG_ERASE, 3, (uint64_t)i, 1);
        int16_t b[4];
        const bool done = erase_draw(0.1, 32, &r, b);
        erased[done]++;
        if (!done)
            continue;
        assert_true(b[0] >= 0 && b[0] < b[2] && b[2] <= 32 && b[1] >= 0 && b[1] < b[3] && b[3] <= 32);
        area += (b[2] - b[0]) * (b[3] - b[1]) / 1024.0;
    }
    check_counts("erased", erased, (double[]){0.9, 0.1}, 2, DRAWS);
    print_message("# mean area %.4f\n", area / erased[1]);
    assert_true(fabs(area / erased[1] - 0.175) < 4 * 0.09 / sqrt(erased[1]));
}

/* Beta(a, a) has variance 1 / (8 a + 4), and is even in its halves. */
static void check_beta(double a)
{
    double sum = 0, squares = 0, halves[2] = {0}, quarters[4] = {0}, shares[4];
    for (int i = 0; i < DRAWS; i++) {
        struct rng r = rng_stream(11, RNG_MIX, (uint64_t)(a * 100), (uint64_t)i);
        const double v = mix_beta(a, &r);
        assert_true(v >= 0 && v <= 1);
        sum += v - 0.5;
        squares += (v - 0.5) * (v - 0.5);
        halves[v >= 0.5]++;
        quarters[v >= 1 ? 3 : (int)(4 * v)]++;
    }
    const double variance = 1 / (8 * a + 4);
    print_message("# Beta(%g, %g): variance %.4f, expected %.4f\n", a, a, squares / DRAWS, variance);
    assert_true(fabs(squares / DRAWS - variance) < 0.01 * variance + 5e-4);
    assert_true(fabs(sum / DRAWS) < 4 * sqrt(variance / DRAWS));
    even(shares, 2);
    check_counts("halves", halves, shares, 2, DRAWS);
    even(shares, 4);
    if (a == 1)
        check_counts("quarters", quarters, shares, 4, DRAWS);
}

static void shares_are_distributed_as_beta(void **state)
{
    (void)state;
    check_beta(1);
    check_beta(0.2);
    check_beta(0.8);
    check_beta(4);
    check_beta(0.01);
}

static void groups_are_mixed_in_one_of_two_ways(void **state)
{
    const struct mix_options both = {.mixup = 0.2, .cutmix = 1, .group = 128}, mixup = {.mixup = 0.2, .group = 128};
    double cut[2] = {0};
    (void)state;
    for (int i = 0; i < 10000; i++) {
        const struct mix m = mix_draw(&both, 3, i / 100, i / 10, (size_t)(i % 10), 224),
                         u = mix_draw(&mixup, 3, 0, i, 0, 8);
        const double area = (m.box[2] - m.box[0]) * (m.box[3] - m.box[1]) / (224.0 * 224);
        cut[m.keep == 1]++;
        assert_true(m.keep == 1 ? m.share == area : m.share == 1 - m.keep && area == 0);
        assert_true(m.box[0] >= 0 && m.box[2] <= 224 && m.box[1] >= 0 && m.box[3] <= 224);
        assert_true(u.box[2] == 0 && u.share == 1 - u.keep);
    }
    check_counts("mixup and CutMix", cut, (double[]){0.5, 0.5}, 2, 10000);
}

static void partners_go_round_in_their_group(void **state)
{
    (void)state;
    assert_int_equal(mix_partner(128, 1, 5, 1000), 4);
    assert_int_equal(mix_partner(128, 4, 129, 1000), 128 + 125);
    assert_int_equal(mix_partner(128, 4, 999, 1000), 995);
    assert_int_equal(mix_partner(128, 4, 896, 1000), 996); /* the last group has 104 */
    assert_int_equal(mix_partner(128, 1, 128, 129), 128);  /* alone */
    assert_int_equal(mix_partner(128, 4, 128, 130), 128);  /* two, and two times round */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trivial_draws_operations_magnitudes_and_signs_evenly),
        cmocka_unit_test(timm_does_half_of_what_it_draws_around_a_magnitude),
        cmocka_unit_test(the_other_policies_draw_what_they_say),
        cmocka_unit_test(policies_are_printed_as_they_are_read),
        cmocka_unit_test(boxes_are_erased_as_often_and_as_large_as_asked),
        cmocka_unit_test(shares_are_distributed_as_beta),
        cmocka_unit_test(groups_are_mixed_in_one_of_two_ways),
        cmocka_unit_test(partners_go_round_in_their_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
