/* Pieces of tensors: what each has of any part of the whole is what a walk over all elements finds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "worker/snapshot/exchange.h"

static unsigned seed = 1;

static int64_t below(int64_t n)
{
    return rand_r(&seed) % n;
}

/* The place in the tensor of an element of the block. */
static int64_t place(const struct piece *p, int64_t held)
{
    return (p->row + held / p->cols) * p->line + p->col + held % p->cols;
}

static struct piece any_piece(int64_t rows, int64_t line)
{
    struct piece p = {.line = line, .row = below(rows)};
    p.cols = 1 + below(line);
    p.col = below(line - p.cols + 1);
    const int64_t most = (rows - p.row) * p.cols;
    p.first = below(most);
    p.end = p.first + 1 + below(most - p.first);
    return p;
}

static void check_part(const struct piece *p, int64_t from, int64_t to)
{
    int64_t first, seen = 0, n = piece_range(p, from, to, &first), expected = 0;
    for (int64_t h = p->first; h < p->end; h++)
        expected += place(p, h) >= from && place(p, h) < to;
    assert_int_equal(n, expected);
    struct segment g;
    for (int64_t at = from; piece_segment(p, at, to, &g); at = g.whole + g.n) {
        assert_true(g.n > 0 && g.whole >= at && g.whole + g.n <= to);
        assert_int_equal(g.held, first + seen);
        for (int64_t i = 0; i < g.n; i++)
            assert_int_equal(place(p, g.held + i), g.whole + i);
        seen += g.n;
    }
    assert_int_equal(seen, n);
}

static void segments_are_what_a_walk_finds(void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        const int64_t rows = 1 + below(6), line = 1 + below(9), count = rows * line;
        const struct piece p = any_piece(rows, line);
        const int64_t from = below(count);
        check_part(&p, from, from + below(count - from + 1));
    }
}

static int exchange_of_two(struct exchange *x, const struct piece *a, const struct piece *b, int64_t count,
                           struct err *e)
{
    size_t *begin = calloc(3, sizeof *begin);
    struct piece *all = calloc(2, sizeof *all);
    begin[1] = 1;
    begin[2] = 2;
    all[0] = *a;
    all[1] = *b;
    return exchange_init(x, 2, begin, all, &count, 1, e);
}

static void what_is_not_saved_once_is_refused(void **state)
{
    const struct piece left = {.saved = 1, .line = 6, .cols = 3, .end = 12};
    struct piece right = {.saved = 1, .line = 6, .col = 3, .cols = 3, .end = 12};
    struct exchange x;
    struct err e;
    (void)state;
    assert_int_equal(exchange_of_two(&x, &left, &right, 24, &e), 0);
    assert_false(exchange_whole(&x, 0, 0, 24));
    exchange_finish(&x);
    right.end = 11;
    assert_int_equal(exchange_of_two(&x, &left, &right, 24, &e), -EINVAL);
    assert_non_null(strstr(e.text, "23 elements"));
    exchange_finish(&x);
    right.end = 13; /* beyond the tensor */
    assert_int_equal(exchange_of_two(&x, &left, &right, 24, &e), -EINVAL);
    exchange_finish(&x);
}

/* As many elements as there are, one of them twice and one never. */
static void what_is_doubled_and_missing_is_refused(void **state)
{
    struct exchange x;
    struct err e;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        const int64_t rows = 1 + below(4), line = 1 + below(5), count = rows * line;
        const struct piece none = {.line = line, .cols = line, .first = 0, .end = count};
        struct piece a = none, b = none;
        int seen[20] = {0}, once = 0;
        a.cols = 1 + below(line);
        a.end = 1 + below(rows * a.cols);
        b.col = below(line);
        b.cols = line - b.col;
        b.row = below(rows);
        b.end = (rows - b.row) * b.cols;
        b.first = below(b.end);
        a.saved = b.saved = 1;
        for (int64_t h = a.first; h < a.end; h++)
            seen[place(&a, h)]++;
        for (int64_t h = b.first; h < b.end; h++)
            seen[place(&b, h)]++;
        for (int64_t k = 0; k < count; k++)
            once += seen[k] == 1;
        assert_int_equal(exchange_of_two(&x, &a, &b, count, &e), once == count ? 0 : -EINVAL);
        exchange_finish(&x);
    }
    const struct piece first = {.saved = 1, .line = 6, .cols = 6, .end = 12},
                       again = {.saved = 1, .line = 6, .cols = 6, .first = 11, .end = 23};
    assert_int_equal(exchange_of_two(&x, &first, &again, 24, &e), -EINVAL);
    assert_string_equal(e.text, "two ranks save the same elements of tensor 0 of a checkpoint");
    exchange_finish(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_are_what_a_walk_finds),
        cmocka_unit_test(what_is_not_saved_once_is_refused),
        cmocka_unit_test(what_is_doubled_and_missing_is_refused),
    };
    return cmocka_run_group_tests_name("pieces", tests, NULL, NULL);
}
