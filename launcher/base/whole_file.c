#include "launcher/base/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"

/* The descriptor by which this process prints to that very file; -1: it does not. What a user may name /dev/stderr is
 * often a log file: to replace or to empty it would take away what crun has said. */
static int own_output(const struct stat *st)
{
    struct stat own;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (S_ISREG(st->st_mode) && fstat(fd, &own) == 0 && own.st_dev == st->st_dev && own.st_ino == st->st_ino)
            return fd;
    return -1;
}

/* fd does not block. */
static int write_bounded(int fd, const char *text, size_t n)
{
    const int64_t until = clock_deadline(WHOLE_FILE_FIFO_MS);
    while (n > 0) {
        const ssize_t done = write(fd, text, n);
        if (done < 0 && errno == EAGAIN) {
            struct pollfd room = {.fd = fd, .events = POLLOUT};
            if (poll(&room, 1, clock_left(until)) == 0)
                return -ETIMEDOUT;
        } else if (done < 0 && errno != EINTR) {
            return -errno;
        }
        text += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return 0;
}

static int write_in_place(const char *path, const char *text, size_t n, int how)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | how, 0666);
    if (fd < 0)
        return -errno;
    const int rc = write_bounded(fd, text, n);
    return close(fd) < 0 && rc == 0 ? -errno : rc;
}

/* old: of the file that is there, NULL: none. */
static int replace(const char *path, const char *text, size_t n, const struct stat *old)
{
    char tmp[PATH_MAX];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.%d.tmp", path, (int)getpid()) >= sizeof tmp)
        return -ENAMETOOLONG;
    const int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, old ? 0600 : 0666);
    if (fd < 0)
        return -errno;
    int rc = file_write_all(fd, text, n);
    if (old && rc == 0 && fchown(fd, old->st_uid, old->st_gid) < 0 && errno != EPERM) /* of another user */
        rc = -errno;
    if (old && rc == 0 && fchmod(fd, old->st_mode & 07777) < 0)
        rc = -errno;
    if (close(fd) < 0 && rc == 0)
        rc = -errno;
    if (rc == 0 && rename(tmp, path) < 0)
        rc = -errno;
    if (rc < 0)
        unlink(tmp);
    return rc;
}

static bool cannot_be_replaced(int rc)
{
    return rc == -EBUSY || rc == -EXDEV || rc == -EACCES || rc == -EPERM || rc == -EROFS || rc == -ENAMETOOLONG;
}

static int write_regular(const char *path, const char *text, size_t n, const struct stat *old)
{
    char *real = realpath(path, NULL);
    const int rc = real ? replace(real, text, n, old) : -errno;
    free(real);
    return cannot_be_replaced(rc) ? write_in_place(path, text, n, O_TRUNC) : rc;
}

static int write_to(const char *path, const char *text, size_t n)
{
    struct stat st, link;
    if (stat(path, &st) < 0) /* perhaps a link to what is not there yet */
        return errno == ENOENT && lstat(path, &link) == 0 ? write_in_place(path, text, n, 0)
                                                          : replace(path, text, n, NULL);
    const int own = own_output(&st);
    if (own >= 0)
        return file_write_all(own, text, n);
    return S_ISREG(st.st_mode) ? write_regular(path, text, n, &st) : write_in_place(path, text, n, 0);
}

int whole_file_write(const char *path, const char *text, size_t n, struct err *e)
{
    const int rc = write_to(path, text, n);
    if (rc == -ENXIO)
        return err_set(e, rc, "cannot write '%s': it is a FIFO that nobody reads", path);
    return rc < 0 ? err_errno(e, -rc, "cannot write '%s'", path) : 0;
}

int whole_file_check(const char *path)
{
    struct stat st;
    char *real = realpath(path, NULL);
    const bool is_there = real && stat(real, &st) == 0;
    const char *at = real ? real : path, *slash = strrchr(at, '/');
    char folder[PATH_MAX] = ".";
    int rc = 0;
    if (slash)
        snprintf(folder, sizeof folder, "%.*s", slash == at ? 1 : (int)(slash - at), at);
    if (is_there && S_ISDIR(st.st_mode))
        rc = -EISDIR;
    else if (is_there && access(path, W_OK) == 0)
        rc = 0;
    else if (is_there && !S_ISREG(st.st_mode))
        rc = -EACCES;
    else if (access(folder, W_OK | X_OK) < 0)
        rc = -errno;
    free(real);
    return rc;
}
