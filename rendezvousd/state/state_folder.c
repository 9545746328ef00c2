/* Opens folders and files of the state directory safely (state_folder.h). */
#include "rendezvousd/state/state_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/path.h"

static bool is_ours(const struct stat *st)
{
    return st->st_uid == geteuid() || st->st_uid == 0;
}

/* Check owner and mode; fd is closed if the check fails. */
static int check(int fd, const char *path, bool is_top, struct err *e)
{
    struct stat st;
    int rc = fstat(fd, &st) < 0 ? err_errno(e, errno, "state directory '%s'", path) : 0;
    if (rc == 0 && !is_ours(&st))
        rc = err_set(e, ERR_REFUSED,
                     "state directory '%s' belongs to uid %u, expected our own (%u) or root: give it to us (chown), or "
                     "choose another --state-dir",
                     path, (unsigned)st.st_uid, (unsigned)geteuid());
    if (rc == 0 && (st.st_mode & 022) && !(is_top && (st.st_mode & S_ISVTX)))
        rc = err_set(e, ERR_REFUSED,
                     "state directory '%s' may be written by others (mode %04o): chmod go-w it, or name a folder in it "
                     "that is to be made",
                     path, (unsigned)st.st_mode & 07777);
    if (rc < 0)
        close(fd);
    return rc < 0 ? rc : fd;
}

int state_folder_top(const char *path, struct err *e)
{
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return err_errno(e, errno, "state directory '%s' cannot be made", path);
    const int fd = path_open_dir(path);
    if (fd < 0 && errno == ELOOP)
        return err_set(e, ERR_REFUSED,
                       "state directory '%s' is a symbolic link of another user: remove it, or choose another "
                       "--state-dir",
                       path);
    return fd < 0 ? err_errno(e, errno, "state directory '%s'", path) : check(fd, path, true, e);
}

int state_folder_again(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return fd < 0 ? -errno : check(fd, path, true, NULL);
}

int state_folder_within(int dir, const char *path, const char *name, bool make, struct err *e)
{
    char whole[PATH_MAX];
    snprintf(whole, sizeof whole, "%s/%s", path, name);
    if (make && mkdirat(dir, name, 0700) < 0 && errno != EEXIST)
        return err_errno(e, errno, "'%s' cannot be made", whole);
    const int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return err_set(e, ERR_REFUSED, "'%s' is no folder, or a link to one: remove it, or choose another --state-dir",
                       whole);
    return fd < 0 ? err_errno(e, errno, "'%s'", whole) : check(fd, whole, false, e);
}

/* O_NONBLOCK: so that opening somebody's FIFO does not block. It has no effect on a regular file. */
int state_folder_file(int dir, const char *name, int flags)
{
    struct stat st;
    const int fd = openat(dir, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (fd < 0)
        return errno == ELOOP || errno == ENXIO || errno == EISDIR ? ERR_REFUSED : -errno;
    const int rc = fstat(fd, &st) < 0 ? -errno : S_ISREG(st.st_mode) && is_ours(&st) ? 0 : ERR_REFUSED;
    if (rc < 0)
        close(fd);
    return rc < 0 ? rc : fd;
}
