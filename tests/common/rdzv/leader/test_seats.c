/* Whom a host of a list hears, and what it may do then. */
#include "common/rdzv/leader/seats.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "common/rdzv/wire/rdzv_wire.h"

#define SILENCE 3000
#define KILL 1000
#define WAIT (2 * SILENCE + KILL + 70) /* one hundredth more */

static struct seats seats_for(int min, int max)
{
    struct seats s;
    struct rdzv_config c;
    rdzv_config_defaults(&c);
    c.min_nodes = min;
    c.max_nodes = max;
    c.silence_ms = SILENCE;
    c.kill_ms = KILL;
    assert_int_equal(seats_init(&s, &c, NULL), 0);
    return s;
}

static int come(struct seats *s, int seat, int64_t now)
{
    char node[16];
    snprintf(node, sizeof node, "node%d", seat);
    return seats_connect(s, seat, node, now, NULL);
}

static void come_and_join(struct seats *s, int seat, int64_t now)
{
    assert_int_equal(come(s, seat, now), 0);
    seats_join(s, seat, now);
}

static void answer_and_confirm(struct seats *s, int seat, int64_t now)
{
    seats_confirm(s, seat, seats_answer(s, now));
}

static void a_host_answers_while_min_seats_have_got_an_answer_sent_within_the_silence(void **state)
{
    struct seats s = seats_for(2, 3);
    come_and_join(&s, 0, 100);
    come_and_join(&s, 1, 100);
    assert_false(seats_may_answer(&s, 100)); /* both have come, neither has got anything */
    answer_and_confirm(&s, 0, 200);
    assert_false(seats_may_answer(&s, 200));
    const struct seats_sent late = seats_answer(&s, 300);
    seats_confirm(&s, 1, late);
    assert_true(seats_may_answer(&s, 200 + SILENCE - 1));
    assert_false(seats_may_answer(&s, 200 + SILENCE));
    seats_confirm(&s, 0, (struct seats_sent){200, 1}); /* an older one, repeated */
    assert_false(seats_may_answer(&s, 200 + SILENCE));
    seats_finish(&s);
}

static void a_seat_counts_once_and_belongs_to_one_node(void **state)
{
    struct seats s = seats_for(2, 3);
    struct err e = {0};
    come_and_join(&s, 0, 100);
    answer_and_confirm(&s, 0, 100);
    answer_and_confirm(&s, 0, 101);
    assert_int_equal(seats_heard(&s, NULL, 101), 1);
    assert_int_equal(seats_heard(&s, "node0", 101), 0);
    assert_int_equal(seats_connect(&s, 0, "other", 101, &e), -EAGAIN);
    assert_non_null(strstr(e.text, "node rank 0 is taken by node 'node0'"));
    assert_int_equal(seats_connect(&s, 3, "other", 101, &e), ERR_REFUSED);
    assert_int_equal(seats_connect(&s, -1, "other", 101, &e), ERR_REFUSED);
    seats_leave(&s, 0);
    assert_int_equal(seats_connect(&s, 0, "other", 102, &e), 0);
    assert_int_equal(seats_connect(&s, 0, "third", 101 + SILENCE, &e), 0); /* nothing is heard of it */
    assert_int_equal(seats_of(&s, "third"), 0);
    assert_int_equal(seats_of(&s, "other"), -1);
    seats_finish(&s);
}

static void the_first_round_waits_from_the_join_that_made_min(void **state)
{
    struct seats s = seats_for(2, 3);
    come_and_join(&s, 0, 100);
    answer_and_confirm(&s, 0, 5000);
    assert_int_equal(seats_begin_at(&s, 5000), INT64_MAX);
    come_and_join(&s, 2, 5000);
    answer_and_confirm(&s, 2, 5100);
    assert_int_equal(seats_begin_at(&s, 5100), 5000 + WAIT);
    seats_join(&s, 2, 6000); /* repeated */
    answer_and_confirm(&s, 2, 6000);
    answer_and_confirm(&s, 0, 6000);
    assert_int_equal(seats_begin_at(&s, 6000), 5000 + WAIT);
    assert_int_equal(seats_begin_at(&s, 6000 + SILENCE), INT64_MAX); /* neither is heard any more */
    come_and_join(&s, 2, 6500);                                      /* by a new connection: it may have been away */
    assert_int_equal(seats_begin_at(&s, 6500), 6500 + WAIT);
    seats_forget(&s);
    assert_int_equal(seats_begin_at(&s, 6500), INT64_MAX);
    seats_finish(&s);
}

static void a_full_job_begins_when_all_have_got_an_answer_sent_after_the_newest_join(void **state)
{
    struct seats s = seats_for(2, 3);
    come_and_join(&s, 0, 100);
    come_and_join(&s, 1, 100);
    const struct seats_sent early[] = {seats_answer(&s, 100), seats_answer(&s, 100)};
    come_and_join(&s, 2, 100); /* in the same millisecond, but after those answers */
    seats_confirm(&s, 0, early[0]);
    seats_confirm(&s, 1, early[1]);
    answer_and_confirm(&s, 2, 100);
    assert_int_equal(seats_begin_at(&s, 100), 100 + WAIT);
    answer_and_confirm(&s, 0, 101);
    assert_int_equal(seats_begin_at(&s, 101), 100 + WAIT);
    answer_and_confirm(&s, 1, 101);
    assert_int_equal(seats_begin_at(&s, 101), 101);
    seats_finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_answers_while_min_seats_have_got_an_answer_sent_within_the_silence),
        cmocka_unit_test(a_seat_counts_once_and_belongs_to_one_node),
        cmocka_unit_test(the_first_round_waits_from_the_join_that_made_min),
        cmocka_unit_test(a_full_job_begins_when_all_have_got_an_answer_sent_after_the_newest_join),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
