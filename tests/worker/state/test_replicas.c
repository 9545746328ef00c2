/* Equal replicas pass, a single flipped bit on one rank is found on every rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
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
    struct model_options o = {.arch = "convnet", .classes = 3, .channels = 1, .image_size = 28, .std = {1, 1, 1, 1}};
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

static void a_flipped_bit_is_found_on_every_rank(void **state)
{
    (void)state;
    static const char *const names[] = {"", "parameters of rank 2", "momentum of rank 2",
                                        "running statistics of rank 2"};
    for (int flip = 1; flip <= 3; flip++) {
        struct rank ranks[WORLD];
        check(2, flip, ranks);
        for (int i = 0; i < WORLD; i++) {
            assert_int_equal(ranks[i].rc, ERR_MISMATCH);
            assert_non_null(strstr(ranks[i].e.text, names[flip]));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_replicas_pass),
        cmocka_unit_test(a_flipped_bit_is_found_on_every_rank),
    };
    return cmocka_run_group_tests_name("replicas", tests, NULL, NULL);
}
