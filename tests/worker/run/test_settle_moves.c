/* After a round that broke, where the number of ranks is another one and ZeRO has cut the state for the old one: ranks
 * that have done more or less of a step, and ranks that come new, become what all would be after it, bit for bit; also
 * where rounds break while it goes to other owners. Ranks are threads, the device is ref. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
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
#include "worker/program/program.h"
#include "worker/run/settle.h"
#include "worker/run/step.h"
#include "worker/state/holdings.h"
#include "worker/state/state.h"

enum { WORLD = 4, BATCH = 16, DONE = 3 /* steps before the one that breaks */, ROUNDS = 4 };

struct rule {
    const char *name;
    int zero;
    struct optimizer optimizer;
};

/* A world, and what process is which rank of it; -1 behind the last. Processes are numbered through: those from WORLD
 * on come new. */
struct round {
    int process[WORLD + 1];
    bool breaks; /* rank 0 gives up in the middle of its messages */
    enum late {
        NOT_LATE,
        SOME_HEARD, /* it breaks when all have everything: some will have heard of the others, some will not */
        SOME_FILLED /* when some have everything */
    } late;
};

struct job {
    const struct rule *rule;
    int forward; /* this rank updates in the step that breaks; -1: none does; WORLD: no step breaks */
    const struct round *rounds;
    struct comm *first[WORLD];
    struct comm *comms[ROUNDS][WORLD];
    pthread_barrier_t together;
    struct whole saved[ROUNDS + 1]; /* after each round; 0: after DONE steps, 1: after one more, where none breaks */
};

struct process {
    struct job *job;
    int number, rc;
    struct err e;
};

/* What a rank has of a state that it was in another layout. */
struct seat {
    struct program *program;
    struct ownership own;
    struct state state;
    struct optimizer optimizer;
    int64_t made;
    bool sure, filled;
};

static int world_of(const struct round *r)
{
    int n = 0;
    while (r->process[n] >= 0)
        n++;
    return n;
}

static int rank_in(const struct round *r, int process)
{
    for (int i = 0; r->process[i] >= 0; i++)
        if (r->process[i] == process)
            return i;
    return -1;
}

static int build(struct program **ret, int zero, int world, struct err *e)
{
    const struct model_options o = {.arch = "convnet",
                                    .classes = 3,
                                    .input = input_pictures(1, 28, 28, NULL, NULL),
                                    .align = zero == 3 ? (size_t)OWNERSHIP_ALIGN * (size_t)world : 0};
    return model_build(ret, &o, e);
}

/* --- the step that breaks, in a world of four */

static int break_round(void *arg, struct err *e)
{
    struct process *p = arg;
    (void)e;
    pthread_barrier_wait(&p->job->together); /* all have their sums */
    if (p->number == 1)
        p->job->first[1]->ops->abort(p->job->first[1]);
    return 0;
}

static int steps(struct step_rig *rig, int n, struct err *e)
{
    struct step_result res;
    for (int i = 0; i < n; i++)
        TRY(train_step(&rig->step, 0.01, (struct step_wishes){0}, &res, e));
    return 0;
}

static int half_a_step(struct process *p, struct step_rig *rig, struct err *e)
{
    struct step_result res;
    struct err expected;
    rig->step.before_update = break_round;
    rig->step.arg = p;
    if (train_step(&rig->step, 0.01, (struct step_wishes){0}, &res, &expected) == 0 ||
        rig->step.rest.reached != STEP_REACHED_SUMS)
        return err_set(e, -EIO, "process %d did not notice", p->number);
    return p->number == p->job->forward ? train_update_rest(&rig->step, e) : 0;
}

