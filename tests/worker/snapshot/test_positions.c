/* Tables of positions of another picture size: which tensors they are, and the numbers of torch's interpolate() with
 * align_corners=True. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/model/model.h"
#include "worker/program/program.h"
#include "worker/snapshot/positions.h"

static const double three[9] = {1, 5, -2, 3, 0, 7, 4, -6, 2};

/* Two channels, the second one the negative of the first; `extra` positions of 100, -100 before them. */
static void assert_resamples(enum dtype real, int extra, bool cubic, int to, const double *want)
{
    const struct positions g = {.extra = extra, .from_h = 3, .from_w = 3, .to_h = to, .to_w = to, .channels = 2};
    double in[2 * 11], out[2 * 26] = {0};
    float in32[2 * 11], out32[2 * 26] = {0};
    for (int i = 0; i < extra + 9; i++)
        for (int c = 0; c < 2; c++) {
            in[2 * i + c] = (i < extra ? 100 : three[i - extra]) * (c ? -1 : 1);
            in32[2 * i + c] = (float)in[2 * i + c];
        }
    positions_resample(&g, cubic, real, real == DT_F64 ? (void *)in : in32, real == DT_F64 ? (void *)out : out32);
    const double bound = real == DT_F64 ? 1e-14 : 1e-6;
    for (int i = 0; i < extra + to * to; i++)
        for (int c = 0; c < 2; c++) {
            const double got = real == DT_F64 ? out[2 * i + c] : (double)out32[2 * i + c],
                         expected = (i < extra ? 100 : want[i - extra]) * (c ? -1 : 1);
            if (fabs(got - expected) > bound * 10)
                fail_msg("position %d of %d: %.17g instead of %.17g", i, to, got, expected);
        }
}

static void values_are_those_of_torch(void **state)
{
    static const double four[16] = {
        1.0,
        4.518518518518518,
        3.2407407407407405,
        -2.0,
        2.2592592592592586,
        1.970850480109738,
        3.019890260631002,
        4.722222222222222,
        3.537037037037038,
        -1.5469821673525395,
        -0.31652949245541856,
        6.4259259259259265,
        4.0,
        -3.7407407407407414,
        -4.5925925925925934,
        2.0,
    };
    static const double linear[16] = {
        1.0,
        3.6666666666666665,
        2.666666666666667,
        -2.0,
        2.333333333333333,
        1.888888888888889,
        2.444444444444444,
        3.9999999999999996,
        3.333333333333333,
        -0.22222222222222177,
        0.4444444444444442,
        5.333333333333334,
        4.0,
        -2.6666666666666665,
        -3.333333333333334,
        2.0,
    };
    (void)state;
    for (int extra = 0; extra < 3; extra++) {
        assert_resamples(DT_F64, extra, true, 4, four);
        assert_resamples(DT_F32, extra, true, 4, four);
        assert_resamples(DT_F64, extra, false, 4, linear);
        assert_resamples(DT_F64, extra, true, 2, (double[]){1, -2, 4, 2});
        assert_resamples(DT_F64, extra, true, 1, (double[]){1});
    }
}

static struct ckpt_tensor table(const char *name, int64_t positions, int64_t channels)
{
    struct ckpt_tensor t = {.dtype = DT_F32, .ndim = 3, .shape = {1, positions, channels}};
    snprintf(t.name, sizeof t.name, "%s", name);
    return t;
}

static void tables_are_told_from_other_tensors(void **state)
{
    const char *text = "input\nconv out=6 kernel=8 stride=8\nprepend token\nprepend token2\nposition table\n"
                       "scale odd\npick\nclassifier c\n";
    const struct model_options o = {
        .arch = "t", .text = text, .classes = 3, .input = input_pictures(3, 32, 32, NULL, NULL)};
    struct program *p;
    struct positions g;
    struct err e;
    (void)state;
    if (model_build(&p, &o, &e) < 0)
        fail_msg("%s", e.text);
    static const char *const names[] = {"table", "momentum.table", "second.table", "ema.table"};
    for (int i = 0; i < 4; i++) {
        const struct ckpt_tensor want = table(names[i], 18, 6), have = table(names[i], 11, 6);
        assert_true(positions_fit(p, &want, &have, &g));
        assert_true(g.extra == 2 && g.from_h == 3 && g.from_w == 3 && g.to_h == 4 && g.to_w == 4 && g.channels == 6);
    }
    const struct ckpt_tensor want = table("table", 18, 6);
    const struct {
        const char *name;
        int64_t positions, channels;
    } others[] = {{"table", 18, 6}, {"table", 12, 6}, {"table", 2, 6}, {"table", 0, 6}, {"table", 11, 5}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const struct ckpt_tensor have = table("table", others[i].positions, others[i].channels);
        assert_false(positions_fit(p, &want, &have, &g));
    }
    const struct ckpt_tensor token = table("token", 18, 6), small = table("token", 11, 6);
    assert_false(positions_fit(p, &token, &small, &g));
    program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_torch),
        cmocka_unit_test(tables_are_told_from_other_tensors),
    };
    return cmocka_run_group_tests_name("tables of positions", tests, NULL, NULL);
}
