/* Steps of any layout are those of one process: 20 losses and the final parameters, in double precision.
 *
 * The reference is one process with --accumulate = micro-batches. Where batch statistics are each rank's own (always
 * with halves, whose gradients of weights are rounded for each part) it is --accumulate = ranks * micro-batches.
 *
 * EXACT_POINTS=n: how many points, EXACT_STAGED=n: of stages with ZeRO 3, EXACT_FROZEN=n: with frozen parameters,
 * EXACT_TEXTS=n: of tokens, all of which are taken; EXACT_SEED=s. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/support/today.h"
#include "tests/worker/run/exact_net.h"
#include "tests/worker/run/exact_run.h"
#include "tests/worker/run/step_rig.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/residency.h"
#include "worker/pipeline/stage.h"
#include "worker/program/program.h"

enum { POINTS = 48, STAGED = 32, POSITIONS = 32, FROZEN = 32, TEXTS = 40 };

static const double BOUND = 1e-9; /* of |difference| / max(1, |value|) */

/* What can be got wrong: each must be noticed. */
enum mutant {
    RIGHT,
    MISSING_SHARE,
    WRONG_GROUP,
    SKIPPED_BIAS,
    OWN_NORM,
    SMOOTHING_TWICE,
    UNTIED,
    COPY_COUNTED,
    RELEASED_TOO_EARLY,
    NOT_GATHERED
};

/* --- mutants: a plan's calls, or a step's sums, that do something else */

static _Thread_local const struct plan_group *right;

/* The gradient of the features is an average over the group. */
static int averaged_scatter(void *ctx, const void *in, void *out, size_t n, enum dtype t, void *stream, struct err *e)
{
    TRY(right->scatter(ctx, in, out, n, t, stream, e));
    for (size_t i = 0; i < n; i++)
        ((double *)out)[i] /= right->ranks;
    return 0;
}

/* What should be summed over the group is this rank's alone. */
static int no_sum(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    double *before = malloc(n * sizeof *before);
    memcpy(before, buf, n * sizeof *before);
    int rc = right->sum(ctx, buf, n, t, stream, e);
    memcpy(buf, before, n * sizeof *before);
    free(before);
    return rc;
}

/* Each rank adds the mean of the logits: it comes as often as there are ranks. */
static int sum_smoothing_again(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    TRY(right->sum(ctx, buf, n, t, stream, e));
    for (size_t i = n / SUMS_N; i < 2 * (n / SUMS_N); i++) /* (SUMS_N, rows) */
        ((double *)buf)[i] *= right->ranks;
    return 0;
}

static _Thread_local struct plan_needs given;

/* What is read has been given back before it is read. */
static int need_and_release(void *ctx, int k, struct err *e)
{
    TRY(given.need(ctx, k, e));
    given.release(ctx, k);
    return 0;
}

static void release_nothing(void *ctx, int k)
{
    (void)ctx;
    (void)k;
}

static _Thread_local int needed;

/* After the first step what is there is taken as it is. */
static int need_first(void *ctx, int k, struct err *e)
{
    needed += k == 0;
    return needed < 2 ? given.need(ctx, k, e) : 0;
}

static void mutate_needs(struct step_rig *rig, int m)
{
    /* The rig's own; of a stage, of its backward pass. */
    const struct residency *of = rig->stage ? stage_needs(rig->stage, 0, true) : rig->needs;
    struct plan_needs *n = (struct plan_needs *)residency_needs(of);
    given = *n;
    n->need = m == NOT_GATHERED ? need_first : need_and_release;
    n->release = release_nothing;
}

static void mutate(struct step_rig *rig, void *kept, int m)
{
    if (m >= RELEASED_TOO_EARLY) {
        mutate_needs(rig, m);
        return;
    }
    right = memcpy(kept, &rig->group, sizeof rig->group);
    for (int k = 0; m == UNTIED && k < rig->own.npieces; k++)
        rig->own.pieces[k].tied = false; /* each stage trains its copy alone */
    if (m == COPY_COUNTED)
        rig->own.copy = (struct ownership_range){0};
    if (m == MISSING_SHARE)
        rig->group.scatter = averaged_scatter;
    else if (m == WRONG_GROUP)
        rig->group.sum = no_sum;
    else if (m == SMOOTHING_TWICE)
        rig->group.sum = sum_smoothing_again;
    else if (m == OWN_NORM)
        rig->own.layout.tensor = 1; /* nothing is elsewhere: norms are of what this rank has */
    for (int i = 0; m == SKIPPED_BIAS && i < rig->program->nops; i++) {
        struct op *op = &rig->program->ops[i];
        if (op->kind == OP_LINEAR_BWD_PARAM)
            op->param[1] = -1;
        else if (op->kind == OP_BIAS_BWD)
            *op = rig->program->ops[op->fwd]; /* makes what is there already */
    }
}

