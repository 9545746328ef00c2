/* A bit flips in what one rank holds: found, the rank named, all mended, and the end is that of the undisturbed run.
 * Ranks are threads, of ref and of the cpu device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/support/today.h"
#include "tests/worker/run/step_rig.h"
#include "worker/comm/comm.h"
#include "worker/data/loader/loader.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/program/program.h"
#include "worker/run/drill.h"
#include "worker/run/guard.h"
#include "worker/run/step.h"
#include "worker/run/verify.h"
#include "worker/state/state.h"

enum { WORLD_MAX = 3, BATCH = 6, STEPS = 12, EVERY = 5 };

struct plan_of_test {
    const char *device;
    int world, culprit, step, zero;
    enum drill_what what;
    int always_from;  /* 1: the same bit flips again in each replay */
    bool before_sums; /* a gradient of the culprit's, before it is reduced; then the loss of `step` is doubted */
};

struct rank {
    const struct plan_of_test *t;
    struct comm *comm;
    const struct device_ops *real_ops;
    struct drill drill;
    struct step_rig rig;
    struct verify *verify;
    int64_t updates;
    int found, replays;
    struct verify_finding finding;
    unsigned char *params;
    size_t bytes;
    int rc;
    struct err e;
};

static _Thread_local struct rank *self;

static int run_and_spoil(struct plan *plan, const struct run_args *a, struct err *e)
{
    struct rank *r = self;
    const struct plan_of_test *t = r->t;
    TRY(r->real_ops->run(plan, a, e));
    if (t->before_sums && r->replays == 0 && r->comm->rank == t->culprit && r->updates + 1 == t->step)
        ((unsigned char *)r->rig.state.reduce)[state_bytes(&r->rig.state, 1) - 2] ^= 0x10;
    return 0;
}

static int before_update(void *arg, struct err *e)
{
    struct rank *r = arg;
    TRY(drill_at(&r->drill, &r->rig.state, r->comm->rank, r->updates + 1, true, e));
    return verify_step(r->verify, e);
}

static struct settled standing(const struct rank *r)
{
    return (struct settled){.at = {.updates = r->updates, .step = r->updates}, .scale = r->rig.state.loss_scale};
}

static int look(struct rank *r, enum verify_why why, struct err *e)
{
    enum verify_outcome what;
    struct verify_finding f;
    struct settled at = standing(r);
    TRY(verify_check(r->verify, r->comm, &at, why, &what, &f, e));
    if (what == VERIFY_MENDED) {
        r->found++;
        r->finding = f;
    }
    if (what != VERIFY_BACK)
        return 0;
    r->replays++;
    r->updates = r->rig.step.updates = at.at.updates;
    if (r->t->always_from)
        r->drill = (struct drill){r->t->what, r->t->step, r->t->culprit};
    return loader_seek(r->rig.loader, 0, r->updates, 1, e);
}

static int steps(struct rank *r, struct err *e)
{
    struct step_result res;
    const struct settled start = standing(r);
    TRY(verify_open(&r->verify, &r->rig.state, e));
    TRY(verify_keep(r->verify, &start, e));
    while (r->updates < STEPS) {
        TRY(drill_at(&r->drill, &r->rig.state, r->comm->rank, r->updates + 1, false, e));
        TRY(train_step(&r->rig.step, 0.01, (struct step_wishes){0}, &res, e));
        r->updates++;
        const bool replays = verify_until(r->verify) >= 0,
                   doubted = r->t->before_sums && r->replays == 0 && r->updates == r->t->step;
        if (replays ? r->updates == verify_until(r->verify) : doubted || r->updates % EVERY == 0 || r->updates == STEPS)
            TRY(look(r, doubted ? VERIFY_SPIKE : VERIFY_DUE, e));
    }
    return 0;
}