static int open_rig(struct process *p, struct step_rig *rig, struct device *d, struct err *e)
{
    const struct rule *r = p->job->rule;
    struct program *program;
    struct step_rig_options ro = {.optimizer = r->optimizer,
                                  .batch = BATCH,
                                  .steps = DONE + 1,
                                  .parts = 2,
                                  .zero = r->zero,
                                  .seconds = true,
                                  .bucket_bytes = 40000};
    TRY(precision_resolve(&(struct precision_options){0}, false, &ro.precision, e));
    TRY(build(&program, r->zero, WORLD, e));
    TRY(step_rig_open(rig, d, program, p->job->first[p->number], &ro, e));
    rig->step.confirms = true;
    return 0;
}

/* --- rounds after it */

/* What goes from place to place: the newest first. */
struct holder {
    struct process *p;
    struct device *d;
    struct seat seats[3];
    int n;
    struct step step;
    struct settled s;
    bool has;
};

static void drop(struct holder *h, int i)
{
    const struct state none = {0};
    struct seat *pl = &h->seats[i];
    const int other = i > 0 ? i - 1 : i + 1;
    state_finish_but(&pl->state, other < h->n ? &h->seats[other].state : &none);
    ownership_finish(&pl->own);
    optimizer_finish(&pl->optimizer);
    program_destroy(pl->program);
    h->n--;
    memmove(pl, pl + 1, (size_t)(h->n - i) * sizeof *pl);
    for (int k = i; k < h->n; k++)
        h->seats[k].state.own = &h->seats[k].own;
}

/* In front of the others. */
static int open_seat(struct holder *h, int world, int rank, struct err *e)
{
    const struct rule *r = h->p->job->rule;
    const size_t bucket = 40000;
    const struct ownership_options oo = {.elem_bytes = 8, .bucket_bytes = bucket, .first_bucket_bytes = bucket / 8};
    const struct state_options so = {
        .seed = 5, .second = r->optimizer.rule >= UPDATE_ADAM, .ema = r->optimizer.ema > 0};
    struct seat *pl = &h->seats[0];
    struct layout l;
    memmove(pl + 1, pl, (size_t)h->n * sizeof *pl);
    for (int k = 1; k <= h->n; k++)
        h->seats[k].state.own = &h->seats[k].own;
    *pl = (struct seat){.optimizer = r->optimizer};
    pl->optimizer.bn_momentum = 0.1;
    TRY(layout_plan(&l, world, 1, 1, r->zero, e));
    l.seconds = true;
    TRY(build(&pl->program, r->zero, world, e));
    TRY(ownership_init(&pl->own, &l, rank, pl->program, &oo, e));
    TRY(optimizer_slice(&pl->optimizer, pl->program, &pl->own, e));
    TRY(h->n++ == 0 ? state_init(&pl->state, h->d, pl->program, &pl->own, &so, e)
                    : state_divide(&pl->state, &pl[1].state, pl->program, &pl->own, e));
    pl->state.whole = pl->program;
    return 0;
}

static void list(const struct holder *h, struct holdings *ret)
{
    *ret = (struct holdings){.made = -1, .from = -1};
    for (int i = h->n - 1; i >= 0 && h->has; i--) {
        const struct seat *pl = &h->seats[i];
        if (pl->filled)
            ret->of[ret->n++] = (struct holding){
                .made = pl->made, .sure = pl->sure, .state = (struct state *)&pl->state, .optimizer = &pl->optimizer};
    }
}

static int sent, break_at; /* messages of rank 0 in the round that breaks */
static const struct comm_ops *real_ops;

static int count_isend(struct comm *c, enum comm_channel ch, const void *buf, size_t bytes, int peer, void *stream,
                       struct comm_request **ret, struct err *e)
{
    if (++sent == break_at)
        c->ops->abort(c);
    return real_ops->isend(c, ch, buf, bytes, peer, stream, ret, e);
}

