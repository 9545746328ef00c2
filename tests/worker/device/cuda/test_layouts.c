/* Training over ranks that share a layer, cut the state, or are stages of a pipeline, on cuda over GPUs that are not
 * there: losses and parameters of one process. Ranks are threads, each with a GPU of its own that runs its streams'
 * work late and out of order; collectives go through page-locked memory.
 *
 * In fp32 the reference is one process on ref, in double precision; in halves one process on such a GPU, which rounds
 * the same values. Where ranks have batch statistics of their own it takes as many parts as there are ranks. What is
 * compared is what training changed: a network whose parameters hardly move would be close to anything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/run/exact_net.h"
#include "tests/worker/run/step_rig.h"
#include "worker/comm/comm.h"
#include "worker/comm/kin.h"
#include "worker/device/cuda/cuda.h"
#include "worker/program/program.h"
#include "worker/run/step.h"
#include "worker/state/replicas.h"

enum { STEPS = 3, BATCH = 24, RANKS_MAX = 4 };

/* Sums in another order, some of them by way of norms that all gradients are multiplied by. */
static const double CHANGES = 1e-3, LOSS = 1e-5;

/* Halves of shared blocks: terms of a sum over ranks are rounded together, and in one process apart, so a value may
 * fall to either side. In units of the last place. */
static const double CHANGES_ULPS = 2, LOSS_ULPS = 0.125;

enum mutant { RIGHT, NO_SUM, NO_SCATTER, OWN_ROWS, NO_GATHER };

struct point {
    const char *name;
    int world, tensor;
    enum split_kind kind;
    int zero, parts;
    struct pipeline line; /* stages 0: none; micro-batches are the parts */
    bool recompute;
    bool sync;
    enum dtype half; /* DT_F32: none */
    bool operands;   /* O1 */
    const struct optimizer *optimizer;
    double smoothing;
    int ignored; /* this class, 0: none */
    enum mutant mutant;
    enum exact_kind net;
    size_t limit; /* bytes of logits at once, 0: as many as there are */
};

static const struct optimizer sgd = {.rule = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01, .decay_vectors = true},
                              clipped = {.rule = UPDATE_NESTEROV, .momentum = 0.9, .clip_norm = 0.3, .ema = 0.8},
                              lars = {.rule = UPDATE_LARS,
                                      .momentum = 0.9,
                                      .weight_decay = 0.01,
                                      .trust = 0.02,
                                      .clip_norm = 0.5},
                              adam = {.rule = UPDATE_ADAM, .momentum = 0.9, .beta2 = 0.99, .eps = 1e-3, .ema = 0.9};

struct outcome {
    double loss[STEPS], top1, top5, count; /* those over all steps */
    double *before, *after;                /* whole parameters, then their averages; one behind the other */
    size_t n;
};

struct run {
    const struct point *p;
    bool on_ref, alone;
    struct outcome out;
    pthread_mutex_t lock;
};

struct rank {
    struct run *run;
    struct comm *comm;
    int index, rc;
    struct err e;
};

/* --- a rank */

static int open_device(struct rank *r, struct device **ret, struct err *e)
{
    struct gpu *g;
    if (r->run->on_ref)
        return device_ref_ops.open(ret, &(struct device_options){.threads = 1}, e);
    fake_gpu_open(&g, &(struct fake_options){.seed = (uint64_t)r->index});
    return cuda_open_on(ret, g, NULL, &(struct cuda_options){.graphs = true, .workspace_limit = r->run->p->limit}, e);
}

/* The communicator as trainer would open it for this device. */
static int stage(struct rank *r, struct device *d, struct err *e)
{
    if (r->run->on_ref)
        return 0;
    TRY(comm_staged(&r->comm, r->comm, d, e));
    return comm_kin_begin(r->comm, 0, e);
}

static int stages_of(const struct point *p)
{
    return p->line.stages > 1 ? p->line.stages : 1;
}

/* A loss scale that doubles in the run's second step. */
static struct loss_scale doubling(void)
{
    return (struct loss_scale){.scale = LOSS_SCALE_START / 64, .clean = LOSS_SCALE_WINDOW - 2, .dynamic = true};
}

