/* Single operations of the ref device: cases computed by hand, and convolutions against their definition. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/device/rig.h"
#include "worker/device/drop.h"

static const float ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
static const struct batch all_count = {.weights = ones};

/* A program of one op over a free tensor "x" of c x h x w; the caller adds the op and calls done(). */
static struct program *bench(int c, int h, int w, int *ret_x)
{
    struct program *p = program_create("op", input_pictures(1, 1, 1, NULL, NULL));
    *ret_x = program_tensor(p, "x", c, h, w);
    return p;
}

static void done(struct rig *r, struct program *p, int n, bool training)
{
    struct err e = {0};
    if (program_differentiate(p, &e) < 0)
        fail_msg("%s", e.text);
    rig_open(r, p, n, training, 1);
}

static void finish(struct rig *r, struct program *p)
{
    rig_close(r);
    program_destroy(p);
}

static void set(double *to, const double *values, size_t n)
{
    memcpy(to, values, n * sizeof *to);
}

static void assert_values(const char *what, const double *got, const double *expected, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_near(what, got[i], expected[i], 1e-14);
}

static void input_normalises_interleaved_bytes(void **state)
{
    static const float mean[] = {0.5f, 0}, std[] = {0.5f, 0.25f};
    struct program *p = program_create("op", input_pictures(2, 1, 2, mean, std));
    program_relu(p, "y", program_input(p));
    struct rig r;
    done(&r, p, 2, false);
    const uint8_t images[] = {0, 51, 255, 102, 255, 0, 0, 255};
    rig_run(&r, &(struct batch){.rows = images, .weights = ones}, false, NULL);
    assert_all(&r, "input", (double[]){-1, 1, 0.8, 1.6, 1, -1, 0, 4}, 8);
    finish(&r, p);
}

static void rows_of_a_batch_are_stepped_through_by_what_a_model_reads(void **state)
{
    static const int32_t labels[24];
    static const uint32_t samples[3];
    static const char rows[3 * 32];
    static const struct batch_mix mix[3];
    const struct batch b = {
        .rows = rows, .labels = labels, .weights = ones, .samples = samples, .mix = mix, .locked = true};
    const struct input pictures = input_pictures(2, 4, 4, NULL, NULL),
                       tokens = {.rows = INPUT_TOKENS, .length = 8, .vocabulary = 9};
    struct batch at = batch_at(&b, &pictures, 2);
    assert_ptr_equal(at.rows, rows + 64);
    assert_ptr_equal(at.labels, labels + 2);
    assert_ptr_equal(at.weights, ones + 2);
    assert_ptr_equal(at.samples, samples + 2);
    assert_ptr_equal(at.mix, mix + 2);
    assert_true(at.locked);
    at = batch_at(&b, &tokens, 2);
    assert_ptr_equal(at.rows, rows + 64);
    assert_ptr_equal(at.labels, labels + 16);
    at = batch_at(&(struct batch){.labels = labels, .weights = ones}, &tokens, 1);
    assert_null(at.rows);
    assert_null(at.samples);
    assert_null(at.mix);
}

static void convolution_by_hand(void **state)
{
    int x;
    struct program *p = bench(1, 3, 3, &x);
    program_conv(p, "y", x, 1, 2, 1, 0, true);
    struct rig r;
    done(&r, p, 1, true);
    set(rig_param(&r, "y.weight"), (double[]){1, 2, 3, 4}, 4);
    rig_param(&r, "y.bias")[0] = 0.5;
    rig_put(&r, "x", (double[]){1, 2, 3, 4, 5, 6, 7, 8, 9});
    rig_put(&r, "d y", (double[]){1, 2, 3, 4});
    rig_run(&r, &all_count, false, NULL);
    assert_all(&r, "y", (double[]){37.5, 47.5, 67.5, 77.5}, 4);
    assert_values("d weight", rig_gradient(&r, "y.weight"), (double[]){37, 47, 67, 77}, 4);
    assert_values("d bias", rig_gradient(&r, "y.bias"), (double[]){10}, 1);
    assert_all(&r, "d x", (double[]){1, 4, 4, 6, 20, 16, 9, 24, 16}, 9);
    finish(&r, p);
}

struct conv_case {
    int n, c, h, w, k, kernel, stride, pad, groups; /* groups 0: 1 */
};

