/* Writes a file that a user named as a whole, by a rename or in place (whole_file.h). */
#include "launcher/base/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"

#define TERMINAL_BYTES 256       /* a terminal may block after fewer bytes than a pipe */
#define SOCKET_BYTES (32u << 10) /* a socket refuses more than a datagram can hold */
#define LINKS_MAX 40             /* as many as the kernel follows */

/* Find a duplicate of the descriptor by which this process prints to the file that st describes; -1: it does not
 * print there, or the kernel is older than Linux 5.6. A path such as /dev/stderr is often a log file: replacing or
 * truncating it would remove what crun has printed. A socket cannot be opened by name, nor can another user's pipe.
 * Searches the process's descriptors, not those of this thread, which may have a table of its own (file_thread.h). */
static int open_own_output(const struct stat *st)
{
    const int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    int found = -1;
    for (int fd = STDOUT_FILENO; self >= 0 && found < 0 && fd <= STDERR_FILENO; fd++) {
        struct stat own;
        found = (int)syscall(SYS_pidfd_getfd, self, fd, 0);
        if (found >= 0 && (fstat(found, &own) < 0 || own.st_dev != st->st_dev || own.st_ino != st->st_ino)) {
            close(found);
            found = -1;
        }
    }
    if (self >= 0)
        close(self);
    return found;
}

/* Write as many of n bytes as a writable fd accepts without blocking, even if others share it. */
static ssize_t write_part(int fd, mode_t mode, const char *text, size_t n)
{
    if (S_ISSOCK(mode))
        return send(fd, text, n < SOCKET_BYTES ? n : SOCKET_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL);
    const size_t most = isatty(fd) ? TERMINAL_BYTES : PIPE_BUF;
    return write(fd, text, n < most ? n : most);
}

static int write_bounded(int fd, mode_t mode, const char *text, size_t n)
{
    const int64_t until = clock_deadline(WHOLE_FILE_WAIT_MS);
    while (n > 0) {
        struct pollfd room = {.fd = fd, .events = POLLOUT};
        const int ready = poll(&room, 1, clock_left(until));
        const ssize_t done = ready <= 0 ? -1 : write_part(fd, mode, text, n);
        if (ready == 0 || (done < 0 && clock_left(until) == 0))
            return -ETIMEDOUT;
        if (done < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        text += done > 0 ? done : 0;
        n -= done > 0 ? (size_t)done : 0;
    }
    return 0;
}

/* Write to fd, which is what st describes, and close it. */
static int write_and_close(int fd, const struct stat *st, const char *text, size_t n)
{
    const int rc = S_ISREG(st->st_mode) ? file_write_all(fd, text, n) : write_bounded(fd, st->st_mode, text, n);
    return close(fd) < 0 && rc == 0 ? -errno : rc;
}

/* how: O_CREAT only for a file that does not exist: with O_CREAT the kernel refuses other users' files and FIFOs in
 * folders such as /tmp (fs.protected_regular, fs.protected_fifos). */
static int write_in_place(const char *path, const char *text, size_t n, int how)
{
    struct stat st;
    const int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | how, 0666);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) == 0)
        return write_and_close(fd, &st, text, n);
    const int rc = -errno;
    close(fd);
    return rc;
}

/* Replace a file by renaming a new one. old: the existing file, whose owner and mode are kept, NULL: none. */
static int replace(int at, const char *path, const char *text, size_t n, const struct stat *old)
{
    char tmp[PATH_MAX];
    if ((size_t)snprintf(tmp, sizeof tmp, "%s.%d.tmp", path, (int)getpid()) >= sizeof tmp)
        return -ENAMETOOLONG;
    unlinkat(at, tmp, 0); /* left by a killed process */
    const int fd = openat(at, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, old ? 0600 : 0666);
    if (fd < 0)
        return -errno;
    int rc = file_write_all(fd, text, n);
    if (old && rc == 0 && fchown(fd, old->st_uid, old->st_gid) < 0 && errno != EPERM) /* of another user */
        rc = -errno;
    if (old && rc == 0 && fchmod(fd, old->st_mode & 07777) < 0)
        rc = -errno;
    if (close(fd) < 0 && rc == 0)
        rc = -errno;
    if (rc == 0 && renameat(at, tmp, at, path) < 0)
        rc = -errno;
    if (rc < 0)
        unlinkat(at, tmp, 0);
    return rc;
}

static bool cannot_be_replaced(int rc)
{
    return rc == -EBUSY || rc == -EXDEV || rc == -EACCES || rc == -EPERM || rc == -EROFS || rc == -ENAMETOOLONG ||
           rc == -EEXIST; /* another user's file in a folder such as /tmp */
}

