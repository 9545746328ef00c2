/* Decisions on their way to a shared home: those that wait go together, and what was tried is tried again as it was. */
#include "common/rdzv/leader/keeper.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#include "common/rdzv/homes/rdzv_log_home.h"

static struct {
    struct rdzv_home home;
    sem_t began, go; /* an append has begun, may end */
    int fails;       /* of the appends to come */
    char taken[400]; /* "a;bc;": each append, "*" before one that is whole */
} f;

static int fake_append(struct rdzv_home *h, const struct rdzv_write *w, struct err *e)
{
    const size_t n = strlen(f.taken);
    (void)h, (void)e;
    sem_post(&f.began);
    sem_wait(&f.go);
    snprintf(f.taken + n, sizeof f.taken - n, "%s%s;", w->whole ? "*" : "", w->decision->data);
    return f.fails-- > 0 ? -EAGAIN : 1;
}

static void fake_close(struct rdzv_home *h)
{
    (void)h;
}

static const struct rdzv_home_ops fake_ops = {.name = "fake", .append = fake_append, .close = fake_close};

static struct {
    uv_loop_t loop;
    struct keeper *keeper;
    char answers[400]; /* "1:1 3:1 ": number and rc of each */
} k;

static void on_answer(void *arg, struct keeper_answer *a)
{
    const size_t n = strlen(k.answers);
    (void)arg;
    snprintf(k.answers + n, sizeof k.answers - n, "%d:%d ", (int)a->number, a->rc);
}

static void set_up(int fails)
{
    memset(&f, 0, sizeof f);
    memset(&k, 0, sizeof k);
    f.home = (struct rdzv_home){.ops = &fake_ops, .cancel_fd = -1};
    f.fails = fails;
    sem_init(&f.began, 0, 0);
    sem_init(&f.go, 0, 0);
    uv_loop_init(&k.loop);
    assert_int_equal(keeper_open(&k.keeper, &k.loop, &f.home, 60000, on_answer, NULL, NULL), 0);
}

static void decide(int number, const char *text, const char *epoch, bool whole)
{
    struct buf b = {0};
    buf_addstr(&b, text);
    assert_int_equal(
        keeper_append(k.keeper, &(struct rdzv_write){.decision = &b, .epoch = epoch, .whole = whole}, (uint64_t)number),
        0);
    buf_free(&b);
}

static int count(const char *answers)
{
    int n = 0;
    for (; *answers; answers++)
        n += *answers == ' ';
    return n;
}

/* Let n appends end, until their answers are there. */
static void finish(int n, const char *answers)
{
    for (int i = 0; i < n; i++)
        sem_post(&f.go);
    while (count(k.answers) < count(answers))
        uv_run(&k.loop, UV_RUN_ONCE);
    assert_string_equal(k.answers, answers);
    keeper_close(k.keeper);
    uv_run(&k.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&k.loop), 0);
}

static void decisions_that_wait_for_one_go_together(void **state)
{
    (void)state;
    set_up(0);
    decide(1, "a", "1-x", false);
    sem_wait(&f.began);
    decide(2, "b", "1-x", false);
    decide(3, "c", "1-x", false);
    decide(4, "d", "2-x", false); /* of another term */
    finish(3, "1:1 3:1 4:1 ");
    assert_string_equal(f.taken, "a;bc;d;");
}

static void a_whole_decision_stands_for_those_before_it(void **state)
{
    (void)state;
    set_up(0);
    decide(1, "a", "1-x", false);
    sem_wait(&f.began);
    decide(2, "b", "1-x", false);
    decide(3, "C", "1-x", true);
    decide(4, "d", "1-x", false);
    finish(2, "1:1 4:1 ");
    assert_string_equal(f.taken, "a;*Cd;");
}

static void what_was_tried_is_tried_again_as_it_was(void **state)
{
    (void)state;
    set_up(1);
    decide(1, "a", "1-x", false);
    sem_wait(&f.began);
    decide(2, "b", "1-x", false);
    finish(3, "1:1 2:1 ");
    assert_string_equal(f.taken, "a;a;b;");
}

/* The next term may find another server, which would take it for its own. */
static void what_was_under_way_when_a_term_ended_is_not_tried_again(void **state)
{
    (void)state;
    set_up(1);
    decide(1, "a", "1-x", false);
    sem_wait(&f.began);
    keeper_end_term(k.keeper);
    decide(2, "b", "2-x", false);
    finish(3, "1:-11 2:1 ");
    assert_string_equal(f.taken, "a;b;");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decisions_that_wait_for_one_go_together),
        cmocka_unit_test(a_whole_decision_stands_for_those_before_it),
        cmocka_unit_test(what_was_tried_is_tried_again_as_it_was),
        cmocka_unit_test(what_was_under_way_when_a_term_ended_is_not_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
