/* Finds this process's folder in a cgroup tree, from mountinfo and /proc/self/cgroup (cgroup_path.h). */
#include "launcher/base/cgroup_path.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "a,b,c" has this word. */
static bool lists(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = list;; p++) {
        size_t len = strcspn(p, ",");
        if (len == n && memcmp(p, word, n) == 0)
            return true;
        p += len;
        if (!*p)
            return false;
    }
}

/* mountinfo writes blanks as \040. */
static void unescape(char *s)
{
    char *out = s;
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] && s[3]) {
            *out++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 3;
        } else {
            *out++ = *s;
        }
    }
    *out = '\0';
}

/* Parse one line: "31 23 0:28 ROOT MOUNT options [...] - TYPE source super-options". */
static bool read_mount(char *line, const char *controller, char **ret_root, char **ret_mount)
{
    char *tail = strstr(line, " - "), *save = NULL, *word[5] = {NULL};
    if (!tail)
        return false;
    *tail = '\0';
    for (int i = 0; i < 5; i++)
        if (!(word[i] = strtok_r(i ? NULL : line, " ", &save)))
            return false;
    char *type = strtok_r(tail + 3, " ", &save);
    char *source = strtok_r(NULL, " ", &save);
    char *super = strtok_r(NULL, " ", &save);
    if (!type || !source || strcmp(type, controller ? "cgroup" : "cgroup2") != 0)
        return false;
    if (controller && (!super || !lists(super, controller)))
        return false;
    unescape(word[3]);
    unescape(word[4]);
    *ret_root = word[3];
    *ret_mount = word[4];
    return true;
}

/* "0::PATH" or "4:cpu,cpuacct:PATH"; returns PATH or NULL. */
static char *read_group(char *line, const char *controller)
{
    char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
    if (!path)
        return NULL;
    *path++ = '\0';
    if (controller ? lists(list + 1, controller) : strncmp(line, "0:", 2) == 0 && !list[1])
        return path;
    return NULL;
}

static char *read_file(const char *proc, const char *name)
{
    char path[CGROUP_PATH_MAX], *text = NULL;
    size_t cap = 0;
    snprintf(path, sizeof path, "%.900s/%s", proc, name);
    FILE *f = fopen(path, "re");
    if (f && getdelim(&text, &cap, '\0', f) < 0) {
        free(text);
        text = NULL;
    }
    if (f)
        fclose(f);
    return text;
}

void cgroup_tables_read(struct cgroup_tables *ret, const char *proc)
{
    ret->groups = read_file(proc, "cgroup");
    ret->mounts = read_file(proc, "mountinfo");
}

void cgroup_tables_free(struct cgroup_tables *t)
{
    free(t->groups);
    free(t->mounts);
}

/* The folder of our group `path` under a mount. A mount of a part of the tree has our group below it, or (in a
 * container) is our group. */
static int place(const char *path, const char *root, const char *mount, struct cgroup_path *ret)
{
    const size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
    const bool below = strncmp(path, root, n) == 0 && (path[n] == '/' || !path[n]);
    const char *rest = below && strcmp(path + n, "/") != 0 ? path + n : "";
    const int len = snprintf(ret->own, sizeof ret->own, "%s%s", mount, rest);
    snprintf(ret->mount, sizeof ret->mount, "%s", mount);
    return len < (int)sizeof ret->own ? 0 : -ENAMETOOLONG;
}

int cgroup_tables_find(const struct cgroup_tables *t, const char *controller, struct cgroup_path *ret)
{
    char *groups = t->groups ? strdup(t->groups) : NULL, *mounts = t->mounts ? strdup(t->mounts) : NULL;
    char *group = NULL, *root, *mount, *rest = groups, *line;
    int rc = -ENOENT;
    while (!group && (line = strsep(&rest, "\n")))
        group = read_group(line, controller);
    rest = group ? mounts : NULL;
    while (rc == -ENOENT && (line = strsep(&rest, "\n")))
        if (read_mount(line, controller, &root, &mount))
            rc = place(group, root, mount, ret);
    free(groups);
    free(mounts);
    return rc;
}
