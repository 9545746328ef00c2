#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/store/store.h"
#include "tests/conformance/store_suite.h"

enum { LONG_MS = 20000, SLACK_MS = 2000 /* a loaded machine */ };

static const struct store_suite *suite;
static struct store *s;
static struct buf value;
static struct err error;

static int open_one(void **state)
{
    s = suite->open();
    return s ? 0 : -1;
}

static int close_one(void **state)
{
    suite->close(s);
    buf_free(&value);
    value.max = 0;
    return 0;
}

#define assert_ok(expr)                                                                                                \
    do {                                                                                                               \
        int rc_ = (expr);                                                                                              \
        if (rc_ < 0)                                                                                                   \
            fail_msg("%s: %d %s: %s", #expr, rc_, err_name(rc_), error.text);                                          \
    } while (0)

static void set_text(struct store *st, const char *key, const char *text)
{
    assert_ok(store_set(st, key, text, strlen(text), LONG_MS, &error));
}

static void expect_stored(const char *key, const void *data, size_t n)
{
    buf_clear(&value);
    assert_ok(store_get(s, key, &value, LONG_MS, &error));
    assert_int_equal(value.len, n);
    assert_memory_equal(value.data, data, n);
}

/* The time since `before` is at least `least`, and not much more. */
static void expect_elapsed(int64_t before, int64_t least)
{
    int64_t ms = clock_ms() - before;
    if (ms < least - 1 || ms > least + SLACK_MS)
        fail_msg("took %lld ms, expected %lld to %lld", (long long)ms, (long long)least, (long long)least + SLACK_MS);
}

static void values_are_got_as_they_were_set(void **state)
{
    char every_byte[256];
    for (int i = 0; i < 256; i++)
        every_byte[i] = (char)i;
    set_text(s, "values/text", "hello");
    expect_stored("values/text", "hello", 5);
    set_text(s, "values/text", "again");
    expect_stored("values/text", "again", 5);
    assert_ok(store_set(s, "values/binary", every_byte, sizeof every_byte, LONG_MS, &error));
    expect_stored("values/binary", every_byte, sizeof every_byte);
    assert_ok(store_set(s, "values/empty", NULL, 0, LONG_MS, &error));
    expect_stored("values/empty", "", 0);
    set_text(s, "values/key with spaces\r\n", "x");
    expect_stored("values/key with spaces\r\n", "x", 1);
    buf_clear(&value);
    assert_int_equal(buf_addstr(&value, "before "), 0);
    assert_ok(store_get(s, "values/text", &value, LONG_MS, &error));
    assert_string_equal(value.data, "before again");
}

static void a_missing_key_is_ENOENT(void **state)
{
    assert_int_equal(store_get(s, "missing", &value, LONG_MS, &error), -ENOENT);
    assert_int_equal(error.code, -ENOENT);
    assert_int_equal(value.len, 0);
    assert_int_equal(store_get(s, "missing", &value, LONG_MS, NULL), -ENOENT);
}

static void large_values_pass_and_the_buffers_limit_holds(void **state)
{
    enum { N = 3 << 20 };
    char *big = malloc(N);
    for (size_t i = 0; i < N; i++)
        big[i] = (char)(i * 31 >> 3);
    assert_ok(store_set(s, "large", big, N, LONG_MS, &error));
    expect_stored("large", big, N);
    buf_free(&value);
    value.max = N - 1;
    assert_int_equal(store_get(s, "large", &value, LONG_MS, &error), -E2BIG);
    assert_int_equal(value.len, 0);
    value.max = 100; /* far too small: given up before all of it has come */
    assert_int_equal(store_get(s, "large", &value, LONG_MS, &error), -E2BIG);
    value.max = N;
    expect_stored("large", big, N);
    free(big);
}

static void add_counts_from_zero_and_refuses_what_is_no_number(void **state)
{
    int64_t v = 0;
    assert_ok(store_add(s, "add", 5, &v, LONG_MS, &error));
    assert_int_equal(v, 5);
    assert_ok(store_add(s, "add", -7, &v, LONG_MS, &error));
    assert_true(v == -2);
    expect_stored("add", "-2", 2);
    set_text(s, "add", "12");
    assert_ok(store_add(s, "add", 1, &v, LONG_MS, &error));
    assert_int_equal(v, 13);
    for (const char *const *text = (const char *const[]){"x", "", NULL}; *text; text++) {
        set_text(s, "add", *text);
        assert_int_equal(store_add(s, "add", 1, &v, LONG_MS, &error), -EINVAL);
    }
    set_text(s, "add", "9223372036854775807");
    assert_int_equal(store_add(s, "add", 1, &v, LONG_MS, &error), -EINVAL);
    assert_int_equal(v, 13);
    expect_stored("add", "9223372036854775807", 19);
}

static void waiting_for_what_is_there_returns_at_once(void **state)
{
    const char *const keys[] = {"there/a", "there/b", "there/a"};
    set_text(s, "there/a", "");
    set_text(s, "there/b", "1");
    int64_t before = clock_ms();
    assert_ok(store_wait(s, keys, 3, LONG_MS, &error));
    expect_elapsed(before, 0);
}

static void deadlines_are_kept(void **state)
{
    const char *const keys[] = {"deadline/set", "deadline/never"};
    set_text(s, "deadline/set", "1");
    for (int ms = 50; ms <= 200; ms += 150) {
        int64_t before = clock_ms();
        assert_int_equal(store_wait(s, keys, 2, ms, &error), -ETIMEDOUT);
        expect_elapsed(before, ms);
    }
    int64_t before = clock_ms();
    assert_int_equal(store_wait_get(s, "deadline/never", &value, 50, &error), -ETIMEDOUT);
    expect_elapsed(before, 50);
    expect_stored("deadline/set", "1", 1); /* and the store goes on working */
}

/* A thread that waits with a store of its own. */
struct waiter {
    pthread_t thread;
    struct store *store;
    const char *keys[2];
    size_t n;
    int rc;
    int64_t woken_ms;
};

static void *wait_in_thread(void *arg)
{
    struct waiter *w = arg;
    w->rc = store_wait(w->store, w->keys, w->n, LONG_MS, NULL);
    w->woken_ms = clock_ms();
    return NULL;
}

/* The pause only makes it likely that the waiter waits already: the tests hold either way. */
static void start_waiter(struct waiter *w, const char *a, const char *b)
{
    *w = (struct waiter){.store = suite->open(), .keys = {a, b}, .n = b ? 2 : 1};
    assert_non_null(w->store);
    assert_int_equal(pthread_create(&w->thread, NULL, wait_in_thread, w), 0);
    assert_int_equal(store_wait(s, (const char *const[]){"pause/never"}, 1, 30, NULL), -ETIMEDOUT);
}

static void expect_woken(struct waiter *w, int rc, int64_t since_ms)
{
    pthread_join(w->thread, NULL);
    suite->close(w->store);
    assert_int_equal(w->rc, rc);
    if (w->woken_ms - since_ms > SLACK_MS)
        fail_msg("woken after %lld ms", (long long)(w->woken_ms - since_ms));
}

static void a_waiter_is_woken_by_another_clients_write(void **state)
{
    struct waiter w;
    int64_t ignored, now;
    start_waiter(&w, "woken/set", NULL);
    now = clock_ms();
    set_text(s, "woken/set", "1");
    expect_woken(&w, 0, now);
    start_waiter(&w, "woken/add", NULL);
    now = clock_ms();
    assert_ok(store_add(s, "woken/add", 1, &ignored, LONG_MS, &error));
    expect_woken(&w, 0, now);
}

static void a_waiter_for_two_keys_needs_both(void **state)
{
    struct waiter w;
    start_waiter(&w, "both/a", "both/b");
    set_text(s, "both/a", "1");
    assert_int_equal(store_wait(s, (const char *const[]){"pause/never"}, 1, 30, NULL), -ETIMEDOUT);
    int64_t now = clock_ms();
    set_text(s, "both/b", "1");
    expect_woken(&w, 0, now);
    assert_true(w.woken_ms >= now);
}

static void abort_wakes_a_waiter_at_once_and_for_good(void **state)
{
    struct waiter w;
    int64_t v;
    start_waiter(&w, "abort/never", NULL);
    int64_t now = clock_ms();
    store_abort(w.store);
    pthread_join(w.thread, NULL);
    assert_int_equal(w.rc, -ECANCELED);
    assert_true(w.woken_ms - now <= SLACK_MS);
    assert_int_equal(store_get(w.store, "x", &value, LONG_MS, &error), -ECANCELED);
    assert_int_equal(store_set(w.store, "x", "", 0, LONG_MS, &error), -ECANCELED);
    assert_int_equal(store_add(w.store, "x", 1, &v, LONG_MS, &error), -ECANCELED);
    suite->close(w.store);
    set_text(s, "abort/other", "1"); /* other clients are not concerned */
}

enum { THREADS = 8, ROUNDS = 200 };

struct adder {
    pthread_t thread;
    struct store *store;
    int failed;
};

static void *add_in_thread(void *arg)
{
    struct adder *a = arg;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t v;
        a->failed += store_add(a->store, "sum", 1, &v, LONG_MS, NULL) < 0;
    }
    return NULL;
}

