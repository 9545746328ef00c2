/* Whole networks on the device under test: against ref, and against itself where fusing, accumulating, masking samples
 * or splitting the batch over ranks must change nothing. */
#include "tests/conformance/device_rig.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "worker/model/model.h"
#include "worker/program/stages.h"

static struct program *model(const char *arch, int size)
{
    struct program *p;
    struct err e = {0};
    bool convnet = strcmp(arch, "convnet") == 0;
    struct model_options o = {.arch = arch,
                              .classes = 10,
                              .input = input_pictures(convnet ? 1 : 3, size, size, (float[4]){0.5f, 0.5f, 0.5f, 0},
                                                      (float[4]){0.25f, 0.25f, 0.25f, 1})};
    if (model_build(&p, &o, &e) < 0)
        fail_msg("%s", e.text);
    return p;
}

static int conv_bn(struct program *p, const char *name, int x, int k, int kernel, int stride)
{
    char bn[32];
    snprintf(bn, sizeof bn, "%s.bn", name);
    return program_bn(p, bn, program_conv(p, name, x, k, kernel, stride, kernel / 2, false), 1e-5f, false);
}

static struct program *differentiated(struct program *p, const char *factors)
{
    struct err e = {0};
    program_freeze(p, factors);
    if (program_differentiate(p, &e) < 0)
        fail_msg("%s", e.text);
    return p;
}

/* Everything that a ResNet has, in little: stem, a block with a plain shortcut, one with a projection. factors: of what
 * is frozen 0. */
static struct program *small_frozen(const char *factors)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("small", input_pictures(3, 32, 32, mean, std));
    int x = program_relu(p, "relu", conv_bn(p, "stem", program_input(p), 24, 7, 2));
    x = program_maxpool(p, "pool", x, 3, 2, 1);
    int y = program_relu(p, "a.relu", conv_bn(p, "a.1", x, 24, 3, 1));
    x = program_relu(p, "a.out", program_add(p, "a.add", conv_bn(p, "a.2", y, 24, 3, 1), x));
    y = program_relu(p, "b.relu", conv_bn(p, "b.1", x, 40, 3, 2));
    y = conv_bn(p, "b.2", y, 40, 3, 1);
    x = program_relu(p, "b.out", program_add(p, "b.add", y, conv_bn(p, "b.short", x, 40, 1, 2)));
    program_xent(p, program_linear(p, "fc", program_avgpool(p, "mean", x), 10));
    return differentiated(p, factors);
}

static struct program *small(void)
{
    return small_frozen(NULL);
}

/* What other networks have that the cuda device refuses: blocks of ConvNeXt, ResNeXt and ViT, and all that is
 * dropped. */
static struct program *positions_frozen(const char *factors)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, std[] = {0.25f, 0.25f, 0.25f};
    struct program *p = program_create("positions", input_pictures(3, 32, 32, mean, std));
    const bool bias =
        strcmp(rig_device, "cuda") != 0; /* there cuDNN's result is rounded before a bias is added to it */
    int x =
        program_norm(p, "stem.norm", program_conv(p, "stem", program_input(p), 24, 4, 4, 0, bias), 1e-6f, false, true);
    int y = program_norm(p, "a.norm", program_conv_groups(p, "a.dw", x, 24, 7, 1, 3, 24, true), 1e-6f, false, true);
    y = program_linear_each(p, "a.2", program_act(p, "a.gelu", program_linear_each(p, "a.1", y, 96, true), ACT_GELU),
                            24, true);
    y = program_drop(p, "a.depth", program_scale(p, "a.scale", y, 0.1, true), 0.3, true);
    x = program_add(p, "a.add", y, x);
    y = program_act(p, "b.silu", program_norm(p, "b.rms", x, 1e-6f, true, false), ACT_SILU);
    y = program_drop(p, "b.drop", program_linear_each(p, "b.1", y, 24, false), 0.2, false);
    x = program_add(p, "b.add", x, y);
    y = program_relu(p, "c.relu", conv_bn(p, "c.1", x, 32, 1, 1));
    y = program_bn(p, "c.2.bn", program_conv_groups(p, "c.2", y, 32, 3, 2, 1, 8, false), 1e-5f, false);
    y = conv_bn(p, "c.3", program_relu(p, "c.2.relu", y), 48, 1, 1);
    x = program_relu(p, "c.out", program_add(p, "c.add", y, conv_bn(p, "c.short", x, 48, 1, 2)));
    x = program_position(p, "d.table", program_prepend(p, "d.token", x));
    y = program_linear_each(p, "d.qkv", program_norm(p, "d.norm", x, 1e-6f, false, true), 96, true);
    y = program_linear_each(p, "d.out", program_attention(p, "d.attention", y, 4, 2, false), 48, true);
    x = program_add(p, "d.add", x, y);
    x = program_add(p, "d.pool", program_pick(p, "d.first", x, 0), program_avgpool(p, "mean", x));
    x = program_act(p, "tanh", x, ACT_GELU_TANH);
    program_xent(p, program_linear(p, "fc", program_norm(p, "norm", x, 1e-6f, false, true), 10));
    return differentiated(p, factors);
}

