/* What Prometheus reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/http/metrics_text.h"

static void figures_stand_under_their_heads(void **state)
{
    struct buf out = {0};
    struct metrics_text m = {.out = &out, .prefix = "crun_"};
    (void)state;
    metrics_figure(&m, "rounds_total", METRICS_COUNTER, "Rounds begun.", 3);
    metrics_head(&m, "age_seconds", METRICS_GAUGE, "How long ago.");
    metrics_value(&m, "age_seconds", "{rank=\"0\"}", 0.1);
    metrics_value(&m, "age_seconds", "{rank=\"1\"}", 1e12);
    assert_int_equal(m.rc, 0);
    assert_string_equal(out.data, "# HELP crun_rounds_total Rounds begun.\n"
                                  "# TYPE crun_rounds_total counter\n"
                                  "crun_rounds_total 3\n"
                                  "# HELP crun_age_seconds How long ago.\n"
                                  "# TYPE crun_age_seconds gauge\n"
                                  "crun_age_seconds{rank=\"0\"} 0.1\n"
                                  "crun_age_seconds{rank=\"1\"} 1000000000000\n");
    buf_free(&out);
}

static void nothing_follows_what_did_not_fit(void **state)
{
    struct buf out = {.max = 60};
    struct metrics_text m = {.out = &out, .prefix = "crun_"};
    (void)state;
    metrics_figure(&m, "a", METRICS_GAUGE, "A.", 1);
    const size_t n = out.len;
    assert_true(n > 0);
    metrics_figure(&m, "a_longer_name", METRICS_GAUGE, "Something to be said about it.", 1);
    metrics_value(&m, "b", NULL, 1);
    assert_int_equal(m.rc, -E2BIG);
    assert_int_equal(out.len, n);
    buf_free(&out);
}

static void label_values_are_quoted(void **state)
{
    char out[16];
    (void)state;
    assert_string_equal(metrics_quoted("a\"b\\c\nd", out, sizeof out), "a\\\"b\\\\c\\nd");
    assert_string_equal(metrics_quoted("", out, sizeof out), "");
    /* Prometheus refuses the whole page for one byte that is no UTF-8 */
    assert_string_equal(metrics_quoted("r\xc3\xa9seau", out, sizeof out), "r\xc3\xa9seau");
    assert_string_equal(metrics_quoted("a\xff\xc3(", out, sizeof out), "a\xef\xbf\xbd\xef\xbf\xbd(");
    assert_string_equal(metrics_quoted("\xed\xa0\x80", out, sizeof out), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    assert_string_equal(metrics_quoted("ab\xc3\xa9", out, 4), "ab"); /* no half of a character */
    assert_string_equal(metrics_quoted("abc", out, 4), "abc");
    assert_true(strlen(metrics_quoted("\"\"\"\"\"\"\"\"\"\"\"\"", out, sizeof out)) < sizeof out);
}

static void a_process_has_memory(void **state)
{
    (void)state;
    assert_true(metrics_resident_bytes() > 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_stand_under_their_heads),
        cmocka_unit_test(nothing_follows_what_did_not_fit),
        cmocka_unit_test(label_values_are_quoted),
        cmocka_unit_test(a_process_has_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
