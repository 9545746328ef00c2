#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"

static char said[4096];

static void keep(void *arg, const char *line, size_t n)
{
    (void)arg;
    assert_true(n < sizeof said);
    memcpy(said, line, n);
    said[n] = 0;
}

static void a_message_is_one_line_whatever_stands_in_it(void **state)
{
    (void)state;
    log_warn("jobs", "run=%s is over", "a\nb\r\x1b[2J\x7f\tz\u00e9");
    assert_non_null(strstr(said, " warn jobs: run=a?b??[2J??z\u00e9 is over\n"));
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1);
}

static void a_message_that_is_too_long_ends_with_its_line(void **state)
{
    char text[5000];
    (void)state;
    memset(text, '\n', sizeof text - 1);
    text[sizeof text - 1] = 0;
    log_warn("jobs", "%s", text);
    assert_int_equal(strlen(said), 2047);
    assert_ptr_equal(strchr(said, '\n'), said + 2046);
}

static void *log_lines(void *over)
{
    while (!atomic_load((atomic_bool *)over))
        log_warn("jobs", "a line");
    return NULL;
}

static size_t torn; /* lines */

/* A prefix is one letter over and over. */
static void look_at_prefix(void *arg, const char *line, size_t n)
{
    const char *from = strstr(line, " warn ") + strlen(" warn "), *to = strchr(from, ' ');
    (void)arg;
    (void)n;
    torn += strspn(from, (char[]){*from, 0}) != (size_t)(to - from);
}

static void a_prefix_that_another_thread_changes_is_the_old_or_the_new_one(void **state)
{
    char prefixes[2][LOG_PREFIX_MAX] = {{0}};
    atomic_bool over = false;
    pthread_t thread;
    (void)state;
    memset(prefixes[0], 'a', LOG_PREFIX_MAX - 1);
    memset(prefixes[1], 'b', LOG_PREFIX_MAX - 1);
    log_init(LOG_WARN, prefixes[0]);
    log_redirect(look_at_prefix, NULL);
    assert_int_equal(pthread_create(&thread, NULL, log_lines, &over), 0);
    for (int i = 0; i < 200000; i++)
        log_init(LOG_WARN, prefixes[i % 2]);
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    log_redirect(keep, NULL);
    log_init(LOG_WARN, "");
    assert_int_equal(torn, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_one_line_whatever_stands_in_it),
        cmocka_unit_test(a_message_that_is_too_long_ends_with_its_line),
        cmocka_unit_test(a_prefix_that_another_thread_changes_is_the_old_or_the_new_one),
    };
    log_redirect(keep, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
