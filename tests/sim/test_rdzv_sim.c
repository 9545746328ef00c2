/* Random schedules against the leader. SIM_RUNS: how many for each home; SIM_FIRST: the first seed; SIM_HOME: 0 memory
 * alone, 1 directory alone, 2 hosts that die alone; with SIM_SEED: replay one, with its trace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/sim/sim.h"
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long ull;

/* --- what never happens, and why */

/* (state, event) pairs that no schedule can reach. */
static const char *impossible_why(int state, int event)
{
    bool final = state == RDZV_SUCCEEDED || state == RDZV_FAILED || state == RDZV_DRAINED;
    return final && event != RDZV_RESUME ? "for a job that is over its leader answers" : NULL;
}

/* How often each event was taken in each state, and refused in it. */
static void print_cells(const struct sim_stats *st)
{
    print_message("# events taken/refused in each state:\n# %-12s", "");
    for (int e = 0; e < SIM_EVENTS; e++)
        print_message("%16s", rdzv_event_name((enum rdzv_event_kind)e));
    for (int s = 0; s < SIM_STATES; s++) {
        print_message("\n# %-12s", rdzv_state_name((enum rdzv_state)s));
        for (int e = 0; e < SIM_EVENTS; e++) {
            char cell[48];
            snprintf(cell, sizeof cell, "%llu/%llu", (ull)st->taken[s][e], (ull)st->turned_down[s][e]);
            print_message("%16s", impossible_why(s, e) ? "impossible" : cell);
        }
    }
    print_message("\n");
}

static void check_cells(const struct sim_stats *st)
{
    for (int s = 0; s < SIM_STATES; s++)
        for (int e = 0; e < SIM_EVENTS; e++) {
            ull seen = (ull)(st->taken[s][e] + st->turned_down[s][e]);
            const char *why = impossible_why(s, e);
            if (why && seen > 0)
                fail_msg("%s came in state %s %llu times, but '%s'", rdzv_event_name((enum rdzv_event_kind)e),
                         rdzv_state_name((enum rdzv_state)s), seen, why);
            if (!why && seen == 0)
                fail_msg("%s never came in state %s", rdzv_event_name((enum rdzv_event_kind)e),
                         rdzv_state_name((enum rdzv_state)s));
        }
}

static const char *const names[] = {[SIM_MEMORY] = "memory", [SIM_DIR] = "directory", [SIM_BLANK] = "a host's memory"};

static void print_stats(enum sim_kind kind, const struct sim_stats *st, ull first, ull runs, double s)
{
    print_message(
        "# %s: %llu schedules (seeds %llu to %llu) in %.1f s, %.0f a second: %llu to %llu nodes, median %u events, "
        "%llu in all\n",
        names[kind], runs, first, first + runs - 1, s, (double)runs / (s > 0 ? s : 1), (ull)st->nodes_min,
        (ull)st->nodes_max, sim_median_events(st), (ull)st->steps);
    print_message(
        "# %llu instances, %llu adopted, %llu rounds, %llu restarts, %llu backoffs, %llu told to resize, %llu fenced, "
        "%llu refusals; %llu succeeded, %llu failed, %llu drained\n",
        (ull)st->instances, (ull)st->adopted, (ull)st->rounds, (ull)st->restarts, (ull)st->backoffs, (ull)st->resizes,
        (ull)st->fences, (ull)st->refused, (ull)st->succeeded, (ull)st->failed, (ull)st->drained);
    print_message("# %llu crashes, %llu cuts, %llu partitions, %llu pauses, %llu clock jumps, %llu leaves; the daemon: "
                  "%llu kills, %llu pauses, %llu compactions\n",
                  (ull)st->crashes, (ull)st->cuts, (ull)st->partitions, (ull)st->pauses, (ull)st->jumps,
                  (ull)st->leaves, (ull)st->daemon_restarts, (ull)st->daemon_pauses, (ull)st->compactions);
}

static void every_rule_holds(enum sim_kind kind)
{
    struct sim_stats st = {0};
    struct err e;
    uint64_t seed = 0, one = sim_env("SIM_SEED", 0), runs = sim_env("SIM_RUNS", 1000), first = sim_env("SIM_FIRST", 1);
    if (sim_env("SIM_HOME", kind) != kind)
        return;
    if (one > 0) {
        if (sim_run(kind, one, 1, &st, &e) < 0)
            fail_msg("%s", e.text);
        return;
    }
    int64_t t0 = clock_ms();
    if (sim_run_many(kind, first, runs, &st, &seed, &e) < 0)
        fail_msg("%s (replay: SIM_HOME=%d SIM_SEED=%llu)", e.text, (int)kind, (ull)seed);
    print_stats(kind, &st, first, runs, (double)(clock_ms() - t0) / 1000);
    print_cells(&st);
    /* A simulation in which little happens proves little. */
    if (runs < 1000)
        return;
    if (runs >= 3000)
        check_cells(&st);
    assert_true(sim_median_events(&st) >= (kind == SIM_BLANK ? 90 : 200)); /* there: no more nodes than seats */
    assert_true(st.nodes_max >= 60);
    assert_true(st.rounds > runs);
    assert_true(st.restarts > runs / 2);
    assert_true(st.fences > runs / 4);
    assert_true(st.backoffs > runs / 20);
    assert_true(st.daemon_restarts > runs / 2 || kind == SIM_MEMORY);
    assert_true(st.adopted > runs / 2 || kind != SIM_BLANK);
    assert_true(st.instances > runs + runs / 4);
    assert_true(st.partitions > runs / 20);
    assert_true(st.succeeded > runs / 10);
    assert_true(st.failed > runs / 20);
    assert_true(st.drained > runs / 50);
}

static void every_rule_holds_in_memory(void **state)
{
    (void)state;
    every_rule_holds(SIM_MEMORY);
}

static void every_rule_holds_over_a_directory(void **state)
{
    (void)state;
    every_rule_holds(SIM_DIR);
}

static void every_rule_holds_over_hosts_that_die_and_come_back_empty(void **state)
{
    (void)state;
    every_rule_holds(SIM_BLANK);
}

static void a_schedule_is_a_function_of_its_seed(void **state)
{
    struct sim_stats a = {0}, b = {0};
    struct err e;
    (void)state;
    for (uint64_t seed = 100; seed < 120; seed++) {
        assert_int_equal(sim_run(SIM_DIR, seed, 0, &a, &e), 0);
        assert_int_equal(sim_run(SIM_DIR, seed, 0, &b, &e), 0);
    }
    assert_memory_equal(&a.steps, &b.steps, offsetof(struct sim_stats, nodes_min));
    assert_memory_equal(a.taken, b.taken, sizeof a.taken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_holds_in_memory),
        cmocka_unit_test(every_rule_holds_over_a_directory),
        cmocka_unit_test(every_rule_holds_over_hosts_that_die_and_come_back_empty),
        cmocka_unit_test(a_schedule_is_a_function_of_its_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
