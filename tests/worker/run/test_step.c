/* A step of several ranks (threads) on the ref device: whose gradients overflow, the others find out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/worker/run/step_rig.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/program/program.h"
#include "worker/run/step.h"
#include "worker/state/state.h"

enum { WORLD = 3, BATCH = 6, STEPS = 4, POISONED_RANK = 1, POISONED_STEP = 2 };

struct rank {
    struct comm *comm;
    struct precision precision;
    double poison; /* what a gradient of POISONED_RANK becomes in POISONED_STEP */
    int done;
    struct step_result result[STEPS];
    double scale[STEPS];
    float drift[STEPS]; /* of the first weight in each step */
    int64_t skipped, updates;
    int rc;
    struct err e;
};

static _Thread_local const struct rank *self;
static _Thread_local struct state *its_state;

static int run_and_poison(struct plan *plan, const struct run_args *a, struct err *e)
{
    TRY(device_ref_ops.run(plan, a, e));
    if (self->comm->rank == POISONED_RANK && self->done == POISONED_STEP)
        ((double *)its_state->reduce)[3] = self->poison;
    return 0;
}

static int steps(struct rank *r, struct step *t, struct err *e)
{
    const double *params = t->state->params;
    for (; r->done < STEPS; r->done++) {
        const double before = params[0];
        TRY(train_step(t, 0.01, (struct step_wishes){0}, &r->result[r->done], e));
        r->scale[r->done] = t->state->loss_scale.scale;
        r->drift[r->done] = (float)(params[0] - before);
    }
    r->skipped = t->state->loss_scale.skipped;
    r->updates = t->updates;
    return 0;
}

static int one_rank(struct rank *r, struct err *e)
{
    struct device_ops ops = device_ref_ops;
    struct device *d;
    struct program *p;
    struct step_rig rig;
    const struct model_options o = {.arch = "convnet", .classes = 3, .input = input_pictures(1, 28, 28, NULL, NULL)};
    const struct step_rig_options ro = {.optimizer = {.rule = UPDATE_SGD, .momentum = 0.9, .decay_vectors = true},
                                        .precision = r->precision,
                                        .batch = BATCH,
                                        .steps = STEPS,
                                        .parts = 1,
                                        .emulate = true};
    TRY(device_open(&d, "ref", &(struct device_options){.threads = 1}, e));
    TRY(model_build(&p, &o, e));
    TRY(step_rig_open(&rig, d, p, r->comm, &ro, e));
    ops.run = run_and_poison;
    d->ops = &ops;
    self = r;
    its_state = &rig.state;
    int rc = steps(r, &rig.step, e);
    d->ops = &device_ref_ops;
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

static void train(struct rank ranks[WORLD], int level, double scale, double poison)
{
    struct comm *comms[WORLD];
    pthread_t threads[WORLD];
    struct err e;
    const struct precision_options o = {.level = level, .loss_scale = scale};
    assert_int_equal(comm_local_open_threads(comms, WORLD, 20000, &e), 0);
    for (int i = 0; i < WORLD; i++) {
        ranks[i] = (struct rank){.comm = comms[i], .poison = poison};
        assert_int_equal(precision_resolve(&o, false, &ranks[i].precision, &e), 0);
        assert_int_equal(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < WORLD; i++) {
        pthread_join(threads[i], NULL);
        comms[i]->ops->close(comms[i]);
    }
}

static void an_overflow_on_one_rank_makes_all_skip_and_halves_the_scale_once(void **state)
{
    (void)state;
    const double poisons[] = {INFINITY, -INFINITY, NAN};
    for (int k = 0; k < 3; k++) {
        struct rank ranks[WORLD];
        train(ranks, LEVEL_O2, 0, poisons[k]);
        for (int i = 0; i < WORLD; i++) {
            const struct rank *r = &ranks[i];
            if (r->rc < 0)
                fail_msg("rank %d: %s", i, r->e.text);
            for (int n = 0; n < STEPS; n++) {
                assert_int_equal(r->result[n].skipped, n == POISONED_STEP);
                assert_true(r->scale[n] == (n < POISONED_STEP ? 65536 : 32768));
                assert_int_equal(r->drift[n] == 0, n == POISONED_STEP);
            }
            assert_int_equal(r->skipped, 1);
            assert_int_equal(r->updates, STEPS - 1);
            assert_memory_equal(r->drift, ranks[0].drift, sizeof r->drift);
        }
    }
}

static void a_fixed_scale_ends_training_on_all_ranks_and_names_the_tensor(void **state)
{
    (void)state;
    struct rank ranks[WORLD];
    train(ranks, LEVEL_O2, 128, INFINITY);
    for (int i = 0; i < WORLD; i++) {
        assert_int_equal(ranks[i].rc, ERR_DIVERGED);
        if (!strstr(ranks[i].e.text, "the gradient of ") || !strstr(ranks[i].e.text, ".weight is not finite"))
            fail_msg("rank %d: %s", i, ranks[i].e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_overflow_on_one_rank_makes_all_skip_and_halves_the_scale_once),
        cmocka_unit_test(a_fixed_scale_ends_training_on_all_ranks_and_names_the_tensor),
    };
    return cmocka_run_group_tests_name("training step", tests, NULL, NULL);
}
