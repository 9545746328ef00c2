/* Convolutions that take batch norm's work along, in halves, on the device under test: against the same network
 * unfused, and against ref in fp64.
 *
 * A ReLU that flips because its input was rounded changes gradients by more than rounding does. So no input of a ReLU
 * is near 0 here: shifts of batch norm are +4 and -4 in turn, four standard deviations. What remains is rounding, u =
 * 2^-11 of a value at most, u / sqrt(3) in the mean, of values up to 5 times as large as what varies in them (4 + 1).
 * From the images to the first layer's gradient some 20 tensors are stored as halves, and their errors are independent
 * of one another: sqrt(20) 5 u / sqrt(3) = 6e-3 of a gradient's norm; bound: 3 times that. Gradients of shifts are sums
 * of what the batch norm behind has freed of its mean: most of it cancels, its errors do not. They are measured by the
 * scale's gradient beside, whose terms are as large. */
#include "tests/conformance/device_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "tests/must.h"

enum { SIZE = 32, BATCH = 5, CLASSES = 10 };
static const double BOUND = 1.9e-2;

static int conv_bn(struct program *p, const char *name, int x, int k, int kernel, int stride)
{
    char bn[32];
    snprintf(bn, sizeof bn, "%s.bn", name);
    return program_bn(p, bn, program_conv(p, name, x, k, kernel, stride, kernel / 2, false), 1e-5f, false);
}

/* A stem, a block with a plain shortcut, one with a projection. */
static struct program *blocks(void)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("blocks", input_pictures(3, SIZE, SIZE, mean, std));
    int x = program_relu(p, "relu", conv_bn(p, "stem", program_input(p), 24, 3, 2));
    int y = program_relu(p, "a.relu", conv_bn(p, "a.1", x, 24, 3, 1));
    x = program_relu(p, "a.out", program_add(p, "a.add", conv_bn(p, "a.2", y, 24, 3, 1), x));
    y = program_relu(p, "b.relu", conv_bn(p, "b.1", x, 40, 3, 2));
    y = conv_bn(p, "b.2", y, 40, 3, 1);
    x = program_relu(p, "b.out", program_add(p, "b.add", y, conv_bn(p, "b.short", x, 40, 1, 2)));
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", x), CLASSES));
    MUST(program_differentiate(p, e));
    return p;
}

/* shortcut: the projection's stride; 0: there is none. */
static int bottleneck(struct program *p, const char *name, int x, int k, int shortcut)
{
    enum { CONV1, CONV2, CONV3, SHORT, RELU1, RELU2, ADD, OUT, PARTS };
    static const char *const parts[] = {"1", "2", "3", "short", "relu1", "relu2", "add", "out"};
    char at[PARTS][16];
    for (int i = 0; i < PARTS; i++)
        snprintf(at[i], sizeof at[i], "%s.%s", name, parts[i]);
    int y = program_relu(p, at[RELU1], conv_bn(p, at[CONV1], x, k, 1, 1));
    y = program_relu(p, at[RELU2], conv_bn(p, at[CONV2], y, k, 3, shortcut ? shortcut : 1));
    y = conv_bn(p, at[CONV3], y, 2 * k, 1, 1);
    x = shortcut ? conv_bn(p, at[SHORT], x, 2 * k, 1, shortcut) : x;
    return program_relu(p, at[OUT], program_add(p, at[ADD], y, x));
}

/* A stem and two blocks of three convolutions, whose first are 1x1: a projection with a stride, a plain shortcut. */
static struct program *bottlenecks(void)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("bottlenecks", input_pictures(3, SIZE, SIZE, mean, std));
    int x = program_relu(p, "relu", conv_bn(p, "stem", program_input(p), 24, 3, 2));
    x = bottleneck(p, "b", bottleneck(p, "a", x, 24, 2), 24, 0);
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", x), CLASSES));
    MUST(program_differentiate(p, e));
    return p;
}

static void shift_away_from_zero(const struct side *s)
{
    for (int i = 0; i < s->p->nfwd; i++) {
        const struct op *op = &s->p->ops[i];
        if (op->kind != OP_BN)
            continue;
        const struct param *beta = &s->p->params[op->param[1]];
        for (size_t c = 0; c < beta->count; c++)
            arena_put(s, s->params, beta->offset + c, &(double){c % 2 ? 4 : -4}, 1);
    }
}

