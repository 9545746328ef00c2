/* Steps whose optimizer is cut over ranks (threads, ref device) are those of ranks that all have all of it, and of one
 * rank alone. What a checkpoint would hold is compared: parameters, moments, averages. */
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
#include "tests/support/today.h"
#include "tests/worker/run/step_rig.h"
#include "tests/worker/snapshot/whole.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/parallel/ddp.h"
#include "worker/program/program.h"
#include "worker/run/step.h"
#include "worker/state/replicas.h"
#include "worker/state/state.h"

enum { RANKS_MAX = 4, BATCH = 12, STEPS = 3 };

struct run_case {
    const char *name;
    struct optimizer optimizer;
    struct precision_options precision;
    bool emulate, sync_bn;
    int parts;
};

struct outcome { /* of rank 0 */
    struct whole saved;
    double loss[STEPS], norm[STEPS];
};

struct rank {
    const struct run_case *c;
    struct comm *comm;
    int zero;
    bool seconds;
    struct outcome *out; /* NULL: not rank 0 */
    int rc;
    struct err e;
};

/* Moments that are cut take a share of the memory: what cannot be cut is less than one unit a rank. */
static int check_memory(const struct state *s, const struct rank *r, struct err *e)
{
    const size_t n = s->program->n_train, world = (size_t)r->comm->world, parts = r->seconds ? 2 : 1;
    const size_t most = r->zero ? parts * (n / world) + world * OWNERSHIP_ALIGN : n;
    if (s->n_moments > most)
        return err_set(e, -EIO, "%zu elements of moments, expected at most %zu", s->n_moments, most);
    return 0;
}

static int steps(struct rank *r, struct step_rig *rig, struct err *e)
{
    for (int i = 0; i < STEPS; i++) {
        struct step_result res;
        TRY(train_step(&rig->step, 0.01, (struct step_wishes){0}, &res, e));
        if (r->out) {
            r->out->loss[i] = res.loss;
            r->out->norm[i] = res.grad_norm;
        }
    }
    TRY(replicas_check(&rig->state, r->comm, true, e));
    TRY(check_memory(&rig->state, r, e));
    return whole_collect(r->out ? &r->out->saved : NULL, &rig->state, r->comm, e);
}

static int one_rank(struct rank *r, struct err *e)
{
    struct device *d;
    struct program *p;
    struct step_rig rig;
    const struct model_options o = {.arch = "convnet",
                                    .classes = 3,
                                    .input = input_pictures(1, 28, 28, NULL, NULL),
                                    .align = r->zero == 3 ? OWNERSHIP_ALIGN * (size_t)r->comm->world : 0};
    struct step_rig_options ro = {.optimizer = r->c->optimizer,
                                  .batch = BATCH,
                                  .steps = STEPS,
                                  .parts = r->c->parts,
                                  .sync_bn = r->c->sync_bn,
                                  .zero = r->zero,
                                  .seconds = r->seconds,
                                  .bucket_bytes = 40000,
                                  .emulate = r->c->emulate};
    TRY(precision_resolve(&r->c->precision, false, &ro.precision, e));
    TRY(device_open(&d, "ref", &(struct device_options){.threads = 1}, e));
    TRY(model_build(&p, &o, e));
    TRY(step_rig_open(&rig, d, p, r->comm, &ro, e));
    int rc = steps(r, &rig, e);
    if (rc < 0)
        r->comm->ops->abort(r->comm);
    step_rig_close(&rig);
    d->ops->close(d);
    return rc;
}

static void *run(void *arg)
{
    struct rank *r = arg;
    r->rc = one_rank(r, &r->e);
    return NULL;
}

/* level: of ZeRO; beyond LEVELS the same with second owners. */
enum { LEVELS = 3 };

static void train(const struct run_case *c, int world, int level, struct outcome *out)
{
    const bool seconds = level > LEVELS;
    const int zero = seconds ? level - LEVELS : level;
    struct comm *comms[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    struct rank ranks[RANKS_MAX];
    struct err e;
    *out = (struct outcome){0};
    assert_int_equal(comm_local_open_threads(comms, world, 60000, &e), 0);
    for (int i = 0; i < world; i++) {
        ranks[i] =
            (struct rank){.c = c, .comm = comms[i], .zero = zero, .seconds = seconds, .out = i == 0 ? out : NULL};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < world; i++) {
        pthread_join(threads[i], NULL);
        comms[i]->ops->close(comms[i]);
    }
    for (int i = 0; i < world; i++)
        if (ranks[i].rc < 0)
            fail_msg("%s, %d ranks, zero %d: rank %d: %s", c->name, world, zero, i, ranks[i].e.text);
}

static void drop(struct outcome *o)
{
    whole_free(&o->saved);
}

static double difference(double a, double b)
{
    return fabs(a - b) / fmax(1, fabs(b));
}

static void compare_tensor(const struct run_case *c, int world, const struct ckpt_tensor *got,
                           const struct ckpt_tensor *want, size_t n, double bound)
{
    double worst = 0;
    assert_string_equal(got->name, want->name);
    if (want->dtype != DT_F64) /* a counter */
        return;
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, difference(((const double *)got->data)[i], ((const double *)want->data)[i]));
    if (!(worst <= bound))
        fail_msg("%s, %d ranks: %s differs by %.2e (expected at most %.0e)", c->name, world, want->name, worst, bound);
}