/* y, dx and dw by the definition, all four indices of each spelled out. */
static void convolve(const struct conv_case *t, int oh, int ow, const double *x, const double *weight,
                     const double *bias, const double *dy, double *y, double *dx, double *dw)
{
    const int groups = t->groups ? t->groups : 1, c_in = t->c / groups;
    for (int i = 0; i < t->n * t->k * oh * ow; i++) {
        int ox = i % ow, oy = i / ow % oh, k = i / ow / oh % t->k, n = i / ow / oh / t->k;
        const int c0 = k / (t->k / groups) * c_in;
        y[i] = bias[k];
        for (int j = 0; j < c_in; j++)
            for (int ky = 0; ky < t->kernel; ky++)
                for (int kx = 0; kx < t->kernel; kx++) {
                    int iy = oy * t->stride + ky - t->pad, ix = ox * t->stride + kx - t->pad;
                    if (iy < 0 || ix < 0 || iy >= t->h || ix >= t->w)
                        continue;
                    int xi = ((n * t->c + c0 + j) * t->h + iy) * t->w + ix;
                    int wi = ((k * c_in + j) * t->kernel + ky) * t->kernel + kx;
                    y[i] += x[xi] * weight[wi];
                    dx[xi] += dy[i] * weight[wi];
                    dw[wi] += dy[i] * x[xi];
                }
    }
}

static double *zeros(size_t n)
{
    double *p = calloc(n, sizeof *p);
    assert_non_null(p);
    return p;
}

/* Relative rounding error of two sums of `terms` products of random signs: the square root of their number. */
static double rounding(double terms)
{
    return 2.3e-16 * (4 + sqrt(terms));
}

static void check_convolution(const struct conv_case *t)
{
    int x;
    struct program *p = bench(t->c, t->h, t->w, &x);
    const int groups = t->groups ? t->groups : 1;
    int out = program_conv_groups(p, "y", x, t->k, t->kernel, t->stride, t->pad, groups, true);
    struct rig r;
    done(&r, p, t->n, true);
    int oh = p->tensors[out].h, ow = p->tensors[out].w;
    size_t nx = (size_t)t->n * (size_t)t->c * (size_t)t->h * (size_t)t->w;
    size_t ny = (size_t)t->n * (size_t)t->k * (size_t)oh * (size_t)ow;
    size_t nw = (size_t)t->k * (size_t)(t->c / groups) * (size_t)t->kernel * (size_t)t->kernel;
    double *vx = zeros(nx), *vdy = zeros(ny), *y = zeros(ny), *dx = zeros(nx), *dw = zeros(nw), *got = zeros(nx + ny);
    noise(vx, nx, 1);
    noise(vdy, ny, 2);
    rig_put(&r, "x", vx);
    rig_put(&r, "d y", vdy);
    rig_run(&r, &all_count, false, NULL);
    convolve(t, oh, ow, vx, rig_param(&r, "y.weight"), rig_param(&r, "y.bias"), vdy, y, dx, dw);
    rig_get(&r, "y", got);
    double forward = relative_error(got, y, ny);
    rig_get(&r, "d x", got);
    double data = relative_error(got, dx, nx), weight = relative_error(rig_gradient(&r, "y.weight"), dw, nw);
    double window = (double)t->c * t->kernel * t->kernel, fan = (double)t->k * t->kernel * t->kernel;
    if (!(forward < rounding(window) && data < rounding(fan) && weight < rounding((double)t->n * oh * ow)))
        fail_msg("n %d c %d h %d w %d k %d kernel %d stride %d pad %d groups %d: relative errors %g %g %g", t->n, t->c,
                 t->h, t->w, t->k, t->kernel, t->stride, t->pad, groups, forward, data, weight);
    free(vx), free(vdy), free(y), free(dx), free(dw), free(got);
    finish(&r, p);
}

