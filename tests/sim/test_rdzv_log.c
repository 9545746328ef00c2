/* Random schedules against the rendezvous that lives in a log. LOG_RUNS: how many for each home; LOG_FIRST: the first
 * seed; LOG_HOME (0 Redis, 1 folder, 2 a Redis that is cut): this one alone; LOG_SEED: replay one, with its trace.
 * LOG_FAULT: the name of the fault that is sown into this program (mutants.py), or a number of log_home_fault: it must
 * be seen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "tests/sim/sim_log.h"

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void say(const char *home, uint64_t runs, double s, const struct log_stats *st)
{
    print_message(
        "# %s: %llu schedules in %.1f s: %llu steps, %llu rounds, %llu reigns, %llu decisions (%llu refused), "
        "%llu failovers (%llu with an old primary alive) lost %llu writes, %llu fenced, %llu ended well, %llu badly\n",
        home, (unsigned long long)runs, s, (unsigned long long)st->steps, (unsigned long long)st->rounds,
        (unsigned long long)st->reigns, (unsigned long long)st->appends, (unsigned long long)st->refused_appends,
        (unsigned long long)st->failovers, (unsigned long long)st->partitions, (unsigned long long)st->lost_writes,
        (unsigned long long)st->fences, (unsigned long long)st->ended_well, (unsigned long long)st->ended_badly);
}

/* False: one alone was replayed, or this home was not asked for. */
static bool run_all(enum sim_home_kind kind, const char *home, struct log_stats *st, uint64_t *ret_runs)
{
    struct err e = {0};
    const uint64_t runs = number("LOG_RUNS", 400), one = number("LOG_SEED", 0), first = number("LOG_FIRST", 1);
    int64_t t0 = clock_ms();
    if (number("LOG_HOME", one > 0 ? SIM_REDIS : kind) != kind)
        return false;
    if (one > 0) {
        if (log_run(kind, one, true, st, &e) < 0)
            fail_msg("%s", e.text);
        return false;
    }
    for (uint64_t seed = first; seed < first + runs; seed++)
        if (log_run(kind, seed, false, st, &e) < 0)
            fail_msg("%s: %s (replay: LOG_HOME=%d LOG_SEED=%llu)", home, e.text, (int)kind, (unsigned long long)seed);
    say(home, runs, (double)(clock_ms() - t0) / 1000, st);
    *ret_runs = runs;
    return true;
}

static void many(enum sim_home_kind kind, const char *home)
{
    struct log_stats st = {0};
    uint64_t runs;
    if (!run_all(kind, home, &st, &runs))
        return;
    /* A simulation in which little happens proves little. */
    assert_true(st.rounds > runs);
    assert_true(st.reigns > runs);
    assert_true(st.fences > runs / 10);
    assert_true(st.ended_well > runs / 10);
}

static void every_rule_holds_over_a_redis_that_loses_writes(void **state)
{
    (void)state;
    many(SIM_REDIS, "Redis");
}

static void every_rule_holds_over_a_shared_folder(void **state)
{
    (void)state;
    many(SIM_FOLDER, "folder");
}

/* With allow_unsafe=1 too: who hears of nobody but a server that knows nothing of what is decided stops in time. */
static void no_round_meets_another_while_a_cut_lasts(void **state)
{
    struct log_stats st = {0};
    uint64_t runs;
    (void)state;
    if (!run_all(SIM_CUT, "Redis, cut", &st, &runs))
        return;
    assert_true(st.partitions > runs / 2);    /* in others all was over before */
    assert_true(st.rounds > runs + runs / 4); /* in so many the leader's side has gone on without the others */
    assert_true(st.fences > runs / 4);
}

static void the_sown_fault_is_seen(void **state)
{
    struct log_stats st = {0};
    struct err e = {0};
    /* LOG_SEED: where to begin, for a fault that few schedules show */
    const uint64_t runs = number("LOG_RUNS", 20000), first = number("LOG_SEED", 1);
    (void)state;
    for (uint64_t seed = first; seed < first + runs; seed++)
        for (int kind = SIM_REDIS; kind <= SIM_CUT; kind++)
            if (log_run((enum sim_home_kind)kind, seed, false, &st, &e) < 0) {
                print_message("# %s is seen after %llu schedules: %s\n", getenv("LOG_FAULT"),
                              (unsigned long long)(seed - first + 1) * 3, e.text);
                return;
            }
    fail_msg("%s was not seen in %llu schedules", getenv("LOG_FAULT"), (unsigned long long)runs);
}

int main(void)
{
    const struct CMUnitTest sound[] = {
        cmocka_unit_test(every_rule_holds_over_a_redis_that_loses_writes),
        cmocka_unit_test(every_rule_holds_over_a_shared_folder),
        cmocka_unit_test(no_round_meets_another_while_a_cut_lasts),
    };
    const struct CMUnitTest mutant[] = {cmocka_unit_test(the_sown_fault_is_seen)};
    if (!getenv("LOG_FAULT"))
        return cmocka_run_group_tests(sound, NULL, NULL);
    log_home_fault = (enum log_home_fault)strtol(getenv("LOG_FAULT"), NULL, 10);
    return cmocka_run_group_tests(mutant, NULL, NULL);
}
