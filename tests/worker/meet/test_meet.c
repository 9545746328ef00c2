/* How the ranks of one start find each other: the agreed part of a store that holds what earlier starts left, and the
 * port that rank 0 tells. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/job/env_contract.h"
#include "common/store/store.h"
#include "worker/meet/meet.h"
#include "worker/meet/meet_impl.h"

enum { WORLD = 4, LONG_MS = 20000 };

struct rank {
    pthread_t thread;
    int rank, rc;
    char prefix[160];
    struct err e;
};

static void *agree(void *arg)
{
    struct rank *r = arg;
    struct store *s;
    r->rc = store_open(&s, "mem://meet", NULL, &r->e);
    if (r->rc == 0) {
        r->rc = meet_agree(s, "job", r->rank, WORLD, r->prefix, sizeof r->prefix, clock_deadline(LONG_MS), &r->e);
        store_close(s);
    }
    return NULL;
}

/* All ranks of a start, last first; the prefix they agreed on. */
static void start(char *prefix)
{
    struct rank r[WORLD] = {0};
    for (int i = WORLD; i-- > 0;) {
        r[i].rank = i;
        assert_int_equal(pthread_create(&r[i].thread, NULL, agree, &r[i]), 0);
    }
    for (int i = 0; i < WORLD; i++) {
        pthread_join(r[i].thread, NULL);
        if (r[i].rc < 0)
            fail_msg("rank %d: %s", i, r[i].e.text);
        assert_string_equal(r[i].prefix, r[0].prefix);
    }
    memcpy(prefix, r[0].prefix, sizeof r[0].prefix);
}

static void each_start_has_a_part_of_its_own_that_all_ranks_know(void **state)
{
    char first[160], second[160];
    struct store *keeper;
    (void)state;
    assert_int_equal(store_open(&keeper, "mem://meet", NULL, NULL), 0);
    start(first);
    start(second);
    assert_string_not_equal(first, second);
    store_close(keeper);
}

/* What is left of ranks that died at every step of an earlier start. */
static void the_dead_of_an_earlier_start_do_not_count(void **state)
{
    char prefix[160];
    struct store *s;
    int64_t n;
    (void)state;
    assert_int_equal(store_open(&s, "mem://meet", NULL, NULL), 0);
    store_add(s, "/crun/job/log/length", 1, &n, LONG_MS, NULL); /* died before it wrote its entry */
    store_add(s, "/crun/job/log/length", 1, &n, LONG_MS, NULL);
    store_set(s, "/crun/job/log/2", "hello 00112233445566778899aabbccddeeff", 38, LONG_MS, NULL);
    store_add(s, "/crun/job/log/length", 1, &n, LONG_MS, NULL);
    store_set(s, "/crun/job/log/3", "got ffeeddccbbaa99887766554433221100", 36, LONG_MS, NULL);
    start(prefix);
    store_close(s);
}

/* Returns when all ranks have come here. */
static int all_meet(struct store *s, struct err *e)
{
    const char *all = "all/came";
    int64_t came;
    TRY(store_add(s, "all", 1, &came, LONG_MS, e));
    return came == WORLD ? store_set(s, all, "", 0, LONG_MS, e) : store_wait(s, &all, 1, LONG_MS, e);
}

/* Ranks as threads share a process, and so a parent, as those of one mpirun do. */
static void *meet(void *arg)
{
    struct rank *r = arg;
    struct meet m;
    const struct env_contract env = {
        .rank = r->rank, .world_size = WORLD, .local_rank = r->rank, .local_world_size = WORLD};
    r->rc = meet_open(&m, &env, LONG_MS, &r->e);
    if (r->rc == 0) {
        r->rc = all_meet(m.store, &r->e);
        meet_close(&m, LONG_MS);
    }
    return NULL;
}

static void ranks_on_one_host_find_rank_0_without_being_told(void **state)
{
    struct rank r[WORLD] = {0};
    (void)state;
    for (int i = WORLD; i-- > 0;) {
        r[i].rank = i;
        assert_int_equal(pthread_create(&r[i].thread, NULL, meet, &r[i]), 0);
    }
    for (int i = 0; i < WORLD; i++) {
        pthread_join(r[i].thread, NULL);
        if (r[i].rc < 0)
            fail_msg("rank %d: %s", i, r[i].e.text);
    }
}

static void without_rank_0_the_deadline_is_kept(void **state)
{
    struct meet m;
    struct err e;
    const struct env_contract env = {.rank = 1, .world_size = 2, .local_rank = 1, .local_world_size = 2};
    (void)state;
    assert_int_equal(meet_open(&m, &env, 100, &e), -ETIMEDOUT);
    assert_non_null(strstr(e.text, "MASTER_ADDR"));
}

static void a_slurm_step_has_a_place(void **state)
{
    char host[64];
    int port, other;
    (void)state;
    setenv("SLURM_JOB_ID", "12", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_NODELIST", "gpu[007-012,020],spare", 1);
    assert_true(meet_slurm(host, sizeof host, &port));
    assert_string_equal(host, "gpu007");
    setenv("SLURM_STEP_ID", "1", 1);
    setenv("SLURM_STEP_NODELIST", "node-a.site,node-b.site", 1);
    assert_true(meet_slurm(host, sizeof host, &other));
    assert_string_equal(host, "node-a.site");
    assert_true(port >= 29400 && port < 32400 && other != port);
    setenv("SLURM_STEP_NODELIST", "gpu[", 1);
    assert_false(meet_slurm(host, sizeof host, &port));
    unsetenv("SLURM_JOB_ID");
    assert_false(meet_slurm(host, sizeof host, &port));
}

int main(void)
{
    static const char *const foreign[] = {"PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_start_has_a_part_of_its_own_that_all_ranks_know),
        cmocka_unit_test(the_dead_of_an_earlier_start_do_not_count),
        cmocka_unit_test(ranks_on_one_host_find_rank_0_without_being_told),
        cmocka_unit_test(without_rank_0_the_deadline_is_kept),
        cmocka_unit_test(a_slurm_step_has_a_place),
    };
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        unsetenv(foreign[i]);
    char space[32]; /* not to meet another run of this test under the same parent */
    snprintf(space, sizeof space, "test-%d", (int)getpid());
    setenv("PMIX_NAMESPACE", space, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
