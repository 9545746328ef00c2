/* Steps of any layout are those of one process: 20 losses and the final parameters, in double precision.
 *
 * The reference is one process with --accumulate = micro-batches. Where batch statistics are each rank's own (always
 * with halves, whose gradients of weights are rounded for each part) it is --accumulate = ranks * micro-batches.
 *
 * EXACT_POINTS=n: how many points; EXACT_SEED=s. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/run/exact_net.h"
#include "tests/worker/run/exact_points.h"
#include "tests/worker/run/step_rig.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/layout.h"
#include "worker/parallel/residency.h"
#include "worker/program/program.h"
#include "worker/run/step.h"
#include "worker/state/replicas.h"
#include "worker/state/state.h"

enum { STEPS = 20, POINTS = 48 };

static const double BOUND = 1e-9; /* of |difference| / max(1, |value|) */

/* --- a run */

/* What can be got wrong: each must be noticed. */
enum mutant {
    RIGHT,
    MISSING_SHARE,
    WRONG_GROUP,
    SKIPPED_BIAS,
    OWN_NORM,
    SMOOTHING_TWICE,
    RELEASED_TOO_EARLY,
    NOT_GATHERED
};

struct outcome {
    double loss[STEPS];
    double *params; /* whole ones, one behind the other, then running statistics */
    size_t n;
};

struct run {
    struct point p;
    int world, tensor, zero, parts; /* what of the point the reference does not share */
    bool sync;
    enum mutant mutant;
    struct outcome *out;
    pthread_mutex_t lock;
};

struct rank {
    struct run *run;
    struct comm *comm;
    int rc;
    struct err e;
};

static int build(struct program **ret, const struct run *r, int rank, struct err *e)
{
    const enum split_kind kind = r->tensor == 1 ? SPLIT_NONE : r->p.at[SPLIT] ? SPLIT_FEATURES : SPLIT_CLASSES;
    return exact_net(ret, &(struct split){kind, r->tensor, rank % r->tensor}, e);
}

static struct optimizer optimizer_of(const struct point *p)
{
    static const struct optimizer all[] = {
        {.rule = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01, .decay_vectors = true},
        {.rule = UPDATE_NESTEROV, .momentum = 0.9, .clip_norm = 0.3, .ema = 0.8},
        {.rule = UPDATE_CAFFE2, .momentum = 0.9, .weight_decay = 0.01},
        {.rule = UPDATE_LARS, .momentum = 0.9, .weight_decay = 0.01, .trust = 0.02, .clip_norm = 0.5},
        {.rule = UPDATE_ADAM, .momentum = 0.9, .beta2 = 0.99, .eps = 1e-3, .ema = 0.9},
        {.rule = UPDATE_ADAMW, .momentum = 0.9, .beta2 = 0.99, .eps = 1e-3, .weight_decay = 0.01}};
    struct optimizer o = all[p->at[RULE]];
    o.sum_losses = p->at[LOSS];
    return o;
}

/* Rates at which neither the sum of losses nor Adam's steps blow up: errors would be blown up with them. */
static double rate_of(const struct point *p)
{
    const bool scaled = p->at[RULE] >= 3;
    return p->at[LOSS] && !scaled ? 0.01 / EXACT_BATCH : p->at[RULE] > 3 ? 0.001 : 0.01;
}

static int options_of(const struct run *r, struct step_rig_options *o, struct err *e)
{
    static const struct precision_options levels[] = {
        [FULL] = {.level = LEVEL_O0},
        [BF16_O1] = {.level = LEVEL_O1, .half = HALF_BF16},
        [BF16_O2] = {.level = LEVEL_O2, .half = HALF_BF16},
        [FP16_O2] = {.level = LEVEL_O2, .half = HALF_FP16, .loss_scale = LOSS_SCALE_DYNAMIC}};
    *o = (struct step_rig_options){.optimizer = optimizer_of(&r->p),
                                   .batch = EXACT_BATCH,
                                   .steps = STEPS,
                                   .short_by = point_own_statistics(&r->p) ? 0 : 9,
                                   .parts = r->parts,
                                   .sync_bn = r->sync,
                                   .smoothing = r->p.at[SMOOTH] ? 0.1 : 0,
                                   .zero = r->zero,
                                   .tensor = r->tensor,
                                   .bucket_bytes = r->zero == 3 ? 64000 : 8000, /* pieces of some pages */
                                   .emulate = r->p.at[HALF] != FULL};
    return precision_resolve(&levels[r->p.at[HALF]], false, &o->precision, e);
}

