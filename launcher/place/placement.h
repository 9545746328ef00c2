/* The place of each worker of this node: its cores (--numa-binding), its share of them (OMP_NUM_THREADS).
 *
 * How data flows: the kernel says which CPUs crun may use (cpus.h), and how many of them (cores.h); hwloc says which
 * caches and nodes they share (topology.h); NVML or /proc says which GPUs there are (gpus.h). placement_plan() makes
 * one struct placement of that, before the first worker starts and once for all rounds. binding_assign() is the
 * decision, and pure; binding_apply() carries it out, in the worker, between fork and exec. Libraries are opened
 * when they are needed: without --numa-binding crun runs where they are not installed. */
#ifndef CRUN_LAUNCHER_PLACEMENT_H
#define CRUN_LAUNCHER_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>

#include "launcher/place/binding.h"

struct cgroup_tables; /* cgroup_path.h */
struct err;

struct placement {
    int workers;
    int cores;                /* cores_usable() */
    bool limited;             /* a CPU quota allows fewer than the CPUs of the mask */
    struct binding *bindings; /* one for each worker; NULL: workers are not bound */
    bool one_thread;          /* OMP_NUM_THREADS is 1, whatever a worker's share is; set by the caller */
};

/* Worker i is assumed to use visible GPU number i modulo n, as in torchrun. t: tables of this process. ERR_USAGE,
 * -ENOENT (no hwloc), -errno. */
int placement_plan(struct placement *ret, enum binding_mode mode, int workers, const struct cgroup_tables *t,
                   struct err *e);
void placement_free(struct placement *p);

/* The number of cores in the worker's mask divided by the number of workers with the same mask, within its share of
 * crun's cores; at least 1. */
int placement_threads(const struct placement *p, int worker);

/* Should OMP_NUM_THREADS be set to that? Yes, if it is not set already, and there are several workers or a CPU
 * quota. (A single worker sees its cores itself, but not a quota.) */
bool placement_sets_threads(const struct placement *p);

/* "CPUs 0-7, memory of NUMA node 0"; "" if the worker is not bound; returns out. */
char *placement_text(const struct placement *p, int worker, char *out, size_t cap);

#endif
