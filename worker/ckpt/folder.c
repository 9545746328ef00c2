/* Folders of checkpoints. A folder named step-N.tmp is never read: it is being written, or was being written or removed
 * when its process was killed, and the next save removes it. So removal begins with a rename to that name. */
#include "worker/ckpt/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/base/file.h"

const char *const ckpt_file_names[CKPT_FILE_COUNT] = {
#define X(id, name, file) [id] = name,
    CKPT_FILES(X)
#undef X
};

const char *const ckpt_file_paths[CKPT_FILE_COUNT] = {
#define X(id, name, file) [id] = file,
    CKPT_FILES(X)
#undef X
};

int folder_path(char out[PATH_MAX], struct err *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, PATH_MAX, fmt, ap);
    va_end(ap);
    return n >= 0 && n < PATH_MAX
               ? 0
               : err_set(e, -ENAMETOOLONG, "a path is longer than %d bytes: %.100s...", PATH_MAX, out);
}

int folder_step_path(char out[PATH_MAX], const char *dir, int64_t step, const char *suffix, struct err *e)
{
    return folder_path(out, e, "%s/step-%08" PRId64 "%s", dir, step, suffix);
}

/* Step of "step-<digits><suffix>" as folder_step_path() writes it, -1 for any other name. */
static int64_t parse_name(const char *name, const char *suffix)
{
    if (strncmp(name, "step-", 5) != 0)
        return -1;
    size_t digits = strspn(name + 5, "0123456789");
    if (digits < 8 || digits > 18 || (digits > 8 && name[5] == '0') || strcmp(name + 5 + digits, suffix) != 0)
        return -1;
    return strtoll(name + 5, NULL, 10);
}

int64_t folder_step(const char *name)
{
    return parse_name(name, "");
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Steps of all entries with this suffix, in no order. */
static int list_steps(const char *dir, const char *suffix, int64_t **ret, size_t *ret_n, struct err *e)
{
    DIR *d = opendir(dir);
    if (!d && errno == ENOENT) {
        *ret = NULL;
        *ret_n = 0;
        return 0;
    }
    if (!d)
        return err_errno(e, errno, "open the checkpoint folder %s", dir);
    int64_t *v = NULL;
    size_t n = 0, cap = 0;
    int rc = 0;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(d);
        if (!entry) {
            if (errno)
                rc = err_errno(e, errno, "read the checkpoint folder %s", dir);
            break;
        }
        int64_t step = parse_name(entry->d_name, suffix);
        if (step < 0)
            continue;
        rc = ARRAY_GROW(v, cap, n + 1, "checkpoints", e);
        if (rc < 0)
            break;
        v[n++] = step;
    }
    closedir(d);
    if (rc < 0) {
        free(v);
        return rc;
    }
    *ret = v;
    *ret_n = n;
    return 0;
}

int folder_list(const char *dir, int64_t **ret, size_t *ret_n, struct err *e)
{
    TRY(list_steps(dir, "", ret, ret_n, e));
    if (*ret_n)
        qsort(*ret, *ret_n, sizeof **ret, newest_first);
    return 0;
}

int folder_sync(const char *dir, struct err *e)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, errno, "open the folder %s", dir);
    int rc = fsync(fd) < 0 ? err_errno(e, errno, "fsync the folder %s", dir) : 0;
    close(fd);
    return rc;
}

int folder_write(const char *path, const char *text, struct err *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_errno(e, errno, "create %s", path);
    int rc = file_write_all(fd, text, strlen(text));
    if (rc < 0)
        rc = err_errno(e, -rc, "write %s", path);
    if (rc == 0 && fsync(fd) < 0)
        rc = err_errno(e, errno, "fsync %s", path);
    if (close(fd) < 0 && rc == 0)
        rc = err_errno(e, errno, "close %s", path);
    if (rc < 0)
        unlink(path);
    return rc;
}

/* opendir(3) needs memory, and a save that found none has a folder to remove. */
static int remove_by_names(const char *path, struct err *e)
{
    const int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return err_errno(e, errno, "open the folder %s", path);
    for (int i = 0; i < CKPT_FILE_COUNT; i++)
        unlinkat(dir, ckpt_file_paths[i], 0);
    unlinkat(dir, CKPT_MANIFEST, 0);
    close(dir);
    return rmdir(path) < 0 ? err_errno(e, errno, "remove the folder %s", path) : 0;
}

int folder_remove(const char *path, struct err *e)
{
    DIR *d = opendir(path);
    if (!d && errno == ENOMEM)
        return remove_by_names(path, e);
    if (!d)
        return errno == ENOENT ? 0 : err_errno(e, errno, "open the folder %s", path);
    int rc = 0;
    for (struct dirent *entry; rc == 0 && (entry = readdir(d));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            unlinkat(dirfd(d), entry->d_name, 0) < 0)
            rc = err_errno(e, errno, "remove %s/%s", path, entry->d_name);
    closedir(d);
    if (rc == 0 && rmdir(path) < 0)
        rc = err_errno(e, errno, "remove the folder %s", path);
    return rc;
}

int folder_clean(const char *dir, struct err *e)
{
    int64_t *steps;
    size_t n;
    int rc = 0;
    TRY(list_steps(dir, ".tmp", &steps, &n, e));
    for (size_t i = 0; i < n && rc == 0; i++) {
        char path[PATH_MAX];
        rc = folder_step_path(path, dir, steps[i], ".tmp", e);
        if (rc == 0)
            rc = folder_remove(path, e);
    }
    free(steps);
    return rc;
}
