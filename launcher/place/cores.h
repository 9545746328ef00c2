/* How many cores this process may use: the CPUs of its affinity mask (which is within its cpuset), or fewer if it
 * has a CPU quota. */
#ifndef CRUN_LAUNCHER_CORES_H
#define CRUN_LAUNCHER_CORES_H

struct cgroup_tables; /* cgroup_path.h; of this process */

/* At least 1; a quota of 2.5 CPUs counts as 2. Reads some cgroup files (about 20 us). */
int cores_usable(const struct cgroup_tables *t);

/* Whole CPUs of the smallest quota (cpu.max, cpu.cfs_quota_us) of this process's cgroups and all above them; at
 * least 1. 0: there is no quota. */
int cores_quota(const struct cgroup_tables *t);

#endif
