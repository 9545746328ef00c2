/* Deadlines come out in the order they are due, whatever happened to them before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvousd/resp/request.h"
#include "rendezvousd/store/expiry.h"
#include "rendezvousd/store/keyspace.h"
#include <errno.h>
#include <string.h>

enum { THINGS = 200 };

static uint64_t rng = 7;

static size_t draw(size_t below)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(rng >> 33) % below;
}

static void the_first_is_always_the_soonest(void **state)
{
    struct expiry h = {0};
    struct deadline things[THINGS] = {0};
    (void)state;
    for (int i = 0; i < 20000; i++) {
        struct deadline *d = &things[draw(THINGS)];
        const size_t what = draw(4);
        if (what == 0)
            expiry_remove(&h, d);
        else if (what == 1 && expiry_first(&h)) /* as keys do whose time has come */
            expiry_remove(&h, expiry_first(&h));
        else
            assert_int_equal(expiry_set(&h, d, (int64_t)draw(1000)), 0);
        const struct deadline *soonest = NULL;
        for (int k = 0; k < THINGS; k++)
            if (things[k].place && (!soonest || things[k].at < soonest->at))
                soonest = &things[k];
        const struct deadline *first = expiry_first(&h);
        assert_int_equal(first != NULL, soonest != NULL);
        if (first)
            assert_int_equal(first->at, soonest->at);
    }
    expiry_free(&h);
}

struct heard {
    int created, deleted;
};

static void hear(void *arg, enum key_change what, const char *key, size_t key_len)
{
    struct heard *h = arg;
    (void)key;
    (void)key_len;
    h->created += what == KEY_CREATED;
    h->deleted += what == KEY_DELETED;
}

static void a_key_is_there_until_its_time_and_then_gone(void **state)
{
    struct keyspace *k;
    struct heard h = {0};
    size_t n;
    (void)state;
    assert_int_equal(keyspace_create(&k, 1 << 20), 0);
    keyspace_observe(k, hear, &h);
    keyspace_tick(k, 1000);
    assert_int_equal(keyspace_set(k, "a", 1, "v", 1, 1500), 0);
    assert_int_equal(keyspace_set(k, "b", 1, "v", 1, 1600), 0);
    assert_int_equal(keyspace_next_expiry(k), 1500);
    keyspace_tick(k, 1500);
    assert_non_null(keyspace_get(k, "a", 1, &n));
    keyspace_tick(k, 1501);
    assert_int_equal(keyspace_count(k), 2);
    assert_null(keyspace_get(k, "a", 1, &n)); /* asked for: gone */
    assert_int_equal(keyspace_count(k), 1);
    keyspace_tick(k, 1700);
    assert_int_equal(keyspace_expire_due(k, 10), 1); /* not asked for: gone as well */
    assert_int_equal(keyspace_count(k), 0);
    assert_int_equal(keyspace_next_expiry(k), INT64_MAX);
    assert_int_equal(h.created, 2);
    assert_int_equal(h.deleted, 2);
    assert_int_equal(keyspace_expire(k, "a", 1, 2000), -ENOENT);
    keyspace_destroy(k);
}

static void a_new_value_keeps_the_time_where_it_is_asked_to(void **state)
{
    struct keyspace *k;
    (void)state;
    assert_int_equal(keyspace_create(&k, 1 << 20), 0);
    keyspace_tick(k, 1000);
    assert_int_equal(keyspace_set(k, "b", 1, "v", 1, 1500), 0);
    assert_int_equal(keyspace_set(k, "b", 1, "x", 1, KEYSPACE_KEEP), 0);
    assert_int_equal(keyspace_expiry(k, "b", 1), 1500);
    assert_int_equal(keyspace_expiring(k), 1);
    assert_int_equal(keyspace_set(k, "b", 1, "y", 1, KEYSPACE_NEVER), 0);
    assert_int_equal(keyspace_expiry(k, "b", 1), KEYSPACE_NEVER);
    assert_int_equal(keyspace_expiry(k, "a", 1), -1);
    keyspace_clear(k);
    assert_int_equal(keyspace_bytes(k), 0);
    keyspace_destroy(k);
}

static void counters_and_texts_turn_into_each_other(void **state)
{
    struct keyspace *k;
    int64_t v;
    size_t n;
    (void)state;
    assert_int_equal(keyspace_create(&k, 1 << 20), 0);
    keyspace_set(k, "n", 1, "9", 1, KEYSPACE_NEVER);
    for (int i = 10; i < 1000; i++) {
        assert_int_equal(keyspace_add(k, "n", 1, 1, request_i64, &v), 0);
        assert_int_equal(v, i);
    }
    assert_memory_equal(keyspace_get(k, "n", 1, &n), "999", 3);
    assert_int_equal(n, 3);
    assert_int_equal(keyspace_add(k, "n", 1, -1000, request_i64, &v), 0);
    assert_int_equal(keyspace_append(k, "n", 1, "5", 1, &n), 0);
    assert_int_equal(keyspace_add(k, "n", 1, 0, request_i64, &v), 0);
    assert_int_equal(v, -15);
    keyspace_clear(k);
    assert_int_equal(keyspace_bytes(k), 0);
    keyspace_destroy(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_is_always_the_soonest),
        cmocka_unit_test(a_key_is_there_until_its_time_and_then_gone),
        cmocka_unit_test(a_new_value_keeps_the_time_where_it_is_asked_to),
        cmocka_unit_test(counters_and_texts_turn_into_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