/* Is there anything to be exact about? */
static void assert_moving(const struct exact_outcome *o)
{
    double most = 0; /* the last loss may be the first one by chance */
    for (int i = 1; i < EXACT_STEPS; i++)
        most = fmax(most, fabs(o->loss[i] - o->loss[0]));
    assert_true(isfinite(o->loss[EXACT_STEPS - 1]) && most > 1e-4);
}

static double compare(struct exact_run alone, struct exact_run many, enum mutant m)
{
    struct exact_outcome got, want;
    if (m)
        many.mutate = mutate;
    many.mutant = m;
    exact_train(&alone, &want);
    exact_train(&many, &got);
    assert_moving(&want);
    const double d = exact_distance(&got, &want);
    free(got.params);
    free(want.params);
    return d;
}

static double examine(const struct point *p, enum mutant m)
{
    return compare(exact_reference(p), exact_point(p), m);
}

static void expect(const struct point *p, bool positions, const char *frozen)
{
    char text[256];
    struct exact_run alone = exact_reference(p), many = exact_point(p);
    alone.positions = many.positions = positions;
    alone.frozen = many.frozen = frozen;
    const double d = compare(alone, many, RIGHT);
    point_describe(p, text, sizeof text);
    print_message("# %.1e  %s%s%s\n", d, text, frozen ? ", " : "", frozen ? frozen : "");
    if (!(d <= BOUND))
        fail_msg("%s: differs by %.2e from one process (expected at most %.0e)", text, d, BOUND);
}

static void expect_exact(const struct point *p)
{
    expect(p, false, NULL);
}

/* world, tensor, over, zero, parts, half, sync, rule, loss, smooth: which value of each */
#define POINT(...) (&(struct point){{__VA_ARGS__}})

/* What is dropped would differ if it followed anything of a rank. */
static void draw_by_rank(struct step_rig *rig, void *kept, int m)
{
    (void)kept, (void)m;
    rig->step.seed += (uint64_t)rig->comm->rank;
}

static void elements_that_other_ranks_would_keep_are_noticed(void **state)
{
    (void)state;
    const struct point *p = POINT(3, 0, 0, 0, 1, FULL, 1, 0, 0, 0); /* four ranks, two parts */
    struct exact_run alone = exact_reference(p), many = exact_point(p);
    alone.positions = many.positions = true;
    many.mutate = draw_by_rank;
    const double d = compare(alone, many, RIGHT);
    print_message("# drawn by rank: %.1e\n", d);
    assert_true(d > 1e3 * BOUND);
}

/* Attention, norms, groups, and the same elements dropped, wherever a sample is. EXACT_POSITIONS=n: so many points. */
static void points_of_positions_are_one_process(void **state)
{
    (void)state;
    const char *n = getenv("EXACT_POSITIONS"), *seed = getenv("EXACT_SEED");
    uint64_t x = seed ? strtoull(seed, NULL, 10) : 3;
    for (int i = 0; i < (n ? atoi(n) : POSITIONS); i++) {
        const struct point p = i % 2 ? point_staged(&x, i / 2 % 4) : point_drawn(&x);
        if (n || is_for_today((size_t)i))
            expect(&p, true, NULL);
    }
}

/* What is frozen: the beginning; all but the last layer; batch norms and a layer in the middle, which gradients pass;
 * all but biases. */
static const char *const frozen_nets[] = {"stem.*=0,one.*=0", "*=0,fc.*=1", "one.b1.*=0,two.b2.weight=0,two.c2.*=0",
                                          "*.weight=0"};
static const char *const frozen_positions[] = {
    "stem*=0,a.*=0", "*=0,fc.*=1", "table=0,token=0,a.scale=0,b.norm.*=0,norm.weight=0,wide.*=0", "*=0,*.bias=1"};

