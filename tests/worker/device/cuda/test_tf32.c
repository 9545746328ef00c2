/* Training with TF32, from the command line's word to losses: the fake GPU rounds operands as tensor cores do where a
 * graph or product allows it, so losses show who allowed what. Beside the reference device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/tiny.h"
#include "worker/config/config.h"
#include "worker/device/cuda/plan.h"
#include "worker/program/program.h"

enum { BATCH = 6, STEPS = 15 };

struct course {
    const char *word; /* "--tf32", "--no-tf32"; NULL: the reference device */
    enum dtype compute;
    double loss[STEPS]; /* of a sample */
};

static struct device_options options(const char *word)
{
    char *argv[] = {"train", "--train-data", "x", (char *)(uintptr_t)word, NULL};
    struct train_config c;
    struct arg_result r;
    struct device_options o = {.threads = 1};
    char folder[CONFIG_CACHE_BYTES];
    memset(&c, 0, sizeof c);
    MUST(args_parse(&train_program, 4, argv, &c, &r, e));
    train_config_gpu(&c, true, &o.gpu, folder);
    o.gpu.cache_dir = NULL;
    return o;
}

static struct device *open_device(const char *word)
{
    struct device *d;
    struct gpu *g;
    struct cuda_options cuda;
    struct cudnn_options none;
    if (!word) {
        MUST(device_ref_ops.open(&d, &(struct device_options){.threads = 1}, e));
        return d;
    }
    const struct device_options o = options(word);
    cuda_options_from(&o, &cuda, &none);
    fake_gpu_open(&g, &(struct fake_options){0});
    MUST(cuda_open_on(&d, g, NULL, &cuda, e));
    return d;
}

/* Does every graph and product allow it? */
static void assert_math(const struct plan *plan, bool tf32)
{
    const struct cuda_plan *pl = (const struct cuda_plan *)plan;
    int seen = 0;
    for (int i = 0; i < pl->nsteps; i++) {
        const struct step *s = pl->steps[i];
        if (s->kind != STEP_DNN && s->kind != STEP_GEMM)
            continue;
        assert_int_equal(tf32, s->kind == STEP_DNN ? s->dnn.shape.tf32 : s->gemm.tf32);
        seen++;
    }
    assert_int_equal(5, seen); /* of a convolution that needs no gradient of its input, and a linear layer */
}

static double noise(size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + 97u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (double)(x >> 10) / (1 << 22) - 0.5;
}

static double at(struct device *d, const void *arena, size_t i)
{
    MUST(d->ops->sync(d, e));
    return d->ops->real == DT_F64 ? ((const double *)arena)[i] : (double)((const float *)arena)[i];
}

static void train(struct course *c)
{
    static uint8_t images[BATCH * TINY_SIZE * TINY_SIZE];
    struct program *p;
    struct plan *plan;
    void *params, *stats, *reduce, *momentum;
    int32_t labels[BATCH];
    float weights[BATCH];
    struct device *d = open_device(c->word);
    const size_t real = dtype_size(d->ops->real);
    MUST(tiny_build(&p, e));
    for (size_t i = 0; i < sizeof images; i++)
        images[i] = (uint8_t)(128 + 100 * noise(i));
    for (int i = 0; i < BATCH; i++) {
        labels[i] = i % TINY_CLASSES;
        weights[i] = 1;
    }
    MUST(d->ops->alloc(d, p->n_train * real, &params, e));
    MUST(d->ops->alloc(d, p->n_stats * real, &stats, e));
    MUST(d->ops->alloc(d, p->n_reduce * real, &reduce, e));
    MUST(d->ops->alloc(d, p->n_train * real, &momentum, e));
    MUST(d->ops->sync(d, e));
    for (size_t i = 0; i < p->n_train; i++) { /* both devices' memory is plain memory */
        const double x = 0.5 + noise(i * 7);
        if (d->ops->real == DT_F64)
            ((double *)params)[i] = (double)(float)x;
        else
            ((float *)params)[i] = (float)x;
    }
    const struct plan_options o = {.batch = BATCH,
                                   .training = true,
                                   .compute = c->word ? c->compute : DT_F64,
                                   .params = params,
                                   .stats = stats,
                                   .reduce = reduce};
    MUST(d->ops->plan(d, p, &o, &plan, e));
    if (c->word)
        assert_math(plan, strcmp(c->word, "--tf32") == 0);
    const size_t metrics = p->n_train + p->n_stats;
    for (int i = 0; i < STEPS; i++) {
        const struct run_args run = {
            .batch = {images, labels, weights}, .grad_scale = 1, .params_version = (uint64_t)i + 1};
        const struct update u = {.n = p->n_train, .lr = 0.05, .momentum = 0.9, .grad_mul = 1};
        MUST(d->ops->run(plan, &run, e));
        c->loss[i] = at(d, reduce, metrics + METRIC_LOSS) / BATCH;
        MUST(d->ops->update(d, &u, params, reduce, momentum, (char *)reduce + (metrics + METRIC_COUNT) * real, e));
    }
    d->ops->plan_close(plan);
    void *arenas[] = {params, stats, reduce, momentum};
    for (int i = 0; i < 4; i++)
        d->ops->release(d, arenas[i]);
    d->ops->close(d);
    program_destroy(p);
}

static double farthest(const struct course *a, const struct course *b)
{
    double most = 0;
    for (int i = 0; i < STEPS; i++)
        most = fmax(most, fabs(a->loss[i] - b->loss[i]));
    return most;
}

/* 2^-11 is what an operand may be off by, 2^-24 in fp32; steps let both grow. */
static void losses_follow_single_precision_at_a_distance_that_the_option_sets(void **state)
{
    struct course ref = {0}, exact = {.word = "--no-tf32", .compute = DT_F32},
                  tf32 = {.word = "--tf32", .compute = DT_F32};
    (void)state;
    train(&ref);
    train(&exact);
    train(&tf32);
    print_message("# losses %.4f to %.4f; off by %.2g in fp32, by %.2g in TF32\n", ref.loss[0], ref.loss[STEPS - 1],
                  farthest(&exact, &ref), farthest(&tf32, &ref));
    assert_true(ref.loss[STEPS - 1] < 0.5 * ref.loss[0]);
    assert_true(tf32.loss[STEPS - 1] < 0.5 * tf32.loss[0]);
    assert_true(farthest(&exact, &ref) < 1e-4);
    assert_true(farthest(&tf32, &ref) < 3e-2);
    assert_true(farthest(&tf32, &exact) > 1e-5);
}

static void it_changes_nothing_but_single_precision(void **state)
{
    static const enum dtype halves[] = {DT_F16, DT_BF16};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct course off = {.word = "--no-tf32", .compute = halves[i]}, on = {.word = "--tf32", .compute = halves[i]};
        train(&off);
        train(&on);
        assert_memory_equal(off.loss, on.loss, sizeof off.loss);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_follow_single_precision_at_a_distance_that_the_option_sets),
        cmocka_unit_test(it_changes_nothing_but_single_precision),
    };
    return cmocka_run_group_tests_name("training with TF32", tests, NULL, NULL);
}
