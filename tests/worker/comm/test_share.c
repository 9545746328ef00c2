/* What one rank loads reaches all, and so does its failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/comm/comm.h"

enum { WORLD = 3, ROOT = 1 };

struct rank {
    struct comm *comm;
    const char *has; /* what root has loaded */
    int root_rc, rc;
    bool only_status;
    char *text;
    struct err e;
};

static void *share(void *arg)
{
    struct rank *r = arg;
    int rc = 0;
    if (r->comm->rank == ROOT) {
        r->text = r->has ? strdup(r->has) : NULL;
        rc = r->root_rc < 0 ? err_set(&r->e, r->root_rc, "it is not there") : 0;
    }
    r->rc = comm_share(r->comm, ROOT, rc, "the plans", r->only_status ? NULL : &r->text, &r->e);
    return NULL;
}

static void all_ranks(struct rank ranks[WORLD], struct rank with)
{
    struct comm *comms[WORLD];
    pthread_t threads[WORLD];
    assert_int_equal(0, comm_local_open_threads(comms, WORLD, 20000, NULL));
    for (int i = 0; i < WORLD; i++) {
        ranks[i] = with;
        ranks[i].comm = comms[i];
        assert_int_equal(0, pthread_create(&threads[i], NULL, share, &ranks[i]));
    }
    for (int i = 0; i < WORLD; i++) {
        pthread_join(threads[i], NULL);
        comms[i]->ops->close(comms[i]);
    }
}

static void every_rank_has_the_text_of_root(void **state)
{
    static const char *const texts[] = {"{\"step\": 7}", ""};
    struct rank ranks[WORLD];
    for (int k = 0; k < 2; k++) {
        all_ranks(ranks, (struct rank){.has = texts[k]});
        for (int i = 0; i < WORLD; i++) {
            assert_int_equal(0, ranks[i].rc);
            assert_string_equal(texts[k], ranks[i].text);
            free(ranks[i].text);
        }
    }
    (void)state;
}

static void every_rank_hears_that_root_failed(void **state)
{
    struct rank ranks[WORLD];
    for (int only_status = 0; only_status < 2; only_status++) {
        all_ranks(ranks, (struct rank){.root_rc = -ENOENT, .only_status = only_status});
        for (int i = 0; i < WORLD; i++) {
            assert_int_equal(i == ROOT ? -ENOENT : -ECANCELED, ranks[i].rc);
            assert_string_equal(i == ROOT ? "it is not there" : "rank 1 could not load the plans", ranks[i].e.text);
            assert_null(ranks[i].text);
        }
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_has_the_text_of_root),
        cmocka_unit_test(every_rank_hears_that_root_failed),
    };
    return cmocka_run_group_tests_name("sharing", tests, NULL, NULL);
}