static void compare(const struct run_case *c, int world, const struct outcome *got, const struct outcome *want,
                    double bound)
{
    for (int i = 0; i < STEPS; i++) {
        assert_true(difference(got->loss[i], want->loss[i]) <= bound);
        assert_true(difference(got->norm[i], want->norm[i]) <= bound);
    }
    assert_int_equal(got->saved.n, want->saved.n);
    for (size_t i = 0; i < want->saved.n; i++)
        compare_tensor(c, world, &got->saved.tensors[i], &want->saved.tensors[i],
                       (size_t)whole_elements(&want->saved, i), bound);
}

#define SGD .rule = UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.01, .decay_vectors = true
static const struct run_case cases[] = {
    {.name = "sgd", .optimizer = {SGD}, .parts = 1, .sync_bn = true},
    {.name = "nesterov, clipped, averaged",
     .optimizer = {.rule = UPDATE_NESTEROV, .momentum = 0.9, .clip_norm = 0.3, .ema = 0.8},
     .parts = 1,
     .sync_bn = true},
    {.name = "lars, clipped",
     .optimizer = {.rule = UPDATE_LARS, .momentum = 0.9, .weight_decay = 0.01, .trust = 0.02, .clip_norm = 0.3},
     .parts = 1,
     .sync_bn = true},
    {.name = "adam",
     .optimizer = {.rule = UPDATE_ADAM, .momentum = 0.9, .beta2 = 0.99, .eps = 1e-6, .ema = 0.9},
     .parts = 1,
     .sync_bn = true},
    {.name = "caffe2, accumulated", .optimizer = {.rule = UPDATE_CAFFE2, .momentum = 0.9}, .parts = 2},
    {.name = "O2", .optimizer = {SGD, .ema = 0.9}, .precision = {.level = LEVEL_O2}, .parts = 2, .emulate = true},
    {.name = "O3, half weights", .optimizer = {SGD}, .precision = {.level = LEVEL_O3}, .parts = 1, .emulate = true},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Sums are taken in the same order; norms are not. */
static void a_cut_optimizer_does_what_a_whole_one_does(void **state)
{
    (void)state;
    for (int k = 0; k < CASES; k++)
        for (int world = 2; world <= 3; world++) {
            struct outcome whole, cut;
            if (!is_for_today((size_t)k + (size_t)world))
                continue;
            train(&cases[k], world, 0, &whole);
            for (int level = 1; level <= (world > 2 ? 2 : 1) * LEVELS; level++) { /* of two ranks each has all */
                train(&cases[k], world, level, &cut);
                compare(&cases[k], world, &cut, &whole, 1e-12);
                drop(&cut);
            }
            drop(&whole);
        }
}

static void ranks_with_a_cut_optimizer_are_one_rank(void **state)
{
    (void)state;
    for (int k = 0; k < CASES; k++) {
        struct outcome one, cut;
        if (!cases[k].sync_bn || !is_for_today((size_t)k))
            continue;
        train(&cases[k], 1, 0, &one);
        for (int level = 1; level <= LEVELS; level++) {
            train(&cases[k], 4, level, &cut);
            compare(&cases[k], 4, &cut, &one, 1e-9);
            drop(&cut);
        }
        drop(&one);
    }
}

static void one_rank_with_a_cut_optimizer_has_all_of_it(void **state)
{
    (void)state;
    struct outcome whole, cut;
    train(&cases[2], 1, 0, &whole);
    for (int level = 1; level <= 2 * LEVELS; level++) {
        train(&cases[2], 1, level, &cut);
        compare(&cases[2], 1, &cut, &whole, 1e-12);
        drop(&cut);
    }
    drop(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_optimizer_does_what_a_whole_one_does),
        cmocka_unit_test(ranks_with_a_cut_optimizer_are_one_rank),
        cmocka_unit_test(one_rank_with_a_cut_optimizer_has_all_of_it),
    };
    return cmocka_run_group_tests_name("ZeRO", tests, NULL, NULL);
}
