/* The cores of this machine and what they share, from hwloc. */
#ifndef CRUN_LAUNCHER_TOPOLOGY_H
#define CRUN_LAUNCHER_TOPOLOGY_H

#include "launcher/place/cpus.h"

struct err;

struct topology_core {
    struct cpus cpus; /* its hardware threads, those that may be used */
    int node;         /* the kernel's number of its NUMA node */
    int socket;
    int complex; /* cores with the same value share the largest cache that several share; where none does: of one node */
};

struct topology {
    struct topology_core *cores; /* in hwloc's order: neighbours stand together */
    int n;
};

/* Cores without a usable CPU are left out. allowed: CPUs that may be used, NULL: all. synthetic: NULL for this machine,
 * else a description of another one as hwloc reads it ("node:2 core:8 pu:2"). -ENOENT where hwloc is not installed,
 * -ENODEV where no core is left. Some milliseconds. */
int topology_read(struct topology *ret, const char *synthetic, const struct cpus *allowed, struct err *e);
void topology_free(struct topology *t);

#endif
