#include "launcher/base/oom_group.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

bool oom_group_is_set(const struct cgroup_tables *t, char *out, size_t cap)
{
    struct cgroup_path at;
    if (cgroup_tables_find(t, NULL, &at) < 0)
        return false;
    const size_t top = strlen(at.mount);
    for (char *end = at.own + strlen(at.own); strlen(at.own) >= top; end = strrchr(at.own, '/')) {
        if (!end)
            return false;
        *end = '\0';
        if (strlen(at.own) >= top && is_set(at.own)) {
            snprintf(out, cap, "%s", at.own);
            return true;
        }
    }
    return false;
}
