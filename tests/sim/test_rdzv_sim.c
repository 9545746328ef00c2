/* Random schedules against the rendezvous machine. SIM_RUNS: how many; SIM_SEED: replay one, with its trace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/err.h"
#include "tests/sim/sim.h"
#include <stdlib.h>

static void every_rule_holds_in_random_schedules(void **state)
{
    struct sim_stats st = {0};
    struct err e;
    uint64_t seed = 0, one = sim_env("SIM_SEED", 0), runs = sim_env("SIM_RUNS", 3000);
    (void)state;
    if (one > 0) {
        if (sim_run(one, 1, &st, &e) < 0)
            fail_msg("%s", e.text);
        return;
    }
    int64_t t0 = clock_ms();
    if (sim_run_many(1, runs, &st, &seed, &e) < 0)
        fail_msg("%s (replay: SIM_SEED=%llu)", e.text, (unsigned long long)seed);
    double s = (double)(clock_ms() - t0) / 1000;
    print_message("# %llu schedules in %.2f s (%.0f/s): %llu steps, %llu rounds, %llu restarts, %llu told to resize, "
                  "%llu fenced, "
                  "%llu refusals; %llu succeeded, %llu failed, %llu drained\n",
                  (unsigned long long)runs, s, (double)runs / (s > 0 ? s : 1), (unsigned long long)st.steps,
                  (unsigned long long)st.rounds, (unsigned long long)st.restarts, (unsigned long long)st.resizes,
                  (unsigned long long)st.fences, (unsigned long long)st.refused, (unsigned long long)st.succeeded,
                  (unsigned long long)st.failed, (unsigned long long)st.drained);
    /* A simulation in which little happens proves little. */
    assert_true(st.rounds > runs);
    assert_true(st.restarts > runs / 2);
    assert_true(st.fences > runs / 4);
    assert_true(st.succeeded > runs / 10);
    assert_true(st.failed > runs / 20);
    assert_true(st.drained > runs / 50);
}

static void a_schedule_is_a_function_of_its_seed(void **state)
{
    struct sim_stats a = {0}, b = {0};
    struct err e;
    (void)state;
    for (uint64_t seed = 100; seed < 120; seed++) {
        assert_int_equal(sim_run(seed, 0, &a, &e), 0);
        assert_int_equal(sim_run(seed, 0, &b, &e), 0);
    }
    assert_int_equal(a.steps, b.steps);
    assert_int_equal(a.refused, b.refused);
    assert_int_equal(a.rounds, b.rounds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_holds_in_random_schedules),
        cmocka_unit_test(a_schedule_is_a_function_of_its_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
