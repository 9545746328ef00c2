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

/* One line: "31 23 0:28 ROOT MOUNT options [...] - TYPE source super-options". */
static bool read_mount(char *line, const char *controller, char **ret_root, char **ret_mount)
{
    char *tail = strstr(line, " - "), *save = NULL, *word[5] = {NULL};
    if (!tail)
        return false;
    *tail = '\0';
    for (int i = 0; i < 5; i++)
        if (!(word[i] = strtok_r(i ? NULL : line, " ", &save)))
            return false;
    char *type = strtok_r(tail + 3, " \n", &save);
    char *source = strtok_r(NULL, " \n", &save);
    char *super = strtok_r(NULL, " \n", &save);
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
    path[strcspn(path, "\n")] = '\0';
    if (controller ? lists(list + 1, controller) : strncmp(line, "0:", 2) == 0 && !list[1])
        return path;
    return NULL;
}

static FILE *open_in(const char *proc, const char *name)
{
    char path[CGROUP_PATH_MAX];
    snprintf(path, sizeof path, "%.900s/%s", proc, name);
    return fopen(path, "re");
}

int cgroup_path_find(const char *proc, const char *controller, struct cgroup_path *ret)
{
    char *line = NULL, *root = NULL, *mount = NULL, *group = NULL;
    size_t cap = 0;
    int rc = -ENOENT;

    FILE *f = open_in(proc, "cgroup");
    while (f && !group && getline(&line, &cap, f) > 0)
        if ((group = read_group(line, controller)))
            group = strdup(group);
    if (f)
        fclose(f);
    f = group ? open_in(proc, "mountinfo") : NULL;
    while (f && rc == -ENOENT && getline(&line, &cap, f) > 0) {
        if (!read_mount(line, controller, &root, &mount))
            continue;
        /* A mount of a part of the tree shows ours below it, or (in a container) is ours. */
        size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
        const bool below = strncmp(group, root, n) == 0 && (group[n] == '/' || !group[n]);
        const char *rest = below && strcmp(group + n, "/") != 0 ? group + n : "";
        const int len = snprintf(ret->own, sizeof ret->own, "%s%s", mount, rest);
        snprintf(ret->mount, sizeof ret->mount, "%s", mount);
        rc = len < (int)sizeof ret->own ? 0 : -ENAMETOOLONG;
    }
    if (f)
        fclose(f);
    free(group);
    free(line);
    return rc;
}
