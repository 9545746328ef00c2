/* Each of the 32 places where ResNet-50 goes from a batch norm through a ReLU into a convolution (1 x 1 and 3 x 3,
 * with strides, 64 to 512 channels into 64 to 2048): a network around it, small in everything but its channels, as the
 * device under test fuses and times it, against ref in fp64.
 *
 * What is compared must be rounding, and nothing else: a ReLU whose input is near 0 is on for one and off for the
 * other. One of n numbers is at most (n - 1) / sqrt(n) deviations from their mean (Samuelson's inequality), 6.78 for
 * the 48 of a channel here; so shifts of 7 keep each input of a ReLU a fifth away from 0.
 *
 * How much rounding there is depends on what cancels, which differs from seam to seam; so it is measured by the same
 * network unfused, in halves: each parameter's gradient, and each statistic, may be twice as far from fp64 as there.
 * That says something if many elements are off by chance, each by itself: so the convolution before the seam is one of
 * 3 x 3. (One of 1 x 1 has three weights a channel. Some channels then deviate far less than others, their gradients
 * are most of the norm, and two of them decide how far it is off.) Where only sums in fp32 are off, both are off by
 * their length's chance: sqrt(terms) 2^-24.
 *
 * usage: device_seams [FIRST [END]]: of those that are not alike, all by default; others are refused (2) */
#include "tests/conformance/device_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "tests/must.h"
#include "worker/model/model.h"

enum { SIZE = 4, BATCH = 3, CLASSES = 4, SEAMS_MAX = 64, SEAMS = 32 };
enum { TERMS = 512 * 3 * 3 }; /* of the longest sum */
static const double SHIFT = 7;

struct seam {
    int c, k, r, stride, times; /* times: so many of the network are alike */
    char name[64];              /* of the first */
};
static struct seam seams[SEAMS_MAX];
static int nseams, all, first, end;

static int producer(const struct program *p, int tensor)
{
    for (int i = 0; i < p->nfwd; i++)
        if (p->ops[i].out == tensor)
            return i;
    return -1;
}

static void add_seam(const struct seam *s)
{
    all++;
    for (int i = 0; i < nseams; i++) {
        const struct seam *o = &seams[i];
        if (o->c == s->c && o->k == s->k && o->r == s->r && o->stride == s->stride) {
            seams[i].times++;
            return;
        }
    }
    seams[nseams++] = *s;
}

/* conv <- ReLU <- BN, without a sum between */
static void find_seams(void)
{
    const struct model_options m = {.arch = "resnet50", .classes = 10, .input = input_pictures(3, 64, 64, NULL, NULL)};
    struct program *p;
    MUST(model_build(&p, &m, e));
    for (int i = 0; i < p->nfwd; i++) {
        const struct op *conv = &p->ops[i];
        const int relu = conv->kind == OP_CONV ? producer(p, conv->in[0]) : -1;
        const int bn = relu >= 0 && p->ops[relu].kind == OP_RELU ? producer(p, p->ops[relu].in[0]) : -1;
        if (bn < 0 || p->ops[bn].kind != OP_BN)
            continue;
        struct seam s = {.c = p->tensors[conv->in[0]].c,
                         .k = p->tensors[conv->out].c,
                         .r = conv->kh,
                         .stride = conv->sh,
                         .times = 1};
        snprintf(s.name, sizeof s.name, "%.63s", p->tensors[conv->out].name);
        add_seam(&s);
    }
    program_destroy(p);
}

static struct program *around(const struct seam *s)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("seam", input_pictures(3, SIZE, SIZE, mean, std));
    int x = program_conv(p, "before", program_input(p), s->c, 3, 1, 1, false);
    x = program_relu(p, "relu", program_bn(p, "bn", x, 1e-5f, false));
    x = program_conv(p, "seam", x, s->k, s->r, s->stride, s->r / 2, false);
    x = program_relu(p, "relu2", program_bn(p, "bn2", x, 1e-5f, false));
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
            arena_put(s, s->params, beta->offset + c, &(double){c % 2 ? SHIFT : -SHIFT}, 1);
    }
}

