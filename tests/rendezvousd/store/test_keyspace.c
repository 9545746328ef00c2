/* Keys, waiters and patterns without a server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvousd/resp/request.h"
#include "rendezvousd/store/glob.h"
#include "rendezvousd/store/keyspace.h"
#include "rendezvousd/store/waiters.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void keys_and_values_are_binary(void **state)
{
    struct keyspace *k;
    size_t n;
    (void)state;
    assert_int_equal(keyspace_create(&k, 1 << 20), 0);
    assert_int_equal(keyspace_set(k, "a\0b", 3, "x\0y", 3, KEYSPACE_NEVER), 0);
    assert_null(keyspace_get(k, "a\0c", 3, &n));
    assert_null(keyspace_get(k, "a", 1, &n));
    assert_memory_equal(keyspace_get(k, "a\0b", 3, &n), "x\0y", 3);
    assert_int_equal(n, 3);
    assert_int_equal(keyspace_set(k, "", 0, "", 0, KEYSPACE_NEVER), 0);
    assert_non_null(keyspace_get(k, "", 0, &n));
    assert_int_equal(n, 0);
    assert_int_equal(keyspace_count(k), 2);
    assert_true(keyspace_delete(k, "a\0b", 3));
    assert_false(keyspace_delete(k, "a\0b", 3));
    keyspace_clear(k);
    assert_int_equal(keyspace_bytes(k), 0);
    keyspace_destroy(k);
}

static void counters_do_not_overflow(void **state)
{
    struct keyspace *k;
    int64_t v = 0;
    (void)state;
    assert_int_equal(keyspace_create(&k, 1 << 20), 0);
    assert_int_equal(keyspace_add(k, "n", 1, INT64_MAX, request_i64, &v), 0);
    assert_int_equal(keyspace_add(k, "n", 1, 1, request_i64, &v), -ERANGE);
    assert_int_equal(keyspace_add(k, "m", 1, INT64_MIN, request_i64, &v), 0);
    assert_int_equal(keyspace_add(k, "m", 1, -1, request_i64, &v), -ERANGE);
    keyspace_set(k, "t", 1, "1.5", 3, KEYSPACE_NEVER);
    assert_int_equal(keyspace_add(k, "t", 1, 1, request_i64, &v), -EINVAL);
    keyspace_destroy(k);
}

static void the_memory_limit_holds_and_memory_comes_back(void **state)
{
    struct keyspace *k;
    char value[1000] = {0};
    char key[8];
    size_t len;
    int rc = 0, stored = 0;
    (void)state;
    assert_int_equal(keyspace_create(&k, 10000), 0);
    for (int i = 0; i < 100 && rc == 0; i++) {
        memset(key, 'a' + i, 1);
        rc = keyspace_set(k, key, 1, value, sizeof value, KEYSPACE_NEVER);
        stored += rc == 0;
    }
    assert_int_equal(rc, -ENOSPC);
    assert_in_range(stored, 8, 9);
    assert_true(keyspace_bytes(k) <= 10000);
    while (keyspace_append(k, "a", 1, value, 100, &len) == 0)
        assert_true(keyspace_bytes(k) <= 10000);
    assert_non_null(keyspace_get(k, "a", 1, &len));
    assert_int_equal(keyspace_set(k, "a", 1, "", 0, KEYSPACE_NEVER), 0); /* shrinking is always possible */
    keyspace_clear(k);
    assert_int_equal(keyspace_bytes(k), 0);
    keyspace_destroy(k);
}

static void count(void *arg)
{
    ++*(int *)arg;
}

struct fixture {
    struct keyspace *k;
    struct waiters *w;
};

static struct fixture set_up(void)
{
    struct fixture f;
    assert_int_equal(keyspace_create(&f.k, 1 << 20), 0);
    assert_int_equal(waiters_create(&f.w, f.k, NULL), 0);
    return f;
}

/* Wait for n keys, one of which is missing. */
static int add_waiter(struct waiters *w, const struct request_arg *keys, size_t n, int *done, struct waiter **ret)
{
    const int rc = waiters_begin(w, keys, n, count, done, ret);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n; i++)
        assert_int_equal(waiters_name(*ret, &keys[i]), 0);
    assert_false(waiters_settle(*ret));
    return 0;
}