static struct step_rig_options options_of(const struct run *r)
{
    const struct point *p = r->p;
    const bool half = p->half != DT_F32;
    return (struct step_rig_options){.optimizer = *p->optimizer,
                                     .precision = {.level = !half         ? LEVEL_O0
                                                            : p->operands ? LEVEL_O1
                                                                          : LEVEL_O2,
                                                   .half = p->half,
                                                   .scale = p->half == DT_F16 ? doubling() : loss_scale_fixed(1)},
                                     .batch = BATCH,
                                     .steps = STEPS + 1,
                                     .parts = p->parts * (r->alone && !p->sync ? p->world / stages_of(p) : 1),
                                     .sync_bn = p->sync && !r->alone,
                                     .smoothing = p->smoothing,
                                     .zero = r->alone ? 0 : p->zero,
                                     .tensor = r->alone ? 1 : p->tensor,
                                     .pipeline = r->alone ? (struct pipeline){0} : p->line,
                                     .recompute = p->recompute,
                                     .bucket_bytes = 8000,
                                     .native = half};
}

static int read_arena(const struct step_rig *rig, const void *arena, double *out, size_t n, struct err *e)
{
    struct device *d = rig->state.device;
    if (rig->state.real == DT_F64)
        return d->ops->download(d, out, arena, n * sizeof *out, e);
    float *raw = malloc(n * sizeof *raw);
    int rc = d->ops->download(d, raw, arena, n * sizeof *raw, e);
    for (size_t i = 0; i < n && rc == 0; i++)
        out[i] = (double)raw[i];
    free(raw);
    return rc;
}

/* What this rank has of parameter q, in an arena that was read into `own`. */
static void keep_param(const struct step_rig *rig, const struct param *q, const double *own, double *to)
{
    const bool cut = ownership_is_cut(&rig->own, OWNERSHIP_PARAMS);
    const int ranges = cut ? rig->own.nowned : 1;
    for (int k = 0; k < ranges; k++) {
        const struct ownership_range r = cut ? ownership_clip(&rig->own, k, q->offset, q->offset + q->count)
                                             : (struct ownership_range){q->offset, q->offset + q->count, 0};
        for (size_t i = r.first; i < r.end; i++)
            to[param_run_at(q, i - q->offset).whole] = own[ownership_place(&rig->own, OWNERSHIP_PARAMS, i)];
    }
}

/* What this rank has of an arena of parameters goes where it belongs in the whole model. */
static int keep(struct run *r, const struct step_rig *rig, const void *arena, double *to, struct err *e)
{
    const struct program *p = rig->program, *model = rig->whole ? rig->whole : p;
    const size_t n = ownership_elements(&rig->own, OWNERSHIP_PARAMS);
    double *own = malloc(n * sizeof *own);
    size_t at = 0;
    TRY(read_arena(rig, arena, own, n, e));
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < model->nparams; i++) {
        const int mine = program_find_param(p, model->params[i].name);
        size_t whole = 1;
        if (model->params[i].role != PARAM_TRAIN)
            continue;
        for (int k = 0; k < model->params[i].ndim; k++)
            whole *= (size_t)param_whole_size(&model->params[i], k);
        if (mine >= 0)
            keep_param(rig, &p->params[mine], own, to + at);
        at += whole;
    }
    pthread_mutex_unlock(&r->lock);
    free(own);
    return 0;
}

static int no_collective(void *ctx, void *buf, size_t n, enum dtype t, void *stream, struct err *e)
{
    return 0;
}

static _Thread_local struct device *its_device;

/* This rank's rows of its own term, in place of the sum. */
static int no_scatter(void *ctx, const void *in, void *out, size_t n, enum dtype t, void *stream, struct err *e)
{
    const struct comm *c = ctx;
    const size_t bytes = n * dtype_size(t);
    return its_device->ops->async->copy(its_device, stream, out, (const char *)in + (size_t)c->rank * bytes, bytes, e);
}

