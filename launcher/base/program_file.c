/* Searches the file of a program on PATH and beside crun (program_file.h). */
#include "launcher/base/program_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/file.h"

static int look(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return errno == EACCES ? -EACCES : -ENOENT;
    return S_ISREG(st.st_mode) && access(path, X_OK) == 0 ? 0 : -EACCES;
}

/* The reason why check() refused a path. */
static const char *why_not(const char *path, char out[], size_t cap)
{
    struct stat st;
    file_at(path);
    const bool is_known = stat(path, &st) == 0;
    file_at(NULL);
    if (!is_known)
        return "Permission denied";
    if (S_ISDIR(st.st_mode))
        return "it is a folder";
    if (!S_ISREG(st.st_mode))
        return "it is no ordinary file";
    if (st.st_mode & 0111)
        return "Permission denied (it is another user's, or its disk is mounted noexec)";
    snprintf(out, cap, "it is not marked as executable: chmod +x %.200s", path);
    return out;
}

/* Can the file be executed? 0: yes; -EACCES: it exists, but no; -ENOENT. */
static int check(const char *path)
{
    file_at(path);
    const int rc = look(path);
    file_at(NULL);
    return rc;
}

/* Try folder/name (folder: len bytes; empty: the current one). *unusable: the first file found that cannot be
 * executed. */
static bool try_folder(const char *folder, size_t len, const char *name, char **found, char **unusable)
{
    char *path;
    int n = len ? asprintf(&path, "%.*s/%s", (int)len, folder, name) : asprintf(&path, "./%s", name);
    if (n < 0)
        return false;
    int rc = check(path);
    if (rc == 0) {
        *found = path;
        return true;
    }
    if (rc == -EACCES && !*unusable)
        *unusable = path;
    else
        free(path);
    return false;
}

static bool try_path(const char *name, char **found, char **unusable)
{
    const char *dirs = getenv("PATH");
    for (const char *d = dirs ? dirs : "/usr/local/bin:/usr/bin:/bin"; d;) {
        size_t len = strcspn(d, ":");
        if (try_folder(d, len, name, found, unusable))
            return true;
        d = d[len] ? d + len + 1 : NULL;
    }
    return false;
}

static bool try_beside(const char *name, char **found, char **unusable)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 16);
    if (n <= 0)
        return false;
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (!slash)
        return false;
    if (try_folder(self, (size_t)(slash - self), name, found, unusable))
        return true;
    strcpy(slash, "/../worker");
    return try_folder(self, strlen(self), name, found, unusable);
}

int program_file_find(const char *name, char **ret, struct err *e)
{
    char *found = NULL, *unusable = NULL, why[256];
    if (strchr(name, '/')) {
        int rc = check(name);
        if (rc == -ENOENT)
            return err_set(e, rc, "program '%s' is not found", name);
        if (rc < 0)
            return err_set(e, rc, "program '%s' cannot be executed: %s", name, why_not(name, why, sizeof why));
        *ret = strdup(name);
        return *ret ? 0 : err_errno(e, ENOMEM, "program");
    }
    int rc = 0;
    if (try_path(name, &found, &unusable) || try_beside(name, &found, &unusable))
        *ret = found;
    else if (unusable)
        rc = err_set(e, -EACCES, "program '%s' (%s) cannot be executed: %s", name, unusable,
                     why_not(unusable, why, sizeof why));
    else
        rc = err_set(e, -ENOENT, "program '%s' is not found on PATH or beside crun%s", name,
                     access(name, F_OK) == 0 ? " (there is one in this folder: write ./ in front)" : "");
    free(unusable);
    return rc;
}

bool program_file_other_crun(char *ret, size_t cap)
{
    char *found = NULL, *unusable = NULL, beside[4096];
    if (try_path("crun", &found, &unusable)) {
        snprintf(ret, cap, "%s", found);
        snprintf(beside, sizeof beside, "%s-launch", found);
    }
    const bool is_other = found && access(beside, F_OK) < 0;
    free(found);
    free(unusable);
    return is_other;
}
