/* Reads in cgroup files which processes the kernel killed because memory ran out. */
#include "launcher/base/oom.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "launcher/base/cgroup_path.h"

static bool is_set(const char *folder)
{
    char path[CGROUP_PATH_MAX + 32], first = '0';
    snprintf(path, sizeof path, "%s/memory.oom.group", folder);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const bool is_read = read(fd, &first, 1) == 1;
    close(fd);
    return is_read && first == '1';
}

/* Find the first folder on the way up for which fn is true. */
static bool find_upwards(const struct cgroup_tables *t, bool (*fn)(const char *folder), char *out, size_t cap)
{
    struct cgroup_path at;
    if (cgroup_tables_find(t, NULL, &at) < 0)
        return false;
    const size_t top = strlen(at.mount);
    for (char *end = at.own + strlen(at.own); strlen(at.own) >= top; end = strrchr(at.own, '/')) {
        if (!end)
            return false;
        *end = '\0';
        if (strlen(at.own) >= top && fn(at.own)) {
            snprintf(out, cap, "%s", at.own);
            return true;
        }
    }
    return false;
}

bool oom_group_is_set(const struct cgroup_tables *t, char *out, size_t cap)
{
    return find_upwards(t, is_set, out, cap);
}

/* --- kills */

static int open_in(const char *folder, const char *name)
{
    char path[CGROUP_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static bool has_events(const char *folder)
{
    const int fd = open_in(folder, "memory.events");
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

void oom_kills_open(struct oom_kills *k, const struct cgroup_tables *t)
{
    struct cgroup_path at;
    *k = (struct oom_kills){.fd = -1};
    if (find_upwards(t, has_events, k->folder, sizeof k->folder)) {
        k->fd = open_in(k->folder, "memory.events");
    } else if (cgroup_tables_find(t, "memory", &at) == 0) {
        snprintf(k->folder, sizeof k->folder, "%s", at.own);
        k->fd = open_in(k->folder, "memory.oom_control");
    }
    oom_kills_begin(k);
}

void oom_kills_close(struct oom_kills *k)
{
    if (k->fd >= 0)
        close(k->fd);
    k->fd = -1;
}

/* Read the line "oom_kill N", which both files have since Linux 4.13. */
static uint64_t count(const struct oom_kills *k)
{
    char text[1024];
    const ssize_t n = k->fd >= 0 ? pread(k->fd, text, sizeof text - 1, 0) : -1;
    text[n > 0 ? n : 0] = '\0';
    const char *at = strstr(text, "oom_kill ");
    return at ? strtoull(at + strlen("oom_kill "), NULL, 10) : 0;
}

char *oom_kills_text(const struct oom_kills *k, char *out, size_t cap)
{
    static const char *const limits[] = {"memory.max", "memory.limit_in_bytes"}; /* v2, v1 */
    char limit[32] = "";
    int i = 0;
    if (file_read_line(limit, sizeof limit, "%s/%s", k->folder, limits[i]) < 0)
        file_read_line(limit, sizeof limit, "%s/%s", k->folder, limits[++i]);
    const unsigned long long n = oom_kills_since(k);
    snprintf(out, cap, "%llu %s killed since the round began, of cgroup %s (%s %s)", n,
             n == 1 ? "process" : "processes", k->folder, limits[i], limit[0] ? limit : "is not known");
    return out;
}

static void read_kb(const struct oom_kills *k, const char *v2, const char *v1, uint64_t *ret)
{
    char text[32];
    if (file_read_line(text, sizeof text, "%s/%s", k->folder, v2) >= 0 ||
        file_read_line(text, sizeof text, "%s/%s", k->folder, v1) >= 0)
        *ret = strcmp(text, "max") == 0 ? UINT64_MAX : strtoull(text, NULL, 10) >> 10;
}

void oom_kills_sizes(const struct oom_kills *k, uint64_t *ret_peak_kb, uint64_t *ret_limit_kb)
{
    if (k->fd < 0)
        return;
    read_kb(k, "memory.peak", "memory.max_usage_in_bytes", ret_peak_kb);
    read_kb(k, "memory.max", "memory.limit_in_bytes", ret_limit_kb);
}

void oom_kills_begin(struct oom_kills *k)
{
    k->before = count(k);
}

uint64_t oom_kills_since(const struct oom_kills *k)
{
    const uint64_t now = count(k);
    return now > k->before ? now - k->before : 0;
}
