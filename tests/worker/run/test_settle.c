/* After a round that broke all ranks become what the furthest is. Ranks are threads, the device is ref. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/run/settle.h"
#include "worker/state/replicas.h"
#include "worker/state/state.h"

enum { WORLD = 3 };

struct rank {
    struct comm *comm;
    bool has, spoilt;
    struct settled s;
    double value; /* of all its arenas; afterwards: of the first element of each, if they are equal */
    int rc, equal;
    struct err e;
};

static void fill(void *arena, size_t n, double v)
{
    for (size_t i = 0; arena && i < n; i++)
        ((double *)arena)[i] = v;
}

static void fill_all(struct state *s, double v)
{
    fill(s->params, s->program->n_train, v);
    fill(s->momentum, s->n_moments, v);
    fill(s->second, s->n_moments, v);
    fill(s->stats, s->program->n_stats, v);
    fill(s->ema_params, s->program->n_train, v);
    fill(s->ema_stats, s->program->n_stats, v);
}

static bool all_are(const struct state *s, double v)
{
    const struct {
        const void *at;
        size_t n;
    } arenas[] = {
        {s->params, s->program->n_train}, {s->momentum, s->n_moments},          {s->second, s->n_moments},
        {s->stats, s->program->n_stats},  {s->ema_params, s->program->n_train}, {s->ema_stats, s->program->n_stats}};
    for (size_t a = 0; a < sizeof arenas / sizeof *arenas; a++)
        for (size_t i = 0; i < arenas[a].n; i++)
            if (((const double *)arenas[a].at)[i] != v)
                return false;
    return true;
}

static int one_rank(struct rank *r)
{
    struct device *d;
    struct program *p;
    struct state s;
    struct layout l;
    struct ownership own;
    struct model_options o = {.arch = "convnet", .classes = 3, .input = input_pictures(1, 28, 28, NULL, NULL)};
    struct device_options threads = {.threads = 1};
    const struct state_options all = {.seed = 1, .second = true, .ema = true};
    TRY(device_open(&d, "ref", &threads, &r->e));
    TRY(model_build(&p, &o, &r->e));
    TRY(layout_plan(&l, WORLD, 1, 1, 0, &r->e));
    TRY(ownership_init(&own, &l, r->comm->rank, p, &(struct ownership_options){.elem_bytes = sizeof(double)}, &r->e));
    TRY(state_init(&s, d, p, &own, &all, &r->e));
    fill_all(&s, r->value);
    struct step t = {.state = &s};
    int rc = settle(&t, r->comm, false, &r->has, &r->s, NULL, &r->e);
    r->value = ((double *)s.params)[0];
    r->equal = all_are(&s, r->value) && (rc != 1 || s.loss_scale.scale == r->s.scale.scale);
    if (rc == 1 && replicas_check(&s, r->comm, false, &r->e) < 0)
        r->equal = false;
    state_finish(&s);
    ownership_finish(&own);
    program_destroy(p);
    d->ops->close(d);
    return rc;
}

static void *run(void *arg)
{
    struct rank *r = arg;
    r->rc = one_rank(r);
    return NULL;
}

static void settle_all(struct rank ranks[WORLD])
{
    struct comm *comms[WORLD];
    pthread_t threads[WORLD];
    struct err e;
    assert_int_equal(comm_local_open_threads(comms, WORLD, 20000, &e), 0);
    for (int i = 0; i < WORLD; i++) {
        ranks[i].comm = comms[i];
        ranks[i].value = i + 1;
        assert_int_equal(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < WORLD; i++) {
        pthread_join(threads[i], NULL);
        comms[i]->ops->close(comms[i]);
    }
}

static struct rank after(int64_t updates, int64_t epoch)
{
    return (struct rank){.has = true,
                         .s = {.at = {.updates = updates, .epoch = epoch, .epoch_loss = (double)updates},
                               .scale = {.scale = (double)(updates + epoch)},
                               .epoch_bad = (double)epoch}};
}

static void check_positions(const struct rank ranks[WORLD], int furthest)
{
    for (int i = 0; i < WORLD; i++) {
        assert_int_equal(ranks[i].rc, 1);
        assert_true(ranks[i].has);
        assert_int_equal(ranks[i].s.at.updates, ranks[furthest].s.at.updates);
        assert_int_equal(ranks[i].s.at.epoch, ranks[furthest].s.at.epoch);
        assert_true(ranks[i].s.at.epoch_loss == ranks[furthest].s.at.epoch_loss);
        assert_true(ranks[i].s.scale.scale == ranks[furthest].s.scale.scale);
    }
}

static void check_all_are(const struct rank ranks[WORLD], int furthest)
{
    check_positions(ranks, furthest);
    for (int i = 0; i < WORLD; i++)
        assert_true(ranks[i].equal && ranks[i].value == furthest + 1);
}

static void newcomers_and_those_behind_become_the_furthest(void **state)
{
    struct rank ranks[WORLD] = {after(5, 0), after(6, 0), {.has = false}};
    settle_all(ranks);
    check_all_are(ranks, 1);
    struct rank last[WORLD] = {{.has = false}, {.has = false}, after(1, 0)};
    settle_all(last);
    check_all_are(last, 2);
}

static void the_end_of_an_epoch_is_behind_the_beginning_of_the_next(void **state)
{
    struct rank ranks[WORLD] = {after(20, 0), {.has = false}, after(20, 1)};
    settle_all(ranks);
    check_positions(ranks, 2);
    assert_true(ranks[0].value == 1 && ranks[1].value == 1); /* the same step: nobody is overwritten */
}

static void a_hand_over_that_was_broken_off_counts_as_nothing(void **state)
{
    struct rank ranks[WORLD] = {{.has = false, .spoilt = true}, after(3, 0), after(3, 0)};
    settle_all(ranks);
    for (int i = 0; i < WORLD; i++)
        assert_int_equal(ranks[i].rc, 1);
    assert_true(ranks[0].has && ranks[0].value == 2);
    assert_true(ranks[1].value == 2 && ranks[2].value == 3); /* equal steps: nobody is overwritten */
}

static void where_nobody_has_the_state_it_comes_from_elsewhere(void **state)
{
    struct rank ranks[WORLD] = {{.has = false}, {.has = false, .spoilt = true}, {.has = false}};
    settle_all(ranks);
    for (int i = 0; i < WORLD; i++) {
        assert_int_equal(ranks[i].rc, 0);
        assert_true(!ranks[i].has && ranks[i].value == i + 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(newcomers_and_those_behind_become_the_furthest),
        cmocka_unit_test(the_end_of_an_epoch_is_behind_the_beginning_of_the_next),
        cmocka_unit_test(a_hand_over_that_was_broken_off_counts_as_nothing),
        cmocka_unit_test(where_nobody_has_the_state_it_comes_from_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