/* The newest place settles; then what did not count is dropped, and if all have been heard of the old ones are, too. */
static int settle_here(struct holder *h, struct comm *c, int round, enum late late, struct err *e)
{
    struct holdings held;
    list(h, &held);
    int rc = settle(&h->step, c, false, &h->has, &h->s, &held, e);
    for (int i = h->n - 1; i > 0 && held.made >= 0; i--)
        if (h->seats[i].made != held.made)
            drop(h, i);
    if (rc != 1)
        return rc < 0 ? rc : err_set(e, -EIO, "nobody has a state");
    h->seats[0].filled = late != SOME_FILLED || c->rank % 2;
    h->seats[0].made = round + 1;
    h->seats[0].sure = late == NOT_LATE || (late == SOME_HEARD && c->rank % 2);
    while (h->seats[0].sure && h->n > 1)
        drop(h, 1);
    return 0;
}

static int one_round(struct holder *h, int round, struct err *e)
{
    struct job *j = h->p->job;
    const struct round *r = &j->rounds[round];
    const int rank = rank_in(r, h->p->number), world = world_of(r);
    struct comm *c = j->comms[round][rank], *groups[LAYOUT_GROUPS];
    struct comm_ops counted = *c->ops;
    struct ddp *ddp;
    if (h->n > 0 && !h->seats[0].filled)
        drop(h, 0);
    TRY(open_seat(h, world, rank, e));
    struct seat *pl = &h->seats[0];
    TRY(groups_open(groups, c, &pl->own, &(struct comm_options){.name = "round", .timeout_ms = 60000}, -1, e));
    TRY(ddp_create(&ddp, groups, &pl->own, pl->state.reduce, pl->program->n_reduce - pl->program->n_train, DT_F64,
                   &(struct ddp_options){.wire = DT_F64, .device = h->d}, e));
    h->step.state = &pl->state;
    h->step.optimizer = &pl->optimizer;
    h->step.ddp = ddp;
    counted.isend = count_isend;
    if (rank == 0 && r->breaks)
        c->ops = &counted;
    int rc = settle_here(h, c, round, r->late, e);
    if (r->breaks) {
        rc = rc < 0 ? 0 : err_set(e, -EIO, "process %d did not notice that round %d broke", h->p->number, round);
        c->ops->abort(c);
    } else if (rc == 0) {
        rc = whole_collect(rank == 0 ? &j->saved[round + 1] : NULL, &pl->state, c, e);
    }
    c->ops = real_ops;
    ddp_destroy(ddp);
    groups_close(groups, c);
    return rc;
}

static int rounds(struct holder *h, struct err *e)
{
    for (int i = 0; i < ROUNDS && h->p->job->rounds[i].process[0] >= 0; i++)
        if (rank_in(&h->p->job->rounds[i], h->p->number) >= 0)
            TRY(one_round(h, i, e));
    return 0;
}

/* What the rig has goes to a holder. */
static void take_over(struct holder *h, struct step_rig *rig)
{
    h->seats[0] = (struct seat){.program = rig->program,
                                .own = rig->own,
                                .state = rig->state,
                                .optimizer = rig->optimizer,
                                .sure = true,
                                .filled = true};
    h->seats[0].state.own = &h->seats[0].own;
    h->seats[0].state.whole = rig->program;
    h->n = 1;
    h->has = true;
    h->step = rig->step;
    h->step.plan = NULL;
    rig->program = NULL;
    rig->own = (struct ownership){0};
    rig->state = (struct state){.device = NULL};
    rig->optimizer = (struct optimizer){0};
}

static int whole_steps(struct process *p, struct step_rig *rig, struct err *e)
{
    struct whole *saved = p->number == 0 ? p->job->saved : NULL;
    TRY(whole_collect(saved, &rig->state, rig->comm, e));
    TRY(steps(rig, 1, e));
    return whole_collect(saved ? saved + 1 : NULL, &rig->state, rig->comm, e);
}

