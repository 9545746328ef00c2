/* Lines of several ranks shown as one: which lines join, and that no rank's order changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "launcher/output/log_collapse.h"

#define WORKERS 70 /* more than one word of bits */

static void collect(void *ctx, const struct log_same *s)
{
    struct buf *out = ctx;
    assert_int_equal(log_collapse_ranks(s->ranks, WORKERS, 0, out), 0);
    assert_int_equal(buf_printf(out, "=%.*s;", (int)s->n, s->line), 0);
}

struct say {
    int rank;
    const char *line;
    int64_t at_ms;
};

static char *shown(const struct say *says, size_t n, int expected, int64_t tick_ms, struct buf *out)
{
    struct log_collapse *c = log_collapse_create(WORKERS, collect, out);
    assert_non_null(c);
    log_collapse_expect(c, expected);
    for (size_t i = 0; i < n; i++)
        log_collapse_add(c, says[i].rank, says[i].line, strlen(says[i].line), says[i].at_ms);
    log_collapse_tick(c, tick_ms);
    log_collapse_free(c);
    return out->len ? out->data : (char *)"";
}

#define SHOWN(says, expected, tick) shown(says, sizeof says / sizeof *(says), expected, tick, &out)

static void a_line_that_all_have_said_leaves_at_once(void **state)
{
    const struct say says[] = {{0, "a", 0}, {1, "a", 0}, {2, "a", 0}, {0, "b", 0}};
    struct buf out = {0};
    (void)state;
    assert_string_equal(SHOWN(says, 3, 0), "0-2=a;");
    buf_free(&out);
}

static void a_line_that_some_have_said_leaves_when_it_is_old(void **state)
{
    const struct say says[] = {{0, "a", 0}, {69, "a", 5}, {5, "b", 100}};
    struct buf out = {0};
    (void)state;
    assert_string_equal(SHOWN(says, WORKERS, LOG_COLLAPSE_MS - 1), "");
    assert_string_equal(SHOWN(says, WORKERS, LOG_COLLAPSE_MS), "0,69=a;");
    buf_clear(&out);
    assert_string_equal(SHOWN(says, WORKERS, LOG_COLLAPSE_MS + 100), "0,69=a;5=b;");
    buf_free(&out);
}

static void a_rank_that_repeats_itself_is_shown_as_often(void **state)
{
    const struct say says[] = {{0, "x", 0}, {0, "x", 0}, {1, "x", 0}, {0, "x", 0}};
    struct buf out = {0};
    (void)state;
    assert_string_equal(SHOWN(says, 3, LOG_COLLAPSE_MS), "0-1=x;0=x;0=x;");
    buf_free(&out);
}

static void lines_of_a_rank_stay_in_order(void **state)
{
    const struct say says[] = {{0, "a", 0}, {0, "b", 0}, {1, "b", 0}, {1, "a", 0}};
    struct buf out = {0};
    (void)state;
    assert_string_equal(SHOWN(says, 3, LOG_COLLAPSE_MS), "0=a;0-1=b;1=a;");
    buf_free(&out);
}

static void a_line_is_joined_behind_lines_of_others_own(void **state)
{
    const struct say says[] = {{0, "own0", 0}, {0, "a", 0}, {1, "own1", 0}, {1, "a", 0},
                               {2, "own2", 0}, {2, "a", 0}, {3, "a", 0}};
    struct buf out = {0};
    (void)state;
    assert_string_equal(SHOWN(says, 5, LOG_COLLAPSE_MS), "0=own0;1=own1;2=own2;0-3=a;");
    buf_free(&out);
}

struct model {
    int n[WORKERS]; /* the line that each rank is to be shown next */
    char line[WORKERS][2000];
};

static void check_order(void *ctx, const struct log_same *s)
{
    struct model *m = ctx;
    int count = 0;
    for (int r = 0; r < WORKERS; r++) {
        if (!(s->ranks[r / 64] >> r % 64 & 1))
            continue;
        assert_int_equal(s->n, 1);
        assert_int_equal(m->line[r][m->n[r]++], s->line[0]);
        count++;
    }
    assert_int_equal(count, s->count);
}

static void nothing_is_lost_and_all_stays_in_order_whatever_comes(void **state)
{
    static struct model m;
    int said[WORKERS] = {0};
    struct log_collapse *c = log_collapse_create(WORKERS, check_order, &m);
    (void)state;
    srand(5);
    for (int i = 0; i < 60000; i++) {
        const int r = rand() % WORKERS;
        if (said[r] == 2000)
            continue;
        m.line[r][said[r]] = (char)('a' + rand() % 4);
        log_collapse_add(c, r, &m.line[r][said[r]++], 1, i / 7);
        if (i % 50 == 0)
            log_collapse_tick(c, i / 7);
    }
    log_collapse_flush(c);
    for (int r = 0; r < WORKERS; r++)
        assert_int_equal(m.n[r], said[r]);
    log_collapse_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_that_all_have_said_leaves_at_once),
        cmocka_unit_test(a_line_that_some_have_said_leaves_when_it_is_old),
        cmocka_unit_test(a_rank_that_repeats_itself_is_shown_as_often),
        cmocka_unit_test(lines_of_a_rank_stay_in_order),
        cmocka_unit_test(a_line_is_joined_behind_lines_of_others_own),
        cmocka_unit_test(nothing_is_lost_and_all_stays_in_order_whatever_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
