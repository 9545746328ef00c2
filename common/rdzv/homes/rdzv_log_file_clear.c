/* How a job's folder goes (rdzv_log_file.c): the last node that is done takes it away. Who was killed leaves its beat
 * there, by which a node that only stood still learns of the job's end when it goes on; such a beat counts until
 * keep_ms after it was last written. Folders of jobs that nobody cleared go as late, by the end of another job.
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
#include "common/rdzv/homes/framed_file.h"
#include "common/rdzv/homes/rdzv_log_file_internal.h"

#define OTHERS_MS 500    /* for folders of other jobs; the rest is for the next one */
#define OLD "crun-~old-" /* a folder that is being removed; no job's: framed_file_escape() lets no '~' through */

static bool is_old(const char *name)
{
    return strncmp(name, OLD, strlen(OLD)) == 0;
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

/* Unlink what is in a folder and was last written before that; INT64_MAX: all. */
static void empty(int at, const char *folder, int64_t before_ms)
{
    const int fd = openat(at, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *d; dir && (d = readdir(dir));)
        if (is_before(fd, d->d_name, before_ms))
            unlinkat(fd, d->d_name, 0); /* not a folder */
    if (dir)
        closedir(dir);
}

/* Only who finds no other beat can remove their folder: nobody else writes there any more, and nobody new can. */
static bool is_last(int job_fd, int64_t oldest_ms)
{
    empty(job_fd, "beats", oldest_ms);
    return unlinkat(job_fd, "beats", AT_REMOVEDIR) == 0;
}

/* What is left of a job: under a name that nobody looks for. */
static void remove_job(int dir_fd, int job_fd, const char *name)
{
    char old[64];
    snprintf(old, sizeof old, OLD "%d-%lld", (int)getpid(), (long long)clock_ns());
    if (!is_old(name) && renameat(dir_fd, name, dir_fd, old) < 0)
        return;
    empty(job_fd, "slots", INT64_MAX);
    unlinkat(job_fd, "slots", AT_REMOVEDIR);
    empty(job_fd, ".", INT64_MAX);
    unlinkat(dir_fd, is_old(name) ? name : old, AT_REMOVEDIR);
}

/* A folder that a job of ours made, in which nothing has happened for long. */
static bool is_left(int dir_fd, int job_fd, const char *name, int64_t oldest_ms)
{
    struct stat st;
    const bool here = fstat(job_fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 07777) == 0700;
    const bool job = is_old(name) || faccessat(job_fd, "decision-00000001", F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    const bool pulse = faccessat(job_fd, "pulse", F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    return here && job && is_before(dir_fd, name, oldest_ms) && (!pulse || is_before(job_fd, "pulse", oldest_ms));
}

/* Also if the beats are gone: whoever took them away was killed before it removed the rest. Who took them away just now
 * made the folder young, so its age is looked at again. */
static bool is_nobodys(int dir_fd, int job_fd, const char *name, int64_t oldest_ms)
{
    return is_left(dir_fd, job_fd, name, oldest_ms) &&
           (is_last(job_fd, oldest_ms) || (errno == ENOENT && is_left(dir_fd, job_fd, name, oldest_ms)));
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
        if (is_nobodys(fd, job_fd, d->d_name, oldest_ms))
            remove_job(fd, job_fd, d->d_name);
        close(job_fd);
    }
    if (dir)
        closedir(dir);
}

void file_forget(struct rdzv_home *base, const char *node)
{
    struct file_home *h = (struct file_home *)base;
    char file[FILE_NAME_CAP], path[FILE_NAME_CAP + 8];
    if (h->job_fd < 0)
        return;
    framed_file_escape(node, file, sizeof file);
    snprintf(path, sizeof path, "beats/%s", file);
    unlinkat(h->job_fd, path, 0);
    snprintf(path, sizeof path, "slots/%s", file);
    unlinkat(h->job_fd, path, 0);
    const int64_t oldest_ms = oldest_alive(h);
    if (!is_last(h->job_fd, oldest_ms))
        return;
    remove_job(h->dir_fd, h->job_fd, h->name);
    file_leave(h);
    clear_others(h, oldest_ms);
}
