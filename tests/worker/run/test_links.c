/* Who tries whose link, and when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"
#include "worker/run/links.h"

enum { WORLD_MAX = 9 };

static void each_turn_is_of_pairs_and_all_turns_are_of_all_pairs(void **state)
{
    (void)state;
    for (int world = 2; world <= WORLD_MAX; world++) {
        int met[WORLD_MAX][WORLD_MAX] = {{0}};
        for (int turn = 0; turn < world; turn++)
            for (int r = 0; r < world; r++) {
                const int peer = links_peer(r, world, turn);
                assert_in_range(peer, 0, world - 1);
                assert_int_equal(links_peer(peer, world, turn), r);
                met[r][peer]++;
            }
        for (int r = 0; r < world; r++)
            for (int p = 0; p < world; p++)
                if (r != p)
                    assert_true(met[r][p] >= 1);
    }
}

struct rank {
    struct comm *comm;
    int rc;
    struct err e;
};

static void *try_links(void *arg)
{
    struct rank *r = arg;
    r->rc = links_try(r->comm, &r->e);
    return NULL;
}

static void all_ranks_come_to_the_end_of_it(void **state)
{
    (void)state;
    for (int world = 2; world <= WORLD_MAX; world++) {
        struct comm *comms[WORLD_MAX];
        struct rank ranks[WORLD_MAX];
        pthread_t threads[WORLD_MAX];
        struct err e;
        assert_int_equal(comm_local_open_threads(comms, world, 20000, &e), 0);
        for (int i = 0; i < world; i++) {
            ranks[i] = (struct rank){.comm = comms[i]};
            assert_int_equal(pthread_create(&threads[i], NULL, try_links, &ranks[i]), 0);
        }
        for (int i = 0; i < world; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(ranks[i].rc, 0);
        }
        for (int i = 0; i < world; i++)
            comms[i]->ops->close(comms[i]);
    }
}

static void a_wait_counts_that_is_a_fifth_of_the_step_and_more_than_usual(void **state)
{
    (void)state;
    struct links l = {0};
    for (int i = 0; i < LINKS_KNOWN; i++) {
        assert_true(links_wait(&l, 30, 100)); /* what is usual is not known yet */
        assert_false(links_wait(&(struct links){0}, 19, 100));
    }
    for (int i = 0; i < 4 * LINKS_KNOWN; i++)
        assert_false(links_wait(&l, 30, 100)); /* it always was so */
    assert_true(links_wait(&l, 300, 400));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_turn_is_of_pairs_and_all_turns_are_of_all_pairs),
        cmocka_unit_test(all_ranks_come_to_the_end_of_it),
        cmocka_unit_test(a_wait_counts_that_is_a_fifth_of_the_step_and_more_than_usual),
    };
    return cmocka_run_group_tests_name("links", tests, NULL, NULL);
}