/* This rank's rows in the place of everybody's. */
static int own_rows(void *ctx, const void *in, void *out, size_t n, enum dtype t, void *stream, struct err *e)
{
    const struct comm *c = ctx;
    const size_t bytes = n * dtype_size(t);
    for (int i = 0; i < c->world; i++)
        TRY(its_device->ops->async->copy(its_device, stream, (char *)out + (size_t)i * bytes, in, bytes, e));
    return 0;
}

static void mutate(struct step_rig *rig, enum mutant m)
{
    if (m == NO_SUM)
        rig->group.sum = no_collective;
    if (m == OWN_ROWS)
        rig->group.gather = own_rows;
    if (m == NO_SCATTER)
        rig->group.scatter = no_scatter;
    if (m == NO_GATHER) /* of updated slices */
        for (int k = 0; k < rig->own.npieces; k++)
            rig->own.pieces[k].part = 0;
}

static void note(struct rank *r, int *done, const struct step_result *res)
{
    struct outcome *o = &r->run->out;
    if (res->done && r->index == 0) {
        o->loss[*done] = res->loss / res->count;
        o->top1 += res->top1;
        o->top5 += res->top5;
        o->count += res->count;
    }
    *done += res->done;
}

static int train(struct rank *r, struct step_rig *rig, struct err *e)
{
    struct outcome *o = &r->run->out;
    struct step_result res;
    int done = 0;
    float weights[BATCH];
    rig->step.ignored = r->run->p->ignored;
    rig->step.weights = r->run->p->ignored ? weights : NULL;
    TRY(keep(r->run, rig, rig->state.params, o->before, e));
    for (int i = 0; i < STEPS; i++) {
        TRY(train_step(&rig->step, 0.01, (struct step_wishes){0}, &res, e));
        note(r, &done, &res);
    }
    TRY(train_catch_up(&rig->step, &res, e));
    note(r, &done, &res);
    if (done != STEPS)
        return err_set(e, -EIO, "%d steps of %d have results", done, STEPS);
    if (!r->run->p->mutant)
        TRY(replicas_check(&rig->state, r->comm, true, e));
    TRY(keep(r->run, rig, rig->state.params, o->after, e));
    return rig->state.ema_params ? keep(r->run, rig, rig->state.ema_params, o->after + o->n / 2, e) : 0;
}

static int one_rank(struct rank *r, struct err *e)
{
    const struct point *p = r->run->p;
    const bool split = p->tensor > 1 && !r->run->alone;
    const struct step_rig_options o = options_of(r->run);
    struct device *d;
    struct program *program;
    struct step_rig rig;
    TRY(open_device(r, &d, e));
    TRY(stage(r, d, e));
    TRY(exact_aligned(
        &program, p->net,
        &(struct split){split ? p->kind : SPLIT_NONE, split ? p->tensor : 1, split ? r->index % p->tensor : 0},
        !r->run->alone && p->zero == 3 ? OWNERSHIP_ALIGN * (size_t)(p->world / stages_of(p)) : 0, e));
    TRY(step_rig_open(&rig, d, program, r->comm, &o, e));
    its_device = d;
    mutate(&rig, r->run->alone ? RIGHT : p->mutant);
    const int rc = train(r, &rig, e);
    if (rc < 0)
        r->comm->ops->abort(r->comm);
    step_rig_close(&rig);
    r->comm->ops->close(r->comm);
    d->ops->close(d);
    return rc;
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    r->rc = one_rank(r, &r->e);
    return NULL;
}

/* --- runs beside each other */

static size_t parameters(enum exact_kind net)
{
    struct program *p;
    size_t n = 0;
    assert_int_equal(exact_aligned(&p, net, &(struct split){SPLIT_NONE, 1, 0}, 0, NULL), 0);
    for (int i = 0; i < p->nparams; i++)
        n += p->params[i].role == PARAM_TRAIN ? p->params[i].count : 0;
    program_destroy(p);
    return n;
}