static void create(struct fixture *f, const char *key)
{
    const bool there = keyspace_type(f->k, key, strlen(key)) != KEY_NONE;
    assert_int_equal(keyspace_set(f->k, key, strlen(key), "", 0, KEYSPACE_NEVER), 0);
    if (!there)
        waiters_created(f->w, key, strlen(key));
}

static void remove_key(struct fixture *f, const char *key)
{
    if (keyspace_delete(f->k, key, strlen(key)))
        waiters_deleted(f->w, key, strlen(key));
}

static void a_waiter_is_done_once_when_all_its_keys_exist_together(void **state)
{
    struct fixture f = set_up();
    const struct request_arg keys[] = {{.p = "a", .n = 1}, {.p = "b", .n = 1}, {.p = "a", .n = 1}};
    struct waiter *one;
    int done = 0;
    (void)state;
    assert_int_equal(add_waiter(f.w, keys, 3, &done, &one), 0);
    create(&f, "a");
    assert_int_equal(done, 0);
    remove_key(&f, "a");
    create(&f, "b");
    assert_int_equal(done, 0); /* both were there, but never together */
    create(&f, "a");
    assert_int_equal(done, 1);
    remove_key(&f, "a");
    create(&f, "a");
    assert_int_equal(done, 1);
    assert_int_equal(waiters_count(f.w), 0);
    keyspace_clear(f.k);
    assert_int_equal(keyspace_bytes(f.k), 0); /* nothing of the waiter is left */
    waiters_destroy(f.w);
    keyspace_destroy(f.k);
}

static void one_key_wakes_all_its_waiters_and_no_other(void **state)
{
    struct fixture f = set_up();
    const struct request_arg a = {.p = "a", .n = 1}, b = {.p = "b", .n = 1};
    struct waiter *w[100], *other;
    int done = 0, other_done = 0;
    (void)state;
    for (int i = 0; i < 100; i++)
        assert_int_equal(add_waiter(f.w, &a, 1, &done, &w[i]), 0);
    assert_int_equal(add_waiter(f.w, &b, 1, &other_done, &other), 0);
    waiters_remove(f.w, w[50]);
    create(&f, "a");
    assert_int_equal(done, 99);
    assert_int_equal(other_done, 0);
    waiters_destroy(f.w); /* with one left */
    assert_int_equal(other_done, 0);
    keyspace_destroy(f.k);
}

static void one_item_is_for_one_who_misses_nothing_else(void **state)
{
    struct fixture f = set_up();
    const struct request_arg both[] = {{.p = "q", .n = 1}, {.p = "go", .n = 2}};
    struct waiter *w[3];
    int both_done = 0, first = 0, second = 0;
    (void)state;
    assert_int_equal(add_waiter(f.w, both, 2, &both_done, &w[0]), 0);
    assert_int_equal(add_waiter(f.w, both, 1, &first, &w[1]), 0);
    assert_int_equal(add_waiter(f.w, both, 1, &second, &w[2]), 0);
    waiters_created_one(f.w, "q", 1);
    assert_true(both_done == 0 && first == 1 && second == 0);
    create(&f, "go"); /* the item is still there */
    assert_true(both_done == 1 && second == 0);
    waiters_deleted(f.w, "q", 1);
    waiters_created_one(f.w, "q", 1); /* the next one */
    assert_int_equal(second, 1);
    assert_int_equal(waiters_count(f.w), 0);
    waiters_destroy(f.w);
    keyspace_destroy(f.k);
}

static void waiters_count_against_the_memory_limit(void **state)
{
    struct keyspace *k;
    struct waiters *w;
    struct waiter *one;
    struct request_arg keys[100];
    int done = 0;
    (void)state;
    for (int i = 0; i < 100; i++)
        keys[i] = (struct request_arg){.p = &"abcdefgh"[i % 8], .n = 1};
    assert_int_equal(keyspace_create(&k, 6000), 0);
    assert_int_equal(waiters_create(&w, k, NULL), 0);
    assert_int_equal(add_waiter(w, keys, 100, &done, &one), -ENOSPC);
    assert_int_equal(add_waiter(w, keys, 8, &done, &one), 0);
    waiters_remove(w, one);
    assert_int_equal(keyspace_bytes(k), 0);
    waiters_destroy(w);
    keyspace_destroy(k);
}