static struct program *positions(void)
{
    return positions_frozen(NULL);
}

/* All networks of this file that the device has: cuda freezes whole convolutions and linear layers alone. */
static int nets(void)
{
    return strcmp(rig_device, "cuda") == 0 ? 2 : 4;
}

/* What is frozen: some in the middle, which gradients pass; a beginning, where they end. */
static struct program *net(int i)
{
    switch (i) {
    case 0:
        return small();
    case 1:
        return positions();
    case 2:
        return small_frozen("a.1*=0,a.2=0,a.2.bn.weight=0,b.2.bn.*=0,b.short.bn.*=0,fc.weight=0");
    default:
        return positions_frozen("stem*=0,a.dw.*=0,a.norm.weight=0,a.scale=0,b.1.weight=0,c.1.*=0,c.2.bn.*=0,d.t*=0,"
                                "d.qkv.weight=0,norm.*=0");
    }
}

static double *reduce_of(const struct side *s)
{
    double *v = malloc(sizeof(*v) * s->p->n_reduce);
    arena_get(s, s->reduce, 0, v, s->p->n_reduce);
    return v;
}

static bool can(const struct mode *m)
{
    struct device *d;
    assert_int_equal(0, rig_open(&d, rig_device, &(struct device_options){.threads = 1}, NULL));
    bool yes = m->emulate || d->ops->native(d, m->compute, m->half);
    d->ops->close(d);
    return yes;
}

/* Gradients, statistics and loss of the first step of a model. */
static double *first_step(const char *device, const struct program *p, const struct mode *m, struct images *im, int n,
                          bool keep_all)
{
    struct side s;
    side_open(&s, device, p, m, n, true, keep_all, 2);
    side_initialise(&s, 3);
    side_run(&s, &im->b, 1, false, 1, NULL);
    double *r = reduce_of(&s);
    side_close(&s);
    return r;
}

static void first_gradients_match(struct program *p, const struct mode *m, double bound)
{
    struct images im;
    images_make(&im, p, 4, 11);
    double *want = first_step("ref", p, &mode_f64, &im, 4, false), *got = first_step(rig_device, p, m, &im, 4, false);
    double d = relative_distance(got, want, p->n_train),
           l = relative_distance(got + p->n_train + p->n_stats, want + p->n_train + p->n_stats, 1);
    print_message("# %s in %s: gradients differ by %.2g (bound %.2g), the loss by %.2g\n", p->arch, m->name, d, bound,
                  l);
    if (!(d <= bound))
        fail_msg("gradients differ by %g, bound %g", d, bound);
    if (!(l <= bound))
        fail_msg("the loss differs by %g, bound %g", l, bound);
    free(want);
    free(got);
    images_free(&im);
    program_destroy(p);
}

static void gradients_of_resnet18_match_ref(void **state)
{
    (void)state;
    first_gradients_match(model("resnet18", 32), &mode_f32,
                          2e-2); /* ReLUs and maxima flip: no bound by rounding alone exists */
}

static void gradients_of_convnet_match_ref(void **state)
{
    (void)state;
    first_gradients_match(model("convnet", 28), &mode_f32, 1e-4);
}

/* Its first layer reads the images, whose channels may be padded. */
static void gradients_of_mlp_match_ref(void **state)
{
    (void)state;
    first_gradients_match(model("mlp", 9), &mode_f32, 1e-4);
}

static void gradients_of_positions_match_ref(void **state)
{
    (void)state;
    first_gradients_match(positions(), &mode_f32, 1e-4);
    if (nets() == 2) /* the others are refused */
        return;
    first_gradients_match(net(3), &mode_f32, 1e-4);
    first_gradients_match(small_frozen("*=0,*.bias=1"), &mode_f32, 1e-4);
    first_gradients_match(positions_frozen("*=0,*.bias=1"), &mode_f32, 1e-4);
    first_gradients_match(positions_frozen("*=0,fc.*=1"), &mode_f32, 1e-4);
}

static void check_fusing(struct program *p, const struct mode *m)
{
    struct images im;
    images_make(&im, p, 5, 12);
    im.weights[3] = 0;
    double *fused = first_step(rig_device, p, m, &im, 5, false), *plain = first_step(rig_device, p, m, &im, 5, true);
    size_t differ = 0;
    for (size_t i = 0; i < p->n_reduce; i++)
        differ += fused[i] != plain[i];
    if (differ)
        fail_msg("%zu of %zu sums differ, relative distance %g", differ, p->n_reduce,
                 relative_distance(fused, plain, p->n_reduce));
    free(fused);
    free(plain);
    images_free(&im);
    program_destroy(p);
}

static void fusing_changes_no_bit(void **state)
{
    const struct mode *m = *state;
    if (!can(m)) {
        print_message("# no %s units in this processor\n", m->name);
        skip();
    }
    for (int i = 0; i < nets(); i++)
        check_fusing(net(i), m);
}

/* Tensors that are not alive at the same time share memory: gradients of activations live shortly, an evaluation keeps
 * nothing. */
