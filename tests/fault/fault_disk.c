/* A disk with faults, for LD_PRELOAD: files of checkpoints (.../step-N.tmp/<x>.safetensors) and of data bases in the
 * making (.../DST.<pid>.part/<x>) only.
 *
 *   FAULT_DISK_FSYNC_MS=n     fsync(2) of such a file takes n milliseconds longer
 *   FAULT_DISK_HOLD=FILE      fsync(2) of such a file returns once there is no FILE
 *   FAULT_DISK_FULL=FILE      while FILE exists, write(2) and its like to such a file fail with ENOSPC, and symlink(2)
 *                             of a path that holds FAULT_DISK_ONLY
 *   FAULT_DISK_FULL_ONLY=TEXT of such files only to those whose paths hold TEXT
 *   FAULT_DISK_ROOM=n         the first n of these do not
 *   FAULT_DISK_FAILS=n        those after the first n of these do not
 *   FAULT_DISK_LOG=FILE       fsync(2) or fdatasync(2) of any file or folder appends "fsync PATH" to FILE, rename(2)
 *                             and renameat(2) "rename OLD NEW", linkat(2) "link OLD NEW"
 *   FAULT_DISK_READS=FILE     each pread(2) of such a file appends a line to FILE: how many bytes it read
 *   FAULT_DISK_ONLY=TEXT      instead of such files those whose paths hold TEXT */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static bool path_of(int fd, char path[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/thread-self/fd/%d", fd); /* crun's threads have tables of their own */
    const ssize_t n = readlink(link, path, PATH_MAX - 1);
    path[n > 0 ? n : 0] = '\0';
    return n > 0;
}

static bool is_ours(int fd)
{
    char path[PATH_MAX];
    if (!path_of(fd, path))
        return false;
    const char *only = getenv("FAULT_DISK_ONLY");
    if (only)
        return strstr(path, only);
    return (strstr(path, "/step-") && strstr(path, ".safetensors")) || strstr(path, ".part/");
}

/* A line of FAULT_DISK_LOG, or nothing: in the order in which the calls are made, by O_APPEND. */
static void tell(const char *what, const char *path, const char *more)
{
    const char *log = getenv("FAULT_DISK_LOG");
    const int to = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (to >= 0) {
        dprintf(to, "%s %s%s%s\n", what, path, more ? " " : "", more ? more : "");
        close(to);
    }
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *);
    *(void **)&real = dlsym(RTLD_NEXT, "rename");
    tell("rename", from, to);
    return real(from, to);
}

static void tell_at(const char *what, int from_fd, const char *from, int to_fd, const char *to)
{
    char dir[PATH_MAX], a[2 * PATH_MAX], b[2 * PATH_MAX];
    snprintf(a, sizeof a, "%s/%s", path_of(from_fd, dir) ? dir : ".", from);
    snprintf(b, sizeof b, "%s/%s", path_of(to_fd, dir) ? dir : ".", to);
    tell(what, a, b);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    int (*real)(int, const char *, int, const char *);
    *(void **)&real = dlsym(RTLD_NEXT, "renameat");
    tell_at("rename", from_fd, from, to_fd, to);
    return real(from_fd, from, to_fd, to);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    int (*real)(int, const char *, int, const char *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "linkat");
    tell_at("link", from_fd, from, to_fd, to);
    return real(from_fd, from, to_fd, to, flags);
}

int fdatasync(int fd)
{
    int (*real)(int);
    char path[PATH_MAX];
    *(void **)&real = dlsym(RTLD_NEXT, "fdatasync");
    if (path_of(fd, path))
        tell("fsync", path, NULL);
    return real(fd);
}

int fsync(int fd)
{
    int (*real)(int);
    char path[PATH_MAX];
    *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    if (path_of(fd, path))
        tell("fsync", path, NULL);
    const char *ms = getenv("FAULT_DISK_FSYNC_MS"), *hold = getenv("FAULT_DISK_HOLD");
    const struct timespec look = {.tv_nsec = 5000000};
    while (hold && is_ours(fd) && access(hold, F_OK) == 0)
        nanosleep(&look, NULL);
    if (ms && is_ours(fd)) {
        const struct timespec t = {.tv_sec = atoi(ms) / 1000, .tv_nsec = (long)(atoi(ms) % 1000) * 1000000};
        nanosleep(&t, NULL);
    }
    return real(fd);
}

static bool is_full(int fd)
{
    static atomic_int written;
    const char *full = getenv("FAULT_DISK_FULL"), *room = getenv("FAULT_DISK_ROOM");
    const char *fails = getenv("FAULT_DISK_FAILS"), *only = getenv("FAULT_DISK_FULL_ONLY");
    char path[PATH_MAX];
    if (!full || access(full, F_OK) != 0 || !is_ours(fd) || (only && !(path_of(fd, path) && strstr(path, only))))
        return false;
    const int before = written++;
    if ((room && before < atoi(room)) || (fails && before >= atoi(fails)))
        return false;
    errno = ENOSPC;
    return true;
}

ssize_t write(int fd, const void *data, size_t n)
{
    ssize_t (*real)(int, const void *, size_t);
    *(void **)&real = dlsym(RTLD_NEXT, "write");
    return is_full(fd) ? -1 : real(fd, data, n);
}

/* LMDB's. By its plain name: where headers have large files in mind they call pwrite64 what is written pwrite. */
ssize_t plain_pwrite(int fd, const void *data, size_t n, off_t at) __asm__("pwrite");
ssize_t plain_pwrite(int fd, const void *data, size_t n, off_t at)
{
    ssize_t (*real)(int, const void *, size_t, off_t);
    *(void **)&real = dlsym(RTLD_NEXT, "pwrite");
    return is_full(fd) ? -1 : real(fd, data, n, at);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
    ssize_t (*real)(int, const struct iovec *, int);
    *(void **)&real = dlsym(RTLD_NEXT, "writev");
    return is_full(fd) ? -1 : real(fd, v, n);
}

int symlink(const char *to, const char *path)
{
    int (*real)(const char *, const char *);
    *(void **)&real = dlsym(RTLD_NEXT, "symlink");
    const char *full = getenv("FAULT_DISK_FULL"), *only = getenv("FAULT_DISK_ONLY");
    if (full && only && strstr(path, only) && access(full, F_OK) == 0) {
        errno = ENOSPC;
        return -1;
    }
    return real(to, path);
}

static void tell_read(const char *file, ssize_t n)
{
    char line[32];
    const int to = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (to >= 0) {
        (void)!write(to, line, (size_t)snprintf(line, sizeof line, "%zd\n", n));
        close(to);
    }
}

ssize_t plain_pread(int fd, void *data, size_t n, off_t at) __asm__("pread64");
ssize_t plain_pread(int fd, void *data, size_t n, off_t at)
{
    ssize_t (*real)(int, void *, size_t, off_t);
    *(void **)&real = dlsym(RTLD_NEXT, "pread64");
    const char *reads = getenv("FAULT_DISK_READS");
    const ssize_t got = real(fd, data, n, at);
    if (reads && got > 0 && is_ours(fd))
        tell_read(reads, got);
    return got;
}
