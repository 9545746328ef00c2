/* Reads the cores of this machine and their caches from hwloc (topology.h). */
#include "launcher/place/topology.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "launcher/place/hwloc_lib.h"

/* Caches of different depth never share a number. */
#define COMPLEX_OF(cache) ((int)(cache)->depth * 100000 + (int)(cache)->logical_index)

static bool is_cache(hwloc_obj_type_t t)
{
    return t >= HWLOC_OBJ_L1CACHE && t <= HWLOC_OBJ_L5CACHE;
}

/* Read a core. False: none of its CPUs may be used. */
static bool read_core(const struct hwloc_lib *l, const struct hwloc_obj *o, const struct cpus *allowed,
                      struct topology_core *c)
{
    *c = (struct topology_core){.node = l->hwloc_bitmap_first(o->nodeset)};
    for (int i = l->hwloc_bitmap_first(o->cpuset); i >= 0 && i < CPUS_MAX; i = l->hwloc_bitmap_next(o->cpuset, i))
        if (!allowed || cpus_has(allowed, i))
            cpus_add(&c->cpus, i);
    if (c->node < 0)
        c->node = 0;
    c->complex = -1 - c->node; /* no shared cache is known: all cores of the node */
    for (const struct hwloc_obj *up = o->parent; up; up = up->parent) {
        if (is_cache(up->type) && !l->hwloc_bitmap_isequal(up->cpuset, o->cpuset))
            c->complex = COMPLEX_OF(up);
        else if (up->type == HWLOC_OBJ_PACKAGE)
            c->socket = (int)up->logical_index;
    }
    return cpus_count(&c->cpus) > 0;
}

static int read_cores(const struct hwloc_lib *l, hwloc_topology_t t, const struct cpus *allowed, struct topology *ret,
                      struct err *e)
{
    int depth = l->hwloc_get_type_depth(t, HWLOC_OBJ_CORE);
    if (depth < 0) /* some virtual machines name no cores */
        depth = l->hwloc_get_type_depth(t, HWLOC_OBJ_PU);
    const int n = depth < 0 ? 0 : (int)l->hwloc_get_nbobjs_by_depth(t, depth);
    struct topology top = {.cores = calloc((size_t)n + 1, sizeof *top.cores)};
    if (!top.cores)
        return err_errno(e, ENOMEM, "topology");
    for (int i = 0; i < n; i++)
        top.n += read_core(l, l->hwloc_get_obj_by_depth(t, depth, (unsigned)i), allowed, &top.cores[top.n]);
    if (top.n == 0) {
        free(top.cores);
        return err_set(e, -ENODEV, "hwloc finds no core that may be used");
    }
    *ret = top;
    return 0;
}

int topology_read(struct topology *ret, const char *synthetic, const struct cpus *allowed, struct err *e)
{
    const struct hwloc_lib *l = hwloc_lib(e);
    hwloc_topology_t t;
    if (!l)
        return -ENOENT;
    if (l->hwloc_topology_init(&t) < 0)
        return err_set(e, -ENOMEM, "hwloc cannot begin");
    int rc = 0;
    if (synthetic && l->hwloc_topology_set_synthetic(t, synthetic) < 0)
        rc = err_set(e, -EINVAL, "hwloc cannot read the description '%s'", synthetic);
    if (rc == 0 && l->hwloc_topology_load(t) < 0)
        rc = err_set(e, -EIO, "hwloc cannot read the topology of this machine");
    if (rc == 0)
        rc = read_cores(l, t, allowed, ret, e);
    l->hwloc_topology_destroy(t);
    return rc;
}

void topology_free(struct topology *t)
{
    free(t->cores);
    *t = (struct topology){0};
}