static int one_process(struct process *p, struct device *d, struct err *e)
{
    struct holder h = {.p = p, .d = d, .s = {.at = {.updates = DONE, .step = DONE}}};
    struct step_rig rig;
    const bool is_old = p->number < WORLD;
    int rc = 0;
    if (is_old) {
        TRY(open_rig(p, &rig, d, e));
        TRY(steps(&rig, DONE, e));
        if (p->job->forward == WORLD) {
            rc = whole_steps(p, &rig, e);
            step_rig_close(&rig);
            return rc;
        }
        h.s.scale = rig.state.loss_scale;
        TRY(half_a_step(p, &rig, e));
        d->ops->plan_close(rig.plan);
        residency_destroy(rig.needs);
        rig.plan = NULL;
        rig.needs = NULL;
        take_over(&h, &rig);
    } else {
        TRY(precision_resolve(&(struct precision_options){0}, false, &h.step.precision, e));
    }
    rc = rounds(&h, e);
    while (h.n > 0)
        drop(&h, 0);
    if (is_old)
        step_rig_close(&rig);
    return rc;
}

static void *run(void *arg)
{
    struct process *p = arg;
    struct device *d;
    p->rc = device_open(&d, "ref", &(struct device_options){.threads = 1}, &p->e);
    if (p->rc < 0)
        return NULL;
    p->rc = one_process(p, d, &p->e);
    for (int i = 0; i < ROUNDS && p->rc < 0 && p->job->rounds[i].process[0] >= 0; i++) {
        const int rank = rank_in(&p->job->rounds[i], p->number);
        if (rank >= 0)
            real_ops->abort(p->job->comms[i][rank]);
    }
    d->ops->close(d);
    return NULL;
}

static void open_comms(struct job *j)
{
    struct err e;
    assert_int_equal(comm_local_open_threads(j->first, WORLD, 60000, &e), 0);
    real_ops = j->first[0]->ops;
    for (int i = 0; i < ROUNDS && j->rounds[i].process[0] >= 0; i++)
        assert_int_equal(comm_local_open_threads(j->comms[i], world_of(&j->rounds[i]), 60000, &e), 0);
}

static void close_comms(struct job *j)
{
    for (int r = 0; r < WORLD; r++)
        j->first[r]->ops->close(j->first[r]);
    for (int i = 0; i < ROUNDS && j->rounds[i].process[0] >= 0; i++)
        for (int r = 0; r < world_of(&j->rounds[i]); r++)
            j->comms[i][r]->ops->close(j->comms[i][r]);
}

enum { PROCESSES = WORLD + 3 };

static void run_job(struct job *j)
{
    pthread_t threads[PROCESSES];
    struct process all[PROCESSES];
    sent = 0;
    pthread_barrier_init(&j->together, NULL, WORLD);
    open_comms(j);
    for (int i = 0; i < PROCESSES; i++) {
        all[i] = (struct process){.job = j, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &all[i]), 0);
    }
    for (int i = 0; i < PROCESSES; i++)
        pthread_join(threads[i], NULL);
    close_comms(j);
    pthread_barrier_destroy(&j->together);
    for (int i = 0; i < PROCESSES; i++)
        if (all[i].rc < 0)
            fail_msg("%s, process %d goes on: process %d: %s", j->rule->name, j->forward, i, all[i].e.text);
}

