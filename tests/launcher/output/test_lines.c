/* Whole lines out of a byte stream, and the last of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/output/lines.h"

static void collect(void *ctx, const char *line, size_t n)
{
    struct buf *out = ctx;
    assert_int_equal(buf_add(out, "<", 1), 0);
    if (n > 0) /* an empty line may come without memory */
        assert_int_equal(buf_add(out, line, n), 0);
    assert_int_equal(buf_add(out, ">", 1), 0);
}

/* Feed text in pieces of `step` bytes; it must come out as `expected`. */
static void expect_cut(const char *text, size_t n, size_t step, const char *expected, size_t expected_len)
{
    struct lines l;
    struct buf out;
    lines_init(&l);
    buf_init(&out, 0);
    for (size_t i = 0; i < n; i += step)
        lines_feed(&l, text + i, n - i < step ? n - i : step, collect, &out);
    lines_finish(&l, collect, &out);
    assert_int_equal(out.len, expected_len);
    if (expected_len > 0)
        assert_memory_equal(out.data, expected, expected_len);
    buf_free(&out);
}

static void lines_are_the_same_however_the_stream_is_cut(void **state)
{
    const char text[] = "one\n\ntwo\xff\xfe\r\n\0three\nlast", expected[] = "<one><><two\xff\xfe\r><\0three><last>";
    for (size_t step = 1; step < sizeof text; step++)
        expect_cut(text, sizeof text - 1, step, expected, sizeof expected - 1);
}

static void the_end_of_a_stream_adds_no_empty_line(void **state)
{
    expect_cut("a\n", 2, 1, "<a>", 3);
    expect_cut("", 0, 1, "", 0);
}

static void count(void *ctx, const char *line, size_t n)
{
    size_t *total = ctx;
    assert_true(n <= LINES_MAX_BYTES);
    total[0] += n;
    total[1]++;
}

static void a_line_without_end_is_passed_on_in_pieces(void **state)
{
    struct lines l;
    size_t total[2] = {0}, fed = 0;
    char *block = malloc(1 << 20);
    memset(block, 'x', 1 << 20);
    lines_init(&l);
    for (int i = 0; i < 20; i++, fed += 1 << 20)
        lines_feed(&l, block, 1 << 20, count, total);
    assert_true(l.part.cap <= LINES_MAX_BYTES + 1);
    lines_finish(&l, count, total);
    assert_int_equal(total[0], fed);
    assert_int_equal(total[1], 3); /* 8 + 8 + 4 MiB */
    free(block);
}

static void the_memory_of_a_long_line_is_given_back(void **state)
{
    struct lines l;
    size_t total[2] = {0};
    char *block = malloc(1 << 20);
    memset(block, 'x', 1 << 20);
    lines_init(&l);
    lines_feed(&l, block, 1 << 20, count, total);
    lines_feed(&l, "\n", 1, count, total);
    assert_int_equal(total[0], 1 << 20);
    assert_int_equal(l.part.cap, 0);
    free(block);
}

static void expect_tail(const struct lines_tail *t, int max, const char *expected)
{
    struct buf out;
    buf_init(&out, 0);
    assert_int_equal(lines_tail_render(t, max, "| ", &out), 0);
    assert_string_equal(out.len ? out.data : "", expected);
    buf_free(&out);
}

static void the_tail_holds_the_last_lines(void **state)
{
    struct lines_tail t = {0};
    expect_tail(&t, 3, "");
    lines_tail_add(&t, "a", 1);
    expect_tail(&t, 3, "| a\n");
    for (char c = 'b'; c <= 'f'; c++)
        lines_tail_add(&t, &c, 1);
    expect_tail(&t, 3, "| d\n| e\n| f\n");
    expect_tail(&t, 100, "| a\n| b\n| c\n| d\n| e\n| f\n");
    lines_tail_free(&t);
}

static void the_tail_of_a_long_stream_is_right_wherever_the_ring_turns(void **state)
{
    struct lines_tail t = {0};
    char line[64], expected[256];
    for (int i = 0; i < 3000; i++) {
        int n = snprintf(line, sizeof line, "line %d", i);
        lines_tail_add(&t, line, (size_t)n);
        if (i < 1)
            continue;
        snprintf(expected, sizeof expected, "| line %d\n| line %d\n", i - 1, i);
        expect_tail(&t, 2, expected);
    }
    lines_tail_free(&t);
}

static void of_a_huge_line_the_end_is_kept(void **state)
{
    struct lines_tail t = {0};
    char *block = malloc(100000);
    struct buf out;
    memset(block, 'x', 100000);
    memcpy(block + 99997, "end", 3);
    lines_tail_add(&t, block, 100000);
    buf_init(&out, 0);
    assert_int_equal(lines_tail_render(&t, 5, "", &out), 0);
    assert_int_equal(out.len, LINES_TAIL_BYTES);
    assert_string_equal(out.data + out.len - 5, "xend\n");
    buf_free(&out);
    lines_tail_free(&t);
    free(block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_the_same_however_the_stream_is_cut),
        cmocka_unit_test(the_end_of_a_stream_adds_no_empty_line),
        cmocka_unit_test(a_line_without_end_is_passed_on_in_pieces),
        cmocka_unit_test(the_memory_of_a_long_line_is_given_back),
        cmocka_unit_test(the_tail_holds_the_last_lines),
        cmocka_unit_test(the_tail_of_a_long_stream_is_right_wherever_the_ring_turns),
        cmocka_unit_test(of_a_huge_line_the_end_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