static void a_clear_is_missed_by_those_who_wait_for_more(void **state)
{
    struct fixture f = set_up();
    const struct request_arg keys[] = {{.p = "a", .n = 1}, {.p = "b", .n = 1}};
    struct waiter *one;
    int done = 0;
    (void)state;
    assert_int_equal(add_waiter(f.w, keys, 2, &done, &one), 0);
    create(&f, "a");
    keyspace_clear(f.k);
    waiters_cleared(f.w);
    create(&f, "b");
    assert_int_equal(done, 0); /* never both */
    create(&f, "a");
    assert_int_equal(done, 1);
    waiters_destroy(f.w);
    keyspace_destroy(f.k);
}

static void a_waiter_of_many_names_comes_and_goes_piece_by_piece(void **state)
{
    enum { NAMES = 1000, AT_ONCE = 100 };
    struct keyspace_total total = {.max_bytes = 1 << 20};
    struct waiter *remains = NULL, *one, *other;
    struct fixture f;
    char names[NAMES][8];
    int done = 0, pieces = 1;
    (void)state;
    assert_int_equal(keyspace_create(&f.k, 1 << 20), 0);
    keyspace_share(f.k, &total);
    assert_int_equal(waiters_create(&f.w, f.k, &remains), 0);
    struct request_arg keys[2 * NAMES];
    for (int i = 0; i < 2 * NAMES; i++) /* each twice */
        keys[i] =
            (struct request_arg){.p = names[i / 2], .n = (size_t)snprintf(names[i / 2], sizeof names[0], "%d", i / 2)};
    assert_int_equal(waiters_begin(f.w, keys, 2 * NAMES, count, &done, &one), 0);
    const size_t taken = total.bytes;
    for (int i = 0; i < 2 * NAMES; i++) {
        assert_int_equal(waiters_name(one, &keys[i]), 0);
        if (i % 2)
            create(&f, names[i / 2]); /* what comes before the last is named */
    }
    remove_key(&f, "500");
    assert_false(waiters_settle(one)); /* only that one is missing */
    assert_int_equal(done, 0);
    create(&f, "500");
    assert_int_equal(done, 1);
    assert_int_equal(waiters_count(f.w), 0);
    assert_int_equal(add_waiter(f.w, &(struct request_arg){.p = "x", .n = 1}, 1, &done, &other), 0);
    create(&f, "x"); /* another one, while the first is swept up */
    assert_int_equal(done, 2);
    keyspace_clear(f.k);
    waiters_cleared(f.w);
    waiters_destroy(f.w);
    keyspace_destroy(f.k);
    assert_true(total.bytes > 0 && total.bytes < taken + 100000);
    while (!waiters_sweep(&remains, AT_ONCE))
        pieces++;
    keyspace_sweep(&total, SIZE_MAX);
    assert_in_range(pieces, NAMES / AT_ONCE, NAMES / AT_ONCE + 1); /* a name that came twice is waited for once */
    assert_int_equal(total.bytes, 0);
}

/* --- queues */

static void push(struct keyspace *k, const char *key, int v)
{
    assert_int_equal(keyspace_push(k, key, strlen(key), &v, sizeof v), 0);
}

static int pop(struct keyspace *k, const char *key)
{
    int v = -1;
    struct item *it = keyspace_pop(k, key, strlen(key));
    if (it)
        memcpy(&v, it->p, sizeof v);
    free(it);
    return v;
}

static void a_queue_gives_first_what_came_first_and_is_gone_when_empty(void **state)
{
    struct keyspace *k;
    size_t n = 9;
    (void)state;
    assert_int_equal(keyspace_create(&k, 1 << 20), 0);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 100; i++)
            push(k, "q", i);
        assert_int_equal(keyspace_queue_length(k, "q", 1, &n), 0);
        assert_int_equal(n, 100);
        assert_int_equal(keyspace_queues(k), 1);
        for (int i = 0; i < 100; i++)
            assert_int_equal(pop(k, "q"), i);
        assert_int_equal(pop(k, "q"), -1);
        assert_int_equal(keyspace_type(k, "q", 1), KEY_NONE);
        assert_int_equal(keyspace_queues(k), 0);
        assert_int_equal(keyspace_bytes(k), 0);
    }
    keyspace_destroy(k);
}

