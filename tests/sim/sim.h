/* A simulated job: one rendezvous, agents that obey it, a network that loses, repeats and delays, hosts that die or fall out of
 * reach; all of it a function of the seed. */
#ifndef CRUN_TESTS_SIM_H
#define CRUN_TESTS_SIM_H

#include <stdint.h>

struct err;

struct sim_stats {
    uint64_t steps, rounds, restarts, resizes, fences, refused, succeeded, failed, drained;
};

/* One schedule. 0, or ERR_CORRUPT with the rule that broke and when. trace: print every step to stderr. */
int sim_run(uint64_t seed, int trace, struct sim_stats *total, struct err *e);

/* seeds first .. first + n - 1; stops at the first that breaks a rule and names it in *ret_seed. */
int sim_run_many(uint64_t first, uint64_t n, struct sim_stats *total, uint64_t *ret_seed, struct err *e);

uint64_t sim_env(const char *name, uint64_t otherwise);

#endif