static void go(struct run *r)
{
    struct comm *comms[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    struct rank ranks[RANKS_MAX];
    const int world = r->alone ? 1 : r->p->world;
    r->out = (struct outcome){.n = 2 * parameters(r->p->net)};
    r->out.before = calloc(r->out.n, sizeof(double));
    r->out.after = calloc(r->out.n, sizeof(double));
    pthread_mutex_init(&r->lock, NULL);
    assert_int_equal(comm_local_open_threads(comms, world, 60000, NULL), 0);
    for (int i = 0; i < world; i++) {
        ranks[i] = (struct rank){.run = r, .comm = comms[i], .index = i};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < world; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < world; i++)
        if (ranks[i].rc < 0)
            fail_msg("%s: rank %d: %s", r->p->name, i, ranks[i].e.text);
    pthread_mutex_destroy(&r->lock);
}

static void finish(struct run *r)
{
    free(r->out.before);
    free(r->out.after);
}

struct distance {
    double loss, changes;
    bool hits; /* the same samples among the first and the first five */
};

static struct distance between(const struct outcome *got, const struct outcome *want)
{
    struct distance d = {.hits = got->top1 == want->top1 && got->top5 == want->top5 && got->count == want->count &&
                                 want->top5 > 0};
    double apart = 0, moved = 0;
    for (int i = 0; i < STEPS; i++) {
        const double x = fabs(got->loss[i] - want->loss[i]) / fmax(1, fabs(want->loss[i]));
        d.loss = isnan(x) ? INFINITY : fmax(d.loss, x);
    }
    for (size_t i = 0; i < want->n; i++) {
        const double a = got->after[i] - got->before[i % (want->n / 2)],
                     b = want->after[i] - want->before[i % (want->n / 2)];
        if (i >= want->n / 2 && want->after[i] == 0 && got->after[i] == 0)
            continue; /* no averages */
        apart += (a - b) * (a - b);
        moved += b * b;
    }
    assert_true(moved > 1e-8);
    d.changes = isnan(apart) ? INFINITY : sqrt(apart / moved);
    return d;
}

static struct distance examine(const struct point *p)
{
    struct run want = {.p = p, .on_ref = p->half == DT_F32, .alone = true}, got = {.p = p};
    go(&want);
    go(&got);
    const struct distance d = between(&got.out, &want.out);
    print_message("# losses differ by %.1e, changes of parameters by %.1e: %s\n", d.loss, d.changes, p->name);
    finish(&want);
    finish(&got);
    return d;
}

static void expect_equal(const struct point *points, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct point *p = &points[i];
        const struct distance d = examine(p);
        const bool sides = p->half != DT_F32 && p->net != EXACT_RESIDUAL;
        const double ulp = p->half == DT_F16 ? 0x1p-11 : 0x1p-8, loss = sides ? fmax(LOSS, LOSS_ULPS * ulp) : LOSS,
                     changes = sides ? fmax(CHANGES, CHANGES_ULPS * ulp) : CHANGES;
        if (!(d.loss <= loss) || !(d.changes <= changes) || !(d.hits || sides))
            fail_msg(
                "%s: losses differ by %.1e (expected at most %.0e), changes of parameters by %.1e (%.0e), hits are "
                "%sthe same",
                p->name, d.loss, loss, d.changes, changes, d.hits ? "" : "not ");
    }
}
#define EXPECT_EQUAL(...)                                                                                              \
    expect_equal((const struct point[]){__VA_ARGS__},                                                                  \
                 sizeof((const struct point[]){__VA_ARGS__}) / sizeof(struct point))

static void a_layer_split_over_classes_is_the_whole_layer(void **state)
{
    (void)state;
    EXPECT_EQUAL({"two ranks, smoothed", 2, 2, SPLIT_CLASSES, .parts = 1, .sync = true, .half = DT_F32,
                  .optimizer = &sgd, .smoothing = 0.1},
                 {"three ranks, two parts, a class ignored, Adam", 3, 3, SPLIT_CLASSES, .parts = 2, .half = DT_F32,
                  .optimizer = &adam, .ignored = 5},
                 {"two groups of two, clipped", 4, 2, SPLIT_CLASSES, .parts = 1, .sync = true, .half = DT_F32,
                  .optimizer = &clipped});
}

