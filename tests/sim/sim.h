/* A simulated run id: the leader of common/rdzv, its decisions in memory or in a directory, agents that obey it, a
 * network that loses, repeats, delays and parts, hosts that die, pause or fall out of reach, clocks that have nothing
 * to do with each other, a daemon that is killed and goes on from its directory; jobs that end, and others under the
 * same id; all of it a function of the seed. */
#ifndef CRUN_TESTS_SIM_H
#define CRUN_TESTS_SIM_H

#include <stdint.h>

#include "common/rdzv/machine/rdzv.h"

struct err;

#define SIM_ONE(...) +1
enum { SIM_STATES = 0 RDZV_STATES(SIM_ONE), SIM_EVENTS = 0 RDZV_EVENTS(SIM_ONE), SIM_EVENTS_MAX = 4096 };

/* SIM_BLANK: a node hosts, and dies; another one hosts in its place, without memory. */
enum sim_kind { SIM_MEMORY, SIM_DIR, SIM_BLANK, SIM_KINDS };

struct sim_stats {
    uint64_t steps, rounds, restarts, resizes, fences, refused, backoffs, instances, adopted, told, succeeded, failed,
        drained;
    uint64_t crashes, pauses, partitions, cuts, leaves, jumps, daemon_restarts, daemon_pauses, compactions;
    uint64_t nodes_min, nodes_max;
    uint64_t taken[SIM_STATES][SIM_EVENTS], turned_down[SIM_STATES][SIM_EVENTS];
    uint32_t runs_of[SIM_EVENTS_MAX + 1]; /* how many schedules had so many events; the last: that many or more */
};

/* One schedule. 0, or ERR_CORRUPT with the rule that broke and when. trace: print every step to stderr. */
int sim_run(enum sim_kind kind, uint64_t seed, int trace, struct sim_stats *total, struct err *e);

/* seeds first .. first + n - 1; stops at the first that breaks a rule and names it in *ret_seed. */
int sim_run_many(enum sim_kind kind, uint64_t first, uint64_t n, struct sim_stats *total, uint64_t *ret_seed,
                 struct err *e);

/* Events of the middle schedule. An event is one step of the machine. */
unsigned sim_median_events(const struct sim_stats *st);

/* An unsigned number from the environment. */
uint64_t sim_env(const char *name, uint64_t otherwise);

#endif
