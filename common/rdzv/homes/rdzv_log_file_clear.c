/* How a job's folder goes (rdzv_log_file.c): the leader of a job that is over takes it away when everybody knows. Where
 * somebody does not, who may only stand still, it stays, as do folders of jobs that nobody ended: until keep_ms after
 * the last renewal, when the end of another job takes them away.
 *
 * These ages are the one use of times of files: all are the file server's, compared with those of a file that is made
 * for it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/rdzv/homes/rdzv_log_file_internal.h"

#define OTHERS_MS 500    /* for folders of other jobs; the rest is for the next one */
#define OLD "crun-~old-" /* a folder that is being removed; no job's: framed_file_escape() lets no '~' through */
#define NEW "crun-~new-" /* one that was being made */

static bool is_old(const char *name)
{
    return strncmp(name, OLD, strlen(OLD)) == 0 || strncmp(name, NEW, strlen(NEW)) == 0;
}

static int64_t written_ms(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000 + st->st_mtim.tv_nsec / 1000000;
}

/* What was last written before that is of nobody who lives; INT64_MIN: it cannot be told. */
static int64_t oldest_alive(const struct file_home *h)
{
    char name[64];
    struct stat st;
    int64_t ms = INT64_MIN;
    snprintf(name, sizeof name, ".crun-now-%d-%lld", (int)getpid(), (long long)clock_ns());
    const int fd = openat(h->dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return ms;
    if (fstat(fd, &st) == 0)
        ms = written_ms(&st) - h->keep_ms;
    close(fd);
    unlinkat(h->dir_fd, name, 0);
    return ms;
}

static bool is_before(int at, const char *path, int64_t ms)
{
    struct stat st;
    return fstatat(at, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && written_ms(&st) < ms;
}

/* Unlink the files of a folder. */
static void empty(int at, const char *folder)
{
    const int fd = openat(at, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *d; dir && (d = readdir(dir));)
        unlinkat(fd, d->d_name, 0); /* not a folder */
    if (dir)
        closedir(dir);
}

void file_remove(int dir_fd, int job_fd, const char *name)
{
    static const char *const folders[] = {FILE_CLAIM, FILE_LOG, "beats", "slots"}; /* these of older versions, too */
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        empty(job_fd, folders[i]);
        unlinkat(job_fd, folders[i], AT_REMOVEDIR);
    }
    empty(job_fd, ".");
    unlinkat(dir_fd, name, AT_REMOVEDIR);
}

/* What is left of a job: under a name that nobody looks for. */
static void remove_job(int dir_fd, int job_fd, const char *name)
{
    char old[64];
    snprintf(old, sizeof old, OLD "%d-%lld", (int)getpid(), (long long)clock_ns());
    if (is_old(name))
        file_remove(dir_fd, job_fd, name);
    else if (renameat(dir_fd, name, dir_fd, old) == 0)
        file_remove(dir_fd, job_fd, old);
}

/* A folder that a job of ours made, in which nothing has happened for long: each renewal makes that of the claim young,
 * and each decision that of the log. */
static bool is_left(int dir_fd, int job_fd, const char *name, int64_t oldest_ms)
{
    static const char *const young[] = {FILE_CLAIM, FILE_LOG, "pulse", "beats"};
    struct stat st;
    const bool here = fstat(job_fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 07777) == 0700;
    const bool job = is_old(name) || faccessat(job_fd, FILE_MARK, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (!here || !job || !is_before(dir_fd, name, oldest_ms))
        return false;
    for (size_t i = 0; i < sizeof young / sizeof *young; i++)
        if (fstatat(job_fd, young[i], &st, AT_SYMLINK_NOFOLLOW) == 0 && written_ms(&st) >= oldest_ms)
            return false;
    return true;
}

static void clear_others(const struct file_home *h, int64_t oldest_ms)
{
    const int64_t until = clock_deadline(OTHERS_MS);
    const int fd = openat(h->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *d; dir && clock_left(until) > 0 && (d = readdir(dir));) {
        if (strncmp(d->d_name, "crun-", 5) != 0)
            continue;
        const int job_fd = openat(fd, d->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (job_fd < 0)
            continue;
        if (is_left(fd, job_fd, d->d_name, oldest_ms))
            remove_job(fd, job_fd, d->d_name);
        close(job_fd);
    }
    if (dir)
        closedir(dir);
}

void file_forget(struct rdzv_home *base)
{
    struct file_home *h = (struct file_home *)base;
    if (file_inside(h, false, NULL) != 0)
        return;
    const int64_t oldest_ms = oldest_alive(h);
    remove_job(h->dir_fd, h->job_fd, h->name);
    file_leave(h);
    clear_others(h, oldest_ms);
}
