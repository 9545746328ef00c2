/* Every cell of the states of a group and what changes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "launcher/workers/group_state.h"

#define ONE(id, word) +1
enum { STATES = GROUP_STATES(ONE), EVENTS = GROUP_EVENTS(ONE) };

static void each_event_leads_from_each_state_where_the_table_says(void **state)
{
    enum {
        E = GROUP_EMPTY,
        O = GROUP_OPENING,
        R = GROUP_RUNNING,
        H = GROUP_HOLDING,
        S = GROUP_STOPPING,
        D = GROUP_DISMISSING,
        C = GROUP_CLEARING,
        T = GROUP_SORTING,
        K = GROUP_KEPT
    };
    static const unsigned char next[EVENTS][STATES] = {
        /* from               E  O  R  H  S  D  C  T  K */
        [GROUP_START] = {R, R, R, R, R, R, R, R, R},  [GROUP_OPEN] = {E, O, O, H, S, D, C, T, K},
        [GROUP_OPENED] = {E, R, R, H, S, D, C, T, K}, [GROUP_HOLD] = {H, H, H, H, S, D, C, T, K},
        [GROUP_STOP] = {S, S, S, S, S, D, C, S, S},   [GROUP_DISMISS] = {D, D, D, D, D, D, D, D, D},
        [GROUP_CLEAR] = {C, C, C, C, C, C, C, C, C},  [GROUP_SORT] = {T, T, T, T, T, T, T, T, T},
        [GROUP_GONE] = {E, E, E, E, E, E, E, E, E},   [GROUP_LEFT] = {K, K, K, K, K, K, K, K, K},
    };
    (void)state;
    for (int e = 0; e < EVENTS; e++)
        for (int s = 0; s < STATES; s++)
            if ((int)group_next((enum group_state)s, (enum group_event)e) != next[e][s])
                fail_msg("%s in %s leads to %s, not to %s", group_event_name((enum group_event)e),
                         group_state_name((enum group_state)s),
                         group_state_name(group_next((enum group_state)s, (enum group_event)e)),
                         group_state_name((enum group_state)next[e][s]));
}

static void only_three_states_end_processes(void **state)
{
    (void)state;
    for (int s = 0; s < STATES; s++)
        assert_int_equal(group_state_clears((enum group_state)s),
                         s == GROUP_DISMISSING || s == GROUP_CLEARING || s == GROUP_SORTING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_event_leads_from_each_state_where_the_table_says),
        cmocka_unit_test(only_three_states_end_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