static void a_layer_split_over_features_is_the_whole_layer(void **state)
{
    (void)state;
    EXPECT_EQUAL({"two ranks, smoothed", 2, 2, SPLIT_FEATURES, .parts = 1, .sync = true, .half = DT_F32,
                  .optimizer = &sgd, .smoothing = 0.1},
                 {"two groups of two, two parts, a class ignored, LARS", 4, 2, SPLIT_FEATURES, .parts = 2,
                  .half = DT_F32, .optimizer = &lars, .ignored = 5});
}

static void state_that_is_cut_is_updated_as_whole_state(void **state)
{
    (void)state;
    EXPECT_EQUAL(
        {"level 1, two ranks, Adam", 2, 1, .zero = 1, .parts = 1, .sync = true, .half = DT_F32, .optimizer = &adam},
        {"level 1, three ranks, LARS", 3, 1, .zero = 1, .parts = 1, .half = DT_F32, .optimizer = &lars},
        {"level 2, two ranks, two parts, clipped", 2, 1, .zero = 2, .parts = 2, .half = DT_F32, .optimizer = &clipped},
        {"level 2, three ranks, Adam", 3, 1, .zero = 2, .parts = 1, .half = DT_F32, .optimizer = &adam});
}

static void a_split_layer_goes_with_state_that_is_cut(void **state)
{
    (void)state;
    EXPECT_EQUAL({"classes, level 1", 4, 2, SPLIT_CLASSES, .zero = 1, .parts = 1, .half = DT_F32, .optimizer = &adam},
                 {"features, level 2, two parts", 4, 2, SPLIT_FEATURES, .zero = 2, .parts = 2, .half = DT_F32,
                  .optimizer = &lars});
}

static void mixed_precision_goes_with_both(void **state)
{
    (void)state;
    EXPECT_EQUAL(
        {"fp16, classes", 2, 2, SPLIT_CLASSES, .parts = 1, .half = DT_F16, .optimizer = &sgd},
        {"fp16, features, level 1", 2, 2, SPLIT_FEATURES, .zero = 1, .parts = 1, .half = DT_F16, .optimizer = &clipped},
        {"fp16 operands, classes, level 2, two parts", 4, 2, SPLIT_CLASSES, .zero = 2, .parts = 2, .half = DT_F16,
         .operands = true, .optimizer = &adam},
        {"bf16, classes, level 1", 4, 2, SPLIT_CLASSES, .zero = 1, .parts = 1, .half = DT_BF16, .optimizer = &sgd},
        {"fp16, level 1, LARS", 2, 1, .zero = 1, .parts = 1, .half = DT_F16, .optimizer = &lars},
        {"fp16, features, LARS", 2, 2, SPLIT_FEATURES, .parts = 1, .half = DT_F16, .optimizer = &lars});
}

static void parameters_that_come_and_go_are_as_good_as_whole_ones(void **state)
{
    (void)state;
    EXPECT_EQUAL(
        {"level 3, two ranks, Adam", 2, 1, .zero = 3, .parts = 1, .sync = true, .half = DT_F32, .optimizer = &adam},
        {"level 3, three ranks, two parts, LARS", 3, 1, .zero = 3, .parts = 2, .half = DT_F32, .optimizer = &lars},
        {"level 3, two ranks, clipped", 2, 1, .zero = 3, .parts = 1, .half = DT_F32, .optimizer = &clipped},
        {"level 3, classes", 4, 2, SPLIT_CLASSES, .zero = 3, .parts = 1, .half = DT_F32, .optimizer = &adam},
        {"level 3, features, two parts, fp16", 4, 2, SPLIT_FEATURES, .zero = 3, .parts = 2, .half = DT_F16,
         .optimizer = &sgd});
}

