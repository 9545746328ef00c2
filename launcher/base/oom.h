/* What the kernel kills when memory runs out. */
#ifndef CRUN_LAUNCHER_OOM_H
#define CRUN_LAUNCHER_OOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/base/cgroup_path.h"

struct cgroup_tables; /* cgroup_path.h; of this process */

/* Does this process's cgroup, or a visible one above it, have memory.oom.group set? Then the death of one worker for
 * lack of memory takes crun along. out: the folder's path. */
bool oom_group_is_set(const struct cgroup_tables *t, char *out, size_t cap);

/* Counts the processes that the kernel killed in this process's cgroup because memory ran out; the workers are in
 * it, or below it. In the v2 tree: the first group on the way up that has memory.events; otherwise
 * memory.oom_control of the v1 tree. */
struct oom_kills {
    int fd; /* -1: no group has the file */
    uint64_t before;
    char folder[CGROUP_PATH_MAX];
};

void oom_kills_open(struct oom_kills *k, const struct cgroup_tables *t);
void oom_kills_close(struct oom_kills *k);

/* Counts from now on. */
void oom_kills_begin(struct oom_kills *k);
/* "2 processes killed since the round began, of cgroup /sys/fs/cgroup/job (memory.max 536870912)". Returns out. */
char *oom_kills_text(const struct oom_kills *k, char *out, size_t cap);

/* The most memory that its processes held, and its limit; left untouched if not known. Without a limit, *ret_limit
 * is larger than any machine. */
void oom_kills_sizes(const struct oom_kills *k, uint64_t *ret_peak_kb, uint64_t *ret_limit_kb);

/* The number of kills since then. 0, too, if no group has the file. */
uint64_t oom_kills_since(const struct oom_kills *k);

#endif
