/* The simulator against a machine with one fault sown into it (rdzv.c compiled again with -DRDZV_MUTANT=n): it must see
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/err.h"
#include "tests/sim/sim.h"

static void the_sown_fault_is_seen(void **state)
{
    struct sim_stats st = {0};
    struct err e;
    uint64_t seed = 0, runs = sim_env("SIM_RUNS", 3000);
    (void)state;
    if (sim_run_many(1, runs, &st, &seed, &e) == 0)
        fail_msg("mutant %d was not seen in %llu schedules", RDZV_MUTANT, (unsigned long long)runs);
    print_message("# mutant %d: %s\n", RDZV_MUTANT, e.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_sown_fault_is_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
