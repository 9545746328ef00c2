#include "tests/worker/run/exact_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "tests/worker/run/exact_net.h"
#include "tests/worker/run/step_rig.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/run/step.h"
#include "worker/state/replicas.h"
#include "worker/state/state.h"

struct shared { /* by the ranks of a run */
    const struct exact_run *run;
    struct exact_outcome *out;
    pthread_mutex_t lock;
};

struct rank {
    struct shared *shared;
    struct comm *comm;
    int rc;
    struct err e;
    char kept[1024] __attribute__((aligned(16))); /* of a mutant: until its communicator is closed */
};

static int build(struct program **ret, const struct exact_run *r, int rank, struct err *e)
{
    static const enum split_kind kinds[2][2] = {{SPLIT_CLASSES, SPLIT_FEATURES},
                                                {SPLIT_CLASSES, SPLIT_NONE}}; /* a vocabulary, or blocks alone */
    const enum split_kind kind = r->tensor == 1 ? SPLIT_NONE : kinds[r->text][r->p.at[SPLIT]];
    const struct split s = {kind, r->tensor, rank % r->tensor};
    const char *frozen = r->still ? NULL : r->frozen;
    if (r->text)
        return exact_text(ret, &s, r->tied, frozen, e);
    return r->positions ? exact_positions(ret, &s, frozen, e) : exact_frozen(ret, &s, frozen, e);
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

static int options_of(const struct exact_run *r, struct step_rig_options *o, struct err *e)
{
    static const struct precision_options levels[] = {
        [FULL] = {.level = LEVEL_O0},
        [BF16_O1] = {.level = LEVEL_O1, .half = HALF_BF16},
        [BF16_O2] = {.level = LEVEL_O2, .half = HALF_BF16},
        [FP16_O2] = {.level = LEVEL_O2, .half = HALF_FP16, .loss_scale = LOSS_SCALE_DYNAMIC}};
    *o = (struct step_rig_options){.optimizer = optimizer_of(&r->p),
                                   .batch = EXACT_BATCH,
                                   .steps = EXACT_STEPS,
                                   .short_by = point_own_statistics(&r->p) ? 0 : 9,
                                   .parts = r->parts,
                                   .sync_bn = r->sync,
                                   .smoothing = r->p.at[SMOOTH] ? 0.1 : 0,
                                   .zero = r->zero,
                                   .tensor = r->tensor,
                                   .pipeline = r->pipeline,
                                   .recompute = r->recompute,
                                   .bucket_bytes = r->zero == 3 ? 64000 : 8000, /* pieces of some pages */
                                   .emulate = r->p.at[HALF] != FULL};
    o->optimizer.lr_mul = r->still ? r->frozen : NULL;
    return precision_resolve(&levels[r->p.at[HALF]], false, &o->precision, e);
}

static double value_at(const struct state *s, const void *arena, size_t i)
{
    return s->real == DT_F64 ? ((const double *)arena)[i] : (double)((const float *)arena)[i];
}

/* Is element k of a parameter here? */
static bool is_kept(const struct ownership *own, const struct param *q, size_t k)
{
    bool kept = q->role == PARAM_STAT || !ownership_is_cut(own, OWNERSHIP_PARAMS);
    for (int i = 0; i < own->nowned && !kept; i++)
        kept = own->owned[i].first <= q->offset + k && q->offset + k < own->owned[i].end;
    return kept;
}

/* What this rank has of a parameter goes where it belongs: from element `at` of the outcome on. */
static void keep_param(const struct step_rig *rig, const struct param *q, struct exact_outcome *out, size_t at)
{
    const struct state *s = &rig->state;
    const bool train = q->role == PARAM_TRAIN;
    const void *from = train ? s->params : s->stats, *ema = train ? s->ema_params : s->ema_stats;
    for (size_t k = 0; k < q->count; k++) {
        const size_t to = at + param_run_at(q, k).whole;
        if (!is_kept(&rig->own, q, k))
            continue;
        out->params[to] = value_at(s, from, q->offset + k);
        out->params[to + out->n / 2] = ema ? value_at(s, ema, q->offset + k) : 0;
    }
}

static void keep(struct shared *all, const struct step_rig *rig, const struct program *whole)
{
    size_t at = 0;
    pthread_mutex_lock(&all->lock);
    for (int i = 0; i < whole->nparams; i++) {
        const int mine = program_find_param(rig->program, whole->params[i].name);
        if (mine >= 0) /* else it is of another stage */
            keep_param(rig, &rig->program->params[mine], all->out, at);
        at += whole->params[i].count;
    }
    pthread_mutex_unlock(&all->lock);
}

static int steps(struct rank *rank, struct step_rig *rig, const struct program *whole, struct err *e)
{
    const struct exact_run *r = rank->shared->run;
    for (int i = 0; i < EXACT_STEPS; i++) {
        struct step_result res;
        TRY(train_step(&rig->step, rate_of(&r->p), (struct step_wishes){0}, &res, e));
        if (rank->comm->rank == 0)
            rank->shared->out->loss[i] = res.count > 0 ? res.loss / res.count : 0;
    }
    if (!r->mutate)
        TRY(replicas_check(&rig->state, rank->comm, true, e));
    keep(rank->shared, rig, whole);
    return 0;
}

static int one_rank(struct rank *rank, struct err *e)
{
    const struct exact_run *r = rank->shared->run;
    const struct exact_run alone = {
        .p = r->p, .tensor = 1, .positions = r->positions, .text = r->text, .tied = r->tied, .frozen = r->frozen};
    struct device *d;
    struct program *p, *whole;
    struct step_rig rig;
    struct step_rig_options o;
    TRY(options_of(r, &o, e));
    TRY(device_open(&d, r->device ? r->device : "ref", &(struct device_options){.threads = 1}, e));
    TRY(build(&p, r, rank->comm->rank, e));
    TRY(build(&whole, &alone, 0, e));
    TRY(step_rig_open(&rig, d, p, rank->comm, &o, e));
    if (r->mutate)
        r->mutate(&rig, rank->kept, r->mutant);
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

static size_t values_of(const struct exact_run *r)
{
    const struct exact_run alone = {.tensor = 1, .positions = r->positions, .text = r->text, .tied = r->tied};
    struct program *p;
    size_t n = 0;
    assert_int_equal(build(&p, &alone, 0, NULL), 0);
    assert_true(program_trainable(p) <= 20000);
    for (int i = 0; i < p->nparams; i++)
        n += p->params[i].count;
    program_destroy(p);
    return 2 * n; /* and averages */
}

int exact_try(const struct exact_run *r, struct exact_outcome *out, char *text, size_t cap)
{
    struct comm *comms[EXACT_RANKS_MAX];
    pthread_t threads[EXACT_RANKS_MAX];
    struct rank ranks[EXACT_RANKS_MAX];
    struct shared all = {.run = r, .out = out};
    struct err e;
    int failed = 0;
    *out = (struct exact_outcome){.n = values_of(r)};
    out->params = calloc(out->n, sizeof *out->params);
    pthread_mutex_init(&all.lock, NULL);
    assert_int_equal(comm_local_open_threads(comms, r->world, 60000, &e), 0);
    for (int i = 0; i < r->world; i++) {
        ranks[i] = (struct rank){.shared = &all, .comm = comms[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < r->world; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < r->world; i++) {
        comms[i]->ops->close(comms[i]);
        if (ranks[i].rc < 0 && failed++ == 0)
            snprintf(text, cap, "rank %d: %s", i, ranks[i].e.text);
    }
    pthread_mutex_destroy(&all.lock);
    return failed;
}

void exact_train(const struct exact_run *r, struct exact_outcome *out)
{
    char text[256], why[600];
    point_describe(&r->p, text, sizeof text);
    if (exact_try(r, out, why, sizeof why))
        fail_msg("%s: %s", text, why);
}

struct exact_run exact_point(const struct point *p)
{
    return (struct exact_run){.p = *p,
                              .world = point_world(p),
                              .tensor = point_tensor(p),
                              .zero = p->at[ZERO],
                              .parts = point_parts(p),
                              .sync = p->at[SYNC],
                              .pipeline = point_pipeline(p),
                              .recompute = p->at[RECOMPUTE]};
}

struct exact_run exact_reference(const struct point *p)
{
    const int ranks = point_world(p) / point_pipeline(p).stages;
    return (struct exact_run){
        .p = *p, .world = 1, .tensor = 1, .parts = point_parts(p) * (point_own_statistics(p) ? ranks : 1)};
}

static double difference(double got, double want)
{
    const double d = fabs(got - want) / fmax(1, fabs(want));
    return isnan(d) ? INFINITY : d;
}

/* The largest difference, of losses and values. */
double exact_distance(const struct exact_outcome *got, const struct exact_outcome *want)
{
    double worst = 0;
    for (int i = 0; i < EXACT_STEPS; i++)
        worst = fmax(worst, difference(got->loss[i], want->loss[i]));
    for (size_t i = 0; i < want->n; i++)
        worst = fmax(worst, difference(got->params[i], want->params[i]));
    return worst;
}
