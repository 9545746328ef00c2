/* What is shown of lines that have no end yet, and when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "launcher/output/process/partial.h"

static struct partial p;
static char line[16384];

static int setup(void **state)
{
    partial_init(&p);
    line[0] = '\0';
    return 0;
}

/* More of the line; then a look. expected NULL: nothing is shown. Returns when to look again. */
static int64_t expect(int64_t now_ms, const char *more, const char *expected)
{
    struct partial_text got;
    int64_t again;
    strcat(line, more);
    if (*more)
        partial_grew(&p, strlen(more), now_ms);
    const bool shown = partial_check(&p, line, strlen(line), now_ms, &got, &again);
    assert_int_equal(shown, expected != NULL);
    if (expected) {
        assert_int_equal(got.n, strlen(expected));
        assert_memory_equal(got.text, expected, got.n);
    }
    return again;
}

static void expect_end(const char *more, const char *expected)
{
    struct partial_text got;
    strcat(line, more);
    const bool shown = partial_end(&p, line, strlen(line), &got);
    assert_int_equal(shown, expected != NULL);
    if (expected) {
        assert_int_equal(got.n, strlen(expected));
        assert_memory_equal(got.text, expected, got.n);
    }
    line[0] = '\0';
}

static void a_whole_line_is_shown_as_it_is(void **state)
{
    expect_end("text", "text");
    expect_end("", "");
    expect_end("  ", "  ");
    expect_end("one\rtwo\r", "one\rtwo\r");
}

static void a_begun_line_is_shown_when_it_has_stood_for_a_second(void **state)
{
    assert_int_equal(expect(5000, "loading", NULL), 1000);
    assert_int_equal(expect(5900, "...", NULL), 1000);
    assert_int_equal(expect(6800, "", NULL), 100);
    assert_int_equal(expect(6900, "", "loading..."), -1);
    assert_int_equal(expect(9000, "", NULL), -1);
    expect_end(" done", " done");
    assert_int_equal(expect(9100, "again", NULL), 1000);
    assert_int_equal(expect(10100, "", "again"), -1);
    expect_end("", NULL);
    expect_end("", "");
}

static void of_a_bar_one_text_a_second_is_shown_and_the_last(void **state)
{
    assert_int_equal(expect(0, "0%\r", "0%"), -1);
    assert_int_equal(expect(400, "4%\r", NULL), 600);
    assert_int_equal(expect(800, "8%\r", NULL), 200);
    assert_int_equal(expect(1000, "", "8%"), -1);
    assert_int_equal(expect(1100, "9%\r", NULL), 900);
    expect_end("100%\r", "100%");
}

static void a_bar_that_begins_with_its_return_is_shown_too(void **state)
{
    assert_int_equal(expect(0, "\r0%", NULL), 1000);
    assert_int_equal(expect(1000, "\r1%", "0%"), 1000);
    assert_int_equal(expect(2000, "", "1%"), -1);
    assert_int_equal(expect(9000, "\r2%", NULL), 1000);
    assert_int_equal(expect(9500, "\r3%", "2%"), 1000);
    expect_end("", "3%");
}

static void what_only_wipes_a_bar_away_is_not_shown(void **state)
{
    assert_int_equal(expect(0, "50%\r", "50%"), -1);
    assert_int_equal(expect(5000, "     \r", NULL), -1);
    expect_end("", NULL);
}

static void windows_line_ends_are_no_lines_of_their_own(void **state)
{
    expect_end("text\r", "text\r");
    expect(0, "text\r", "text");
    expect_end("", NULL);
}

static void a_line_on_its_way_is_not_cut(void **state)
{
    char block[PARTIAL_BYTES + 1];
    memset(block, 'x', PARTIAL_BYTES);
    block[PARTIAL_BYTES] = '\0';
    assert_int_equal(expect(0, block, NULL), -1);   /* a full buffer */
    assert_int_equal(expect(9000, "yz", NULL), -1); /* long */
    expect_end("!", line);
}

#define CASE(name) cmocka_unit_test_setup(name, setup)
int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_whole_line_is_shown_as_it_is),
        CASE(a_begun_line_is_shown_when_it_has_stood_for_a_second),
        CASE(of_a_bar_one_text_a_second_is_shown_and_the_last),
        CASE(a_bar_that_begins_with_its_return_is_shown_too),
        CASE(what_only_wipes_a_bar_away_is_not_shown),
        CASE(windows_line_ends_are_no_lines_of_their_own),
        CASE(a_line_on_its_way_is_not_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
