/* Reads the limits of this process and of the cgroups above it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/file.h"
#include "launcher/base/cgroup_path.h"
#include "launcher/base/oom.h"
#include "launcher/place/cores.h"
#include "launcher/place/gpus.h"
#include "launcher/tools/doctor/facts.h"

#define UNLIMITED_V1 ((int64_t)1 << 60) /* cgroup v1 shows 2^63 minus a page if there is no limit */

static int64_t limit(__rlimit_resource_t which)
{
    struct rlimit r;
    return getrlimit(which, &r) < 0 || r.rlim_cur == RLIM_INFINITY ? -1 : (int64_t)r.rlim_cur;
}

/* The smallest number in the files `name` of this group and those above it, -1: none has a number ("max"). */
static int64_t tightest(const struct cgroup_tables *t, const char *controller, const char *name, char group[FACTS_TEXT])
{
    struct cgroup_path at;
    char text[32];
    int64_t least = -1;
    if (cgroup_tables_find(t, controller, &at) < 0)
        return -1;
    const size_t top = strlen(at.mount);
    for (char *end = at.own + strlen(at.own); end && (size_t)(end - at.own) >= top; end = strrchr(at.own, '/')) {
        *end = '\0';
        char *rest = text;
        const int64_t v = file_read_line(text, sizeof text, "%s%s/%s", machine_root(), at.own, name) > 0
                              ? strtoll(text, &rest, 10)
                              : -1;
        if (rest == text || v >= UNLIMITED_V1 || (least >= 0 && v >= least))
            continue;
        least = v;
        snprintf(group, FACTS_TEXT, "%.*s", FACTS_TEXT - 1, at.own);
    }
    return least;
}

static int64_t either(const struct cgroup_tables *t, const char *v2, const char *v1, const char *controller,
                      char group[FACTS_TEXT])
{
    char other[FACTS_TEXT] = "";
    const int64_t a = tightest(t, NULL, v2, group), b = tightest(t, controller, v1, other);
    if (a >= 0 && (b < 0 || a <= b))
        return a;
    snprintf(group, FACTS_TEXT, "%s", other);
    return b;
}

void facts_read_limits(struct facts *f)
{
    struct cgroup_tables here, machine;
    struct statvfs shm;
    char proc[512];
    snprintf(proc, sizeof proc, "%s/proc/self", machine_root());
    cgroup_tables_read(&machine, proc);
    cgroup_tables_read(&here, "/proc/self");
    f->files = limit(RLIMIT_NOFILE);
    f->processes = geteuid() == 0 ? -1 : limit(RLIMIT_NPROC);
    f->locked = limit(RLIMIT_MEMLOCK);
    f->address_space = limit(RLIMIT_AS);
    f->memory = either(&machine, "memory.max", "memory.limit_in_bytes", "memory", f->memory_group);
    f->tasks = either(&machine, "pids.max", "pids.max", "pids", f->tasks_group);
    oom_group_is_set(&here, f->oom_group, sizeof f->oom_group);
    f->cores = cores_usable(&here);
    cgroup_tables_free(&here);
    cgroup_tables_free(&machine);
    f->shm = statvfs("/dev/shm", &shm) == 0 ? (int64_t)shm.f_blocks * (int64_t)shm.f_frsize : -1;
}
