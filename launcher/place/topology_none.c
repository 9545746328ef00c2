/* Stands in for topology.c in builds without hwloc's headers: reading fails. */
#include <errno.h>

#include "common/base/err.h"
#include "launcher/place/topology.h"

int topology_read(struct topology *ret, const char *synthetic, const struct cpus *allowed, struct err *e)
{
    return err_set(e, -ENOENT, "this crun was built without hwloc (Debian: libhwloc-dev)");
}

void topology_free(struct topology *t)
{
}
