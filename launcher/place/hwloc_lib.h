/* hwloc, opened on first use: only --numa-binding and `crun topo` need it. Its functions are in a struct under their
 * own names; inline functions of its headers that call other functions cannot be used. */
#ifndef CRUN_LAUNCHER_HWLOC_LIB_H
#define CRUN_LAUNCHER_HWLOC_LIB_H

#include <hwloc.h>

struct err;

#define HWLOC_LIB_FUNCTIONS(X)                                                                                         \
    X(hwloc_topology_init)                                                                                             \
    X(hwloc_topology_set_synthetic)                                                                                    \
    X(hwloc_topology_load)                                                                                             \
    X(hwloc_topology_destroy)                                                                                          \
    X(hwloc_get_type_depth)                                                                                            \
    X(hwloc_get_nbobjs_by_depth)                                                                                       \
    X(hwloc_get_obj_by_depth)                                                                                          \
    X(hwloc_bitmap_isequal)                                                                                            \
    X(hwloc_bitmap_first)                                                                                              \
    X(hwloc_bitmap_next)

struct hwloc_lib {
#define X(name) __typeof__(name) *name;
    HWLOC_LIB_FUNCTIONS(X)
#undef X
};

/* NULL, with one sentence, if it is not installed. Stays for the life of the process. Main thread. */
const struct hwloc_lib *hwloc_lib(struct err *e);

#endif
