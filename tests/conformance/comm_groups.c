/* Communicators over some of the ranks, on every backend: rows and columns of a grid, aborts that reach them, lists
 * that cannot be; and every call of which one rank goes away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "tests/worker/comm/ranks.h"

enum { TIMEOUT_MS = 20000, SHORT_MS = 1000, SOON_MS = 5000, ROWS = 2, COLUMNS = 3 };

static const struct comm_options options = {.name = "part", .timeout_ms = TIMEOUT_MS};

static void expect_all(const struct ranks *w, int code)
{
    for (int r = 0; r < w->world; r++)
        if (w->rc[r] != code)
            fail_msg("rank %d: code %d, expected %d: %s", r, w->rc[r], code, w->err[r].text);
}

/* The sum of the ranks' numbers in `all`, over c. */
static int sum_of_ranks(struct comm *c, int rank, double expected, struct err *e)
{
    double x = rank;
    TRY(c->ops->all_reduce(c, COMM_GRADIENTS, &x, 1, DT_F64, COMM_SUM, NULL, e));
    return x == expected ? 0 : err_set(e, -EIO, "rank %d: the sum is %g, expected %g", rank, x, expected);
}

/* Rank = row * COLUMNS + column; its row, then its column, both open at once. */
static int row_and_column(struct comm *c, int rank, void *arg, struct err *e)
{
    const int row = rank / COLUMNS, column = rank % COLUMNS;
    const int in_row[COLUMNS] = {row * COLUMNS, row * COLUMNS + 1, row * COLUMNS + 2};
    const int in_column[ROWS] = {column, COLUMNS + column};
    struct comm *of_row = NULL, *of_column = NULL;
    int rc = comm_group(&of_row, c, &options, in_row, COLUMNS, e);
    if (rc == 0)
        rc = comm_group(&of_column, c, &options, in_column, ROWS, e);
    if (rc == 0 && (of_row->rank != column || of_row->world != COLUMNS || of_column->rank != row))
        rc =
            err_set(e, -EIO, "rank %d is rank %d of its row and %d of its column", rank, of_row->rank, of_column->rank);
    for (int i = 0; i < 3 && rc == 0; i++) {
        rc = sum_of_ranks(of_row, rank, 3 * row * COLUMNS + 3, e);
        if (rc == 0)
            rc = sum_of_ranks(of_column, rank, 2 * column + COLUMNS, e);
        if (rc == 0)
            rc = sum_of_ranks(c, rank, 15, e);
    }
    if (of_column)
        of_column->ops->close(of_column);
    if (of_row)
        of_row->ops->close(of_row);
    return rc;
}

static void rows_and_columns_of_a_grid_sum_for_themselves(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, ROWS * COLUMNS, TIMEOUT_MS);
    ranks_run(&w, row_and_column, NULL);
    expect_all(&w, 0);
    ranks_close(&w);
}

/* Ranks 0 and 2 of three; rank 1 does not take part, and does not wait for them. A group of one of it; a group of a
 * group. */
static int nested(struct comm *c, int rank, void *arg, struct err *e)
{
    static const int both[] = {0, 2};
    struct comm *pair = NULL, *same = NULL, *alone = NULL;
    double x = rank;
    int rc = comm_group(&alone, c, &options, &rank, 1, e);
    if (rc == 0)
        rc = sum_of_ranks(alone, rank, rank, e);
    if (rc == 0)
        rc = alone->ops->broadcast(alone, COMM_CONTROL, &x, sizeof x, 0, NULL, e);
    if (alone)
        alone->ops->close(alone);
    if (rank == 1 || rc < 0)
        return rc;
    rc = comm_group(&pair, c, &options, both, 2, e);
    if (rc == 0)
        rc = comm_group(&same, pair, &options, (const int[]){0, 1}, 2, e);
    if (rc == 0)
        rc = sum_of_ranks(pair, rank, 2, e);
    if (pair) /* before its own group */
        pair->ops->close(pair);
    if (rc == 0)
        rc = sum_of_ranks(same, rank, 2, e);
    if (same)
        same->ops->close(same);
    return rc;
}

static void groups_of_groups_outlive_what_they_were_opened_from(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, 3, TIMEOUT_MS);
    ranks_run(&w, nested, NULL);
    expect_all(&w, 0);
    ranks_close(&w);
}

static void *abort_soon(void *arg)
{
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* before the wait, the answer is the same */
    struct comm *c = arg;
    c->ops->abort(c);
    return NULL;
}

/* Rank 0 waits in the group of 0 and 1 while all that it came from is aborted; rank 1 learns of it in the group. */
static int wait_in_group(struct comm *c, int rank, void *arg, struct err *e)
{
    struct comm *pair = NULL;
    pthread_t thread;
    char byte;
    if (rank == 2)
        return 0;
    TRY(comm_group(&pair, c, &options, (const int[]){0, 1}, 2, e));
    if (rank == 0 && pthread_create(&thread, NULL, abort_soon, c) != 0)
        abort();
    int rc = comm_recv(pair, COMM_CONTROL, &byte, 1, 1 - rank, NULL, e);
    if (rank == 0)
        pthread_join(thread, NULL);
    pair->ops->close(pair);
    return rc;
}

static void an_abort_reaches_the_groups(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, 3, TIMEOUT_MS);
    ranks_run(&w, wait_in_group, NULL);
    assert_int_equal(w.rc[0], -ECANCELED);
    assert_int_equal(w.rc[1], -ECONNRESET);
    assert_in_range(w.took_ms[0], 0, SOON_MS);
    assert_in_range(w.took_ms[1], 0, SOON_MS);
    ranks_close(&w);
}