/* Is element k of a parameter here? */
static bool is_kept(const struct ownership *own, const struct param *q, size_t k)
{
    bool kept = q->role == PARAM_STAT || !ownership_is_cut(own, OWNERSHIP_PARAMS);
    for (int i = 0; i < own->nowned && !kept; i++)
        kept = own->owned[i].first <= q->offset + k && q->offset + k < own->owned[i].end;
    return kept;
}

/* What this rank has of the model goes where it belongs. */
static void keep(struct run *r, const struct step_rig *rig, const struct program *whole)
{
    const struct program *p = rig->program;
    size_t at = 0;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < whole->nparams; i++) {
        const struct param *q = &p->params[program_find_param(p, whole->params[i].name)];
        const bool train = q->role == PARAM_TRAIN;
        const double *from = (const double *)(train ? rig->state.params : rig->state.stats) + q->offset,
                     *ema = train ? rig->state.ema_params : rig->state.ema_stats;
        for (size_t k = 0; k < q->count; k++) {
            if (!is_kept(&rig->own, q, k))
                continue;
            const size_t to = at + param_run_at(q, k).whole;
            r->out->params[to] = from[k];
            r->out->params[to + r->out->n / 2] = ema ? ema[q->offset + k] : 0;
        }
        at += whole->params[i].count;
    }
    pthread_mutex_unlock(&r->lock);
}

static int steps(struct rank *rank, struct step_rig *rig, const struct program *whole, struct err *e)
{
    struct run *r = rank->run;
    for (int i = 0; i < STEPS; i++) {
        struct step_result res;
        TRY(train_step(&rig->step, rate_of(&r->p), (struct step_wishes){0}, &res, e));
        if (rank->comm->rank == 0)
            r->out->loss[i] = res.count > 0 ? res.loss / res.count : 0;
    }
    if (!r->mutant)
        TRY(replicas_check(&rig->state, rank->comm, e));
    keep(r, rig, whole);
    return 0;
}

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

static void mutate_needs(struct step_rig *rig, enum mutant m)
{
    struct plan_needs *n = (struct plan_needs *)residency_needs(rig->needs); /* the rig's own */
    given = *n;
    n->need = m == NOT_GATHERED ? need_first : need_and_release;
    n->release = release_nothing;
}

static void mutate(struct step_rig *rig, struct plan_group *kept, enum mutant m)
{
    if (m >= RELEASED_TOO_EARLY) {
        mutate_needs(rig, m);
        return;
    }
    *kept = rig->group;
    right = kept;
    if (m == MISSING_SHARE)
        rig->group.scatter = averaged_scatter;
    else if (m == WRONG_GROUP)
        rig->group.sum = no_sum;
    else if (m == SMOOTHING_TWICE)
        rig->group.sum = sum_smoothing_again;
    else if (m == OWN_NORM)
        rig->own.layout.tensor = 1; /* nothing is elsewhere: norms are of what this rank has */
    else if (m == SKIPPED_BIAS)
        for (int i = 0; i < rig->program->nops; i++)
            if (rig->program->ops[i].kind == OP_LINEAR_BWD_PARAM || rig->program->ops[i].kind == OP_BIAS_BWD)
                rig->program->ops[i].param[rig->program->ops[i].kind == OP_LINEAR_BWD_PARAM] = -1;
}

static int one_rank(struct rank *rank, struct err *e)
{
    struct run *r = rank->run;
    const struct run alone = {.p = r->p, .tensor = 1};
    struct device *d;
    struct program *p, *whole;
    struct step_rig rig;
    struct step_rig_options o;
    struct plan_group kept;
    TRY(options_of(r, &o, e));
    TRY(device_open(&d, "ref", &(struct device_options){.threads = 1}, e));
    TRY(build(&p, r, rank->comm->rank, e));
    TRY(build(&whole, &alone, 0, e));
    TRY(step_rig_open(&rig, d, p, rank->comm, &o, e));
    if (r->mutant)
        mutate(&rig, &kept, r->mutant);
    int rc = steps(rank, &rig, whole, e);
    if (rc < 0)
        rank->comm->ops->abort(rank->comm);
    step_rig_close(&rig);
    program_destroy(whole);
    d->ops->close(d);
    return rc;
}

static void *run_rank(void *arg)
{
    struct rank *rank = arg;
    rank->rc = one_rank(rank, &rank->e);
    return NULL;
}

