/* The cores of this machine, and which caches they share, from hwloc. */
#ifndef CRUN_LAUNCHER_TOPOLOGY_H
#define CRUN_LAUNCHER_TOPOLOGY_H

#include "launcher/place/cpus.h"

struct err;

struct topology_core {
    struct cpus cpus; /* its usable hardware threads */
    int node;         /* the kernel's number of its NUMA node */
    int socket;
    /* the same for all cores that share the largest shared cache; without a shared cache, for all cores of a node */
    int complex;
};

struct topology {
    struct topology_core *cores; /* in hwloc's order: neighbours stand together */
    int n;
};

/* Cores without a usable CPU are left out. allowed: usable CPUs, NULL: all. synthetic: NULL for this machine, else a
 * description of another one in hwloc's format ("node:2 core:8 pu:2"). -ENOENT if hwloc is not installed, -ENODEV if
 * no core is left. Takes some milliseconds. */
int topology_read(struct topology *ret, const char *synthetic, const struct cpus *allowed, struct err *e);
void topology_free(struct topology *t);

#endif
