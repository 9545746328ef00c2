/* Makes and reads the links `latest`, `best` and <name>_<epoch>.mdl that point at checkpoints. */
#include "worker/ckpt/pointer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "worker/ckpt/ckpt.h"
#include "worker/ckpt/folder.h"

static void step_name(char out[32], int64_t step)
{
    snprintf(out, 32, "step-%08" PRId64, step);
}

/* Put tmp in the place of path. */
static int replace(const char *dir, const char *tmp, const char *path, struct err *e)
{
    if (rename(tmp, path) < 0)
        return err_errno(e, errno, "rename %s to %s", tmp, path);
    return folder_sync(dir, e);
}

/* A link to the folder; where the file system has none, a text file with its name. */
static int make(const char *tmp, const char *to, struct err *e)
{
    char text[40];
    if (unlink(tmp) < 0 && errno != ENOENT)
        return err_errno(e, errno, "remove %s", tmp);
    if (symlink(to, tmp) == 0)
        return 0;
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS)
        return err_errno(e, errno, "make the link %s", tmp);
    snprintf(text, sizeof text, "%s\n", to);
    return folder_write(tmp, text, e);
}

int pointer_write(const char *dir, const char *name, int64_t step, struct err *e)
{
    char tmp[PATH_MAX], path[PATH_MAX], to[32];
    TRY(folder_path(tmp, e, "%s/%s.tmp", dir, name));
    TRY(folder_path(path, e, "%s/%s", dir, name));
    step_name(to, step);
    TRY(make(tmp, to, e));
    return replace(dir, tmp, path, e);
}

/* The line in it. */
static ssize_t read_line(const char *path, char *text, size_t cap, struct err *e)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_errno(e, errno, "open %s", path);
    const ssize_t n = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, text, cap - 1) : 0;
    close(fd);
    text[strcspn(text, "\n")] = '\0';
    return n;
}

/* -ENOENT if there is nothing, ERR_CORRUPT if it is none that pointer_write() makes, or made when it wrote texts. */
static int read_step(const char *path, int64_t *ret, struct err *e)
{
    char text[64] = "";
    ssize_t n = readlink(path, text, sizeof text - 1);
    if (n < 0)
        n = read_line(path, text, sizeof text, e);
    if (n == -ENOENT)
        return (int)n;
    const int64_t step = n > 0 ? folder_step(text) : -1;
    if (step < 0)
        return err_set(e, ERR_CORRUPT, "%s names no checkpoint", path);
    *ret = step;
    return 0;
}

int64_t pointer_read(const char *path)
{
    int64_t step = -1;
    return read_step(path, &step, NULL) == 0 ? step : -1;
}

int ckpt_best(const char *dir, int64_t *ret_step, struct err *e)
{
    char path[PATH_MAX];
    *ret_step = -1;
    TRY(folder_path(path, e, "%s/" CKPT_BEST, dir));
    const int rc = read_step(path, ret_step, e);
    return rc == -ENOENT ? 0 : rc;
}

int ckpt_set_best(const char *dir, int64_t step, struct err *e)
{
    return pointer_write(dir, CKPT_BEST, step, e);
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* Step that the link DIR/name leads to, -1 for anything else. */
static int64_t link_step(const char *dir, const char *name)
{
    char path[PATH_MAX], to[PATH_MAX];
    if (!has_suffix(name, CKPT_LINK_SUFFIX) || folder_path(path, NULL, "%s/%s", dir, name) < 0)
        return -1;
    ssize_t n = readlink(path, to, sizeof to - 1);
    if (n <= 0)
        return -1;
    to[n] = '\0';
    return folder_step(to);
}

bool pointer_to(const char *dir, int64_t step)
{
    int64_t best;
    if (ckpt_best(dir, &best, NULL) == 0 && best == step)
        return true;
    DIR *d = opendir(dir);
    bool found = false;
    for (struct dirent *entry; d && !found && (entry = readdir(d));)
        found = link_step(dir, entry->d_name) == step;
    if (d)
        closedir(d);
    return found;
}

/* Links <name>_<number>.mdl other than `keep`. */
static void drop_other_links(const char *dir, const char *name, const char *keep)
{
    char path[PATH_MAX];
    const size_t n = strlen(name);
    DIR *d = opendir(dir);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        const char *s = entry->d_name;
        if (strncmp(s, name, n) != 0 || s[n] != '_' || link_step(dir, s) < 0 || strcmp(s, keep) == 0)
            continue;
        if (strcmp(s + n + 1 + strspn(s + n + 1, "0123456789"), CKPT_LINK_SUFFIX) == 0 &&
            folder_path(path, NULL, "%s/%s", dir, s) == 0)
            unlink(path); /* what cannot be removed still leads to a checkpoint */
    }
    if (d)
        closedir(d);
}

int ckpt_link_epoch(const char *dir, const char *name, int64_t epochs, int64_t step, struct err *e)
{
    char tmp[PATH_MAX], path[PATH_MAX], to[32], link[NAME_MAX + 1];
    if (snprintf(link, sizeof link, "%s_%" PRId64 CKPT_LINK_SUFFIX, name, epochs) >= (int)sizeof link)
        return err_set(e, -ENAMETOOLONG, "the name of a checkpoint is longer than %d bytes: %.100s", NAME_MAX, name);
    TRY(folder_path(path, e, "%s/%s", dir, link));
    TRY(folder_path(tmp, e, "%s/%s.tmp", dir, link));
    step_name(to, step);
    TRY(make(tmp, to, e));
    TRY(replace(dir, tmp, path, e));
    drop_other_links(dir, name, link);
    return 0;
}
