/* Until when workers may run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/rdzv/client/lease.h"

static struct lease heard_at(int64_t t)
{
    struct lease l = {.silence_ms = 3000, .grace_ms = 60000};
    lease_acked(&l, t);
    return l;
}

static void silence_counts_from_the_newest_acknowledged_request(void **state)
{
    (void)state;
    struct lease l = heard_at(10000);
    assert_int_equal(lease_until(&l), 12970);
    lease_acked(&l, 9000); /* an answer that comes late */
    assert_int_equal(lease_until(&l), 12970);
    lease_acked(&l, 11000);
    assert_int_equal(lease_until(&l), 13970);
}

/* Its clock may be one hundredth faster, in the silence and in the kill that it waits. */
static void a_hundredth_is_left_for_the_clock_of_the_rendezvous(void **state)
{
    (void)state;
    assert_int_equal(lease_ms(3000, 1000), 2960);
    assert_true((lease_ms(3000, 1000) + 1000) * 101 <= (3000 + 1000) * 100 + 100);
}

static void a_lost_connection_alone_extends_nothing(void **state)
{
    (void)state;
    struct lease l = heard_at(10000);
    lease_lost(&l, 10500);
    lease_dialled(&l, 10600, 1);
    assert_int_equal(lease_until(&l), 12970);
}

static void without_a_majority_or_a_refusal_silence_holds(void **state)
{
    (void)state;
    struct lease l = heard_at(10000);
    lease_lost(&l, 10500);
    lease_majority(&l, 12000);
    assert_int_equal(lease_until(&l), 12970);
    lease_dialled(&l, 12000, 0); /* timed out: it may be there, and we cut off */
    assert_int_equal(lease_until(&l), 12970);
}

static void a_daemon_proved_gone_is_waited_for(void **state)
{
    (void)state;
    struct lease l = heard_at(10000);
    lease_lost(&l, 10500);
    lease_dialled(&l, 12000, 1);
    lease_majority(&l, 12500);
    assert_int_equal(lease_until(&l), 14970);
    lease_dialled(&l, 14000, 1);
    assert_int_equal(lease_until(&l), 15470); /* the older of both */
    lease_dialled(&l, 15000, 0);
    assert_int_equal(lease_until(&l), 12970); /* long ago: at once */
}

static void the_grace_ends(void **state)
{
    (void)state;
    struct lease l = heard_at(10000);
    lease_lost(&l, 10500);
    lease_dialled(&l, 70000, 1);
    lease_majority(&l, 70000);
    assert_int_equal(lease_until(&l), 70500);
    l.grace_ms = 0;
    assert_int_equal(lease_until(&l), 12970);
}

static void a_daemon_that_is_back_begins_anew(void **state)
{
    (void)state;
    struct lease l = heard_at(10000);
    lease_lost(&l, 10500);
    lease_dialled(&l, 12000, 1);
    lease_majority(&l, 12500);
    lease_acked(&l, 13000);
    assert_int_equal(lease_until(&l), 15970);
    lease_lost(&l, 13500);
    assert_int_equal(lease_until(&l), 15970); /* old proofs prove nothing */
}

static void silence_names_the_side_that_was_still_and_the_knob(void **state)
{
    (void)state;
    char text[SILENCE_TEXT_MAX];
    assert_string_equal(silence_text(3004, 40, text),
                        "nothing was heard of the rendezvous for 3004 ms (--rdzv-conf keep_alive_interval, "
                        "keep_alive_max_attempt), though this crun listened");
    assert_string_equal(silence_text(6100, 5800, text),
                        "nothing was heard of the rendezvous for 6100 ms (--rdzv-conf keep_alive_interval, "
                        "keep_alive_max_attempt), of which this crun itself stood still for 5800 ms");
    assert_non_null(strstr(silence_text(6100, SILENCE_STILL_MS, text), "stood still for 250 ms"));
    assert_non_null(strstr(silence_text(6100, SILENCE_STILL_MS - 1, text), "though this crun listened"));
    silence_text(INT64_MAX, INT64_MAX, text);
    assert_true(strlen(text) < SILENCE_TEXT_MAX - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_counts_from_the_newest_acknowledged_request),
        cmocka_unit_test(a_hundredth_is_left_for_the_clock_of_the_rendezvous),
        cmocka_unit_test(a_lost_connection_alone_extends_nothing),
        cmocka_unit_test(without_a_majority_or_a_refusal_silence_holds),
        cmocka_unit_test(a_daemon_proved_gone_is_waited_for),
        cmocka_unit_test(the_grace_ends),
        cmocka_unit_test(a_daemon_that_is_back_begins_anew),
        cmocka_unit_test(silence_names_the_side_that_was_still_and_the_knob),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
