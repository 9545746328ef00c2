/* The simulator against a rendezvous with one fault sown into it (mutants.py, SIM_FAULT its name): it must see it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "tests/sim/sim.h"

static void the_sown_fault_is_seen(void **state)
{
    struct sim_stats st = {0};
    struct err e;
    const uint64_t runs = sim_env("SIM_RUNS", 5000);
    (void)state;
    for (uint64_t seed = 1; seed <= runs; seed++)
        for (int kind = SIM_MEMORY; kind < SIM_KINDS; kind++)
            if (sim_run((enum sim_kind)kind, seed, 0, &st, &e) < 0) {
                print_message("# %s is seen: %s\n", getenv("SIM_FAULT"), e.text);
                return;
            }
    fail_msg("%s was not seen in %llu schedules", getenv("SIM_FAULT"), (unsigned long long)runs * SIM_KINDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_sown_fault_is_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