static void a_key_holds_a_queue_or_a_string(void **state)
{
    struct keyspace *k;
    size_t n;
    int64_t v;
    (void)state;
    assert_int_equal(keyspace_create(&k, 1 << 20), 0);
    push(k, "q", 1);
    assert_int_equal(keyspace_append(k, "q", 1, "x", 1, &n), -EPROTOTYPE);
    assert_int_equal(keyspace_add(k, "q", 1, 1, request_i64, &v), -EPROTOTYPE);
    assert_null(keyspace_get(k, "q", 1, &n));
    assert_int_equal(keyspace_set(k, "q", 1, "x", 1, KEYSPACE_NEVER), 0); /* whatever it held */
    assert_memory_equal(keyspace_get(k, "q", 1, &n), "x", 1);
    assert_int_equal(keyspace_push(k, "q", 1, "x", 1), -EPROTOTYPE);
    assert_int_equal(keyspace_queue_length(k, "q", 1, &n), -EPROTOTYPE);
    assert_null(keyspace_pop(k, "q", 1));
    assert_int_equal(keyspace_count(k), 1);
    keyspace_destroy(k);
}

/* --- what is freed later */

static void what_was_cleared_is_swept_up_piece_by_piece(void **state)
{
    enum { KEYS = 5000, ITEMS = 1000, AT_ONCE = 100 };
    struct keyspace_total t = {.max_bytes = 1 << 24};
    struct keyspace *k, *other;
    char key[16];
    int pieces = 0;
    (void)state;
    assert_int_equal(keyspace_create(&k, 1 << 24), 0);
    assert_int_equal(keyspace_create(&other, 1 << 24), 0);
    keyspace_share(k, &t);
    keyspace_share(other, &t);
    for (int i = 0; i < KEYS; i++) {
        snprintf(key, sizeof key, "%d", i);
        assert_int_equal(keyspace_set(k, key, strlen(key), "v", 1, i % 2 ? 1000 + i : KEYSPACE_NEVER), 0);
    }
    for (int i = 0; i < ITEMS; i++) {
        push(k, "q", i);
        push(other, "q", i);
    }
    const size_t before = t.bytes;
    keyspace_clear(k);
    assert_int_equal(keyspace_count(k) + keyspace_expiring(k), 0);
    assert_int_equal(keyspace_bytes(k), 0);
    assert_int_equal(t.bytes, before); /* still taken */
    assert_true(keyspace_delete(other, "q", 1));
    push(k, "q", 7); /* at home again at once */
    while (!keyspace_sweep(&t, AT_ONCE))
        pieces++;
    assert_in_range(pieces, (KEYS + 2 * ITEMS) / AT_ONCE - 2, (KEYS + 2 * ITEMS) / AT_ONCE + 2);
    assert_int_equal(t.bytes, keyspace_bytes(k));
    assert_int_equal(pop(k, "q"), 7);
    assert_int_equal(t.bytes, 0);
    keyspace_destroy(k);
    keyspace_destroy(other);
    assert_true(keyspace_sweep(&t, 1));
}

static void mark(void *arg, enum key_type type, const char *key, size_t key_len)
{
    unsigned char *seen = arg;
    char text[16] = {0};
    (void)type;
    memcpy(text, key, key_len);
    seen[atoi(text)]++;
}

static void a_walk_sees_what_stays_once_while_keys_come_and_go(void **state)
{
    enum { STAY = 1000, MORE = 20000 };
    unsigned char *seen = calloc(1, STAY + MORE);
    struct keyspace *k;
    char key[16];
    uint64_t cursor = 0;
    int more = STAY;
    (void)state;
    assert_non_null(seen);
    assert_int_equal(keyspace_create(&k, 1 << 26), 0);
    for (int i = 0; i < STAY; i++)
        assert_int_equal(keyspace_set(k, key, (size_t)sprintf(key, "%d", i), "v", 1, KEYSPACE_NEVER), 0);
    do {
        cursor = keyspace_scan(k, cursor, mark, seen);
        for (int i = 0; i < 20 && more < STAY + MORE; i++, more++)
            assert_int_equal(keyspace_set(k, key, (size_t)sprintf(key, "%d", more), "v", 1, KEYSPACE_NEVER), 0);
        keyspace_delete(k, key, strlen(key));
    } while (cursor);
    for (int i = 0; i < STAY; i++)
        assert_int_equal(seen[i], 1);
    for (int i = STAY; i < STAY + MORE; i++)
        assert_true(seen[i] <= 1);
    keyspace_destroy(k);
    free(seen);
}

