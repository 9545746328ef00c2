/* What the kernel ends when memory runs out. */
#ifndef CRUN_LAUNCHER_OOM_H
#define CRUN_LAUNCHER_OOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/base/cgroup_path.h"

struct cgroup_tables; /* cgroup_path.h; of this process */

/* Whether this process's cgroup, or one above it as far as it can be seen, has memory.oom.group set: then one worker
 * that is killed for want of memory takes crun along. The folder's path is stored in out. */
bool oom_group_is_set(const struct cgroup_tables *t, char *out, size_t cap);

/* How many processes the kernel has killed for want of memory in this process's cgroup: the workers are in it, or below
 * it. Of the v2 tree: the first group on the way up that has memory.events; else memory.oom_control of the v1 tree. */
struct oom_kills {
    int fd; /* -1: no group tells */
    uint64_t before;
    char folder[CGROUP_PATH_MAX];
};

void oom_kills_open(struct oom_kills *k, const struct cgroup_tables *t);
void oom_kills_close(struct oom_kills *k);

/* Counts from now on. */
void oom_kills_begin(struct oom_kills *k);
/* "2 processes killed since the round began, of cgroup /sys/fs/cgroup/job (memory.max 536870912)". Returns out. */
char *oom_kills_text(const struct oom_kills *k, char *out, size_t cap);

/* What its processes held at most, and may hold; untouched: not known. Where there is no limit, *ret_limit is larger
 * than any machine. */
void oom_kills_sizes(const struct oom_kills *k, uint64_t *ret_peak_kb, uint64_t *ret_limit_kb);

/* How many since. 0 also if no group tells. */
uint64_t oom_kills_since(const struct oom_kills *k);

#endif
