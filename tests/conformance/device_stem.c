/* The convolution that reads the images, on the device under test: filters, paddings and sizes of which it may compute
 * some as another convolution (worker/device/fold.h). What it made of the images, its result and its weight gradient
 * are compared with the definition, applied in double to what the device itself has stored; evaluation with ref. */
#include "tests/conformance/device_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"

enum { BATCH = 3, FILTERS = 8 };

/* Even and odd sizes, filters, strides and paddings: those from the ninth on are computed as they are. */
static const struct stem {
    int channels, height, width, kernel, stride, pad;
} stems[] = {
    {3, 32, 32, 7, 2, 3}, {3, 22, 36, 7, 2, 3}, {3, 16, 16, 3, 2, 1}, {3, 16, 12, 3, 2, 0}, {4, 16, 20, 5, 2, 2},
    {1, 14, 18, 5, 2, 1}, {2, 12, 10, 3, 2, 2}, {3, 18, 14, 9, 2, 4}, {3, 15, 16, 7, 2, 3}, {3, 16, 15, 3, 2, 1},
    {3, 16, 16, 2, 2, 0}, {3, 16, 16, 4, 2, 1}, {3, 16, 16, 3, 1, 1}, {3, 18, 18, 5, 3, 2}, {3, 16, 16, 1, 2, 0},
};
enum { STEMS = sizeof stems / sizeof *stems };

static struct program *network(const struct stem *s)
{
    static const float mean[] = {0.5f, 0.25f, 0.375f, 0.125f}, std[] = {0.25f, 0.5f, 0.3f, 0.2f};
    struct program *p = program_create("stem", input_pictures(s->channels, s->height, s->width, mean, std));
    int x = program_conv(p, "conv", program_input(p), FILTERS, s->kernel, s->stride, s->pad, false);
    x = program_relu(p, "relu", program_bn(p, "bn", x, 1e-5f, false));
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", x), 5));
    MUST(program_differentiate(p, e));
    return p;
}

static const struct op *op_of(const struct program *p, enum op_kind kind)
{
    for (int i = 0; i < p->nops; i++)
        if (p->ops[i].kind == kind)
            return &p->ops[i];
    fail_msg("the network has no %s", op_name(kind));
    return NULL;
}

/* Call f(image, gradient or result, weight) for each product of the convolution. */
typedef void product(double *x, double *y, double *w);
static void each_product(const struct stem *s, const struct tensor *y, double *x, double *out, double *w, product *f)
{
    for (int n = 0; n < BATCH; n++)
        for (int k = 0; k < FILTERS; k++)
            for (int i = 0; i < y->h * y->w; i++)
                for (int j = 0; j < s->channels * s->kernel * s->kernel; j++) {
                    const int c = j / s->kernel / s->kernel,
                              h = i / y->w * s->stride + j / s->kernel % s->kernel - s->pad,
                              v = i % y->w * s->stride + j % s->kernel - s->pad;
                    if (h >= 0 && h < s->height && v >= 0 && v < s->width)
                        f(&x[((n * s->channels + c) * s->height + h) * s->width + v],
                          &out[(n * FILTERS + k) * y->h * y->w + i], &w[k * s->channels * s->kernel * s->kernel + j]);
                }
}

static void forward(double *x, double *y, double *w)
{
    *y += *x * *w;
}

static void backward(double *x, double *y, double *w)
{
    *w += *x * *y;
}

static void check_images(const struct side *s, const struct images *im, const double *x)
{
    const struct program *p = s->p;
    const int c = p->input.channels, all = p->input.height * p->input.width;
    for (int i = 0; i < BATCH * c * all; i++) {
        const int n = i / c / all, channel = i / all % c;
        const uint8_t byte = im->pixels[(n * all + i % all) * c + channel];
        const double want = (double)(((float)byte / 255.0f - p->input.mean[channel]) / p->input.std[channel]);
        if (x[i] != want && x[i] != dtype_rounded(s->mode.compute, want))
            fail_msg("element %d of the images is %g, expected %g", i, x[i], want);
    }
}

static void halve(double *x, size_t n, enum dtype type)
{
    for (size_t i = 0; i < n; i++)
        x[i] = dtype_rounded(type, x[i]);
}

/* Each element is rounded once; sums in fp32 are off by less. */
static void expect_rounded(const char *what, const struct stem *s, const double *got, const double *want, size_t n,
                           enum dtype type)
{
    const double unit = type == DT_F16 ? 0x1p-11 : 0x1p-8, d = relative_distance(got, want, n);
    if (!(d <= unit))
        fail_msg("%dx%dx%d, filter %d, stride %d, padding %d: %s is %.2g off, expected at most %.2g", s->channels,
                 s->height, s->width, s->kernel, s->stride, s->pad, what, d, unit);
}