static int rank_0_opens(struct comm *c, int rank, void *arg, struct err *e)
{
    struct comm *pair = NULL;
    return rank == 0 ? comm_group(&pair, c, &options, (const int[]){0, 1}, 2, e) : 0;
}

static void a_rank_that_does_not_come_is_named_at_the_deadline(void **state)
{
    struct ranks w;
    ranks_open(&w, *state, 2, SHORT_MS);
    ranks_run(&w, rank_0_opens, NULL);
    assert_int_equal(w.rc[0], -ETIMEDOUT);
    if (!strstr(w.err[0].text, "group 'part' of 2 ranks") || !strstr(w.err[0].text, "rank 1"))
        fail_msg("%s", w.err[0].text);
    assert_in_range(w.took_ms[0], 0, SHORT_MS + SOON_MS);
    ranks_close(&w);
}

static void lists_that_cannot_be_are_refused(void **state)
{
    static const struct {
        int ranks[3], n;
        const char *text;
    } bad[] = {{{0, 1}, 0, "group 'part' of 0 ranks: expected 1 to 2"},
               {{0, 1, 2}, 3, "group 'part' of 3 ranks: expected 1 to 2"},
               {{0, 2}, 2, "group 'part' lists rank 2 at place 1: expected ascending ranks below 2"},
               {{1, 0}, 2, "group 'part' lists rank 0 at place 1: expected ascending ranks below 2"},
               {{0, 0}, 2, "group 'part' lists rank 0 at place 1: expected ascending ranks below 2"},
               {{1}, 1, "group 'part' is opened by rank 0, which is not in it"}};
    struct ranks w;
    struct comm *c = NULL;
    struct err e;
    ranks_open(&w, *state, 2, TIMEOUT_MS);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(comm_group(&c, w.comm[0], &options, bad[i].ranks, bad[i].n, &e), -EINVAL);
        assert_string_equal(e.text, bad[i].text);
    }
    struct comm inside = {.ops = w.comm[0]->ops, .rank = 0, .world = 2};
    assert_int_equal(comm_group(&c, &inside, &options, (const int[]){0, 1}, 2, &e), -EINVAL);
    assert_string_equal(e.text, "group 'part' is opened from a communicator inside another");
    assert_null(c);
    ranks_close(&w);
}

/* --- one rank goes away */

enum { VICTIM = 1, N = 30000, WORLD = 4 };
enum { BARRIER = KNOWN_CALL_COUNT, KINDS };

struct loss {
    struct ranks *w;
    int kind; /* known_call, or BARRIER */
};

static const char *kind_name(int kind)
{
    return kind == BARRIER ? "barrier" : known_call_name((enum known_call)kind);
}

/* Again and again, until it fails; then close, as whoever fails does: the others learn of it. */
static int until_it_fails(struct comm *c, int rank, void *arg, struct err *e)
{
    const struct loss *l = arg;
    struct ranks_call call = {
        .k = {.call = (enum known_call)l->kind, .type = DT_F32, .op = COMM_SUM, .n = N, .uneven = true, .root = VICTIM},
        .ch = COMM_GRADIENTS};
    int rc = 0;
    for (int i = 0; rc == 0 && !(rank == VICTIM && i == 3); i++)
        rc = l->kind == BARRIER ? c->ops->barrier(c, COMM_GRADIENTS, e) : ranks_known(c, rank, &call, e);
    l->w->comm[rank] = NULL;
    c->ops->close(c);
    return rc;
}

static void a_rank_that_goes_away_in_any_call_is_an_error_of_the_others(void **state)
{
    for (int kind = 0; kind < KINDS; kind++) {
        struct ranks w;
        struct loss l = {&w, kind};
        ranks_open(&w, *state, WORLD, TIMEOUT_MS);
        ranks_run(&w, until_it_fails, &l);
        for (int r = 0; r < WORLD; r++) {
            if (w.rc[r] != (r == VICTIM ? 0 : -ECONNRESET))
                fail_msg("%s, rank %d: code %d: %s", kind_name(kind), r, w.rc[r], w.err[r].text);
            if (r != VICTIM && !strstr(w.err[r].text, "went away"))
                fail_msg("%s, rank %d: %s", kind_name(kind), r, w.err[r].text);
            assert_in_range(w.took_ms[r], 0, SOON_MS);
        }
        ranks_close(&w);
    }
}

#define CASES(X)                                                                                                       \
    X(rows_and_columns_of_a_grid_sum_for_themselves)                                                                   \
    X(groups_of_groups_outlive_what_they_were_opened_from)                                                             \
    X(an_abort_reaches_the_groups)                                                                                     \
    X(a_rank_that_does_not_come_is_named_at_the_deadline)                                                              \
    X(lists_that_cannot_be_are_refused)                                                                                \
    X(a_rank_that_goes_away_in_any_call_is_an_error_of_the_others)

int main(void)
{
#define X(name) {#name " (local)", name, NULL, NULL, (void *)"local"},
    const struct CMUnitTest local[] = { CASES(X) };
#undef X
#define X(name) {#name " (gloo)", name, NULL, NULL, (void *)"gloo"},
    const struct CMUnitTest gloo[] = { CASES(X) };
#undef X
    enum { COUNT = sizeof local / sizeof local[0] };
    struct CMUnitTest all[2 * COUNT];
    memcpy(all, local, sizeof local);
    memcpy(all + COUNT, gloo, sizeof gloo);
    return _cmocka_run_group_tests("groups", all, ranks_have("gloo") ? 2 * COUNT : COUNT, NULL, NULL);
}