/* --- patterns */

static void patterns_match_as_in_redis(void **state)
{
    static const struct {
        const char *pattern, *text;
        bool match;
    } cases[] = {{"*", "", true},
                 {"*", "abc", true},
                 {"a*", "abc", true},
                 {"*c", "abc", true},
                 {"a*c*", "abcd", true},
                 {"a?c", "abc", true},
                 {"a?", "abc", false},
                 {"h[ae]llo", "hallo", true},
                 {"h[^e]llo", "hello", false},
                 {"h[a-c]llo", "hbllo", true},
                 {"h[c-a]llo", "hbllo", true},
                 {"\\*", "*", true},
                 {"\\*", "a", false},
                 {"[\\]]", "]", true},
                 {"[abc", "c", true},
                 {"", "", true},
                 {"", "a", false},
                 {"a/*", "a/b/c", true}};
    uint64_t work = GLOB_WORK;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (glob_match(cases[i].pattern, strlen(cases[i].pattern), cases[i].text, strlen(cases[i].text), &work) !=
            cases[i].match)
            fail_msg("'%s' and '%s': expected %d", cases[i].pattern, cases[i].text, cases[i].match);
}

static void a_hostile_pattern_takes_no_time(void **state)
{
    static const char pattern[] = "a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b";
    char text[4096];
    uint64_t work = GLOB_WORK;
    (void)state;
    memset(text, 'a', sizeof text);
    assert_false(
        glob_match(pattern, sizeof pattern - 1, text, sizeof text, &work)); /* exponential matchers never come back */
}

/* What is quadratic is for all texts together only so much. */
static void long_patterns_for_long_texts_come_to_an_end(void **state)
{
    enum { TEXT = 1 << 20, PATTERN = 1 << 19 };
    char *text = malloc(TEXT), *pattern = malloc(PATTERN);
    uint64_t work = GLOB_WORK;
    (void)state;
    assert_true(text && pattern);
    memset(text, 'a', TEXT);
    memset(pattern, 'a', PATTERN);
    pattern[0] = '*';
    pattern[PATTERN - 1] = 'b';
    assert_false(glob_match(pattern, PATTERN, text, TEXT, &work));
    assert_int_equal(work, 0);
    assert_false(glob_match("a*", 2, text, 100, &work)); /* nothing matches any more */
    work = 10;
    assert_true(glob_match("a*", 2, text, TEXT, &work)); /* a star at the end takes the rest for nothing */
    free(text);
    free(pattern);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_and_values_are_binary),
        cmocka_unit_test(counters_do_not_overflow),
        cmocka_unit_test(the_memory_limit_holds_and_memory_comes_back),
        cmocka_unit_test(a_waiter_is_done_once_when_all_its_keys_exist_together),
        cmocka_unit_test(one_key_wakes_all_its_waiters_and_no_other),
        cmocka_unit_test(one_item_is_for_one_who_misses_nothing_else),
        cmocka_unit_test(waiters_count_against_the_memory_limit),
        cmocka_unit_test(a_waiter_of_many_names_comes_and_goes_piece_by_piece),
        cmocka_unit_test(a_clear_is_missed_by_those_who_wait_for_more),
        cmocka_unit_test(a_queue_gives_first_what_came_first_and_is_gone_when_empty),
        cmocka_unit_test(a_key_holds_a_queue_or_a_string),
        cmocka_unit_test(what_was_cleared_is_swept_up_piece_by_piece),
        cmocka_unit_test(a_walk_sees_what_stays_once_while_keys_come_and_go),
        cmocka_unit_test(patterns_match_as_in_redis),
        cmocka_unit_test(a_hostile_pattern_takes_no_time),
        cmocka_unit_test(long_patterns_for_long_texts_come_to_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
