/* Random schedules against jobs that elect their leader. ELECT_RUNS: how many for each home; ELECT_FIRST: the first
 * seed; ELECT_HOME: 0 folder, 1 Redis, 2 lasting cuts, 3 etcd, 4 Kubernetes, 5 releases, 6 emptied homes, 7 a Redis and
 * a long silence, 8 daemons that share a state: this one alone; ELECT_SEED: replay one, with its trace.
 * ELECT_FAULT: the name of the fault that is sown into this program (mutants.py): it must be seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/sim/elect.h"
#include "tests/sim/sim.h"

static void many(enum elect_kind kind, const char *home)
{
    struct members_stats st = {0};
    struct err e = {0};
    const uint64_t runs = sim_env("ELECT_RUNS", kind >= ELECT_RELEASE && kind != ELECT_STANDBY ? 30 : 100),
                   one = sim_env("ELECT_SEED", 0), first = sim_env("ELECT_FIRST", 1);
    const int64_t t0 = clock_ms();
    if (sim_env("ELECT_HOME", kind) != kind)
        return;
    if (one > 0) {
        if (elect_run(kind, one, true, &st, &e) < 0)
            fail_msg("%s", e.text);
        return;
    }
    for (uint64_t seed = first; seed < first + runs; seed++)
        if (elect_run(kind, seed, false, &st, &e) < 0)
            fail_msg("%s: %s (replay: ELECT_HOME=%d ELECT_SEED=%llu)", home, e.text, (int)kind,
                     (unsigned long long)seed);
    print_message(
        "# %s: %llu schedules in %.1f s: %llu events, %llu rounds begun on a node, %llu terms, %llu releases, "
        "%llu higher epochs named, %llu kills, %llu pauses, %llu cuts, %llu outages, %llu wipes, %llu failovers, "
        "%llu answers lost, %llu fenced\n",
        home, (unsigned long long)runs, (double)(clock_ms() - t0) / 1000, (unsigned long long)st.events,
        (unsigned long long)st.rounds, (unsigned long long)st.terms, (unsigned long long)st.releases,
        (unsigned long long)st.higher, (unsigned long long)st.kills, (unsigned long long)st.pauses,
        (unsigned long long)st.cuts, (unsigned long long)st.outages, (unsigned long long)st.wipes,
        (unsigned long long)st.failovers, (unsigned long long)st.lost_replies, (unsigned long long)st.fences);
    /* A simulation in which little happens proves little. */
    assert_true(st.rounds > 2 * runs);
    assert_true(st.terms > 2 * runs);
    assert_true(st.fences > runs / (kind == ELECT_PATIENT ? 8 : 2));
}

static void every_rule_holds_over_a_shared_folder(void **state)
{
    (void)state;
    many(ELECT_FOLDER, "folder");
}

static void every_rule_holds_over_a_redis(void **state)
{
    (void)state;
    many(ELECT_REDIS, "Redis");
}

static void every_rule_holds_while_cuts_last(void **state)
{
    (void)state;
    many(ELECT_CUTS, "lasting cuts");
}

static void every_rule_holds_over_an_etcd(void **state)
{
    (void)state;
    many(ELECT_ETCD, "etcd");
}

static void every_rule_holds_over_a_kubernetes(void **state)
{
    (void)state;
    many(ELECT_KUBE, "Kubernetes");
}

static void every_rule_holds_when_a_leader_lets_go_that_one_member_alone_hears(void **state)
{
    (void)state;
    many(ELECT_RELEASE, "release");
}

static void every_rule_holds_when_a_home_is_emptied_under_a_leader(void **state)
{
    (void)state;
    many(ELECT_EMPTIED, "emptied");
}

static void every_rule_holds_when_leaders_wait_longer_than_they_hear_too_few(void **state)
{
    (void)state;
    many(ELECT_PATIENT, "long silence");
}

static void every_rule_holds_under_daemons_that_share_their_state(void **state)
{
    (void)state;
    many(ELECT_STANDBY, "standby");
}

static void the_sown_fault_is_seen(void **state)
{
    struct members_stats st = {0};
    struct err e = {0};
    const uint64_t runs = sim_env("ELECT_RUNS", 4000), first = sim_env("ELECT_FIRST", 1);
    const int home = getenv("ELECT_HOME") ? atoi(getenv("ELECT_HOME")) : -1;
    (void)state;
    for (uint64_t seed = first; seed < first + runs; seed++)
        for (int kind = 0; kind < ELECT_KINDS; kind++)
            if ((home < 0 || home == kind) && elect_run((enum elect_kind)kind, seed, false, &st, &e) < 0) {
                print_message("# %s is seen: %s\n", getenv("ELECT_FAULT"), e.text);
                return;
            }
    fail_msg("%s was not seen in %llu schedules", getenv("ELECT_FAULT"), (unsigned long long)runs * ELECT_KINDS);
}

int main(void)
{
    const struct CMUnitTest sound[] = {
        cmocka_unit_test(every_rule_holds_over_a_shared_folder),
        cmocka_unit_test(every_rule_holds_over_a_redis),
        cmocka_unit_test(every_rule_holds_while_cuts_last),
        cmocka_unit_test(every_rule_holds_over_an_etcd),
        cmocka_unit_test(every_rule_holds_over_a_kubernetes),
        cmocka_unit_test(every_rule_holds_when_a_leader_lets_go_that_one_member_alone_hears),
        cmocka_unit_test(every_rule_holds_when_a_home_is_emptied_under_a_leader),
        cmocka_unit_test(every_rule_holds_when_leaders_wait_longer_than_they_hear_too_few),
        cmocka_unit_test(every_rule_holds_under_daemons_that_share_their_state),
    };
    const struct CMUnitTest mutant[] = {cmocka_unit_test(the_sown_fault_is_seen)};
    return getenv("ELECT_FAULT") ? cmocka_run_group_tests(mutant, NULL, NULL)
                                 : cmocka_run_group_tests(sound, NULL, NULL);
}