static void convolutions_of_odd_shapes_follow_the_definition(void **state)
{
    const struct conv_case cases[] = {
        {2, 3, 7, 5, 4, 3, 1, 1},    {1, 1, 1, 1, 1, 1, 1, 0},     {3, 5, 9, 11, 7, 3, 2, 1},
        {2, 3, 15, 13, 9, 7, 2, 3},  {5, 8, 6, 6, 3, 1, 2, 0},     {4, 6, 5, 5, 70, 1, 1, 0},
        {2, 2, 5, 4, 3, 5, 1, 2},    {1, 130, 4, 4, 130, 3, 1, 1}, {8, 4, 8, 8, 4, 2, 3, 0},
        {3, 2, 3, 3, 2, 3, 1, 2},    {2, 20, 40, 40, 3, 3, 1, 1},  {2, 6, 9, 8, 6, 7, 1, 3, 6},
        {3, 8, 7, 7, 4, 3, 2, 1, 2}, {2, 6, 5, 5, 12, 1, 1, 0, 3}, {2, 5, 6, 9, 10, 3, 2, 1, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_convolution(&cases[i]);
}

/* 8 x 18 x 260 x 260 unfolded elements, about 10 million, are more than fit at once: the batch is taken in parts. */
static void a_batch_that_is_unfolded_in_parts_gives_the_same(void **state)
{
    check_convolution(&(struct conv_case){8, 2, 260, 260, 2, 3, 1, 1});
}

static void linear_by_hand(void **state)
{
    int x;
    struct program *p = bench(1, 1, 2, &x);
    program_linear(p, "y", x, 2);
    struct rig r;
    done(&r, p, 2, true);
    set(rig_param(&r, "y.weight"), (double[]){1, 2, 3, 4}, 4);
    set(rig_param(&r, "y.bias"), (double[]){10, 20}, 2);
    rig_put(&r, "x", (double[]){1, 2, 3, 4});
    rig_put(&r, "d y", (double[]){1, 2, 3, 4});
    rig_run(&r, &all_count, false, NULL);
    assert_all(&r, "y", (double[]){15, 31, 21, 45}, 4);
    assert_all(&r, "d x", (double[]){7, 10, 15, 22}, 4);
    assert_values("d weight", rig_gradient(&r, "y.weight"), (double[]){10, 14, 14, 20}, 4);
    assert_values("d bias", rig_gradient(&r, "y.bias"), (double[]){4, 6}, 2);
    finish(&r, p);
}

static struct program *bn_program(int *ret_x)
{
    struct program *p = bench(1, 1, 2, ret_x);
    program_bn(p, "y", *ret_x, 0, false);
    return p;
}

static void batch_norm_by_hand(void **state)
{
    int x;
    struct program *p = bn_program(&x);
    struct rig r;
    done(&r, p, 2, true);
    rig_param(&r, "y.weight")[0] = 2;
    rig_param(&r, "y.bias")[0] = 1;
    rig_put(&r, "x", (double[]){1, 3, 5, 7});
    rig_put(&r, "d y", (double[]){1, 0, 0, 0});
    rig_run(&r, &all_count, false, NULL);
    double s = sqrt(5); /* mean 4, variance 5, over 4 elements of 2 samples */
    assert_all(&r, "y", (double[]){1 - 6 / s, 1 - 2 / s, 1 + 2 / s, 1 + 6 / s}, 4);
    assert_near("mean * samples", rig_gradient(&r, "y.running_mean")[0], 8, 1e-14);
    assert_near("unbiased variance * samples", rig_gradient(&r, "y.running_var")[0], 40.0 / 3, 1e-13);
    assert_near("d gamma", rig_gradient(&r, "y.weight")[0], -3 / s, 1e-14);
    assert_near("d beta", rig_gradient(&r, "y.bias")[0], 1, 1e-14);
    assert_all(&r, "d x", (double[]){0.6 / s, -0.8 / s, -0.2 / s, 0.4 / s}, 4);
    finish(&r, p);
}

static void batch_norm_leaves_out_a_sample_of_weight_0(void **state)
{
    int x;
    struct program *p = bn_program(&x);
    struct rig r;
    done(&r, p, 3, true);
    rig_param(&r, "y.weight")[0] = 2;
    rig_param(&r, "y.bias")[0] = 1;
    rig_put(&r, "x", (double[]){1, 3, 1e6, -1e6, 5, 7});
    rig_put(&r, "d y", (double[]){1, 0, 9, 9, 0, 0});
    rig_run(&r, &(struct batch){.weights = (float[]){1, 0, 1}}, false, NULL);
    double s = sqrt(5);
    assert_near("mean * samples", rig_gradient(&r, "y.running_mean")[0], 8, 1e-14);
    assert_near("unbiased variance * samples", rig_gradient(&r, "y.running_var")[0], 40.0 / 3, 1e-13);
    assert_near("d beta", rig_gradient(&r, "y.bias")[0], 1, 1e-14);
    assert_all(&r, "d x", (double[]){0.6 / s, -0.8 / s, 0, 0, -0.2 / s, 0.4 / s}, 6);
    finish(&r, p);
}

static void one_element_has_the_biased_variance_and_no_gradient(void **state)
{
    int x;
    struct program *p = bench(1, 1, 1, &x);
    program_bn(p, "y", x, 1, false);
    struct rig r;
    done(&r, p, 1, true);
    rig_put(&r, "x", (double[]){3});
    rig_put(&r, "d y", (double[]){1});
    rig_run(&r, &all_count, false, NULL);
    assert_near("mean", rig_gradient(&r, "y.running_mean")[0], 3, 0);
    assert_near("variance", rig_gradient(&r, "y.running_var")[0], 0, 0);
    assert_all(&r, "d x", (double[]){0}, 1);
    finish(&r, p);
}

static void evaluation_normalises_by_running_statistics(void **state)
{
    int x;
    struct program *p = bn_program(&x);
    struct rig r;
    done(&r, p, 2, false);
    rig_param(&r, "y.weight")[0] = 2;
    rig_param(&r, "y.bias")[0] = 1;
    rig_param(&r, "y.running_mean")[0] = 1;
    rig_param(&r, "y.running_var")[0] = 4;
    rig_put(&r, "x", (double[]){1, 3, 5, 7});
    rig_run(&r, &all_count, false, NULL);
    assert_all(&r, "y", (double[]){1, 3, 5, 7}, 4);
    assert_near("untouched sums", rig_gradient(&r, "y.running_mean")[0], 0, 0);
    finish(&r, p);
}

static void relu_and_addition_by_hand(void **state)
{
    int x;
    struct program *p = bench(1, 1, 3, &x);
    program_add(p, "y", program_relu(p, "r", x), x);
    struct rig r;
    done(&r, p, 1, true);
    rig_put(&r, "x", (double[]){-2, 0, 3});
    rig_put(&r, "d y", (double[]){1, 10, 100});
    rig_run(&r, &all_count, false, NULL);
    assert_all(&r, "r", (double[]){0, 0, 3}, 3);
    assert_all(&r, "y", (double[]){-2, 0, 6}, 3);
    assert_all(&r, "d x", (double[]){1, 10, 200}, 3);
    finish(&r, p);
}

static void norms_of_channels_by_hand(void **state)
{
    int x;
    struct program *p = bench(2, 1, 2, &x);
    program_norm(p, "y", x, 0, false, true);
    struct rig r;
    done(&r, p, 1, true);
    set(rig_param(&r, "y.weight"), (double[]){2, 3}, 2);
    set(rig_param(&r, "y.bias"), (double[]){10, 20}, 2);
    rig_put(&r, "x", (double[]){1, 5, 3, 1}); /* positions (1, 3) and (5, 1) */
    rig_put(&r, "d y", (double[]){1, 0, 0, 1});
    rig_run(&r, &all_count, false, NULL);
    assert_all(&r, "y", (double[]){8, 12, 23, 17}, 4); /* xhat -1, 1; 1, -1 */
    assert_values("d gamma", rig_gradient(&r, "y.weight"), (double[]){-1, -1}, 2);
    assert_values("d beta", rig_gradient(&r, "y.bias"), (double[]){1, 1}, 2);
    assert_all(&r, "d x", (double[]){0, 0, 0, 0}, 4); /* two channels are always -1 and 1 */
    finish(&r, p);

    p = bench(2, 1, 1, &x);
    program_norm(p, "y", x, 0.5f, true, false);
    done(&r, p, 1, true);
    set(rig_param(&r, "y.weight"), (double[]){1, 2}, 2);
    rig_put(&r, "x", (double[]){1, 2}); /* mean of squares 2.5, with eps 3 */
    rig_put(&r, "d y", (double[]){1, 1});
    rig_run(&r, &all_count, false, NULL);
    const double s = sqrt(3);
    assert_all(&r, "y", (double[]){1 / s, 4 / s}, 2);
    assert_values("d gamma", rig_gradient(&r, "y.weight"), (double[]){1 / s, 2 / s}, 2);
    assert_all(&r, "d x", (double[]){(1 - 2.5 / 3) / s, (2 - 5.0 / 3) / s}, 2);
    finish(&r, p);
}

/* GELU by its power series with 40 digits, the others by Python's math.tanh and exp. */
static void activations_have_known_values(void **state)
{
    static const struct {
        enum op_act act;
        double y[3], slope[3]; /* at -1.5, 0.25, 3 */
    } known[] = {
        {ACT_GELU,
         {-0.1002108019032871, 0.14967658142073093, 2.99595030590511},
         {-0.12746919222997952, 0.695373354883636, 1.011945647204184}},
        {ACT_GELU_TANH,
         {-0.10042842301976707, 0.149675350701685, 2.996362607918227},
         {-0.1277107931514331, 0.6953540951510604, 1.0115841666309695}},
        {ACT_SILU,
         {-0.2736382857095345, 0.14054412522144952, 2.8577223804673},
         {-0.041294154299142946, 0.6237100215701977, 1.0881041060151693}},
    };
    _Static_assert(sizeof known / sizeof *known == OP_ACTS_N, "values of every activation");
    for (int k = 0; k < OP_ACTS_N; k++) {
        int x;
        struct program *p = bench(1, 1, 3, &x);
        program_act(p, "y", x, known[k].act);
        struct rig r;
        done(&r, p, 1, true);
        rig_put(&r, "x", (double[]){-1.5, 0.25, 3});
        rig_put(&r, "d y", (double[]){1, 1, 1});
        rig_run(&r, &all_count, false, NULL);
        assert_all(&r, "y", known[k].y, 3);
        assert_all(&r, "d x", known[k].slope, 3);
        finish(&r, p);
    }
}

static void layer_scale_by_hand(void **state)
{
    int x;
    struct program *p = bench(2, 1, 2, &x);
    program_scale(p, "y", x, 1e-6, true);
    struct rig r;
    done(&r, p, 1, true);
    assert_near("initial value", rig_param(&r, "y")[1], 1e-6, 0);
    set(rig_param(&r, "y"), (double[]){2, -1}, 2);
    rig_put(&r, "x", (double[]){1, 2, 3, 4});
    rig_put(&r, "d y", (double[]){1, 10, 1, 10});
    rig_run(&r, &all_count, false, NULL);
    assert_all(&r, "y", (double[]){2, 4, -3, -4}, 4);
    assert_values("d scale", rig_gradient(&r, "y"), (double[]){21, 43}, 2);
    assert_all(&r, "d x", (double[]){2, 20, -1, -10}, 4);
    finish(&r, p);
}

/* An element is a position and one of its channels. */
static void dropped_elements_are_those_of_the_words(void **state)
{
    const struct drop_key k = drop_key(0x123456789, 7, 0xabcdef);
    assert_int_equal(drop_bound(0.25f), 1u << 30);
    int x, lost = 0;
    const int c = 70, n = c * 6;
    struct program *p = bench(c, 2, 3, &x);
    program_drop(p, "y", x, 0.25, false);
    struct rig r;
    done(&r, p, 1, true);
    double *ones_of_x = zeros((size_t)n), *y = zeros((size_t)n), *dx = zeros((size_t)n);
    for (int i = 0; i < n; i++)
        ones_of_x[i] = 3;
    rig_put(&r, "x", ones_of_x);
    rig_put(&r, "d y", ones_of_x);
    struct run_args a = {
        .batch = {.weights = ones, .samples = (uint32_t[]){4000000000}}, .seed = 0x123456789, .step = 7};
    p->ops[0].layer = p->ops[1].layer = 0xabcdef;
    assert_int_equal(0, r.plan->ops->run(r.plan, &a, NULL));
    rig_get(&r, "y", y);
    rig_get(&r, "d x", dx);
    for (int i = 0; i < n; i++) {
        const uint64_t element = (uint64_t)(i % 6 * c + i / 6); /* of channel i / 6 at position i % 6 */
        const bool stays = drop_word(k, 4000000000, element) >= 1u << 30;
        assert_near("what is kept", y[i], stays ? 4 : 0, 1e-14);
        assert_near("its gradient", dx[i], y[i], 0);
        lost += !stays;
    }
    assert_in_range(lost, n / 5, n / 3);
    free(ones_of_x), free(y), free(dx);
    finish(&r, p);
}

static void nothing_is_dropped_without_training(void **state)
{
    int x;
    struct program *p = bench(1, 1, 4, &x);
    program_drop(p, "y", x, 0.9, false);
    struct rig r;
    done(&r, p, 1, false);
    rig_put(&r, "x", (double[]){1, 2, 3, 4});
    rig_run(&r, &all_count, false, NULL);
    assert_all(&r, "y", (double[]){1, 2, 3, 4}, 4);
    finish(&r, p);
}

/* One head of two channels at two positions: scores of the first query 0, of the second log 3 and 0 (times sqrt 2). */
static void attention_by_hand(void **state)
{
    for (int causal = 0; causal < 2; causal++) {
        int x;
        struct program *p = bench(6, 2, 1, &x);
        program_attention(p, "y", x, 1, 1, causal);
        struct rig r;
        done(&r, p, 1, true);
        const double s = log(3) * sqrt(2);
        rig_put(&r, "x", (double[]){0, s, 0, 0, /* q */ 1, 0, 0, 0, /* k */ 4, 8, 0, 1 /* v */});
        rig_put(&r, "d y", (double[]){0, 1, 0, 0});
        rig_run(&r, &all_count, false, NULL);
        assert_all(&r, "y", (double[]){causal ? 4 : 6, 5, causal ? 0 : 0.5, 0.25}, 4); /* 3/4 of 4 and 1/4 of 8 */
        /* p = (3/4, 1/4), dp = (4, 8), ds = p (dp - 5) = (-3/4, 3/4), over sqrt 2 */
        const double d = 0.75 / sqrt(2);
        assert_all(&r, "d x", (double[]){0, -d, 0, 0, -d * s, d * s, 0, 0, 0.75, 0.25, 0, 0}, 12);
        finish(&r, p);
    }
}

static void positions_by_hand(void **state)
{
    int x;
    struct program *p = bench(2, 1, 2, &x);
    program_pick(p, "y", program_position(p, "table", program_prepend(p, "token", x)), 1);
    struct rig r;
    done(&r, p, 2, true);
    set(rig_param(&r, "token"), (double[]){50, 60}, 2);
    set(rig_param(&r, "table"), (double[]){1, 2, 3, 4, 5, 6}, 6);
    rig_put(&r, "x", (double[]){10, 20, 30, 40, 11, 21, 31, 41});
    rig_put(&r, "d y", (double[]){1, 2, 3, 4});
    rig_run(&r, &all_count, false, NULL);
    assert_all(&r, "token", (double[]){50, 10, 20, 60, 30, 40, 50, 11, 21, 60, 31, 41}, 12);
    assert_all(&r, "table", (double[]){51, 13, 25, 62, 34, 46, 51, 14, 26, 62, 35, 47}, 12);
    assert_all(&r, "y", (double[]){13, 34, 14, 35}, 4);
    assert_values("d table", rig_gradient(&r, "table"), (double[]){0, 0, 4, 6, 0, 0}, 6);
    assert_values("d token", rig_gradient(&r, "token"), (double[]){0, 0}, 2);
    assert_all(&r, "d x", (double[]){1, 0, 2, 0, 3, 0, 4, 0}, 8);
    finish(&r, p);
}

static void a_linear_layer_of_each_position_by_hand(void **state)
{
    int x;
    struct program *p = bench(2, 1, 2, &x);
    program_linear_each(p, "y", x, 1, true);
    struct rig r;
    done(&r, p, 1, true);
    set(rig_param(&r, "y.weight"), (double[]){2, 3}, 2);
    rig_param(&r, "y.bias")[0] = 0.5;
    rig_put(&r, "x", (double[]){1, 2, 10, 20});
    rig_put(&r, "d y", (double[]){1, 100});
    rig_run(&r, &all_count, false, NULL);
    assert_all(&r, "y", (double[]){32.5, 64.5}, 2);
    assert_values("d weight", rig_gradient(&r, "y.weight"), (double[]){201, 2010}, 2);
    assert_values("d bias", rig_gradient(&r, "y.bias"), (double[]){101}, 1);
    assert_all(&r, "d x", (double[]){2, 200, 3, 300}, 4);
    finish(&r, p);
}

static void max_pool_padding_never_wins_and_the_first_maximum_gets_the_gradient(void **state)
{
    int x;
    struct program *p = bench(1, 3, 3, &x);
    program_maxpool(p, "y", x, 3, 2, 1);
    struct rig r;
    done(&r, p, 1, true);
    rig_put(&r, "x", (double[]){-5, -5, -1, -5, -5, -1, -9, -8, -7});
    rig_put(&r, "d y", (double[]){1, 2, 3, 4});
    rig_run(&r, &all_count, false, NULL);
    assert_all(&r, "y", (double[]){-5, -1, -5, -1}, 4);
    /* windows: rows 0-1 or 1-2, columns 0-1 or 1-2 */
    assert_all(&r, "d x", (double[]){1, 0, 2, 3, 0, 4, 0, 0, 0}, 9);
    finish(&r, p);
}

static void average_pool_by_hand(void **state)
{
    int x;
    struct program *p = bench(2, 1, 2, &x);
    program_avgpool(p, "y", x);
    struct rig r;
    done(&r, p, 1, true);
    rig_put(&r, "x", (double[]){1, 2, 3, 7});
    rig_put(&r, "d y", (double[]){1, 4});
    rig_run(&r, &all_count, false, NULL);
    assert_all(&r, "y", (double[]){1.5, 5}, 2);
    assert_all(&r, "d x", (double[]){0.5, 0.5, 2, 2}, 4);
    finish(&r, p);
}

static struct program *loss_program(int classes)
{
    int x;
    struct program *p = bench(classes, 1, 1, &x);
    program_xent(p, x);
    return p;
}

static void cross_entropy_by_hand(void **state)
{
    struct program *p = loss_program(2);
    struct rig r;
    done(&r, p, 3, true);
    rig_put(&r, "x", (double[]){0, log(3), 1000, 1000 + log(3), 5, 6});
    struct run_args a = {.batch = {.labels = (int32_t[]){1, 0, -7}, .weights = (float[]){1, 1, 0}}, .grad_scale = 8};
    assert_int_equal(0, r.plan->ops->run(r.plan, &a, NULL));
    const double *m = rig_metrics(&r);
    assert_near("loss", m[METRIC_LOSS], -log(0.75) - log(0.25), 1e-12);
    assert_near("top 1", m[METRIC_TOP1], 1, 0);
    assert_near("top 5", m[METRIC_TOP5], 2, 0);
    assert_near("count", m[METRIC_COUNT], 2, 0);
    assert_near("stop", m[METRIC_STOP], 0, 0);
    double dz[6];
    rig_get(&r, "d x", dz);
    const double expected[] = {2, -2, -6, 6, 0, 0};
    for (int i = 0; i < 6; i++)
        assert_near("d logits", dz[i], expected[i], 1e-11);
    finish(&r, p);
}

static void ties_go_to_the_lower_class_and_nan_is_no_hit(void **state)
{
    struct program *p = loss_program(7);
    struct rig r;
    done(&r, p, 4, true);
    rig_put(&r, "x", (double[]){1,   1, 0, 0, 0, 0, 0, /* label 0: first of the tie */
                                1,   1, 0, 0, 0, 0, 0, /* label 1: second */
                                1,   1, 0, 0, 0, 0, 0, /* label 5: sixth */
                                NAN, 0, 0, 0, 0, 0, 0});
    rig_run(&r, &(struct batch){.labels = (int32_t[]){0, 1, 5, 0}, .weights = ones}, false, NULL);
    assert_near("top 1", rig_metrics(&r)[METRIC_TOP1], 1, 0);
    assert_near("top 5", rig_metrics(&r)[METRIC_TOP5], 2, 0);
    finish(&r, p);
}

/* Values of torch.nn.CrossEntropyLoss(label_smoothing=0.1): loss 0.4076 + 0.1 * mean gap. */
static void smoothed_labels_pull_towards_all_classes(void **state)
{
    struct program *p = loss_program(3);
    struct rig r;
    done(&r, p, 1, true);
    rig_put(&r, "x", (double[]){2, 1, 0});
    struct run_args a = {
        .batch = {.labels = (int32_t[]){0}, .weights = ones}, .grad_scale = 1, .smoothing = 0.1, .params_version = 1};
    assert_int_equal(0, r.dev->ops->run(r.plan, &a, NULL));
    const double lse = log(exp(2) + exp(1) + 1), q = 0.1 / 3;
    assert_near("loss", rig_metrics(&r)[METRIC_LOSS], lse - 0.9 * 2 - q * 3, 1e-15);
    double d[3];
    assert_int_equal(0, r.dev->ops->get(r.plan, program_find_tensor(p, "d x"), d, NULL));
    assert_near("label's gradient", d[0], exp(2 - lse) - 0.9 - q, 1e-15);
    assert_near("other's gradient", d[2], exp(-lse) - q, 1e-15);
    finish(&r, p);
}

static void sgd_keeps_its_momentum_over_a_change_of_rate(void **state)
{
    struct device *d;
    assert_int_equal(0, device_open(&d, "ref", &(struct device_options){.threads = 1}, NULL));
    double w[] = {7, 1, 7}, g[] = {9, 8, 9}, m[] = {3, 0, 3}, count = 2;
    struct update u = {.first = 1, .n = 1, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.5, .grad_mul = 0.5};
    assert_int_equal(0, d->ops->update(d, &u, w, g, m, &count, NULL)); /* g = 8 / 2 / 2 + 0.5 = 2.5 */
    assert_near("momentum", m[1], 2.5, 1e-15);
    assert_near("weight", w[1], 0.75, 1e-15);
    g[1] = 0;
    u.lr = 0.01;
    assert_int_equal(0, d->ops->update(d, &u, w, g, m, &count, NULL)); /* m = 2.25 + 0.375; w = 0.75 - 0.02625 */
    assert_near("momentum", m[1], 2.625, 1e-15);
    assert_near("weight", w[1], 0.72375, 1e-15);
    count = 0;
    assert_int_equal(0, d->ops->update(d, &u, w, g, m, &count, NULL));
    assert_near("momentum without a sample", m[1], 2.625, 1e-15);
    assert_near("weight without a sample", w[1], 0.72375, 1e-15);
    assert_true(w[0] == 7 && w[2] == 7 && m[0] == 3 && m[2] == 3);
    d->ops->close(d);
}

static void running_statistics_move_by_their_momentum(void **state)
{
    struct device *d;
    assert_int_equal(0, device_open(&d, "ref", &(struct device_options){.threads = 1}, NULL));
    double stats[] = {1, -1}, sums[] = {6, 2}, count = 2;
    assert_int_equal(0, d->ops->update_stats(d, stats, sums, 2, 0.1, &count, NULL));
    assert_near("mean", stats[0], 1.2, 1e-15);
    assert_near("other", stats[1], -0.8, 1e-15);
    count = 0;
    assert_int_equal(0, d->ops->update_stats(d, stats, sums, 2, 0.1, &count, NULL));
    assert_near("mean without a sample", stats[0], 1.2, 1e-15);
    d->ops->close(d);
}

static void assert_text(const struct err *e, const char *text)
{
    if (!strstr(e->text, text))
        print_error("the error is '%s', expected to hold '%s'\n", e->text, text);
    assert_non_null(strstr(e->text, text));
}

static void what_cannot_be_done_is_refused_with_a_sentence(void **state)
{
    struct err e = {0};
    struct device *d;
    assert_int_equal(-EINVAL, device_open(&d, "tpu", &(struct device_options){.threads = 1}, &e));
    assert_text(&e, "unknown device 'tpu' (expected one of auto, ref, cpu, cuda)");
    assert_int_equal(-EINVAL, device_open(&d, "ref", &(struct device_options){.threads = 0}, &e));
    assert_text(&e, "0 compute threads");

    struct program *p = loss_program(3);
    struct rig r;
    done(&r, p, 1, true);
    struct plan_options o = {.batch = 1, .training = true, .compute = DT_F32, .reduce = r.reduce};
    struct plan *plan;
    assert_int_equal(-ENOTSUP, r.dev->ops->plan(r.dev, p, &o, &plan, &e));
    assert_text(&e, "the ref device computes in F64 only, not in F32");
    o.compute = DT_F64, o.batch = 0;
    assert_int_equal(-EINVAL, r.dev->ops->plan(r.dev, p, &o, &plan, &e));
    assert_text(&e, "a batch of 0");
    o.batch = 1, o.end_op = 9;
    assert_int_equal(-EINVAL, r.dev->ops->plan(r.dev, p, &o, &plan, &e));
    assert_text(&e, "operations 0 to 9 of a program of 2");
    o.end_op = 0, o.reduce = NULL;
    assert_int_equal(-EINVAL, r.dev->ops->plan(r.dev, p, &o, &plan, &e));
    assert_text(&e, "operation 0 (xent) writes sums");

    struct run_args a = {.batch = {.labels = (int32_t[]){3}, .weights = ones}};
    assert_int_equal(-EINVAL, r.plan->ops->run(r.plan, &a, &e));
    assert_text(&e, "sample 0 of the batch has label 3 (expected 0 to 2)");
    a.batch.weights = (float[]){0.5f};
    assert_int_equal(-EINVAL, r.plan->ops->run(r.plan, &a, &e));
    assert_text(&e, "weight 0.5 (expected 0 or 1)");
    a.batch.weights = NULL;
    assert_int_equal(-EINVAL, r.plan->ops->run(r.plan, &a, &e));
    assert_text(&e, "the batch has no weights");
    finish(&r, p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(input_normalises_interleaved_bytes),
        cmocka_unit_test(rows_of_a_batch_are_stepped_through_by_what_a_model_reads),
        cmocka_unit_test(convolution_by_hand),
        cmocka_unit_test(convolutions_of_odd_shapes_follow_the_definition),
        cmocka_unit_test(a_batch_that_is_unfolded_in_parts_gives_the_same),
        cmocka_unit_test(linear_by_hand),
        cmocka_unit_test(batch_norm_by_hand),
        cmocka_unit_test(batch_norm_leaves_out_a_sample_of_weight_0),
        cmocka_unit_test(one_element_has_the_biased_variance_and_no_gradient),
        cmocka_unit_test(evaluation_normalises_by_running_statistics),
        cmocka_unit_test(relu_and_addition_by_hand),
        cmocka_unit_test(norms_of_channels_by_hand),
        cmocka_unit_test(activations_have_known_values),
        cmocka_unit_test(layer_scale_by_hand),
        cmocka_unit_test(dropped_elements_are_those_of_the_words),
        cmocka_unit_test(nothing_is_dropped_without_training),
        cmocka_unit_test(a_linear_layer_of_each_position_by_hand),
        cmocka_unit_test(attention_by_hand),
        cmocka_unit_test(positions_by_hand),
        cmocka_unit_test(max_pool_padding_never_wins_and_the_first_maximum_gets_the_gradient),
        cmocka_unit_test(average_pool_by_hand),
        cmocka_unit_test(cross_entropy_by_hand),
        cmocka_unit_test(ties_go_to_the_lower_class_and_nan_is_no_hit),
        cmocka_unit_test(smoothed_labels_pull_towards_all_classes),
        cmocka_unit_test(sgd_keeps_its_momentum_over_a_change_of_rate),
        cmocka_unit_test(running_statistics_move_by_their_momentum),
        cmocka_unit_test(what_cannot_be_done_is_refused_with_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