static double examine_text(const struct point *p, bool tied, enum mutant m)
{
    struct exact_run alone = exact_reference(p), many = exact_point(p);
    alone.text = many.text = true;
    alone.tied = many.tied = tied;
    return compare(alone, many, m);
}

/* The first and the last of two stages have a copy each of the table, which a norm counts once. */
static void a_head_that_is_tied_to_another_stage_is_noticed(void **state)
{
    (void)state;
    static const enum mutant mutants[] = {RIGHT, UNTIED, COPY_COUNTED};
    for (int i = 0; i < 3; i++) { /* four ranks, two parts, clipped */
        const double d = examine_text(POINT(3, 0, 0, 2, 1, FULL, 1, 1, 0, 0, 1, PIPELINE_1F1B), true, mutants[i]);
        print_message("# tied stages, mutant %d: %.1e\n", mutants[i], d);
        assert_true(mutants[i] == RIGHT ? d <= BOUND : d > 1e3 * BOUND);
    }
}

static void blocks_whose_parts_go_wrong_are_noticed(void **state)
{
    (void)state;
    static const enum mutant mutants[] = {RIGHT, MISSING_SHARE, SKIPPED_BIAS, OWN_NORM, WRONG_GROUP};
    for (int i = 0; i < 5; i++) { /* four ranks in groups of two, clipped, smoothed; the last one: of a vocabulary */
        const int blocks_alone = mutants[i] != WRONG_GROUP;
        const double d = examine_text(POINT(3, 1, blocks_alone, 0, 1, FULL, 1, 1, 0, 1), true, mutants[i]);
        print_message("# shared blocks, mutant %d: %.1e\n", mutants[i], d);
        assert_true(mutants[i] == RIGHT ? d <= BOUND : d > 1e3 * BOUND);
    }
}

/* Gradients of a tied head have two writers, below and above everything else, or in the first and in the last stage. */
static void points_of_text_are_one_process(void **state)
{
    (void)state;
    const char *n = getenv("EXACT_TEXTS"), *seed = getenv("EXACT_SEED");
    uint64_t x = seed ? strtoull(seed, NULL, 10) : 5;
    char text[256];
    for (int i = 0; i < (n ? atoi(n) : TEXTS); i++) {
        struct point p = point_drawn(&x);
        if (p.at[TENSOR] > 0)
            p.at[HALF] = FULL; /* halves of one gradient of two layers would be rounded one by one */
        const bool tied = i % 4 < 3;
        if (!n && !is_for_today((size_t)i))
            continue;
        const double d = examine_text(&p, tied, RIGHT);
        point_describe(&p, text, sizeof text);
        print_message("# %.1e  text%s, %s\n", d, tied ? ", tied" : "", text);
        if (!(d <= BOUND))
            fail_msg("text, %s: differs by %.2e from one process (expected at most %.0e)", text, d, BOUND);
    }
}

static void frozen_points_are_one_process(void **state)
{
    (void)state;
    const char *n = getenv("EXACT_FROZEN"), *seed = getenv("EXACT_SEED");
    uint64_t x = seed ? strtoull(seed, NULL, 10) : 5;
    for (int i = 0; i < (n ? atoi(n) : FROZEN); i++) {
        const struct point p = i % 2 ? point_staged(&x, i / 2 % 4) : point_drawn(&x);
        const bool positions = i / 4 % 2;
        if (n || is_for_today((size_t)i))
            expect(&p, positions, (positions ? frozen_positions : frozen_nets)[i / 8 % 4]);
    }
}

/* The first of them, of one process: where they begin. */
static void assert_untouched(const struct exact_outcome *o, bool positions, const char *frozen)
{
    struct program *p;
    size_t at = 0, n = 0;
    const struct split none = {SPLIT_NONE, 1, 0};
    assert_int_equal(positions ? exact_positions(&p, &none, frozen, NULL) : exact_frozen(&p, &none, frozen, NULL), 0);
    for (int i = 0; i < p->nparams; at += p->params[i++].count)
        for (size_t k = 0; k < p->params[i].count && p->params[i].frozen; k++, n++) {
            const double value = param_initial(&p->params[i], 1, k);
            assert_true(memcmp(&o->params[at + k], &value, sizeof value) == 0);
            assert_true(memcmp(&o->params[at + k + o->n / 2], &value, sizeof value) == 0); /* and its average */
        }
    assert_true(n > 0);
    program_destroy(p);
}