static void a_plan_needs_less_memory_than_all_its_tensors(void **state)
{
    (void)state;
    struct program *p = small();
    size_t bytes[2][2];
    for (int training = 0; training < 2; training++)
        for (int keep_all = 0; keep_all < 2; keep_all++) {
            struct side s;
            side_open(&s, rig_device, p, &mode_f32, 16, training, keep_all, 1);
            bytes[training][keep_all] = rig_plan_bytes(s.plan);
            side_close(&s);
        }
    print_message("# peak %zu of %zu bytes in training, %zu of %zu in evaluation\n", bytes[1][0], bytes[1][1],
                  bytes[0][0], bytes[0][1]);
    assert_true(bytes[1][0] * 10 < bytes[1][1] * 7);
    assert_true(bytes[0][0] * 10 < bytes[0][1] * 5);
    program_destroy(p);
}

static void check_weight_0(struct program *p)
{
    struct images im;
    images_make(&im, p, 4, 13);
    im.weights[1] = 0;
    double *a = first_step(rig_device, p, &mode_f32, &im, 4, false);
    size_t image = (size_t)p->input.channels * 32 * 32;
    memset(im.pixels + image, 255, image);
    im.labels[1] = -5;
    double *b = first_step(rig_device, p, &mode_f32, &im, 4, false);
    for (size_t i = 0; i < p->n_reduce; i++)
        if (a[i] != b[i])
            fail_msg("sum %zu changed from %g to %g", i, a[i], b[i]);
    assert_true(a[p->n_train + p->n_stats + METRIC_COUNT] == 3);
    free(a);
    free(b);
    images_free(&im);
    program_destroy(p);
}

static void a_sample_of_weight_0_counts_nowhere(void **state)
{
    (void)state;
    for (int i = 0; i < nets(); i++)
        check_weight_0(net(i));
}

static void a_batch_without_samples_moves_nothing(void **state)
{
    (void)state;
    struct program *p = small();
    struct images im;
    struct side s;
    images_make(&im, p, 2, 14);
    im.weights[0] = im.weights[1] = 0;
    side_open(&s, rig_device, p, &mode_f32, 2, true, false, 2);
    side_initialise(&s, 3);
    side_run(&s, &im.b, 1, false, 1, NULL);
    double *r = reduce_of(&s), *before = malloc(sizeof(*before) * p->n_train),
           *after = malloc(sizeof(*after) * p->n_train);
    for (size_t i = 0; i < p->n_reduce; i++)
        if (r[i] != 0) /* a NaN is not 0, either */
            fail_msg("sum %zu is %g", i, r[i]);
    arena_get(&s, s.params, 0, before, p->n_train);
    struct update u = {.n = p->n_train, .lr = 1, .momentum = 0.9, .weight_decay = 0.1, .grad_mul = 1};
    const float *count = (const float *)s.reduce + p->n_train + p->n_stats + METRIC_COUNT;
    assert_int_equal(0, s.d->ops->update(s.d, &u, s.params, s.reduce, s.momentum, count, NULL));
    arena_get(&s, s.params, 0, after, p->n_train);
    assert_memory_equal(before, after, sizeof(*before) * p->n_train);
    free(r);
    free(before);
    free(after);
    side_close(&s);
    images_free(&im);
    program_destroy(p);
}

static void check_accumulating(struct program *p)
{
    struct images im;
    struct side s;
    images_make(&im, p, 3, 15);
    side_open(&s, rig_device, p, &mode_f32, 3, true, false, 2);
    side_initialise(&s, 3);
    side_run(&s, &im.b, 1, false, 1, NULL);
    double *once = reduce_of(&s);
    side_run(&s, &im.b, 1, true, 1, NULL);
    double *twice = reduce_of(&s);
    for (size_t i = 0; i < p->n_reduce; i++)
        once[i] *= 2;
    /* A product may be added in blocks of its depth, each rounded: so oneDNN does where there is no AVX-512. */
    const double apart = relative_distance(twice, once, p->n_train);
    if (!(apart <= 1e-6))
        fail_msg("%s: twice the gradients differ by %.2g", p->arch, apart);
    for (size_t i = p->n_train; i < p->n_reduce; i++)
        if (twice[i] != once[i])
            fail_msg("%s: sum %zu is %.9g, not %.9g", p->arch, i, twice[i], once[i]);
    free(once);
    free(twice);
    side_close(&s);
    images_free(&im);
    program_destroy(p);
}

static void accumulating_the_same_batch_doubles_every_sum(void **state)
{
    (void)state;
    for (int i = 0; i < nets(); i++)
        check_accumulating(net(i));
}

static void a_new_version_of_the_parameters_is_taken_up(void **state)
{
    (void)state;
    struct program *p = small();
    struct images im;
    struct side s;
    images_make(&im, p, 2, 16);
    side_open(&s, rig_device, p, &mode_f32, 2, true, false, 1);
    side_initialise(&s, 3);
    side_run(&s, &im.b, 1, false, 1, NULL);
    double *first = side_get(&s, p->logits);
    side_initialise(&s, 4);
    side_run(&s, &im.b, 1, false, 2, NULL);
    double *second = side_get(&s, p->logits);
    side_close(&s);
    side_open(&s, rig_device, p, &mode_f32, 2, true, false, 1);
    side_initialise(&s, 4);
    side_run(&s, &im.b, 1, false, 1, NULL);
    double *fresh = side_get(&s, p->logits);
    assert_memory_equal(second, fresh, sizeof(*fresh) * 20);
    assert_memory_not_equal(first, second, sizeof(*fresh) * 20);
    free(first);
    free(second);
    free(fresh);
    side_close(&s);
    images_free(&im);
    program_destroy(p);
}

