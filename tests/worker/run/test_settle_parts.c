/* After a round that broke, where ranks have parts of the state: ranks that have done more or less of a step, and ranks
 * that have nothing, become what all would be after it, bit for bit. Ranks are threads, the device is ref. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/support/today.h"
#include "tests/worker/run/step_rig.h"
#include "tests/worker/snapshot/whole.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/parallel/ddp.h"
#include "worker/parallel/groups.h"
#include "worker/parallel/residency.h"
#include "worker/pipeline/stage.h"
#include "worker/program/program.h"
#include "worker/run/settle.h"
#include "worker/run/step.h"
#include "worker/state/state.h"

enum { WORLD = 4, BATCH = 16, DONE = 3 /* steps before the one that breaks */, ROUNDS = 1 + WORLD };

struct layout_case {
    const char *name;
    int zero, stages;
    struct optimizer optimizer;
};

struct job {
    const struct layout_case *c;
    int forward; /* this rank updates in the step that breaks; -1: none does; WORLD: no step breaks */
    int victim;  /* this rank loses what it has after the first round; then each of them once, one after another */
    struct comm *comms[ROUNDS][WORLD];
    pthread_barrier_t together;
    struct whole saved[ROUNDS]; /* after each round */
};

struct rank {
    struct job *job;
    int rank, rc;
    struct err e;
};

/* All have their sums; then this round is over for all. */
static int break_round(void *arg, struct err *e)
{
    struct rank *r = arg;
    (void)e;
    pthread_barrier_wait(&r->job->together);
    struct comm *c = r->job->comms[0][r->rank];
    if (r->rank == 1)
        c->ops->abort(c);
    return 0;
}

static int steps(struct rank *r, struct step_rig *rig, int n, struct err *e)
{
    struct step_result res;
    for (int i = 0; i < n; i++)
        TRY(train_step(&rig->step, 0.01, (struct step_wishes){0}, &res, e));
    return 0;
}

/* The step that breaks: each rank is left with sums of it, one goes on. */
static int half_a_step(struct rank *r, struct step_rig *rig, struct err *e)
{
    struct step_result res;
    struct err expected;
    rig->step.before_update = break_round;
    rig->step.arg = r;
    if (train_step(&rig->step, 0.01, (struct step_wishes){0}, &res, &expected) == 0)
        return err_set(e, -EIO, "rank %d did not notice", r->rank);
    if (rig->step.rest.reached != STEP_REACHED_SUMS)
        return err_set(e, -EIO, "rank %d is at %d: %s", r->rank, (int)rig->step.rest.reached, expected.text);
    return r->rank == r->job->forward ? train_update_rest(&rig->step, e) : 0;
}

static void spoil(struct state *s)
{
    struct state_arena arenas[STATE_ARENAS];
    state_arenas(s, arenas);
    for (int a = 0; a < STATE_ARENAS; a++)
        for (size_t i = 0; arenas[a].at && i < arenas[a].n; i++)
            ((double *)arenas[a].at)[i] = NAN;
}

/* The rig is in the hands of another round's communicator. */
static int change_round(struct step_rig *rig, struct comm *c, struct err *e)
{
    const struct comm_options co = {.name = "round", .timeout_ms = 60000};
    const struct program *p = rig->program;
    stage_close(rig->stage);
    rig->stage = NULL;
    ddp_destroy(rig->ddp);
    groups_close(rig->groups, rig->comm);
    rig->comm = c;
    TRY(groups_open(rig->groups, c, &rig->own, &co, -1, e));
    TRY(ddp_create(&rig->ddp, rig->groups, &rig->own, rig->state.reduce, p->n_reduce - p->n_train, rig->state.real,
                   &(struct ddp_options){.wire = rig->state.real, .device = rig->state.device}, e));
    rig->step.ddp = rig->ddp;
    return 0;
}

static int recover(struct rank *r, struct step_rig *rig, int round, struct settled *s, struct err *e)
{
    bool has = r->rank != (r->job->victim + round - 1) % WORLD;
    struct settled mine = has ? *s : (struct settled){0};
    if (!has) {
        spoil(&rig->state);
        rig->step.rest.reached = STEP_REACHED_NOTHING;
    }
    TRY(change_round(rig, r->job->comms[round][r->rank], e));
    const int rc = settle(&rig->step, rig->comm, false, &has, &mine, NULL, e);
    if (rc != 1 || !has)
        return rc < 0 ? rc : err_set(e, -EIO, "rank %d has nothing in round %d", r->rank, round);
    *s = mine;
    return 0;
}