/* Gradients that are not made would have changed nothing else. */
static void what_is_not_frozen_learns_as_if_rates_were_0(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof frozen_positions / sizeof *frozen_positions; i++) {
        const struct point *p = POINT(0, 0, 0, 0, 1, FULL, 0, 4, 0, 0); /* Adam, with an average */
        struct exact_run frozen = exact_reference(p);
        struct exact_outcome got, want;
        frozen.positions = true;
        frozen.frozen = frozen_positions[i];
        exact_train(&frozen, &got);
        frozen.still = true;
        exact_train(&frozen, &want);
        assert_moving(&want);
        assert_memory_equal(got.loss, want.loss, sizeof got.loss);
        assert_memory_equal(got.params, want.params, got.n / 2 * sizeof *got.params);
        assert_untouched(&got, true, frozen_positions[i]);
        free(got.params);
        free(want.params);
    }
}

/* Frozen ones use their running statistics, and keep them. */
static void frozen_batch_norms_do_not_move(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const struct point *p = POINT(0, 0, 0, 0, 1, FULL, 0, 1, 0, 0);
        struct exact_run one = exact_reference(p);
        struct exact_outcome got;
        one.frozen = frozen_nets[i];
        exact_train(&one, &got);
        assert_moving(&got);
        assert_untouched(&got, false, frozen_nets[i]);
        free(got.params);
    }
}

static void points_drawn_by_a_seed_are_one_process(void **state)
{
    (void)state;
    const char *n = getenv("EXACT_POINTS"), *seed = getenv("EXACT_SEED");
    uint64_t x = seed ? strtoull(seed, NULL, 10) : 1;
    const int points = n ? atoi(n) : POINTS;
    for (int i = 0; i < points; i++) {
        const struct point p = point_next(&x);
        if (n || is_for_today((size_t)i))
            expect_exact(&p);
    }
    print_message("# pairs of values that no point had: %d\n", point_pairs_left());
    if (points >= POINTS)
        assert_int_equal(point_pairs_left(), 0);
}

/* --- points that upstream could not do, by their names there */

static void X1_the_backbone_has_its_whole_gradient(void **state)
{
    (void)state;
    expect_exact(POINT(3, 3, 0, 0, 0, FULL, 1, 0, 0, 0));
}

static void X2_zero_leaves_shards_to_their_owners(void **state)
{
    (void)state;
    expect_exact(POINT(3, 1, 0, 1, 0, FULL, 1, 0, 0, 0));
    expect_exact(POINT(5, 1, 1, 1, 0, FULL, 1, 4, 0, 0));
}

static void X3_a_sharded_layer_goes_with_zero_and_mixed_precision(void **state)
{
    (void)state;
    expect_exact(POINT(3, 1, 0, 1, 0, BF16_O2, 0, 0, 0, 0));
    expect_exact(POINT(3, 1, 0, 1, 1, FP16_O2, 0, 1, 0, 0));
}

static void X6_groups_may_be_smaller_than_the_world(void **state)
{
    (void)state;
    expect_exact(POINT(4, 1, 0, 0, 0, FULL, 1, 0, 0, 1));
    expect_exact(POINT(4, 2, 1, 0, 0, FULL, 1, 3, 0, 1));
    expect_exact(POINT(5, 3, 0, 0, 0, FULL, 1, 1, 1, 1));
}

static void each_mutant_is_noticed(void **state)
{
    (void)state;
    static const char *const names[] = {[MISSING_SHARE] = "a share of the gradient that is missing",
                                        [WRONG_GROUP] = "a sum over the wrong group",
                                        [SKIPPED_BIAS] = "a bias that is skipped",
                                        [OWN_NORM] = "a norm of a rank's own part",
                                        [SMOOTHING_TWICE] = "smoothing for each part"};
    for (int m = MISSING_SHARE; m <= SMOOTHING_TWICE; m++) {
        /* four ranks in groups of two, clipped, smoothed */
        const double d = examine(POINT(3, 1, 0, 0, 0, FULL, 1, 1, 0, 1), (enum mutant)m);
        print_message("# %s: %.1e\n", names[m], d);
        if (!(d > 1e3 * BOUND))
            fail_msg("%s goes unseen: %.2e", names[m], d);
    }
}

