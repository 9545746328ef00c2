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
#include "tests/worker/device/cuda/card.h"
#include "worker/device/cuda/plan.h"

enum { BATCH = 3 };

static int (*build)(struct program **ret, int width, struct err *e) = blocks_build;

static void open_rig_in(struct card *r, enum dtype type, enum memory_format format, bool fused)
{
    struct program *p;
    MUST(build(&p, 8, e));
    card_open(r, p, &(struct fake_options){0}, &(struct cuda_options){.graphs = true, .fused_patterns = fused}, NULL);
    MUST(card_plan(r, BATCH, type, format, e));
}

static void open_rig(struct card *r, enum dtype type, bool fused)
{
    open_rig_in(r, type, MEMORY_AUTO, fused);
}

static void run_rig(struct card *r)
{
    MUST(card_run(r, e));
    MUST(r->d->ops->sync(r->d, e));
}

/* Six convolutions, two of which follow BN and ReLU that nobody else reads; the stem is folded (device/fold.h). */
static void halves_climb_every_rung(void **state)
{
    (void)state;
    struct card r;
    open_rig(&r, DT_F16, true);
    assert_int_equal(4, card_graphs(&r, DNN_CONV_STATS));
    assert_int_equal(2, card_graphs(&r, DNN_SBR_CONV_STATS));
    assert_int_equal(2, card_graphs(&r, DNN_SBR_WGRAD));
    assert_int_equal(4, card_graphs(&r, DNN_WGRAD));
    assert_int_equal(2, card_graphs(&r, DNN_DGRAD_DRELU_BN));
    assert_int_equal(3, card_graphs(&r, DNN_DGRAD)); /* the stem needs none */
    assert_int_equal(0, card_graphs(&r, DNN_CONV) + card_kernels(&r, KERNEL_BN_STATS));
    assert_int_equal(1, card_kernels(&r, KERNEL_BN_POOL));     /* the stem */
    assert_int_equal(3, card_kernels(&r, KERNEL_BN_APPLY));    /* the ends of both blocks, the bias */
    assert_int_equal(4, card_kernels(&r, KERNEL_BN_BWD_SUMS)); /* stem, both ends with the projection, the bias */
    assert_int_equal(0, card_kernels(&r, KERNEL_MAXPOOL) + card_kernels(&r, KERNEL_MAXPOOL_BWD));
    card_close(&r);
}

/* 3x3 of stride 2 over 16 x 16 pixels of 3 channels: 2x2 over 9 x 9 of 16, in halves and NHWC, forward and back. */
static void a_stem_is_folded_for_tensor_cores(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_F16, DT_BF16, DT_F32, DT_F16};
    for (int i = 0; i < 4; i++) {
        struct card r;
        int folded = 0;
        open_rig_in(&r, types[i], i == 3 ? MEMORY_NCHW : MEMORY_AUTO, true);
        const struct cuda_plan *pl = (const struct cuda_plan *)r.plan;
        for (int k = 0; k < pl->nsteps; k++) {
            const struct cudnn_shape *s = &pl->steps[k]->dnn.shape;
            folded += pl->steps[k]->kind == STEP_DNN && s->c == 16 && s->h == 9 && s->w == 9 && s->r == 2 &&
                      s->s == 2 && s->stride[0] == 1 && s->pad[0] == 0 && s->k == 8;
        }
        assert_int_equal(i < 2 ? 2 : 0, folded);
        card_close(&r);
    }
}

static void other_types_climb_what_own_kernels_do(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_F32, DT_BF16};
    for (int i = 0; i < 2; i++) {
        struct card r;
        open_rig(&r, types[i], true);
        assert_int_equal(6, card_graphs(&r, DNN_CONV));
        assert_int_equal(6, card_kernels(&r, KERNEL_BN_STATS));
        /* The projection's is part of the sum, one is a bias; in halves the stem is part of the pooling. */
        assert_int_equal(types[i] == DT_F32 ? 6 : 5, card_kernels(&r, KERNEL_BN_APPLY));
        card_close(&r);
    }
}

/* bound: of gradients, statistics and metrics together, relative. */
static void same_numbers(enum dtype type, double bound, bool masked)
{
    struct card plain, fused;
    open_rig(&plain, type, false);
    open_rig(&fused, type, true);
    plain.weights[1] = fused.weights[1] = masked ? 0 : 1;
    for (int i = 0; i < 3; i++) { /* walked, captured, launched */
        run_rig(&plain);
        run_rig(&fused);
        const size_t n = plain.p->n_train, tail = plain.p->n_reduce - n;
        const double gradients = card_distance(fused.at.reduce, plain.at.reduce, n),
                     rest = card_distance(fused.at.reduce + n, plain.at.reduce + n, tail);
        print_message("# %s%s run %d: gradients %.2g, statistics and metrics %.2g apart\n", dtype_name(type),
                      masked ? " masked" : "", i, gradients, rest);
        assert_true(gradients < bound);
        assert_true(rest < bound);
    }
    card_close(&plain);
    card_close(&fused);
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
        struct card r;
        const int half = types[i] != DT_F32;
        open_rig(&r, types[i], true);
        assert_int_equal(half, card_kernels(&r, KERNEL_BN_MEAN));
        assert_int_equal(!half, card_kernels(&r, KERNEL_AVGPOOL));
        assert_int_equal(!half, card_kernels(&r, KERNEL_AVGPOOL_BWD));
        card_close(&r);
    }
    same_numbers(DT_F16, 2e-2, false);
    same_numbers(DT_BF16, 1e-1, false);
    same_numbers(DT_F16, 2e-2, true);
    build = blocks_build;
}

/* Products that add to what is there. */
static int additions(const struct card *r)
{
    const struct cuda_plan *pl = (const struct cuda_plan *)r->plan;
    int n = 0;
    for (int i = 0; i < pl->nsteps; i++)
        n += pl->steps[i]->kind == STEP_GEMM && pl->steps[i]->adds;
    return n;
}

/* No kernel reads a second summand: not behind the pooling, nor where a block begins or goes by a plain shortcut.
 * (tests/conformance/device_fused.c: where no ReLU is near 0, and with samples that do not count.) */
static void gradients_of_1x1_convolutions_are_added_where_the_others_lie(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_F16, DT_BF16, DT_F32};
    build = bottlenecks_build;
    for (int i = 0; i < 3; i++) {
        struct card r;
        open_rig(&r, types[i], true);
        const struct cuda_plan *pl = (const struct cuda_plan *)r.plan;
        assert_int_equal(types[i] == DT_F32 ? 0 : 3, additions(&r));
        for (int k = 0; k < pl->nsteps && types[i] != DT_F32; k++)
            if (pl->steps[k]->kind == STEP_KERNEL && pl->steps[k]->kernel == KERNEL_BN_BWD_SUMS)
                assert_null(pl->steps[k]->args.as_KERNEL_BN_BWD_SUMS.g.dy2);
        card_close(&r);
    }
    same_numbers(DT_F16, 2e-2, false);
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
    struct card r;
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
    card_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_climb_every_rung),
        cmocka_unit_test(a_stem_is_folded_for_tensor_cores),
        cmocka_unit_test(other_types_climb_what_own_kernels_do),
        cmocka_unit_test(rungs_change_nothing_but_rounding),
        cmocka_unit_test(a_sample_of_weight_0_counts_nowhere),
        cmocka_unit_test(a_plain_shortcut_before_the_average_is_never_written),
        cmocka_unit_test(gradients_of_1x1_convolutions_are_added_where_the_others_lie),
        cmocka_unit_test(graphs_give_the_bits_of_a_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