static void stages_are_one_process(void **state)
{
    (void)state;
    EXPECT_EQUAL({"two stages, gpipe", 2, 1, .parts = 3, .line = {PIPELINE_GPIPE, 2, 3, 1}, .sync = true,
                  .half = DT_F32, .optimizer = &sgd},
                 {"three stages, 1f1b, Adam", 3, 1, .parts = 4, .line = {PIPELINE_1F1B, 3, 4, 1}, .sync = true,
                  .half = DT_F32, .optimizer = &adam},
                 {"two stages, interleaved, clipped", 2, 1, .parts = 4, .line = {PIPELINE_INTERLEAVED, 2, 4, 2},
                  .sync = true, .half = DT_F32, .optimizer = &clipped},
                 {"two stages, gpipe, recomputing", 2, 1, .parts = 3, .line = {PIPELINE_GPIPE, 2, 3, 1},
                  .recompute = true, .sync = true, .half = DT_F32, .optimizer = &sgd},
                 {"three stages, 1f1b, fp16, recomputing", 3, 1, .parts = 4, .line = {PIPELINE_1F1B, 3, 4, 1},
                  .recompute = true, .sync = true, .half = DT_F16, .optimizer = &sgd});
}

static void stages_go_with_everything_else(void **state)
{
    (void)state;
    EXPECT_EQUAL({"two stages of two, 1f1b, level 1", 4, 1, .zero = 1, .parts = 2, .line = {PIPELINE_1F1B, 2, 2, 1},
                  .half = DT_F32, .optimizer = &adam},
                 {"two stages of two, gpipe, level 3", 4, 1, .zero = 3, .parts = 3, .line = {PIPELINE_GPIPE, 2, 3, 1},
                  .half = DT_F32, .optimizer = &sgd},
                 {"two stages of two, interleaved, level 3, fp16, recomputing", 4, 1, .zero = 3, .parts = 2,
                  .line = {PIPELINE_INTERLEAVED, 2, 2, 2}, .recompute = true, .half = DT_F16, .optimizer = &sgd},
                 {"two stages of two, classes", 4, 2, SPLIT_CLASSES, .parts = 2, .line = {PIPELINE_1F1B, 2, 2, 1},
                  .sync = true, .half = DT_F32, .optimizer = &clipped});
}

static void blocks_and_a_vocabulary_that_are_shared_are_whole_ones(void **state)
{
    (void)state;
    EXPECT_EQUAL(
        {"blocks alone, two ranks", 2, 2, SPLIT_NONE, .net = EXACT_TEXT, .parts = 1, .half = DT_F32, .optimizer = &sgd},
        {"a tied vocabulary in blocks of rows, three ranks, two parts, smoothed, Adam", 3, 3, SPLIT_CLASSES,
         .net = EXACT_TIED, .limit = 5000, .parts = 2, .half = DT_F32, .optimizer = &adam, .smoothing = 0.1},
        {"a vocabulary in blocks of rows, two ranks", 2, 2, SPLIT_CLASSES, .net = EXACT_TEXT, .limit = 5000, .parts = 1,
         .half = DT_F32, .optimizer = &sgd},
        {"pictures, two groups of two, classes, clipped", 4, 2, SPLIT_CLASSES, .net = EXACT_POSITIONS, .parts = 1,
         .half = DT_F32, .optimizer = &clipped},
        {"pictures, three ranks, features, Adam", 3, 3, SPLIT_FEATURES, .net = EXACT_POSITIONS, .parts = 1,
         .half = DT_F32, .optimizer = &adam});
}

static void shared_blocks_go_with_everything_else(void **state)
{
    (void)state;
    EXPECT_EQUAL({"a tied vocabulary, level 1, two parts", 4, 2, SPLIT_CLASSES, .net = EXACT_TIED, .zero = 1,
                  .parts = 2, .half = DT_F32, .optimizer = &adam},
                 {"a vocabulary, level 3, clipped", 4, 2, SPLIT_CLASSES, .net = EXACT_TEXT, .zero = 3, .parts = 1,
                  .half = DT_F32, .optimizer = &clipped},
                 {"pictures, level 2, LARS", 4, 2, SPLIT_NONE, .net = EXACT_POSITIONS, .zero = 2, .parts = 1,
                  .half = DT_F32, .optimizer = &lars},
                 {"a tied vocabulary, two stages of two, 1f1b, recomputing", 4, 2, SPLIT_CLASSES, .net = EXACT_TIED,
                  .parts = 2, .line = {PIPELINE_1F1B, 2, 2, 1}, .recompute = true, .half = DT_F32, .optimizer = &sgd});
}

