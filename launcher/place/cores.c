/* Counts the cores that this process may use, with CPU quotas of cgroups (cores.h). */
#include "launcher/place/cores.h"

#include <stdio.h>
#include <string.h>

#include "common/base/file.h"
#include "launcher/base/cgroup_path.h"
#include "launcher/place/cpus.h"

/* CPUs of one folder; 0: no limit there. */
static double quota_v2(const char *folder)
{
    char line[64];
    double quota, period;
    if (file_read_line(line, sizeof line, "%s/cpu.max", folder) <= 0 || sscanf(line, "%lf %lf", &quota, &period) != 2)
        return 0; /* "max 100000" */
    return period > 0 ? quota / period : 0;
}

static double quota_v1(const char *folder)
{
    char line[64];
    double quota, period;
    if (file_read_line(line, sizeof line, "%s/cpu.cfs_quota_us", folder) <= 0 || sscanf(line, "%lf", &quota) != 1)
        return 0; /* or -1 */
    if (file_read_line(line, sizeof line, "%s/cpu.cfs_period_us", folder) <= 0 || sscanf(line, "%lf", &period) != 1)
        return 0;
    return period > 0 && quota > 0 ? quota / period : 0;
}

/* The smallest quota from this process's group up to the mount: each group limits all below it. */
static double tightest(struct cgroup_path *at, double (*quota)(const char *), double least)
{
    const size_t top = strlen(at->mount);
    for (;;) {
        const double q = quota(at->own);
        if (q > 0 && (least <= 0 || q < least))
            least = q;
        char *slash = strrchr(at->own, '/');
        if (strlen(at->own) <= top || !slash)
            return least;
        *slash = '\0';
    }
}

int cores_quota(const struct cgroup_tables *t)
{
    struct cgroup_path at;
    double least = 0;
    if (cgroup_tables_find(t, NULL, &at) == 0)
        least = tightest(&at, quota_v2, least);
    if (cgroup_tables_find(t, "cpu", &at) == 0)
        least = tightest(&at, quota_v1, least);
    return least <= 0 ? 0 : least < 1 ? 1 : least < CPUS_MAX ? (int)least : CPUS_MAX;
}

int cores_usable(const struct cgroup_tables *t)
{
    struct cpus allowed;
    const int mask = cpus_allowed(&allowed) == 0 ? cpus_count(&allowed) : 1;
    const int quota = cores_quota(t);
    return quota > 0 && quota < mask ? quota : mask;
}