/* A sample of weight 0 among others; the third run is a launched graph, and accumulates to nothing. */
static void train(const struct side *s, struct images *im)
{
    im->weights[BATCH - 1] = 0;
    side_poison(s);
    for (int i = 0; i < 3; i++)
        side_run(s, &im->b, 64, false, 1, NULL);
}

static void compare_training(const struct stem *s, const struct mode *m)
{
    struct program *p = network(s);
    struct images im;
    struct side d;
    images_make(&im, p, BATCH, 5);
    side_open(&d, rig_device, p, m, BATCH, true, true, 2);
    side_initialise(&d, 3);
    train(&d, &im);
    const struct op *conv = op_of(p, OP_CONV), *back = op_of(p, OP_CONV_BWD_PARAM);
    const struct param *q = &p->params[conv->param[0]];
    const size_t outputs = side_count(&d, conv->out);
    double *x = side_get(&d, conv->in[0]), *y = side_get(&d, conv->out), *dy = side_get(&d, back->in[1]),
           *w = malloc(q->count * sizeof *w), *dw = malloc(q->count * sizeof *dw),
           *exact = calloc(outputs, sizeof *exact), *gradient = calloc(q->count, sizeof *gradient);
    check_images(&d, &im, x);
    arena_get(&d, d.params, q->offset, w, q->count);
    arena_get(&d, d.reduce, q->offset, dw, q->count);
    halve(w, q->count, m->compute);
    halve(x, side_count(&d, conv->in[0]), m->compute); /* O1 keeps them wide, and products read halves */
    halve(dy, outputs, m->compute);
    each_product(s, &p->tensors[conv->out], x, exact, w, forward);
    expect_rounded("the result", s, y, exact, outputs, m->compute);
    each_product(s, &p->tensors[conv->out], x, dy, gradient, backward);
    expect_rounded("the weight's gradient", s, dw, gradient, q->count, m->compute);
    void *const all[] = {x, y, dy, w, dw, exact, gradient};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    side_close(&d);
    images_free(&im);
    program_destroy(p);
}

static void stems_are_convolutions(void **state)
{
    for (size_t i = 0; i < STEMS; i++)
        compare_training(&stems[i], *state);
}

static double *logits(const char *device, const struct program *p, const struct mode *m, struct images *im)
{
    struct side s;
    side_open(&s, device, p, m, BATCH, false, false, 2);
    side_initialise(&s, 3);
    side_run(&s, &im->b, 1, false, 1, NULL);
    double *z = side_get(&s, p->logits);
    side_close(&s);
    return z;
}

/* Each of the five tensors on the way, and two weights, are rounded: 4 units. */
static void an_evaluation_is_that_of_ref(void **state)
{
    const struct mode *m = *state;
    for (size_t i = 0; i < STEMS; i++) {
        struct program *p = network(&stems[i]);
        struct images im;
        images_make(&im, p, BATCH, 6);
        double *want = logits("ref", p, &mode_f64, &im), *got = logits(rig_device, p, m, &im);
        const double d = relative_distance(got, want, BATCH * 5);
        if (!(d <= (m->compute == DT_F16 ? 0x1p-9 : 0x1p-6)))
            fail_msg("stem %zu: logits are %.2g off", i, d);
        free(want);
        free(got);
        images_free(&im);
        program_destroy(p);
    }
}

int main(void)
{
    static const struct mode bf16 = {.name = "bf16", .compute = DT_BF16};
    const struct CMUnitTest tests[] = {
        {"stems_in_fp16", stems_are_convolutions, NULL, NULL, (void *)(uintptr_t)&mode_fp16},
        {"stems_in_bf16", stems_are_convolutions, NULL, NULL, (void *)(uintptr_t)&bf16},
        {"stems_in_fp16_at_O1", stems_are_convolutions, NULL, NULL, (void *)(uintptr_t)&mode_native_fp16_o1},
        {"stems_in_bf16_at_O1", stems_are_convolutions, NULL, NULL, (void *)(uintptr_t)&mode_native_bf16_o1},
        {"stems_in_fp16_nchw", stems_are_convolutions, NULL, NULL, (void *)(uintptr_t)&mode_fp16_nchw},
        {"an_evaluation_in_fp16", an_evaluation_is_that_of_ref, NULL, NULL, (void *)(uintptr_t)&mode_fp16},
        {"an_evaluation_in_bf16", an_evaluation_is_that_of_ref, NULL, NULL, (void *)(uintptr_t)&bf16},
    };
    return cmocka_run_group_tests_name("the convolution that reads the images", tests, NULL, NULL);
}
