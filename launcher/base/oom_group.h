/* What the kernel ends together when memory runs out. */
#ifndef CRUN_LAUNCHER_OOM_GROUP_H
#define CRUN_LAUNCHER_OOM_GROUP_H

#include <stdbool.h>
#include <stddef.h>

struct cgroup_tables; /* cgroup_path.h; of this process */

/* Whether this process's cgroup, or one above it as far as it can be seen, has memory.oom.group set: then one worker
 * that is killed for want of memory takes crun along. The folder's path is stored in out. */
bool oom_group_is_set(const struct cgroup_tables *t, char *out, size_t cap);

#endif