static int rounds(struct rank *r, struct step_rig *rig, struct err *e)
{
    const struct job *j = r->job;
    const bool breaks = j->forward < WORLD;
    struct settled s = {.at = {.updates = DONE, .step = DONE}};
    rig->step.confirms = true;
    TRY(steps(r, rig, DONE, e));
    s.scale = rig->state.loss_scale;
    if (breaks)
        TRY(half_a_step(r, rig, e));
    for (int round = 1; breaks && round < ROUNDS; round++) {
        TRY(recover(r, rig, round, &s, e));
        if (s.at.updates != DONE + (j->forward >= 0) || rig->step.rest.reached == STEP_REACHED_UPDATE)
            return err_set(e, -EIO, "rank %d is at step %lld", r->rank, (long long)s.at.updates);
        TRY(whole_collect(r->rank == 0 ? &r->job->saved[round] : NULL, &rig->state, rig->comm, e));
    }
    if (breaks)
        return 0;
    TRY(whole_collect(r->rank == 0 ? &r->job->saved[0] : NULL, &rig->state, rig->comm, e));
    TRY(steps(r, rig, 1, e));
    return whole_collect(r->rank == 0 ? &r->job->saved[1] : NULL, &rig->state, rig->comm, e);
}

static int one_rank(struct rank *r, struct err *e)
{
    const struct layout_case *c = r->job->c;
    struct device *d;
    struct program *p;
    struct step_rig rig;
    const struct model_options o = {.arch = "convnet",
                                    .classes = 3,
                                    .input = input_pictures(1, 28, 28, NULL, NULL),
                                    .align = c->zero == 3 ? (size_t)OWNERSHIP_ALIGN * WORLD : 0};
    struct step_rig_options ro = {.optimizer = c->optimizer,
                                  .batch = BATCH,
                                  .steps = DONE + 1,
                                  .parts = 2,
                                  .zero = c->zero,
                                  .seconds = c->zero > 0,
                                  .pipeline = {.kind = PIPELINE_1F1B, .stages = c->stages, .chunks = 1},
                                  .bucket_bytes = 40000};
    TRY(precision_resolve(&(struct precision_options){0}, false, &ro.precision, e));
    TRY(device_open(&d, "ref", &(struct device_options){.threads = 1}, e));
    TRY(model_build(&p, &o, e));
    TRY(step_rig_open(&rig, d, p, r->job->comms[0][r->rank], &ro, e));
    int rc = rounds(r, &rig, e);
    if (rc < 0)
        rig.comm->ops->abort(rig.comm);
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

static void run_job(struct job *j)
{
    pthread_t threads[WORLD];
    struct rank ranks[WORLD];
    struct err e;
    pthread_barrier_init(&j->together, NULL, WORLD);
    for (int round = 0; round < ROUNDS; round++)
        assert_int_equal(comm_local_open_threads(j->comms[round], WORLD, 60000, &e), 0);
    for (int i = 0; i < WORLD; i++) {
        ranks[i] = (struct rank){.job = j, .rank = i};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < WORLD; i++)
        pthread_join(threads[i], NULL);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < WORLD; i++)
            j->comms[round][i]->ops->close(j->comms[round][i]);
    pthread_barrier_destroy(&j->together);
    for (int i = 0; i < WORLD; i++)
        if (ranks[i].rc < 0)
            fail_msg("%s, rank %d goes on, rank %d is lost: rank %d: %s", j->c->name, j->forward, j->victim, i,
                     ranks[i].e.text);
}

static void check_same(const struct job *j, int round, const struct whole *want)
{
    const struct whole *got = &j->saved[round];
    assert_int_equal(got->n, want->n);
    for (size_t i = 0; i < want->n; i++) {
        const size_t bytes = (size_t)whole_elements(want, i) * dtype_size(want->tensors[i].dtype);
        if (memcmp(got->tensors[i].data, want->tensors[i].data, bytes) != 0)
            fail_msg("%s, rank %d goes on, rank %d is lost: %s is another after round %d", j->c->name, j->forward,
                     j->victim, want->tensors[i].name, round);
    }
}

#define ADAM                                                                                                           \
    {                                                                                                                  \
        .rule = UPDATE_ADAM, .momentum = 0.9, .beta2 = 0.99, .eps = 1e-6, .ema = 0.9                                   \
    }
#define LARS                                                                                                           \
    {                                                                                                                  \
        .rule = UPDATE_LARS, .momentum = 0.9, .weight_decay = 0.01, .trust = 0.02, .clip_norm = 0.3                    \
    }
static const struct layout_case cases[] = {{"stages", 0, 2, ADAM},         {"zero 1", 1, 1, ADAM},
                                           {"zero 2", 2, 1, LARS},         {"zero 3", 3, 1, ADAM},
                                           {"stages, zero 1", 1, 2, LARS}, {"zero 3, clipped", 3, 1, LARS}};

static void the_end_is_that_of_the_undisturbed_step(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        if (!is_for_today(k))
            continue;
        struct job whole = {.c = &cases[k], .forward = WORLD};
        run_job(&whole);
        for (int forward = -1; forward < WORLD; forward++) {
            struct job j = {.c = &cases[k], .forward = forward, .victim = (forward + 1 + (int)k) % WORLD};
            j.victim = j.victim == forward ? (forward + 1) % WORLD : j.victim;
            run_job(&j);
            for (int round = 1; round < ROUNDS; round++) {
                check_same(&j, round, &whole.saved[forward >= 0]);
                whole_free(&j.saved[round]);
            }
        }
        whole_free(&whole.saved[0]);
        whole_free(&whole.saved[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_end_is_that_of_the_undisturbed_step)};
    return cmocka_run_group_tests_name("settle, parts", tests, NULL, NULL);
}
