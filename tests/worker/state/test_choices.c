/* What a device chose goes into a checkpoint and comes back to every rank, or is said to be lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "tests/worker/scratch/scratch.h"
#include "worker/ckpt/ckpt.h"
#include "worker/comm/comm.h"
#include "worker/device/device.h"
#include "worker/state/choices.h"

struct chooser {
    struct device base;
    char taken[128];
    int rc; /* of choose() */
};

static int choices(struct device *d, char **ret, struct err *e)
{
    (void)d;
    (void)e;
    *ret = strdup("[{\"graph\":\"conv\",\"choice\":34}]");
    return 0;
}

static int choose(struct device *d, const char *json, struct err *e)
{
    struct chooser *c = (struct chooser *)d;
    snprintf(c->taken, sizeof c->taken, "%s", json);
    return c->rc < 0 ? err_set(e, c->rc, "no engine 34 here") : 0;
}

static const struct device_ops timing = {.choices = choices, .choose = choose};
static const struct device_ops ruled = {.name = "by rule"};

static void save(const char *dir, struct device *d)
{
    static const float one = 1;
    struct ckpt_tensor t = {.name = "w", .dtype = DT_F32, .ndim = 1, .shape = {1}, .data = &one};
    struct err e = {0};
    cJSON *meta = cJSON_CreateObject();
    assert_int_equal(0, choices_add(d, meta, &e));
    if (ckpt_save(dir, 7, &t, 1, NULL, 0, meta, 1, &e) < 0)
        fail_msg("%s", e.text);
    cJSON_Delete(meta);
}

struct rank {
    struct comm *comm;
    struct chooser c;
    const char *dir; /* NULL: rank 0 tells what it chose, or that planning failed with `planned` */
    int rc, planned;
};

static void *take_up(void *arg)
{
    struct rank *r = arg;
    r->rc = r->dir ? choices_take_up(&r->c.base, r->comm, r->dir, NULL)
                   : choices_share(&r->c.base, r->comm, 0, r->planned, NULL);
    return NULL;
}

static void two_ranks_of(struct rank r[2], const char *dir, int rc, int planned)
{
    struct comm *comms[2];
    pthread_t t[2];
    assert_int_equal(0, comm_local_open_threads(comms, 2, 10000, NULL));
    for (int i = 0; i < 2; i++) {
        r[i] = (struct rank){.comm = comms[i],
                             .c = {.base = {.ops = &timing}, .rc = rc},
                             .dir = i && dir ? "/nowhere" : dir,
                             .planned = i ? 0 : planned};
        assert_int_equal(0, pthread_create(&t[i], NULL, take_up, &r[i]));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < 2; i++)
        comms[i]->ops->close(comms[i]);
}

static void two_ranks(struct rank r[2], const char *dir, int rc)
{
    two_ranks_of(r, dir, rc, 0);
}

static const char *folder; /* scratch, of all cases */

static int set_up(void **state)
{
    int rc = scratch_make(state);
    folder = *state;
    return rc;
}

static void nothing_stored_is_nothing_taken(void **state)
{
    struct rank r[2];
    (void)state;
    two_ranks(r, folder, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(0, r[i].rc);
        assert_string_equal("", r[i].c.taken);
    }
}

static void every_rank_takes_up_what_rank_0_can_see(void **state)
{
    struct chooser d = {.base = {.ops = &timing}};
    struct rank r[2];
    (void)state;
    save(folder, &d.base);
    two_ranks(r, folder, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(0, r[i].rc);
        assert_string_equal("[{\"graph\":\"conv\",\"choice\":34}]", r[i].c.taken);
    }
}

static void a_choice_that_cannot_be_had_is_no_error(void **state)
{
    struct rank r[2];
    (void)state;
    two_ranks(r, folder, -ENOTSUP);
    assert_int_equal(0, r[0].rc);
    assert_int_equal(0, r[1].rc);
}

static void the_others_take_up_what_rank_0_chose(void **state)
{
    struct rank r[2];
    (void)state;
    two_ranks(r, NULL, 0);
    assert_int_equal(0, r[0].rc);
    assert_int_equal(0, r[1].rc);
    assert_string_equal("", r[0].c.taken); /* it has it */
    assert_string_equal("[{\"graph\":\"conv\",\"choice\":34}]", r[1].c.taken);
}

static void where_rank_0_cannot_plan_nobody_waits(void **state)
{
    struct rank r[2];
    (void)state;
    two_ranks_of(r, NULL, 0, -ENOMEM);
    assert_int_equal(-ENOMEM, r[0].rc);
    assert_int_equal(-ECANCELED, r[1].rc);
    assert_string_equal("", r[1].c.taken);
}

static void devices_that_choose_by_rule_keep_nothing(void **state)
{
    struct device d = {.ops = &ruled};
    struct comm *comm;
    cJSON *meta = cJSON_CreateObject();
    (void)state;
    assert_int_equal(0, comm_local_open_threads(&comm, 1, 10000, NULL));
    assert_int_equal(0, choices_add(&d, meta, NULL));
    assert_null(meta->child);
    assert_int_equal(0, choices_take_up(&d, comm, folder, NULL));
    cJSON_Delete(meta);
    comm->ops->close(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_stored_is_nothing_taken),
        cmocka_unit_test(every_rank_takes_up_what_rank_0_can_see),
        cmocka_unit_test(a_choice_that_cannot_be_had_is_no_error),
        cmocka_unit_test(the_others_take_up_what_rank_0_chose),
        cmocka_unit_test(where_rank_0_cannot_plan_nobody_waits),
        cmocka_unit_test(devices_that_choose_by_rule_keep_nothing),
    };
    return cmocka_run_group_tests_name("choices", tests, set_up, scratch_drop);
}