static void halves_of_shared_blocks_are_those_of_whole_ones(void **state)
{
    (void)state;
    EXPECT_EQUAL({"bf16, a tied vocabulary in blocks of rows", 2, 2, SPLIT_CLASSES, .net = EXACT_TIED, .limit = 5000,
                  .parts = 1, .half = DT_BF16, .optimizer = &sgd},
                 {"fp16, blocks, level 1", 4, 2, SPLIT_NONE, .net = EXACT_TEXT, .zero = 1, .parts = 1, .half = DT_F16,
                  .optimizer = &sgd},
                 {"fp16 operands, a vocabulary, two parts", 2, 2, SPLIT_CLASSES, .net = EXACT_TEXT, .parts = 2,
                  .half = DT_F16, .operands = true, .optimizer = &sgd},
                 {"bf16, pictures, classes", 2, 2, SPLIT_CLASSES, .net = EXACT_POSITIONS, .parts = 1, .half = DT_BF16,
                  .optimizer = &sgd});
}

static void each_mutant_is_noticed(void **state)
{
    (void)state;
    static const struct point mutants[] = {{"no sum over the group", 2, 2, SPLIT_CLASSES, .parts = 1, .sync = true,
                                            .half = DT_F32, .optimizer = &sgd, .mutant = NO_SUM},
                                           {"no sum of the features' gradients", 2, 2, SPLIT_CLASSES, .parts = 1,
                                            .sync = true, .half = DT_F32, .optimizer = &sgd, .mutant = NO_SCATTER},
                                           {"no sum over a vocabulary", 2, 2, SPLIT_CLASSES, .net = EXACT_TEXT,
                                            .parts = 1, .half = DT_F32, .optimizer = &sgd, .mutant = NO_SUM},
                                           {"own rows for all in blocks", 2, 2, SPLIT_NONE, .net = EXACT_TEXT,
                                            .parts = 1, .half = DT_F32, .optimizer = &sgd, .mutant = OWN_ROWS},
                                           {"no sums of blocks", 2, 2, SPLIT_NONE, .net = EXACT_TEXT, .parts = 1,
                                            .half = DT_F32, .optimizer = &sgd, .mutant = NO_SCATTER},
                                           {"no gather of updated slices", 2, 1, .zero = 1, .parts = 1, .sync = true,
                                            .half = DT_F32, .optimizer = &sgd, .mutant = NO_GATHER}};
    for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++) {
        const struct distance d = examine(&mutants[i]);
        if (!(d.changes > 5 * CHANGES))
            fail_msg("%s goes unseen: %.1e", mutants[i].name, d.changes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_split_over_classes_is_the_whole_layer),
        cmocka_unit_test(a_layer_split_over_features_is_the_whole_layer),
        cmocka_unit_test(state_that_is_cut_is_updated_as_whole_state),
        cmocka_unit_test(a_split_layer_goes_with_state_that_is_cut),
        cmocka_unit_test(mixed_precision_goes_with_both),
        cmocka_unit_test(parameters_that_come_and_go_are_as_good_as_whole_ones),
        cmocka_unit_test(stages_are_one_process),
        cmocka_unit_test(stages_go_with_everything_else),
        cmocka_unit_test(blocks_and_a_vocabulary_that_are_shared_are_whole_ones),
        cmocka_unit_test(shared_blocks_go_with_everything_else),
        cmocka_unit_test(halves_of_shared_blocks_are_those_of_whole_ones),
        cmocka_unit_test(each_mutant_is_noticed),
    };
    return cmocka_run_group_tests_name("layouts on cuda", tests, NULL, NULL);
}