static size_t values_of(void)
{
    const struct run alone = {.tensor = 1};
    struct program *p;
    size_t n = 0;
    assert_int_equal(build(&p, &alone, 0, NULL), 0);
    assert_true(program_trainable(p) <= 20000);
    for (int i = 0; i < p->nparams; i++)
        n += p->params[i].count;
    program_destroy(p);
    return 2 * n; /* and averages */
}

static void train(struct run *r, struct outcome *out)
{
    struct comm *comms[EXACT_RANKS_MAX];
    pthread_t threads[EXACT_RANKS_MAX];
    struct rank ranks[EXACT_RANKS_MAX];
    struct err e;
    *out = (struct outcome){.n = values_of()};
    out->params = calloc(out->n, sizeof *out->params);
    r->out = out;
    pthread_mutex_init(&r->lock, NULL);
    assert_int_equal(comm_local_open_threads(comms, r->world, 60000, &e), 0);
    for (int i = 0; i < r->world; i++) {
        ranks[i] = (struct rank){.run = r, .comm = comms[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < r->world; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < r->world; i++) {
        comms[i]->ops->close(comms[i]);
        char text[256];
        point_describe(&r->p, text, sizeof text);
        if (ranks[i].rc < 0)
            fail_msg("%s: rank %d: %s", text, i, ranks[i].e.text);
    }
    pthread_mutex_destroy(&r->lock);
}

static void train_point(const struct point *p, enum mutant m, struct outcome *out)
{
    struct run r = {.p = *p,
                    .world = point_world(p),
                    .tensor = point_tensor(p),
                    .zero = p->at[ZERO],
                    .parts = point_parts(p),
                    .sync = p->at[SYNC],
                    .mutant = m};
    train(&r, out);
}

static void train_reference(const struct point *p, struct outcome *out)
{
    struct run r = {.p = *p,
                    .world = 1,
                    .tensor = 1,
                    .parts = point_parts(p) * (point_own_statistics(p) ? point_world(p) : 1),
                    .sync = false};
    train(&r, out);
}

static double difference(double got, double want)
{
    const double d = fabs(got - want) / fmax(1, fabs(want));
    return isnan(d) ? INFINITY : d;
}

/* The largest difference, of losses and values. */
static double distance(const struct outcome *got, const struct outcome *want)
{
    double worst = 0;
    for (int i = 0; i < STEPS; i++)
        worst = fmax(worst, difference(got->loss[i], want->loss[i]));
    for (size_t i = 0; i < want->n; i++)
        worst = fmax(worst, difference(got->params[i], want->params[i]));
    return worst;
}

/* Is there anything to be exact about? */
static void assert_moving(const struct outcome *o)
{
    assert_true(isfinite(o->loss[STEPS - 1]) && fabs(o->loss[STEPS - 1] - o->loss[0]) > 1e-4);
}

static double examine(const struct point *p, enum mutant m)
{
    struct outcome got, want;
    train_reference(p, &want);
    train_point(p, m, &got);
    assert_moving(&want);
    const double d = distance(&got, &want);
    free(got.params);
    free(want.params);
    return d;
}

static void expect_exact(const struct point *p)
{
    char text[256];
    const double d = examine(p, RIGHT);
    point_describe(p, text, sizeof text);
    print_message("# %.1e  %s\n", d, text);
    if (!(d <= BOUND))
        fail_msg("%s: differs by %.2e from one process (expected at most %.0e)", text, d, BOUND);
}

static void points_drawn_by_a_seed_are_one_process(void **state)
{
    (void)state;
    const char *n = getenv("EXACT_POINTS"), *seed = getenv("EXACT_SEED");
    uint64_t x = seed ? strtoull(seed, NULL, 10) : 1;
    const int points = n ? atoi(n) : POINTS;
    for (int i = 0; i < points; i++) {
        const struct point p = point_next(&x);
        expect_exact(&p);
    }
    print_message("# pairs of values that no point had: %d\n", point_pairs_left());
    if (points >= POINTS)
        assert_int_equal(point_pairs_left(), 0);
}

/* --- points that upstream could not do, by their names there */

/* world, tensor, over, zero, parts, half, sync, rule, loss, smooth: which value of each */
#define POINT(...) (&(struct point){{__VA_ARGS__}})

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
        cmocka_unit_test(points_drawn_by_a_seed_are_one_process),
    };
    return cmocka_run_group_tests_name("exactness", tests, NULL, NULL);
}
