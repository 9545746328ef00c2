/* Makes, locks and removes the temporary folder of error records (scratch.h). */
#include "launcher/output/process/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NAME "crun-"
#define DIGITS 16
#define TRIES 3 /* attempts: a sweep may remove the folder before it is locked */

static int open_folder(int at, const char *path)
{
    return openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
}

static bool is_own(const struct stat *st)
{
    return S_ISDIR(st->st_mode) && st->st_uid == geteuid() && (st->st_mode & 07777) == 0700;
}

/* Make and lock the folder once. A process of this run that a disk blocks may still hold the lock. */
static int make_once(const char *path)
{
    struct stat st, now;
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -errno;
    const int fd = open_folder(AT_FDCWD, path);
    if (fd < 0)
        return errno == ENOENT ? -EAGAIN : -errno;
    flock(fd, LOCK_EX | LOCK_NB);
    if (fstat(fd, &st) == 0 && is_own(&st) && stat(path, &now) == 0 && now.st_ino == st.st_ino)
        return fd;
    close(fd);
    return -EAGAIN;
}

int scratch_make(const char *path)
{
    int fd = -EAGAIN;
    for (int i = 0; i < TRIES && fd == -EAGAIN; i++)
        fd = make_once(path);
    return fd;
}

static void empty(int fd, const char *begin)
{
    const int again = dup(fd);
    DIR *d = again >= 0 ? fdopendir(again) : NULL;
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' && strncmp(e->d_name, begin, strlen(begin)) == 0)
            unlinkat(fd, e->d_name, 0);
    if (d)
        closedir(d);
    else if (again >= 0)
        close(again);
}

void scratch_remove(const char *path, int fd)
{
    empty(fd, "");
    rmdir(path);
    close(fd);
}

/* --- of others */

static bool is_name(const char *name)
{
    return strncmp(name, NAME, sizeof NAME - 1) == 0 && strlen(name) == sizeof NAME - 1 + DIGITS &&
           strspn(name + sizeof NAME - 1, "0123456789abcdef") == DIGITS;
}

static void remove_left(int base, const char *name)
{
    struct stat st;
    const int fd = open_folder(base, name);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && is_own(&st) && time(NULL) - st.st_mtime > SCRATCH_OLD_S &&
        flock(fd, LOCK_EX | LOCK_NB) == 0) {
        empty(fd, "round-");
        unlinkat(base, name, AT_REMOVEDIR);
    }
    close(fd);
}

void scratch_sweep(const char *path, const atomic_bool *stop)
{
    char base[4096];
    const char *slash = strrchr(path, '/');
    snprintf(base, sizeof base, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    DIR *d = opendir(base[0] ? base : "/");
    for (struct dirent *e; d && !atomic_load(stop) && (e = readdir(d));)
        if (is_name(e->d_name))
            remove_left(dirfd(d), e->d_name);
    if (d)
        closedir(d);
}