static void check_evaluation(struct program *p)
{
    struct images im;
    double *logits[2];
    images_make(&im, p, 3, 17);
    for (int i = 0; i < 2; i++) {
        struct side s;
        side_open(&s, i ? rig_device : "ref", p, i ? &mode_f32 : &mode_f64, 3, false, false, 2);
        side_initialise(&s, 3);
        side_run(&s, &im.b, 1, false, 1, NULL);
        logits[i] = side_get(&s, p->logits);
        side_close(&s);
    }
    double d = relative_distance(logits[1], logits[0],
                                 30); /* 7 layers of sums of up to 360 products: 7 sqrt(360) eps is 1e-5 */
    if (!(d <= 1e-5))
        fail_msg("logits differ by %g", d);
    free(logits[0]);
    free(logits[1]);
    images_free(&im);
    program_destroy(p);
}

static void an_evaluation_plan_gives_the_logits_of_ref(void **state)
{
    (void)state;
    for (int i = 0; i < nets(); i++)
        check_evaluation(net(i));
}

/* --- a model in parts, each a program of its own: what is drawn, and what a pass leaves for another, is the whole's */

enum { PARTS = 3, PART_BATCH = 4 };

/* Plans chunk 0 of s->p with two sets of activations. */
static void part_open(struct side *s, const char *device, const struct mode *m)
{
    const struct device_options options = {.threads = 2};
    MUST(rig_open(&s->d, device, &options, e));
    const size_t real = dtype_size(s->d->ops->real);
    MUST(s->d->ops->alloc(s->d, program_params(s->p) * real, &s->params, e));
    MUST(s->d->ops->alloc(s->d, program_statistics(s->p) * real, &s->stats, e));
    MUST(s->d->ops->alloc(s->d, s->p->n_reduce * real, &s->reduce, e));
    MUST(s->d->ops->alloc(s->d, real, &s->momentum, e));
    const struct plan_options o = {.batch = PART_BATCH,
                                   .training = true,
                                   .compute = m->compute,
                                   .chunk = &s->p->chunks[0],
                                   .sets = 2,
                                   .params = s->params,
                                   .stats = s->stats,
                                   .reduce = s->reduce};
    MUST(s->d->ops->plan(s->d, s->p, &o, &s->plan, e));
    side_initialise(s, 3);
}

static void part_run(const struct side *s, const struct batch *b, enum run_pass pass, bool again, const void *in,
                     void *out)
{
    const struct run_args a = {.batch = *b,
                               .grad_scale = 1,
                               .pass = pass,
                               .set = 1,
                               .again = again,
                               .boundary = {in, out},
                               .params_version = 1};
    MUST(s->d->ops->run(s->plan, &a, e));
}

static void check_parts(struct program *whole, const char *device, const struct mode *m, double bound)
{
    int cuts[PARTS - 1];
    struct images im;
    struct side part[PARTS];
    static double boundary[2 * PARTS][PART_BATCH * 24 * 16 * 16]; /* room for values of either type */
    images_make(&im, whole, PART_BATCH, 12);
    double *want = first_step(device, whole, m, &im, PART_BATCH, false);
    MUST(stages_cut(whole, PARTS, cuts, e));
    for (int i = 0; i < PARTS; i++) {
        struct program *p;
        MUST(stages_program(&p, whole, cuts, PARTS, PARTS, i, e));
        part[i] = (struct side){.p = p, .n = PART_BATCH};
        part_open(&part[i], device, m);
    }
    for (int i = 0; i < PARTS; i++)
        part_run(&part[i], &im.b, RUN_FORWARD, false, boundary[i], boundary[i + 1]);
    for (int i = PARTS - 1; i >= 0; i--) {
        part_run(&part[i], &im.b, RUN_FORWARD, true, boundary[i], NULL); /* recomputed */
        part_run(&part[i], &im.b, RUN_BACKWARD, false, boundary[PARTS + i + 1], boundary[PARTS + i]);
        double *got = reduce_of(&part[i]);
        for (int k = 0; k < part[i].p->nparams; k++) {
            const struct param *q = &part[i].p->params[k], *w = &whole->params[program_find_param(whole, q->name)];
            if (q->frozen) /* there is nothing of it */
                continue;
            const size_t at = q->role == PARAM_STAT ? part[i].p->n_train : 0,
                         in = w->role == PARAM_STAT ? whole->n_train : 0;
            const double d = relative_distance(got + at + q->offset, want + in + w->offset, q->count);
            if (!(d <= bound))
                fail_msg("%s of part %d on %s differs by %g", q->name, i, device, d);
        }
        free(got);
    }
    for (int i = 0; i < PARTS; i++) {
        side_close(&part[i]);
        program_destroy((struct program *)(uintptr_t)part[i].p);
    }
    free(want);
    images_free(&im);
    program_destroy(whole);
}

