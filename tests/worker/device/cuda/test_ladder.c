/* The rungs of ladder.h on a GPU that is not there: which ones are climbed, and that they change nothing but
 * rounding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/must.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/tiny.h"
#include "worker/device/cuda/plan.h"

enum { BATCH = 3, SIZE = BLOCKS_SIZE, CLASSES = BLOCKS_CLASSES };

/* One device with the small network planned on it. */
struct rig {
    struct program *p;
    struct gpu *gpu;
    struct device *d;
    struct plan *plan;
    struct arenas at;
    uint8_t images[BATCH * SIZE * SIZE * 3];
    int32_t labels[BATCH];
    float weights[BATCH];
};

static int (*build)(struct program **ret, int width, struct err *e) = blocks_build;

static void open_rig(struct rig *r, enum dtype type, bool fused)
{
    const struct fake_options fake = {0};
    const struct cuda_options o = {.graphs = true, .fused_patterns = fused};
    memset(r, 0, sizeof *r);
    MUST(build(&r->p, 8, e));
    assert_int_equal(0, fake_gpu_open(&r->gpu, &fake));
    MUST(cuda_open_on(&r->d, r->gpu, NULL, &o, e));
    arenas_open(&r->at, r->d, r->p);
    MUST(r->d->ops->sync(r->d, e));
    arenas_fill(&r->at, r->p);
    const struct plan_options plan = {.batch = BATCH,
                                      .training = true,
                                      .compute = type,
                                      .params = r->at.params,
                                      .stats = r->at.stats,
                                      .reduce = r->at.reduce};
    MUST(r->d->ops->plan(r->d, r->p, &plan, &r->plan, e));
    noise_fill(r->images, sizeof r->images);
    for (int i = 0; i < BATCH; i++) {
        r->labels[i] = i % CLASSES;
        r->weights[i] = 1;
    }
}

static void close_rig(struct rig *r)
{
    r->d->ops->plan_close(r->plan);
    arenas_close(&r->at, r->d);
    r->d->ops->close(r->d);
    program_destroy(r->p);
}

static void run_rig(struct rig *r)
{
    const struct run_args a = {.batch = {.images = r->images, .labels = r->labels, .weights = r->weights},
                               .grad_scale = 1,
                               .params_version = 1};
    MUST(r->d->ops->run(r->plan, &a, e));
    MUST(r->d->ops->sync(r->d, e));
}

static double distance(const float *a, const float *b, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        s += (double)b[i] * (double)b[i];
    }
    return sqrt(d / s);
}

static int count(const struct rig *r, enum cudnn_pattern pattern)
{
    const struct cuda_plan *pl = (const struct cuda_plan *)r->plan;
    int n = 0;
    for (int i = 0; i < pl->nsteps; i++)
        n += pl->steps[i]->kind == STEP_DNN && pl->steps[i]->dnn.pattern == pattern;
    return n;
}

static int count_kernel(const struct rig *r, enum kernel k)
{
    const struct cuda_plan *pl = (const struct cuda_plan *)r->plan;
    int n = 0;
    for (int i = 0; i < pl->nsteps; i++)
        n += pl->steps[i]->kind == STEP_KERNEL && pl->steps[i]->kernel == k;
    return n;
}

/* Six convolutions, two of which follow BN and ReLU that nobody else reads. */
static void halves_climb_every_rung(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, DT_F16, true);
    assert_int_equal(4, count(&r, DNN_CONV_STATS));
    assert_int_equal(2, count(&r, DNN_SBR_CONV_STATS));
    assert_int_equal(2, count(&r, DNN_SBR_WGRAD));
    assert_int_equal(4, count(&r, DNN_WGRAD));
    assert_int_equal(2, count(&r, DNN_DGRAD_DRELU_BN));
    assert_int_equal(3, count(&r, DNN_DGRAD)); /* the stem needs none */
    assert_int_equal(0, count(&r, DNN_CONV));
    assert_int_equal(0, count_kernel(&r, KERNEL_BN_STATS));
    assert_int_equal(1, count_kernel(&r, KERNEL_BN_POOL));     /* the stem */
    assert_int_equal(3, count_kernel(&r, KERNEL_BN_APPLY));    /* the ends of both blocks, the bias */
    assert_int_equal(4, count_kernel(&r, KERNEL_BN_BWD_SUMS)); /* stem, both ends with the projection, the bias */
    assert_int_equal(0, count_kernel(&r, KERNEL_MAXPOOL) + count_kernel(&r, KERNEL_MAXPOOL_BWD));
    close_rig(&r);
}