static int write_regular(const char *path, const char *text, size_t n, const struct stat *old)
{
    char *real = realpath(path, NULL);
    const int rc = real ? replace(AT_FDCWD, real, text, n, old) : -errno;
    free(real);
    return cannot_be_replaced(rc) ? write_in_place(path, text, n, O_TRUNC) : rc;
}

/* Is the link planted by another user in a folder such as /tmp? The rule of fs.protected_symlinks, which realpath(3)
 * and kernels without that setting do not apply. */
static bool is_planted(const char *path)
{
    char folder[PATH_MAX];
    struct stat link, at;
    const char *slash = strrchr(path, '/');
    if (lstat(path, &link) < 0 || !S_ISLNK(link.st_mode) || link.st_uid == geteuid())
        return false;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash + 1 - path) : 1, slash ? path : ".");
    return stat(folder, &at) < 0 || ((at.st_mode & S_ISVTX) && (at.st_mode & S_IWOTH) && at.st_uid != link.st_uid);
}

static int write_to(const char *path, const char *text, size_t n)
{
    struct stat st, link;
    if (is_planted(path))
        return -EACCES;
    if (stat(path, &st) < 0) /* perhaps a link to a file that does not exist yet */
        return errno == ENOENT && lstat(path, &link) == 0 ? write_in_place(path, text, n, O_CREAT)
                                                          : replace(AT_FDCWD, path, text, n, NULL);
    const int own = open_own_output(&st);
    if (own >= 0)
        return write_and_close(own, &st, text, n);
    return S_ISREG(st.st_mode) ? write_regular(path, text, n, &st) : write_in_place(path, text, n, 0);
}

int whole_file_write(const char *path, const char *text, size_t n, struct err *e)
{
    struct stat st;
    const int rc = write_to(path, text, n);
    if (rc == -ENXIO && stat(path, &st) == 0 && S_ISFIFO(st.st_mode))
        return err_set(e, rc, "cannot write '%s': it is a FIFO that nobody reads", path);
    return rc < 0 ? err_errno(e, -rc, "cannot write '%s'", path) : 0;
}

int whole_file_open_parent(int at, const char *path, const char **name)
{
    char part[NAME_MAX + 1];
    int fd = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (const char *slash; fd >= 0 && (slash = strchr(path, '/')); path = slash + 1) {
        const int above = fd;
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        fd = openat(above, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        const int why = errno;
        close(above);
        errno = why;
    }
    *name = path;
    return fd < 0 ? -errno : fd;
}

int whole_file_write_below(int at, size_t at_bytes, const char *path, const char *text, size_t n, struct err *e)
{
    struct stat st;
    const char *name;
    const int folder = whole_file_open_parent(at, path + at_bytes, &name);
    if (folder < 0)
        return err_errno(e, -folder, "cannot write '%s'", path);
    const bool is_ours =
        fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid();
    const int rc = replace(folder, name, text, n, is_ours ? &st : NULL);
    close(folder);
    return rc < 0 ? err_errno(e, -rc, "cannot write '%s'", path) : 0;
}

/* Can a file be created where path, and the links that it names, lead to? */
static int check_folder(const char *path)
{
    char at[2 * PATH_MAX], to[PATH_MAX];
    ssize_t n = 0;
    snprintf(at, sizeof at, "%.*s", PATH_MAX - 1, path);
    for (int i = 0; i < LINKS_MAX && (n = readlink(at, to, sizeof to - 1)) > 0; i++) {
        to[n] = '\0';
        char *slash = to[0] == '/' ? NULL : strrchr(at, '/');
        const size_t before = slash ? (size_t)(slash + 1 - at) : 0;
        if (before + (size_t)n >= sizeof at)
            return -ENAMETOOLONG;
        memcpy(at + before, to, (size_t)n + 1);
    }
    char *slash = strrchr(at, '/');
    if (slash)
        slash[slash == at] = '\0';
    return access(slash ? at : ".", W_OK | X_OK) < 0 ? -errno : 0;
}

int whole_file_check(const char *path)
{
    struct stat st;
    if (is_planted(path))
        return -EACCES;
    if (stat(path, &st) < 0)
        return errno == ENOENT ? check_folder(path) : -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    const int own = open_own_output(&st);
    if (own >= 0)
        close(own);
    if (own >= 0 || access(path, W_OK) == 0)
        return 0;
    return S_ISREG(st.st_mode) ? check_folder(path) : -errno;
}