static void parts_of_a_model_make_what_the_whole_makes(void **state)
{
    (void)state;
    for (int i = 0; i < nets(); i++) {
        check_parts(net(i), "ref", &mode_f64, 0);
        check_parts(net(i), rig_device, &mode_f32, 1e-5); /* of oneDNN's kernels in other layouts */
    }
}

/* --- parameters that come for each read and go again */

struct visitors {
    float *arena, *kept;
    struct plan_range reads[128];
    int n, next;
    bool in_order;
};

static int expect_reads(void *ctx, const struct plan_range *reads, int n, struct err *e)
{
    struct visitors *v = ctx;
    (void)e;
    assert_true(n > 0 && n <= 128);
    memcpy(v->reads, reads, (size_t)n * sizeof *reads);
    v->n = n;
    return 0;
}

static int come(void *ctx, int k, struct err *e)
{
    struct visitors *v = ctx;
    const struct plan_range r = v->reads[k];
    (void)e;
    v->in_order = v->in_order && k == v->next++;
    memcpy(v->arena + r.first, v->kept + r.first, (r.end - r.first) * sizeof(float));
    return 0;
}

static void leave(void *ctx, int k)
{
    const struct visitors *v = ctx;
    for (size_t i = v->reads[k].first; i < v->reads[k].end; i++)
        v->arena[i] = NAN;
}

static void check_visits(struct program *p)
{
    struct images im;
    struct side s;
    struct visitors v = {.in_order = true};
    const struct plan_needs needs = {.ctx = &v, .order = expect_reads, .need = come, .release = leave, .on_host = true};
    images_make(&im, p, 3, 12);
    double *want = first_step(rig_device, p, &mode_f32, &im, 3, false);
    side_open(&s, rig_device, p, &mode_f32, 3, true, false, 2);
    side_initialise(&s, 3);
    v.arena = s.params;
    v.kept = malloc(program_params(p) * sizeof(float));
    memcpy(v.kept, v.arena, program_params(p) * sizeof(float));
    for (size_t i = 0; i < program_params(p); i++)
        v.arena[i] = NAN;
    const struct plan_options o = {.batch = 3,
                                   .training = true,
                                   .compute = DT_F32,
                                   .params = s.params,
                                   .stats = s.stats,
                                   .reduce = s.reduce,
                                   .needs = &needs};
    s.d->ops->plan_close(s.plan);
    MUST(s.d->ops->plan(s.d, p, &o, &s.plan, e));
    side_run(&s, &im.b, 1, false, 1, NULL);
    double *got = reduce_of(&s);
    assert_true(v.in_order && v.next == v.n);
    for (size_t i = 0; i < p->n_reduce; i++)
        if (got[i] != want[i])
            fail_msg("sum %zu is %g, and %g where parameters stay", i, got[i], want[i]);
    free(got);
    free(want);
    free(v.kept);
    side_close(&s);
    images_free(&im);
    program_destroy(p);
}

static void operations_read_only_what_they_say(void **state)
{
    (void)state;
    for (int i = 0; i < nets(); i++)
        check_visits(net(i));
}

/* --- ready() */

struct seen {
    size_t end, calls;
    bool ordered;
};

static int on_ready(void *ctx, size_t first, size_t end, void *stream, struct err *e)
{
    struct seen *s = ctx;
    (void)stream;
    (void)e;
    s->ordered = s->ordered && first == s->end && end > first;
    s->end = end;
    s->calls++;
    return 0;
}

static void check_announcements(struct program *p)
{
    struct images im;
    struct side s;
    struct seen seen = {.ordered = true};
    struct run_hooks h = {.ctx = &seen, .ready = on_ready};
    images_make(&im, p, 1, 18);
    side_open(&s, rig_device, p, &mode_f32, 1, true, false, 1);
    side_initialise(&s, 3);
    side_run(&s, &im.b, 1, false, 1, &h);
    assert_true(seen.ordered);
    assert_int_equal(p->n_train, seen.end);
    side_close(&s);
    images_free(&im);
    program_destroy(p);
}

static void gradients_are_announced_once_and_in_order(void **state)
{
    (void)state;
    for (int i = 0; i < nets(); i++)
        check_announcements(net(i));
}

/* --- batch statistics over two ranks, one thread each */

struct meeting {
    pthread_barrier_t barrier;
    double sum[2][4096];
};
struct rank {
    struct meeting *m;
    int rank;
    const struct program *p;
    struct images *im;
    struct device *d;
    double *reduce;
};