static double *step(const char *device, const struct program *p, const struct mode *m)
{
    struct side s;
    struct images im;
    double *r = malloc(sizeof(*r) * p->n_reduce);
    images_make(&im, p, BATCH, 12);
    side_open(&s, device, p, m, BATCH, true, false, 2);
    side_initialise(&s, 3);
    shift_away_from_zero(&s);
    side_run(&s, &im.b, 128, false, 1, NULL);
    arena_get(&s, s.reduce, 0, r, p->n_reduce);
    side_close(&s);
    images_free(&im);
    return r;
}

static double norm(const double *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (a[i] - (b ? b[i] : 0)) * (a[i] - (b ? b[i] : 0));
    return sqrt(sum);
}

/* The scale beside this shift of batch norm; NULL: it is none (device_fused.c says why). */
static const struct param *scale_beside(const struct program *p, int param)
{
    for (int i = 0; i < p->nfwd; i++)
        if (p->ops[i].kind == OP_BN && p->ops[i].param[1] == param)
            return &p->params[p->ops[i].param[0]];
    return NULL;
}

static double apart(const struct program *p, int param, const double *got, const double *want)
{
    const struct param *q = &p->params[param];
    const size_t at = q->offset + (q->role == PARAM_TRAIN ? 0 : p->n_train);
    const struct param *scale = scale_beside(p, param);
    const double beside = scale ? norm(want + scale->offset, NULL, scale->count) : 0;
    return norm(got + at, want + at, q->count) / hypot(norm(want + at, NULL, q->count), beside);
}

static void compare(const struct seam *s, const struct program *p, const double *got, const double *unfused,
                    const double *exact)
{
    double worst = 0, there = 0;
    for (int i = 0; i < p->nparams; i++) {
        const double mine = apart(p, i, got, exact), plain = apart(p, i, unfused, exact);
        if (!(mine <= 2 * plain + sqrt(TERMS) * ldexp(1, -24)))
            fail_msg("%s: %s is %g apart, unfused %g", s->name, p->params[i].name, mine, plain);
        there = mine > worst ? plain : there;
        worst = mine > worst ? mine : worst;
    }
    print_message("# %s and %d like it: %d -> %d, %d x %d / %d: %.2g apart at most, unfused %.2g\n", s->name,
                  s->times - 1, s->c, s->k, s->r, s->r, s->stride, worst, there);
}

static void every_seam_computes_what_its_parts_would(void **state)
{
    (void)state;
    const struct mode timed = {.name = "fp16 timed", .compute = DT_F16, .timed = true},
                      plain = {.name = "fp16 unfused", .compute = DT_F16, .unfused = true};
    assert_int_equal(SEAMS, all);
    for (int i = first; i < end; i++) {
        struct program *p = around(&seams[i]);
        double *exact = step("ref", p, &mode_f64), *unfused = step(rig_device, p, &plain),
               *got = step(rig_device, p, &timed);
        compare(&seams[i], p, got, unfused, exact);
        free(exact);
        free(unfused);
        free(got);
        program_destroy(p);
    }
}

/* An argument, or what stands for it; -1: it is no number. */
static int place(int argc, char **argv, int i, int def)
{
    int64_t v = def;
    return i < argc && parse_i64(argv[i], "", 0, nseams, &v, NULL) < 0 ? -1 : (int)v;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_seam_computes_what_its_parts_would)};
    find_seams();
    first = place(argc, argv, 1, 0);
    end = place(argc, argv, 2, nseams);
    if (argc > 3 || first < 0 || first >= end) {
        fprintf(stderr, "usage: device_seams [FIRST [END]], 0 <= FIRST < END <= %d\n", nseams);
        return 2;
    }
    return cmocka_run_group_tests_name("seams of ResNet-50", tests, NULL, NULL);
}