static void X7_parameters_are_there_when_they_are_read(void **state)
{
    (void)state;
    expect_exact(POINT(1, 0, 0, 3, 0, FULL, 1, 0, 0, 0));
    expect_exact(POINT(4, 0, 0, 3, 1, FULL, 1, 4, 0, 1));
    expect_exact(POINT(3, 1, 0, 3, 1, FP16_O2, 0, 1, 0, 0));
    expect_exact(POINT(5, 1, 1, 3, 0, FULL, 1, 3, 1, 1));
}

static void parameters_that_are_not_there_are_noticed(void **state)
{
    (void)state;
    static const char *const names[] = {[RELEASED_TOO_EARLY] = "a range that is read after it was released",
                                        [NOT_GATHERED] = "a range that is not gathered again"};
    for (int m = RELEASED_TOO_EARLY; m <= NOT_GATHERED; m++) {
        const double d = examine(POINT(1, 0, 0, 3, 0, FULL, 1, 0, 0, 0), (enum mutant)m);
        print_message("# %s: %.1e\n", names[m], d);
        if (!(d > 1e3 * BOUND))
            fail_msg("%s goes unseen: %.2e", names[m], d);
    }
}

/* Several ranks a stage, each with parameters of the others in turn: forward, backward, and forward again. */
static void stages_whose_parameters_come_and_go_are_one_process(void **state)
{
    (void)state;
    const char *n = getenv("EXACT_STAGED"), *seed = getenv("EXACT_SEED");
    uint64_t x = seed ? strtoull(seed, NULL, 10) : 7;
    for (int i = 0; i < (n ? atoi(n) : STAGED); i++) {
        const struct point p = point_staged(&x, 3);
        if (n || is_for_today((size_t)i))
            expect_exact(&p);
    }
}

static void what_a_backward_pass_of_a_stage_lacks_is_noticed(void **state)
{
    (void)state;
    for (int m = RELEASED_TOO_EARLY; m <= NOT_GATHERED; m++)
        for (int again = 0; again < 2; again++) { /* four ranks in two stages, two parts */
            const double d = examine(POINT(3, 0, 0, 3, 1, FULL, 1, 0, 0, 0, 1, PIPELINE_1F1B, again), (enum mutant)m);
            print_message("# backward%s, %s: %.1e\n", again ? " of a stage that computes again" : "",
                          m == NOT_GATHERED ? "not gathered" : "released too early", d);
            if (!(d > 1e3 * BOUND))
                fail_msg("a backward pass that reads what is not there goes unseen: %.2e", d);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(X1_the_backbone_has_its_whole_gradient),
        cmocka_unit_test(X2_zero_leaves_shards_to_their_owners),
        cmocka_unit_test(X3_a_sharded_layer_goes_with_zero_and_mixed_precision),
        cmocka_unit_test(X6_groups_may_be_smaller_than_the_world),
        cmocka_unit_test(X7_parameters_are_there_when_they_are_read),
        cmocka_unit_test(each_mutant_is_noticed),
        cmocka_unit_test(parameters_that_are_not_there_are_noticed),
        cmocka_unit_test(stages_whose_parameters_come_and_go_are_one_process),
        cmocka_unit_test(what_a_backward_pass_of_a_stage_lacks_is_noticed),
        cmocka_unit_test(elements_that_other_ranks_would_keep_are_noticed),
        cmocka_unit_test(what_is_not_frozen_learns_as_if_rates_were_0),
        cmocka_unit_test(frozen_batch_norms_do_not_move),
        cmocka_unit_test(points_of_positions_are_one_process),
        cmocka_unit_test(a_head_that_is_tied_to_another_stage_is_noticed),
        cmocka_unit_test(blocks_whose_parts_go_wrong_are_noticed),
        cmocka_unit_test(points_of_text_are_one_process),
        cmocka_unit_test(frozen_points_are_one_process),
        cmocka_unit_test(points_drawn_by_a_seed_are_one_process),
    };
    return cmocka_run_group_tests_name("exactness", tests, NULL, NULL);
}