static int meet(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    struct rank *r = ctx;
    double v[4096];
    (void)stream; /* the device's own, which these two keep to */
    if (t != DT_F64 || n > 4096)
        return err_set(e, -1, "%zu values of type %d", n, (int)t);
    const int rc = r->d->ops->download(r->d, r->m->sum[r->rank], buf, n * sizeof(*v), e);
    pthread_barrier_wait(&r->m->barrier);
    for (size_t i = 0; i < n; i++)
        v[i] = r->m->sum[0][i] + r->m->sum[1][i];
    pthread_barrier_wait(&r->m->barrier);
    return rc < 0 ? rc : r->d->ops->upload(r->d, buf, v, n * sizeof(*v), e);
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    struct side s;
    struct run_hooks h = {.ctx = r, .all_sum = meet, .on_host = true};
    int first = r->rank ? 3 : 0, n = r->rank ? 5 : 3; /* an uneven split of 8 samples */
    const struct batch b = batch_at(&r->im->b, &r->p->input, (size_t)first);
    side_open(&s, rig_device, r->p, &mode_f32, n, true, false, 1);
    side_initialise(&s, 3);
    r->d = s.d;
    side_run(&s, &b, 1, false, 1, &h);
    r->reduce = reduce_of(&s);
    side_close(&s);
    return NULL;
}

static void two_ranks_with_common_statistics_are_one(void **state)
{
    (void)state;
    struct program *p = small();
    struct images im;
    struct meeting m;
    images_make(&im, p, 8, 19);
    im.weights[2] = 0;
    double *whole = first_step(rig_device, p, &mode_f32, &im, 8, false);
    struct rank ranks[2] = {{.m = &m, .rank = 0, .p = p, .im = &im}, {.m = &m, .rank = 1, .p = p, .im = &im}};
    pthread_t thread[2];
    assert_int_equal(0, pthread_barrier_init(&m.barrier, NULL, 2));
    for (int i = 0; i < 2; i++)
        assert_int_equal(0, pthread_create(&thread[i], NULL, rank_main, &ranks[i]));
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    for (size_t i = 0; i < p->n_reduce; i++)
        ranks[0].reduce[i] += ranks[1].reduce[i];
    double gradients = relative_distance(ranks[0].reduce, whole, p->n_train);
    double statistics = relative_distance(ranks[0].reduce + p->n_train, whole + p->n_train, p->n_stats);
    print_message("# gradients differ by %.2g, statistics by %.2g\n", gradients, statistics);
    if (!(gradients <= 2e-2))
        fail_msg("gradients differ by %g", gradients);
    if (!(statistics <= 1e-4))
        fail_msg("statistics differ by %g", statistics);
    assert_true(ranks[0].reduce[p->n_train + p->n_stats + METRIC_COUNT] == 7);
    pthread_barrier_destroy(&m.barrier);
    free(whole);
    free(ranks[0].reduce);
    free(ranks[1].reduce);
    images_free(&im);
    program_destroy(p);
}

/* --- updates */

static void updates_follow_the_torch_rule(void **state)
{
    (void)state;
    enum { N = 37 };
    double w[N], g[N], m[N], stats[N], got[N];
    struct program *p = small();
    struct side s;
    side_open(&s, rig_device, p, &mode_f32, 1, true, false, 2);
    noise(w, N, 1, DT_F32);
    noise(g, N, 2, DT_F32);
    noise(m, N, 3, DT_F32);
    noise(stats, N, 4, DT_F32);
    arena_put(&s, s.params, 5, w, N);
    arena_put(&s, s.reduce, 5, g, N);
    arena_put(&s, s.momentum, 5, m, N);
    const size_t at_count = p->n_train + p->n_stats + METRIC_COUNT;
    const void *count = (const float *)s.reduce + at_count;
    arena_put(&s, s.reduce, at_count, &(double){8}, 1);
    struct update u = {.first = 5, .n = N, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .grad_mul = 2};
    assert_int_equal(0, s.d->ops->update(s.d, &u, s.params, s.reduce, s.momentum, count, NULL));
    arena_get(&s, s.params, 5, got, N);
    for (int i = 0; i < N; i++) {
        double want = w[i] - 0.1 * (0.9 * m[i] + g[i] / 8 * 2 + 0.01 * w[i]);
        if (fabs(got[i] - want) > 4 * 0x1p-24) /* values below 1, four operations */
            fail_msg("weight %d is %.9g, expected %.9g", i, got[i], want);
    }
    arena_put(&s, s.params, 0, stats, N);
    assert_int_equal(0, s.d->ops->update_stats(s.d, s.params, (float *)s.reduce + 5, N, 0.1, count, NULL));
    arena_get(&s, s.params, 0, got, N);
    for (int i = 0; i < N; i++)
        if (fabs(got[i] - (0.9 * stats[i] + 0.1 * g[i] / 8)) > 4 * 0x1p-24)
            fail_msg("statistic %d is %.9g, expected %.9g", i, got[i], 0.9 * stats[i] + 0.1 * g[i] / 8);
    side_close(&s);
    program_destroy(p);
}

/* Values of every forward tensor, and whether they are halves: the same on both devices. Differences: a value that lies
 * near the middle of two halves falls to either side (one in a hundred: fp32 sums are off by up to 2^-7 of a half's
 * ulp), and all that read it differ. */