static void check_same(const struct job *j, int round, const struct whole *want)
{
    const struct whole *got = &j->saved[round + 1];
    assert_int_equal(got->n, want->n);
    for (size_t i = 0; i < want->n; i++) {
        const size_t bytes = (size_t)whole_elements(want, i) * dtype_size(want->tensors[i].dtype);
        if (memcmp(got->tensors[i].data, want->tensors[i].data, bytes) != 0)
            fail_msg("%s, process %d goes on: %s is another after round %d", j->rule->name, j->forward,
                     want->tensors[i].name, round);
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
static const struct rule rules[] = {{"zero 1", 1, ADAM}, {"zero 2", 2, LARS}, {"zero 3", 3, ADAM}};
enum { RULES = sizeof rules / sizeof *rules };

#define END                                                                                                            \
    {                                                                                                                  \
        .process = { -1 }                                                                                              \
    }

static const struct round none[] = {END};

static void undisturbed(const struct rule *rule, struct job *ret)
{
    *ret = (struct job){.rule = rule, .forward = WORLD, .rounds = none};
    run_job(ret);
}

/* forward: who of the first round's has begun the update, of those that are left. */
static void check(const struct rule *rule, int forward, const struct round *rounds, int breaks_at,
                  const struct job *expected)
{
    struct job j = {.rule = rule, .forward = forward, .rounds = rounds};
    break_at = breaks_at;
    run_job(&j);
    for (int i = 0; i < ROUNDS && rounds[i].process[0] >= 0; i++) {
        if (rounds[i].breaks)
            continue;
        check_same(&j, i, &expected->saved[forward >= 0]);
        whole_free(&j.saved[i + 1]);
    }
}

static void each_rule(const struct round *rounds, const int *forwards, int n, const int *breaks, int nbreaks)
{
    static size_t history;
    history++; /* each has another rule on a day */
    for (int k = 0; k < RULES; k++) {
        struct job whole;
        if (!is_for_today(history + (size_t)k))
            continue;
        undisturbed(&rules[k], &whole);
        for (int i = 0; i < n; i++)
            for (int b = 0; b < nbreaks; b++)
                check(&rules[k], forwards[i], rounds, breaks[b], &whole);
        whole_free(&whole.saved[0]);
        whole_free(&whole.saved[1]);
    }
}

static const int nowhere[] = {0};

static void fewer_ranks_and_then_more_have_the_state_of_the_undisturbed_step(void **state)
{
    (void)state;
    /* ranks have other numbers; process 4, 5 come new; at the end one is alone, whose second owner they were */
    static const struct round rounds[] = {{.process = {3, 1, 0, -1}},
                                          {.process = {0, 4, 3, 1, -1}},
                                          {.process = {4, 5, 1, 3, -1}},
                                          {.process = {1, 4, -1}}};
    static const int forwards[] = {-1, 0, 3};
    each_rule(rounds, forwards, 3, nowhere, 1);
}

static void two_of_four_are_enough(void **state)
{
    (void)state;
    static const struct round rounds[] = {
        {.process = {0, 2, -1}}, {.process = {2, -1}}, {.process = {6, 2, 4, -1}}, END};
    static const int forwards[] = {-1, 2};
    each_rule(rounds, forwards, 2, nowhere, 1);
}

static void a_round_that_breaks_while_the_state_goes_to_other_owners_costs_nothing(void **state)
{
    (void)state;
    static const struct round rounds[] = {
        {.process = {0, 2, 3, -1}, .breaks = true}, {.process = {3, 0, 2, 4, -1}}, {.process = {2, 6, 3, -1}}, END};
    static const int forwards[] = {-1, 3}, breaks[] = {1, 2, 4};
    each_rule(rounds, forwards, 2, breaks, 3);
}

static void some_have_heard_that_all_have_it_and_some_have_not(void **state)
{
    (void)state;
    static const struct round rounds[] = {
        {.process = {0, 1, 3, -1}, .late = SOME_HEARD}, {.process = {3, 1, -1}}, {.process = {1, 4, 3, -1}}, END};
    static const int forwards[] = {-1, 1};
    each_rule(rounds, forwards, 2, nowhere, 1);
}

static void what_only_some_have_does_not_count(void **state)
{
    (void)state;
    static const struct round rounds[] = {{.process = {0, 1, 3, -1}, .late = SOME_FILLED},
                                          {.process = {3, 1, 4, -1}, .late = SOME_FILLED},
                                          {.process = {3, 1, -1}},
                                          END};
    static const int forwards[] = {-1, 1};
    each_rule(rounds, forwards, 2, nowhere, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fewer_ranks_and_then_more_have_the_state_of_the_undisturbed_step),
        cmocka_unit_test(two_of_four_are_enough),
        cmocka_unit_test(a_round_that_breaks_while_the_state_goes_to_other_owners_costs_nothing),
        cmocka_unit_test(some_have_heard_that_all_have_it_and_some_have_not),
        cmocka_unit_test(what_only_some_have_does_not_count),
    };
    return cmocka_run_group_tests_name("settle, moves", tests, NULL, NULL);
}