/* Gradients, statistics and metrics of a step, free() it. The third is neither walked nor captured, but launched. */
static double *step(const char *device, const struct program *p, const struct mode *m, bool masked)
{
    struct side s;
    struct images im;
    double *r = malloc(sizeof(*r) * p->n_reduce);
    images_make(&im, p, BATCH, 12);
    im.weights[3] = !masked;
    side_open(&s, device, p, m, BATCH, true, false, 2);
    side_initialise(&s, 3);
    shift_away_from_zero(&s);
    for (int i = 0; i < (m->compute == DT_F64 ? 1 : 3); i++)
        side_run(&s, &im.b, 128, false, 1, NULL);
    arena_get(&s, s.reduce, 0, r, p->n_reduce);
    side_close(&s);
    images_free(&im);
    return r;
}

/* |a - b|, |a| where b is NULL */
static double norm(const double *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (a[i] - (b ? b[i] : 0)) * (a[i] - (b ? b[i] : 0));
    return sqrt(sum);
}

/* The scale beside this shift of batch norm; NULL: it is none. */
static const struct param *scale_beside(const struct program *p, int param)
{
    for (int i = 0; i < p->nfwd; i++)
        if (p->ops[i].kind == OP_BN && p->ops[i].param[1] == param)
            return &p->params[p->ops[i].param[0]];
    return NULL;
}

/* Parameter by parameter: the large ones must not hide the small ones. */
static void compare(const struct program *p, const double *got, const double *want, const char *what)
{
    double worst = 0;
    const char *where = "";
    for (int i = 0; i < p->nparams; i++) {
        const struct param *q = &p->params[i];
        const size_t at = q->offset + (q->role == PARAM_TRAIN ? 0 : p->n_train);
        const struct param *scale = scale_beside(p, i);
        const double beside = scale ? norm(want + scale->offset, NULL, scale->count) : 0;
        const double d = norm(got + at, want + at, q->count) / hypot(norm(want + at, NULL, q->count), beside);
        if (!(d <= worst)) {
            worst = d;
            where = q->name;
        }
    }
    print_message("# %s: %.2g apart at most (%s), bound %.2g\n", what, worst, where, BOUND);
    if (!(worst <= BOUND))
        fail_msg("%s: %s is %g apart, bound %g", what, where, worst, BOUND);
}

static void expect_rounding_alone(struct program *p, const struct mode *fused, bool masked)
{
    const struct mode plain = {.name = "fp16 unfused", .compute = DT_F16, .unfused = true};
    double *exact = step("ref", p, &mode_f64, masked), *unfused = step(rig_device, p, &plain, masked),
           *got = step(rig_device, p, fused, masked);
    compare(p, unfused, exact, "unfused against ref");
    compare(p, got, exact, "fused against ref");
    compare(p, got, unfused, "fused against unfused");
    free(exact);
    free(unfused);
    free(got);
    program_destroy(p);
}

static void fused_patterns_change_nothing_but_rounding(void **state)
{
    (void)state;
    expect_rounding_alone(blocks(), &mode_fp16, false);
}

static void sums_of_gradients_change_nothing_but_rounding(void **state)
{
    (void)state;
    expect_rounding_alone(bottlenecks(), &mode_fp16, false);
    expect_rounding_alone(bottlenecks(), &mode_fp16, true);
}

static void a_sample_of_weight_0_counts_in_no_fused_pattern(void **state)
{
    (void)state;
    expect_rounding_alone(blocks(), &mode_fp16, true);
}

static void engines_that_won_by_time_compute_the_same(void **state)
{
    (void)state;
    const struct mode timed = {.name = "fp16 timed", .compute = DT_F16, .timed = true};
    expect_rounding_alone(blocks(), &timed, false);
    expect_rounding_alone(bottlenecks(), &timed, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_patterns_change_nothing_but_rounding),
        cmocka_unit_test(sums_of_gradients_change_nothing_but_rounding),
        cmocka_unit_test(a_sample_of_weight_0_counts_in_no_fused_pattern),
        cmocka_unit_test(engines_that_won_by_time_compute_the_same),
    };
    return cmocka_run_group_tests_name("fused patterns", tests, NULL, NULL);
}