static void eight_threads_add_exactly(void **state)
{
    struct adder a[THREADS] = {0};
    int64_t sum = 0;
    for (int i = 0; i < THREADS; i++) { /* half of them share one store */
        a[i].store = i % 2 ? s : suite->open();
        assert_non_null(a[i].store);
        assert_int_equal(pthread_create(&a[i].thread, NULL, add_in_thread, &a[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(a[i].thread, NULL);
        assert_int_equal(a[i].failed, 0);
        if (a[i].store != s)
            suite->close(a[i].store);
    }
    assert_ok(store_add(s, "sum", 0, &sum, LONG_MS, &error));
    assert_int_equal(sum, THREADS * ROUNDS);
}

static void a_thread_behind_a_waiting_one_keeps_its_own_deadline(void **state)
{
    struct waiter w;
    start_waiter(&w, "behind/never", NULL);
    int64_t before = clock_ms();
    int rc = store_get(w.store, "behind/x", &value, 100, &error);
    assert_true(rc == -ETIMEDOUT || rc == -ENOENT); /* by backend: one request at a time, or not */
    expect_elapsed(before, rc == -ETIMEDOUT ? 100 : 0);
    store_abort(w.store);
    expect_woken(&w, -ECANCELED, clock_ms());
}

static void a_restarted_server_is_dialled_anew(void **state)
{
    struct waiter w;
    set_text(s, "restart", "1");
    start_waiter(&w, "restart/key", NULL);
    assert_true(suite->restart_server());
    buf_clear(&value);
    int rc = store_get(s, "restart", &value, LONG_MS, &error);
    assert_true(rc == 0 || rc == -ENOENT);
    set_text(s, "restart/key", "1");
    pthread_join(w.thread, NULL);
    suite->close(w.store);
    assert_int_equal(w.rc, 0);
}

int store_suite_run(const struct store_suite *which)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, open_one, close_one)
    const struct CMUnitTest tests[] = {
        CASE(values_are_got_as_they_were_set),
        CASE(a_missing_key_is_ENOENT),
        CASE(large_values_pass_and_the_buffers_limit_holds),
        CASE(add_counts_from_zero_and_refuses_what_is_no_number),
        CASE(waiting_for_what_is_there_returns_at_once),
        CASE(deadlines_are_kept),
        CASE(a_waiter_is_woken_by_another_clients_write),
        CASE(a_waiter_for_two_keys_needs_both),
        CASE(abort_wakes_a_waiter_at_once_and_for_good),
        CASE(eight_threads_add_exactly),
        CASE(a_thread_behind_a_waiting_one_keeps_its_own_deadline),
        CASE(a_restarted_server_is_dialled_anew),
    };
    suite = which;
    size_t n = sizeof tests / sizeof *tests - (suite->restart_server ? 0 : 1); /* the last one needs a server */
    return _cmocka_run_group_tests("store", tests, n, NULL, NULL);
}
