/* Random schedules against jobs with a list of hosts. LISTED_RUNS: how many of each kind; LISTED_FIRST: the first
 * seed; LISTED_KIND: 0 healed, 1 lasting cuts: this one alone; LISTED_SEED: replay one, with its trace. LISTED_FAULT:
 * the name of the fault that is sown into this program (mutants.py): it must be seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/sim/listed.h"
#include "tests/sim/sim.h"

static void many(enum listed_kind kind, const char *what)
{
    struct members_stats st = {0};
    struct err e = {0};
    const uint64_t runs = sim_env("LISTED_RUNS", 300), one = sim_env("LISTED_SEED", 0),
                   first = sim_env("LISTED_FIRST", 1);
    const int64_t t0 = clock_ms();
    if (sim_env("LISTED_KIND", kind) != kind)
        return;
    if (one > 0) {
        if (listed_run(kind, one, true, &st, &e) < 0)
            fail_msg("%s", e.text);
        return;
    }
    for (uint64_t seed = first; seed < first + runs; seed++)
        if (listed_run(kind, seed, false, &st, &e) < 0)
            fail_msg("%s: %s (replay: LISTED_KIND=%d LISTED_SEED=%llu)", what, e.text, (int)kind,
                     (unsigned long long)seed);
    print_message("# %s: %llu schedules in %.1f s: %llu events, %llu rounds begun on a node, %llu kills, %llu pauses, "
                  "%llu cuts, %llu fenced\n",
                  what, (unsigned long long)runs, (double)(clock_ms() - t0) / 1000, (unsigned long long)st.events,
                  (unsigned long long)st.rounds, (unsigned long long)st.kills, (unsigned long long)st.pauses,
                  (unsigned long long)st.cuts, (unsigned long long)st.fences);
    /* A simulation in which little happens proves little. */
    assert_true(st.rounds > 2 * runs);
    assert_true(st.fences > runs / 2);
}

static void every_rule_holds_with_a_list_of_hosts(void **state)
{
    (void)state;
    many(LISTED_HEALED, "healed");
}

static void every_rule_holds_while_cuts_last(void **state)
{
    (void)state;
    many(LISTED_CUTS, "lasting cuts");
}

static void the_sown_fault_is_seen(void **state)
{
    struct members_stats st = {0};
    struct err e = {0};
    const uint64_t runs = sim_env("LISTED_RUNS", 4000), first = sim_env("LISTED_FIRST", 1);
    (void)state;
    for (uint64_t seed = first; seed < first + runs; seed++)
        for (int kind = 0; kind < LISTED_KINDS; kind++)
            if (listed_run((enum listed_kind)kind, seed, false, &st, &e) < 0) {
                print_message("# %s is seen: %s\n", getenv("LISTED_FAULT"), e.text);
                return;
            }
    fail_msg("%s was not seen in %llu schedules", getenv("LISTED_FAULT"), (unsigned long long)runs * LISTED_KINDS);
}

int main(void)
{
    const struct CMUnitTest sound[] = {
        cmocka_unit_test(every_rule_holds_with_a_list_of_hosts),
        cmocka_unit_test(every_rule_holds_while_cuts_last),
    };
    const struct CMUnitTest mutant[] = {cmocka_unit_test(the_sown_fault_is_seen)};
    return getenv("LISTED_FAULT") ? cmocka_run_group_tests(mutant, NULL, NULL)
                                  : cmocka_run_group_tests(sound, NULL, NULL);
}