static void check_halves(struct program *p, const struct mode *m)
{
    struct images im;
    struct side sides[2];
    struct mode emulated = *m;
    emulated.emulate = true; /* what ref knows of halves */
    images_make(&im, p, 5, 12);
    for (int k = 0; k < 2; k++) {
        side_open(&sides[k], k ? rig_device : "ref", p, k ? m : &emulated, 5, true, true, 2);
        side_initialise(&sides[k], 3);
        side_run(&sides[k], &im.b, 1, false, 1, NULL);
    }
    size_t wide = 0, stored = 0, differ = 0, all = 0;
    for (int i = 0; i < p->nops; i++) {
        const int t = p->ops[i].out;
        if (t < 0)
            continue;
        double *ref = side_get(&sides[0], t), *cpu = side_get(&sides[1], t);
        bool half[2] = {true, true};
        for (size_t k = 0; k < side_count(&sides[0], t); k++) {
            half[0] = half[0] && ref[k] == dtype_rounded(m->compute, ref[k]);
            half[1] = half[1] && cpu[k] == dtype_rounded(m->compute, cpu[k]);
            differ += i < p->nfwd && half[0] && fabs(cpu[k] - ref[k]) > 1e-5 * fabs(ref[k]) + 0x1p-25;
            all += i < p->nfwd && half[0];
        }
        if (half[0] != half[1])
            fail_msg("%s (%s): halves on %s only", p->tensors[t].name, op_name(p->ops[i].kind),
                     half[0] ? "ref" : rig_device);
        wide += !half[0];
        stored += half[0];
        free(ref);
        free(cpu);
    }
    const double d = (double)differ / (double)all;
    print_message("# %s: %zu tensors of halves, %zu wide; %.2g of the halves differ\n", m->name, stored, wide, d);
    assert_true(stored > 3 && d < 0.15);
    assert_int_equal(m->half == HALF_OPERANDS, wide > 3);
    side_close(&sides[0]);
    side_close(&sides[1]);
    images_free(&im);
    program_destroy(p);
}

static void halves_are_those_of_ref(void **state)
{
    for (int i = 0; i < nets(); i++)
        check_halves(net(i), *state);
}

/* Nothing is copied from layout to layout between the input and the weight gradients. */
static void a_format_is_kept_from_the_input_to_the_loss(void **state)
{
    const struct mode *m = *state;
    struct program *p = model("resnet18", 32);
    struct side s;
    char *text = NULL;
    size_t n = 0;
    side_open(&s, rig_device, p, m, 4, true, false, 1);
    FILE *f = open_memstream(&text, &n);
    rig_plan_profile(s.plan, f);
    fclose(f);
    assert_non_null(strstr(text, " conv "));
    if (strstr(text, " reorder "))
        fail_msg("%s", text);
    free(text);
    side_close(&s);
    program_destroy(p);
}

/* Bound: sums in another order. */
static void nchw_and_nhwc_give_the_same_numbers(void **state)
{
    (void)state;
    struct program *p = model("resnet18", 32);
    struct images im;
    images_make(&im, p, 4, 11);
    double *blocked = first_step(rig_device, p, &mode_f32, &im, 4, false),
           *nchw = first_step(rig_device, p, &mode_nchw, &im, 4, false),
           *nhwc = first_step(rig_device, p, &mode_nhwc, &im, 4, false);
    const double a = relative_distance(nchw, nhwc, p->n_train), b = relative_distance(nchw, blocked, p->n_train);
    print_message("# nchw against nhwc: %.2g, against blocks: %.2g\n", a, b);
    assert_true(a < 2e-2 && b < 2e-2); /* as against ref: ReLUs and maxima flip */
    free(blocked);
    free(nchw);
    free(nhwc);
    images_free(&im);
    program_destroy(p);
}

static void a_type_that_the_device_lacks_is_named(void **state)
{
    (void)state;
    struct err e = {0};
    struct device *d;
    struct plan *plan;
    struct program *p = small();
    float *memory = calloc(p->n_reduce, sizeof(*memory));
    assert_int_equal(0, rig_open(&d, rig_device, &(struct device_options){.threads = 1}, &e));
    struct plan_options o = {
        .batch = 1, .training = true, .compute = DT_F16, .params = memory, .stats = memory, .reduce = memory};
    assert_int_equal(-ENOTSUP, d->ops->plan(d, p, &o, &plan, &e));
    assert_non_null(strstr(e.text, "F16"));
    d->ops->close(d);
    free(memory);
    program_destroy(p);
}