static void other_types_climb_what_own_kernels_do(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_F32, DT_BF16};
    for (int i = 0; i < 2; i++) {
        struct rig r;
        open_rig(&r, types[i], true);
        assert_int_equal(6, count(&r, DNN_CONV));
        assert_int_equal(6, count_kernel(&r, KERNEL_BN_STATS));
        /* The projection's is part of the sum, one is a bias; in halves the stem is part of the pooling. */
        assert_int_equal(types[i] == DT_F32 ? 6 : 5, count_kernel(&r, KERNEL_BN_APPLY));
        close_rig(&r);
    }
}

/* bound: of gradients, statistics and metrics together, relative. */
static void same_numbers(enum dtype type, double bound, bool masked)
{
    struct rig plain, fused;
    open_rig(&plain, type, false);
    open_rig(&fused, type, true);
    plain.weights[1] = fused.weights[1] = masked ? 0 : 1;
    for (int i = 0; i < 3; i++) { /* walked, captured, launched */
        run_rig(&plain);
        run_rig(&fused);
        const size_t n = plain.p->n_train, tail = plain.p->n_reduce - n;
        const double gradients = distance(fused.at.reduce, plain.at.reduce, n),
                     rest = distance(fused.at.reduce + n, plain.at.reduce + n, tail);
        print_message("# %s%s run %d: gradients %.2g, statistics and metrics %.2g apart\n", dtype_name(type),
                      masked ? " masked" : "", i, gradients, rest);
        assert_true(gradients < bound);
        assert_true(rest < bound);
    }
    close_rig(&plain);
    close_rig(&fused);
}

static void rungs_change_nothing_but_rounding(void **state)
{
    (void)state;
    same_numbers(DT_F32, 1e-5, false);
    same_numbers(DT_F16, 2e-2, false);
    same_numbers(DT_BF16, 1e-1, false);
}

/* As ResNets end: the sum, its ReLU and the mean of its planes are one, and so is the way back. */
static void a_plain_shortcut_before_the_average_is_never_written(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_F16, DT_BF16, DT_F32};
    build = block_build;
    for (int i = 0; i < 3; i++) {
        struct rig r;
        const int half = types[i] != DT_F32;
        open_rig(&r, types[i], true);
        assert_int_equal(half, count_kernel(&r, KERNEL_BN_MEAN));
        assert_int_equal(!half, count_kernel(&r, KERNEL_AVGPOOL));
        assert_int_equal(!half, count_kernel(&r, KERNEL_AVGPOOL_BWD));
        close_rig(&r);
    }
    same_numbers(DT_F16, 2e-2, false);
    same_numbers(DT_BF16, 1e-1, false);
    same_numbers(DT_F16, 2e-2, true);
    build = blocks_build;
}

static void a_sample_of_weight_0_counts_nowhere(void **state)
{
    (void)state;
    same_numbers(DT_F32, 1e-5, true);
    same_numbers(DT_F16, 2e-2, true);
}

static void graphs_give_the_bits_of_a_walk(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, DT_F16, true);
    const size_t bytes = r.p->n_reduce * sizeof(float);
    float *first = malloc(bytes);
    run_rig(&r);
    memcpy(first, r.at.reduce, bytes);
    for (int i = 0; i < 3; i++) {
        memset(r.at.reduce, 0xff, bytes);
        run_rig(&r);
        for (int k = 0; k < r.p->nparams; k++) { /* padding between parameters is nobody's */
            const struct param *q = &r.p->params[k];
            const size_t at = q->offset + (q->role == PARAM_TRAIN ? 0 : r.p->n_train);
            assert_memory_equal(first + at, r.at.reduce + at, q->count * sizeof(float));
        }
    }
    assert_int_equal(1, fake_gpu_counts(r.gpu)->captures);
    assert_int_equal(3, fake_gpu_counts(r.gpu)->launches);
    free(first);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_climb_every_rung),
        cmocka_unit_test(other_types_climb_what_own_kernels_do),
        cmocka_unit_test(rungs_change_nothing_but_rounding),
        cmocka_unit_test(a_sample_of_weight_0_counts_nowhere),
        cmocka_unit_test(a_plain_shortcut_before_the_average_is_never_written),
        cmocka_unit_test(graphs_give_the_bits_of_a_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
