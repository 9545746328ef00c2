/* When the guardian gives its agent up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <string.h>

#include "launcher/guard/patience.h"

#define BIT(s) (UINT64_C(1) << ((s)-1))

static struct board b;
static struct patience p;
static int64_t now;

static int set_up(void **state)
{
    (void)state;
    memset(&b, 0, sizeof b);
    memset(&p, 0, sizeof p);
    b.stops = BIT(SIGTERM) | BIT(SIGINT);
    now = 100000;
    return 0;
}

static void forward(int signo)
{
    patience_forward(&p, &b, signo, false, now);
}

static void hear(void)
{
    board_heard(&b, board_forwarded(&b));
}

static enum patience_verdict look(void)
{
    int wait_ms;
    return patience_look(&p, &b, now, &wait_ms);
}

static int wait_of_look(void)
{
    int wait_ms;
    assert_int_equal(patience_look(&p, &b, now, &wait_ms), PATIENCE_KEEP);
    return wait_ms;
}

/* As the guardian's loop does, for so long at most. The verdict that ended it. */
static enum patience_verdict run(int64_t ms)
{
    const int64_t end = now + ms;
    for (;;) {
        int wait_ms;
        const enum patience_verdict v = patience_look(&p, &b, now, &wait_ms);
        if (v > PATIENCE_WARN || now >= end)
            return v == PATIENCE_WARN ? PATIENCE_KEEP : v;
        now += wait_ms >= 0 && wait_ms < end - now ? wait_ms : end - now;
    }
}

static void nobody_waits_without_a_wish(void **state)
{
    (void)state;
    assert_int_equal(wait_of_look(), -1);
    forward(SIGUSR1); /* a word for the workers */
    assert_int_equal(wait_of_look(), -1);
    assert_int_equal(run(100000), PATIENCE_KEEP);
    forward(SIGTERM);
    hear();
    assert_int_equal(wait_of_look(), -1);
}

static void a_signal_that_is_not_read_is_waited_for_five_seconds(void **state)
{
    (void)state;
    forward(SIGTERM);
    const int64_t begun = now;
    assert_int_equal(run(PATIENCE_MS - 1), PATIENCE_KEEP);
    assert_true(p.warned);
    forward(SIGTERM); /* the wish is as old as it was */
    assert_int_equal(run(PATIENCE_MS), PATIENCE_UNHEARD);
    assert_int_equal(now - begun, PATIENCE_MS);
    assert_int_equal(p.signo, SIGTERM);
}

static void a_signal_that_is_read_begins_the_wait_for_the_next(void **state)
{
    (void)state;
    forward(SIGTERM);
    const uint32_t first = board_forwarded(&b);
    assert_int_equal(run(4000), PATIENCE_KEEP);
    forward(SIGTERM);
    board_heard(&b, first);
    assert_int_equal(run(4900), PATIENCE_KEEP);
    assert_int_equal(run(400), PATIENCE_UNHEARD);
}

static void numbers_of_signals_wrap(void **state)
{
    (void)state;
    b.forwarded = b.heard = UINT32_MAX;
    forward(SIGTERM);
    assert_int_equal(run(1000), PATIENCE_KEEP);
    assert_true(p.is_awaited);
    hear();
    assert_int_equal(wait_of_look(), -1);
}

static void time_in_which_the_guardian_stood_still_does_not_count(void **state)
{
    (void)state;
    forward(SIGTERM);
    assert_int_equal(look(), PATIENCE_KEEP);
    now += 3600 * 1000;
    assert_int_equal(look(), PATIENCE_KEEP);
    assert_int_equal(run(PATIENCE_MS - 2 * PATIENCE_TICK_MS - 1), PATIENCE_KEEP);
    assert_int_equal(run(1000), PATIENCE_UNHEARD);
}

static void an_end_that_was_named_is_waited_for_and_five_seconds(void **state)
{
    (void)state;
    forward(SIGTERM);
    hear();
    const int64_t until = now + 25000;
    board_stopping(&b, until);
    assert_int_equal(run(29900), PATIENCE_KEEP);
    assert_int_equal(run(1000), PATIENCE_OVERDUE);
    assert_int_equal(now, until + PATIENCE_MS);
}

static void a_later_end_replaces_it(void **state)
{
    (void)state;
    forward(SIGTERM);
    hear();
    board_stopping(&b, now + 1000);
    assert_int_equal(run(5900), PATIENCE_KEEP);
    board_stopping(&b, now + 30000);
    assert_int_equal(run(34900), PATIENCE_KEEP);
    board_stopping(&b, 0); /* it cannot say */
    assert_int_equal(run(1000000), PATIENCE_KEEP);
    board_stopping(&b, now);
    assert_int_equal(run(10000), PATIENCE_OVERDUE);
}

static void an_end_without_a_signal_of_ours_is_none(void **state)
{
    (void)state;
    board_stopping(&b, now + 10); /* the crun that started this one wished it */
    assert_int_equal(run(100000), PATIENCE_KEEP);
}

static void the_third_sigint_is_the_last(void **state)
{
    (void)state;
    forward(SIGINT);
    hear();
    board_stopping(&b, now + 60000);
    forward(SIGINT); /* the same wish, told twice */
    now += SIGINT_APART_MS;
    forward(SIGINT);
    assert_int_equal(look(), PATIENCE_KEEP);
    now += SIGINT_APART_MS - 1;
    forward(SIGINT);
    assert_int_equal(look(), PATIENCE_KEEP);
    now += 1;
    forward(SIGINT);
    assert_int_equal(look(), PATIENCE_THIRD_SIGINT);
}

static void typed_ones_may_follow_faster(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(look(), PATIENCE_KEEP);
        now += SIGINT_TYPED_APART_MS;
        patience_forward(&p, &b, SIGINT, true, now);
    }
    assert_int_equal(look(), PATIENCE_THIRD_SIGINT);
}

static void what_is_the_workers_own_matter_is_no_wish(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) { /* at a prompt of the worker */
        patience_forward(&p, &b, SIGINT, true, now);
        hear();
        assert_int_equal(look(), PATIENCE_KEEP);
        now += 1000;
    }
    for (int i = 0; i < 2; i++) { /* then nobody reads them any more; of three the first was read by then */
        assert_int_equal(look(), PATIENCE_KEEP);
        patience_forward(&p, &b, SIGINT, true, now);
        now += 1000;
    }
    patience_forward(&p, &b, SIGINT, true, now);
    assert_int_equal(look(), PATIENCE_THIRD_SIGINT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(nobody_waits_without_a_wish, set_up),
        cmocka_unit_test_setup(a_signal_that_is_not_read_is_waited_for_five_seconds, set_up),
        cmocka_unit_test_setup(a_signal_that_is_read_begins_the_wait_for_the_next, set_up),
        cmocka_unit_test_setup(numbers_of_signals_wrap, set_up),
        cmocka_unit_test_setup(time_in_which_the_guardian_stood_still_does_not_count, set_up),
        cmocka_unit_test_setup(an_end_that_was_named_is_waited_for_and_five_seconds, set_up),
        cmocka_unit_test_setup(a_later_end_replaces_it, set_up),
        cmocka_unit_test_setup(an_end_without_a_signal_of_ours_is_none, set_up),
        cmocka_unit_test_setup(the_third_sigint_is_the_last, set_up),
        cmocka_unit_test_setup(typed_ones_may_follow_faster, set_up),
        cmocka_unit_test_setup(what_is_the_workers_own_matter_is_no_wish, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
