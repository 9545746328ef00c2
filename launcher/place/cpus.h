/* Sets of logical CPUs. Pure, except cpus_allowed(). */
#ifndef CRUN_LAUNCHER_CPUS_H
#define CRUN_LAUNCHER_CPUS_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

#define CPUS_MAX 8192 /* CONFIG_NR_CPUS of the widest kernels */

struct cpus {
    cpu_set_t part[CPUS_MAX / CPU_SETSIZE];
};

void cpus_add(struct cpus *c, int cpu);
bool cpus_has(const struct cpus *c, int cpu);
void cpus_add_all(struct cpus *c, const struct cpus *more);
int cpus_count(const struct cpus *c);
bool cpus_equal(const struct cpus *a, const struct cpus *b);

/* "0-3,8", as in /proc/PID/status; returns out. Cut short if cap is too small. */
char *cpus_text(const struct cpus *c, char *out, size_t cap);

/* The CPUs on which this process may run (affinity, which is within its cpuset). -errno. */
int cpus_allowed(struct cpus *ret);

#endif