int main(void)
{
    const struct CMUnitTest of_cpu[] = {
        cmocka_unit_test(gradients_of_resnet18_match_ref),
        cmocka_unit_test(gradients_of_convnet_match_ref),
        cmocka_unit_test(gradients_of_mlp_match_ref),
        cmocka_unit_test(gradients_of_positions_match_ref),
        {"fusing_changes_no_bit_in_fp32", fusing_changes_no_bit, NULL, NULL, (void *)(uintptr_t)&mode_f32},
        {"fusing_changes_no_bit_in_emulated_bf16", fusing_changes_no_bit, NULL, NULL,
         (void *)(uintptr_t)&mode_emulated},
        {"fusing_changes_no_bit_in_fp16_O1", fusing_changes_no_bit, NULL, NULL, (void *)(uintptr_t)&mode_fp16_o1},
        {"fusing_changes_no_bit_in_fp16_O2", fusing_changes_no_bit, NULL, NULL, (void *)(uintptr_t)&mode_fp16_o2},
        {"fusing_changes_no_bit_in_fp16_O3", fusing_changes_no_bit, NULL, NULL, (void *)(uintptr_t)&mode_fp16_o3},
        {"fusing_changes_no_bit_in_bf16_O1", fusing_changes_no_bit, NULL, NULL, (void *)(uintptr_t)&mode_bf16_o1},
        {"fusing_changes_no_bit_in_nhwc", fusing_changes_no_bit, NULL, NULL, (void *)(uintptr_t)&mode_nhwc},
        {"halves_are_those_of_ref_at_O1", halves_are_those_of_ref, NULL, NULL, (void *)(uintptr_t)&mode_fp16_o1},
        {"halves_are_those_of_ref_at_O2", halves_are_those_of_ref, NULL, NULL, (void *)(uintptr_t)&mode_fp16_o2},
        {"halves_are_those_of_ref_at_O3", halves_are_those_of_ref, NULL, NULL, (void *)(uintptr_t)&mode_fp16_o3},
        {"halves_are_those_of_ref_in_bf16_at_O1", halves_are_those_of_ref, NULL, NULL,
         (void *)(uintptr_t)&mode_bf16_o1},
        cmocka_unit_test(nchw_and_nhwc_give_the_same_numbers),
        {"nchw_is_kept_from_the_input_to_the_loss", a_format_is_kept_from_the_input_to_the_loss, NULL, NULL,
         (void *)(uintptr_t)&mode_nchw},
        {"nhwc_is_kept_from_the_input_to_the_loss", a_format_is_kept_from_the_input_to_the_loss, NULL, NULL,
         (void *)(uintptr_t)&mode_nhwc},
        {"fusing_changes_no_bit_in_bf16", fusing_changes_no_bit, NULL, NULL, (void *)(uintptr_t)&mode_bf16},
        cmocka_unit_test(a_plan_needs_less_memory_than_all_its_tensors),
        cmocka_unit_test(a_sample_of_weight_0_counts_nowhere),
        cmocka_unit_test(a_batch_without_samples_moves_nothing),
        cmocka_unit_test(accumulating_the_same_batch_doubles_every_sum),
        cmocka_unit_test(a_new_version_of_the_parameters_is_taken_up),
        cmocka_unit_test(an_evaluation_plan_gives_the_logits_of_ref),
        cmocka_unit_test(gradients_are_announced_once_and_in_order),
        cmocka_unit_test(two_ranks_with_common_statistics_are_one),
        cmocka_unit_test(updates_follow_the_torch_rule),
        cmocka_unit_test(operations_read_only_what_they_say),
        cmocka_unit_test(parts_of_a_model_make_what_the_whole_makes),
        cmocka_unit_test(a_type_that_the_device_lacks_is_named),
    };
    /* natively in halves, and little of all: its GPU is emulated */
    const struct CMUnitTest of_cuda[] = {
        cmocka_unit_test(gradients_of_convnet_match_ref),
        cmocka_unit_test(gradients_of_mlp_match_ref),
        cmocka_unit_test(gradients_of_positions_match_ref),
        cmocka_unit_test(a_plan_needs_less_memory_than_all_its_tensors),
        {"fusing_changes_no_bit_in_fp32", fusing_changes_no_bit, NULL, NULL, (void *)(uintptr_t)&mode_f32},
        {"fusing_changes_no_bit_in_nchw", fusing_changes_no_bit, NULL, NULL, (void *)(uintptr_t)&mode_nchw},
        {"halves_are_those_of_ref_in_fp16", halves_are_those_of_ref, NULL, NULL, (void *)(uintptr_t)&mode_fp16},
        {"halves_are_those_of_ref_in_bf16", halves_are_those_of_ref, NULL, NULL, (void *)(uintptr_t)&mode_bf16},
        {"halves_are_those_of_ref_in_fp16_at_O1", halves_are_those_of_ref, NULL, NULL,
         (void *)(uintptr_t)&mode_native_fp16_o1},
        {"halves_are_those_of_ref_in_bf16_at_O1", halves_are_those_of_ref, NULL, NULL,
         (void *)(uintptr_t)&mode_native_bf16_o1},
        {"fusing_changes_no_bit_in_fp16_at_O1", fusing_changes_no_bit, NULL, NULL,
         (void *)(uintptr_t)&mode_native_fp16_o1},
        cmocka_unit_test(a_sample_of_weight_0_counts_nowhere),
        cmocka_unit_test(a_batch_without_samples_moves_nothing),
        cmocka_unit_test(accumulating_the_same_batch_doubles_every_sum),
        cmocka_unit_test(a_new_version_of_the_parameters_is_taken_up),
        cmocka_unit_test(an_evaluation_plan_gives_the_logits_of_ref),
        cmocka_unit_test(gradients_are_announced_once_and_in_order),
        cmocka_unit_test(two_ranks_with_common_statistics_are_one),
        cmocka_unit_test(updates_follow_the_torch_rule),
    };
    if (strcmp(rig_device, "cpu") == 0)
        return cmocka_run_group_tests_name("cpu device, whole networks", of_cpu, NULL, NULL);
    return cmocka_run_group_tests_name("cuda device, whole networks", of_cuda, NULL, NULL);
}