static int one_rank(struct rank *r, struct err *e)
{
    const struct plan_of_test *t = r->t;
    struct device *d;
    struct program *p;
    const struct model_options o = {.arch = "convnet", .classes = 3, .input = input_pictures(1, 28, 28, NULL, NULL)};
    const struct precision_options off = {.level = LEVEL_O0, .loss_scale = 1};
    struct step_rig_options ro = {.optimizer = {.rule = UPDATE_SGD, .momentum = 0.9, .decay_vectors = true},
                                  .batch = BATCH,
                                  .steps = STEPS,
                                  .parts = 1,
                                  .zero = t->zero};
    TRY(precision_resolve(&off, false, &ro.precision, e));
    TRY(device_open(&d, t->device, &(struct device_options){.threads = 1}, e));
    TRY(model_build(&p, &o, e));
    TRY(step_rig_open(&r->rig, d, p, r->comm, &ro, e));
    struct device_ops ops = *d->ops;
    r->real_ops = d->ops;
    ops.run = run_and_spoil;
    d->ops = &ops;
    self = r;
    r->rig.step.before_update = before_update;
    r->rig.step.arg = r;
    int rc = steps(r, e);
    d->ops = r->real_ops;
    r->bytes = state_bytes(&r->rig.state, r->rig.state.program->n_train);
    r->params = malloc(r->bytes);
    memcpy(r->params, r->rig.state.params, r->bytes);
    if (rc < 0)
        r->comm->ops->abort(r->comm);
    verify_close(r->verify);
    step_rig_close(&r->rig);
    d->ops->close(d);
    return rc;
}

static void *run(void *arg)
{
    struct rank *r = arg;
    r->rc = one_rank(r, &r->e);
    return NULL;
}

static void train(struct rank ranks[WORLD_MAX], const struct plan_of_test *t)
{
    struct comm *comms[WORLD_MAX];
    pthread_t threads[WORLD_MAX];
    struct err e;
    assert_int_equal(comm_local_open_threads(comms, t->world, 20000, &e), 0);
    for (int i = 0; i < t->world; i++) {
        ranks[i] = (struct rank){.t = t, .comm = comms[i], .drill = {t->what, t->step, t->culprit}};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < t->world; i++) {
        pthread_join(threads[i], NULL);
        comms[i]->ops->close(comms[i]);
    }
}

static void forget(struct rank ranks[WORLD_MAX], int world)
{
    for (int i = 0; i < world; i++)
        free(ranks[i].params);
}

/* Weights at the end, of a run with this plan and of one that nothing happens to. */
static void check_mended(const struct plan_of_test *t, struct rank ranks[WORLD_MAX])
{
    struct rank calm[WORLD_MAX];
    struct plan_of_test undisturbed = *t;
    undisturbed.what = DRILL_NONE;
    undisturbed.before_sums = false;
    train(ranks, t);
    train(calm, &undisturbed);
    for (int i = 0; i < t->world; i++) {
        if (ranks[i].rc < 0 || calm[i].rc < 0)
            fail_msg("rank %d: %s %s", i, ranks[i].e.text, calm[i].e.text);
        assert_int_equal(calm[i].found + calm[i].replays, 0);
        assert_memory_equal(ranks[i].params, calm[0].params, calm[0].bytes);
    }
    forget(calm, t->world);
}

static const char *const devices[] = {
    "ref",
#ifdef HAVE_CPU_DEVICE
    "cpu",
#endif
};
enum { DEVICES = sizeof devices / sizeof *devices };

static void a_flipped_bit_is_found_named_and_mended(void **state)
{
    (void)state;
    size_t point = 0;
    for (int d = 0; d < DEVICES; d++)
        for (int world = 2; world <= WORLD_MAX; world++)
            for (enum drill_what what = DRILL_WEIGHTS; what <= DRILL_SUMS; what++)
                for (int step = EVERY + 1; step <= 2 * EVERY; step += 2) { /* the first and the fifth after a check */
                    const struct plan_of_test t = {
                        .device = devices[d], .world = world, .culprit = 1, .step = step, .what = what};
                    struct rank ranks[WORLD_MAX];
                    if (!is_for_today(point++))
                        continue;
                    check_mended(&t, ranks);
                    for (int i = 0; i < world; i++) {
                        const struct verify_finding *f = &ranks[i].finding;
                        assert_int_equal(ranks[i].replays, 1);
                        assert_int_equal(ranks[i].found, 1);
                        assert_int_equal(f->culprits, 1);
                        assert_int_equal(f->rank, 1);
                        assert_int_equal(f->is_mine, i == 1);
                        assert_true(f->step >= step && f->step <= step + 2);
                    }
                    forget(ranks, world);
                }
}

