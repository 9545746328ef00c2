/* Equal replicas pass, a single flipped bit on one rank is found on every rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/parallel/ownership.h"
#include "worker/program/program.h"
#include "worker/state/replicas.h"
#include "worker/state/state.h"

enum { WORLD = 3 };

struct rank {
    struct comm *comm;
    int flip; /* which arena gets a flipped bit: 0 none, 1 params, 2 momentum, 3 stats */
    int rc;
    struct err e;
};

static int one_rank(struct rank *r)
{
    struct device *d;
    struct program *p;
    struct state s;
    struct layout l;
    struct ownership own;
    struct model_options o = {.arch = "convnet", .classes = 3, .input = input_pictures(1, 28, 28, NULL, NULL)};
    struct device_options threads = {.threads = 1};
    TRY(device_open(&d, "ref", &threads, &r->e));
    TRY(model_build(&p, &o, &r->e));
    TRY(layout_plan(&l, WORLD, 1, 1, 0, &r->e));
    TRY(ownership_init(&own, &l, r->comm->rank, p, &(struct ownership_options){.elem_bytes = sizeof(double)}, &r->e));
    TRY(state_init(&s, d, p, &own, &(struct state_options){.seed = 1}, &r->e));
    void *const arenas[] = {NULL, s.params, s.momentum, s.stats};
    if (r->flip)
        *(unsigned char *)arenas[r->flip] ^= 1; /* ref's memory is the host's */
    int rc = replicas_check(&s, r->comm, false, &r->e);
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

static void check(int flipped_rank, int flip, struct rank ranks[WORLD])
{
    struct comm *comms[WORLD];
    pthread_t threads[WORLD];
    struct err e;
    assert_int_equal(comm_local_open_threads(comms, WORLD, 20000, &e), 0);
    for (int i = 0; i < WORLD; i++) {
        ranks[i] = (struct rank){.comm = comms[i], .flip = i == flipped_rank ? flip : 0};
        assert_int_equal(pthread_create(&threads[i], NULL, run, &ranks[i]), 0);
    }
    for (int i = 0; i < WORLD; i++) {
        pthread_join(threads[i], NULL);
        comms[i]->ops->close(comms[i]);
    }
}

static void equal_replicas_pass(void **state)
{
    (void)state;
    struct rank ranks[WORLD];
    check(0, 0, ranks);
    for (int i = 0; i < WORLD; i++)
        assert_int_equal(ranks[i].rc, 0);
}

static void a_flipped_bit_is_found_on_every_rank_and_its_rank_is_named(void **state)
{
    (void)state;
    static const char *const arenas[] = {"", "parameters", "momentum", "running statistics"};
    for (int flip = 1; flip <= 3; flip++)
        for (int at = 0; at < WORLD; at++) {
            struct rank ranks[WORLD];
            char expected[80];
            check(at, flip, ranks);
            snprintf(expected, sizeof expected, "%s of rank %d are not those of", arenas[flip], at);
            for (int i = 0; i < WORLD; i++) {
                assert_int_equal(ranks[i].rc, ERR_MISMATCH);
                assert_non_null(strstr(ranks[i].e.text, expected));
            }
        }
}

/* What the parameters' hashes of `world` ranks, one group, are said to be. */
static const char *verdict(int world, const uint32_t *hashes, struct err *e)
{
    struct replicas_hashes all[5] = {0};
    struct layout l;
    assert_int_equal(layout_plan(&l, world, 1, 1, 0, e), 0);
    for (int r = 0; r < world; r++)
        all[r].of[REPLICAS_PARAMS][0] = hashes[r];
    return replicas_compare(&l, all, e) == 0 ? "equal" : strstr(e->text, "parameters");
}

static void whoever_is_unlike_most_is_named(void **state)
{
    (void)state;
    static const struct {
        int world;
        uint32_t hashes[5];
        const char *says;
    } rows[] = {
        {3, {7, 7, 7}, "equal"},
        {3, {1, 7, 7}, "parameters of rank 0 are not those of rank 1"},
        {3, {7, 7, 1}, "parameters of rank 2 are not those of rank 0"},
        {5, {1, 7, 2, 7, 7}, "parameters of rank 0 are not those of rank 1"},
        {2, {1, 7}, "parameters of rank 1 are not those of rank 0"}, /* nobody is unlike most */
        {4, {1, 1, 7, 7}, "parameters of rank 2 are not those of rank 0"},
        {3, {1, 2, 3}, "parameters of rank 1 are not those of rank 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err e;
        assert_string_equal(verdict(rows[i].world, rows[i].hashes, &e), rows[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_replicas_pass),
        cmocka_unit_test(a_flipped_bit_is_found_on_every_rank_and_its_rank_is_named),
        cmocka_unit_test(whoever_is_unlike_most_is_named),
    };
    return cmocka_run_group_tests_name("replicas", tests, NULL, NULL);
}