static void what_is_wrong_in_the_sums_of_all_is_mended_and_nobody_named(void **state)
{
    (void)state;
    const struct plan_of_test t = {.device = "ref", .world = 2, .culprit = 1, .step = 8, .before_sums = true};
    struct rank ranks[WORLD_MAX];
    check_mended(&t, ranks);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].found, 1);
        assert_int_equal(ranks[i].finding.culprits, 0);
        assert_true(ranks[i].finding.everyone);
    }
    forget(ranks, 2);
}

static void a_doubt_that_a_replay_answers_accuses_nobody(void **state)
{
    (void)state;
    struct plan_of_test t = {.device = "ref", .world = 2, .culprit = 99, .step = 8, .before_sums = true};
    struct rank ranks[WORLD_MAX];
    check_mended(&t, ranks);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].replays, 1);
        assert_int_equal(ranks[i].finding.culprits, 0);
        assert_false(ranks[i].finding.everyone);
    }
    forget(ranks, 2);
}

static void a_bit_that_flips_in_every_replay_ends_the_run(void **state)
{
    (void)state;
    const struct plan_of_test t = {
        .device = "ref", .world = 2, .culprit = 1, .step = 8, .what = DRILL_WEIGHTS, .always_from = 1};
    struct rank ranks[WORLD_MAX];
    train(ranks, &t);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].rc, ERR_MISMATCH);
        assert_non_null(strstr(ranks[i].e.text, "rank 1 are not those of rank 0"));
    }
    forget(ranks, 2);
}

/* With moments cut, weights are still compared. */
static void weights_are_mended_with_zero_1_and_2(void **state)
{
    (void)state;
    for (int zero = 1; zero <= 2; zero++) {
        const struct plan_of_test t = {
            .device = "ref", .world = 3, .culprit = 2, .step = 8, .what = DRILL_WEIGHTS, .zero = zero};
        struct rank ranks[WORLD_MAX];
        check_mended(&t, ranks);
        for (int i = 0; i < 3; i++)
            assert_int_equal(ranks[i].finding.rank, 2);
        forget(ranks, 3);
    }
}

static void a_spike_is_far_above_what_was_before(void **state)
{
    (void)state;
    double others[GUARD_LOSSES];
#define AGAIN()                                                                                                        \
    for (int i = 0; i < GUARD_LOSSES; i++)                                                                             \
    others[i] = 2 + 0.1 * (i % 7)
    AGAIN();
    assert_false(guard_is_spike(others, GUARD_LOSSES, 4, 20));
    AGAIN();
    assert_true(guard_is_spike(others, GUARD_LOSSES, 40, 20));
    AGAIN();
    assert_false(guard_is_spike(others, GUARD_LOSSES, 40, 0));
    AGAIN();
    assert_false(guard_is_spike(others, GUARD_LEAST - 1, 40, 20));
    for (int i = 0; i < GUARD_LOSSES; i++)
        others[i] = 1; /* no deviation: one hundredth of the median stands for it */
    assert_false(guard_is_spike(others, GUARD_LOSSES, 1.19, 20));
    assert_true(guard_is_spike(others, GUARD_LOSSES, 1.21, 20));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_bit_is_found_named_and_mended),
        cmocka_unit_test(what_is_wrong_in_the_sums_of_all_is_mended_and_nobody_named),
        cmocka_unit_test(a_doubt_that_a_replay_answers_accuses_nobody),
        cmocka_unit_test(a_bit_that_flips_in_every_replay_ends_the_run),
        cmocka_unit_test(weights_are_mended_with_zero_1_and_2),
        cmocka_unit_test(a_spike_is_far_above_what_was_before),
    };
    return cmocka_run_group_tests_name("verify", tests, NULL, NULL);
}
