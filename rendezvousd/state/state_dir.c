/* The state directory: opens it, reads every log of it once, and closes it. See state_dir.h. */
#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "rendezvousd/state/state_folder.h"
#include "rendezvousd/state/state_internal.h"
#include "rendezvousd/state/state_log.h"
#include "rendezvousd/state/state_shared.h"
#include "rendezvousd/state/state_writer.h"

#define MODULE "state"
#define LAST_MS 2000 /* ms at the end for a disk that does not answer */

/* --- the logs that are there */

static bool is_good_id(const char *id)
{
    const size_t n = strlen(id);
    return n > 0 && n <= DIR_ID_MAX &&
           strspn(id, "0123456789-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == n;
}

static bool ends_in(const char *name, const char *suffix)
{
    const size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* NULL: errno. */
static DIR *list_dir(int dir_fd)
{
    const int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *all = fd < 0 ? NULL : fdopendir(fd);
    if (!all && fd >= 0)
        close(fd);
    return all;
}

static void free_ids(struct state_dir *d)
{
    for (size_t i = 0; i < d->n_ids; i++)
        free(d->ids[i]);
    free(d->ids);
    d->ids = NULL;
    d->n_ids = 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_id(struct state_dir *d, const char *name, size_t *cap)
{
    char *id = strndup(name, strlen(name) - strlen(".log"));
    if (!id || ARRAY_RESERVE(d->ids, *cap, d->n_ids + 1) < 0) {
        free(id);
        return -ENOMEM;
    }
    d->ids[d->n_ids] = id;
    d->n_ids += is_good_id(id);
    if (!is_good_id(id))
        free(id);
    return 0;
}

static int list_logs(struct state_dir *d, struct err *e)
{
    DIR *all = list_dir(d->jobs_fd);
    size_t cap = 0;
    int rc = 0;
    if (!all)
        return err_errno(e, errno, "the state directory cannot be listed");
    for (const struct dirent *f; rc == 0 && (f = readdir(all));)
        if (ends_in(f->d_name, ".log"))
            rc = add_id(d, f->d_name, &cap);
    closedir(all);
    if (d->n_ids)
        qsort(d->ids, d->n_ids, sizeof *d->ids, by_name);
    return rc < 0 ? err_set(e, rc, "no memory for the names of jobs") : 0;
}

/* Check only the version: other faults show when the log is loaded. */
static int check_version(struct state_dir *d, const char *id, struct err *e)
{
    char name[DIR_ID_MAX + 8], head[STATE_LOG_HEADER_MAX];
    struct err why;
    size_t end;
    snprintf(name, sizeof name, "%s.log", id);
    const int fd = state_folder_file(d->jobs_fd, name, O_RDONLY);
    const ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof head);
    if (fd >= 0)
        close(fd);
    if (n < 0 || state_log_check(head, (size_t)n, &end, &why) != ERR_MISMATCH)
        return 0;
    return err_set(e, ERR_MISMATCH, "job log '%s/jobs/%s': %s", d->path, name, why.text);
}

/* Check all logs before anything is changed, so that a user who started the wrong version can go back to the right
 * one. */
static int check_versions(struct state_dir *d, struct err *e)
{
    TRY(list_logs(d, e));
    for (size_t i = 0; i < d->n_ids; i++)
        TRY(check_version(d, d->ids[i], e));
    return 0;
}

/* --- opening */

/* Resolve DIR to a path without links, by which another process opens it. */
static int resolve_path(struct state_dir *d, const char *path, struct err *e)
{
    struct stat now, st;
    if (!(d->path = realpath(path, NULL)))
        return err_errno(e, errno, "state directory '%s'", path);
    if (stat(d->path, &now) < 0 || fstat(d->dir_fd, &st) < 0)
        return err_errno(e, errno, "state directory '%s'", path);
    if (now.st_ino != st.st_ino || now.st_dev != st.st_dev)
        return err_set(e, ERR_REFUSED, "state directory '%s' was replaced while it was opened: start again", path);
    return 0;
}

/* above: what it is within; NULL: nothing. */
static int open_dirs(struct state_dir *d, const struct state_dir *above, const char *path, struct err *e)
{
    TRY(d->dir_fd = above ? state_folder_within(above->dir_fd, above->path, strrchr(path, '/') + 1, true, e)
                          : state_folder_top(path, e));
    TRY(resolve_path(d, path, e));
    if (!above && faccessat(d->dir_fd, STATE_SHARED_CLAIM, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return err_set(e, ERR_USAGE,
                       "'%s' has the state that daemons share (" STATE_SHARED_CLAIM
                       "): expected a folder of this daemon "
                       "alone; give it as --state, or another --state-dir",
                       path);
    TRY(d->jobs_fd = state_folder_within(d->dir_fd, path, "jobs", true, e));
    return 0;
}

static int read_epoch(int dir_fd, uint64_t *ret)
{
    char text[32] = "", *end;
    const int fd = state_folder_file(dir_fd, "epoch", O_RDONLY);
    *ret = 0;
    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n < 0)
        return -errno;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (errno || !isdigit((unsigned char)text[0]) || *end != '\n' || end[1])
        return ERR_CORRUPT;
    *ret = v;
    return 0;
}

static int count_epoch(struct state_dir *d, const char *path, uint64_t *ret, struct err *e)
{
    char text[32];
    uint64_t before;
    int rc = read_epoch(d->dir_fd, &before);
    if (rc == ERR_CORRUPT)
        return err_set(e, ERR_CORRUPT, "'%s/epoch' is damaged: expected one decimal number", path);
    if (rc == ERR_REFUSED)
        return err_set(e, rc, "'%s/epoch' cannot be read: " STATE_FOLDER_FOREIGN, path);
    if (rc < 0)
        return err_errno(e, -rc, "'%s/epoch'", path);
    const int n = snprintf(text, sizeof text, "%" PRIu64 "\n", before + 1);
    rc = dir_renew(d->dir_fd, "epoch", "epoch.new", text, (size_t)n);
    if (rc < 0)
        return err_errno(e, -rc, "'%s/epoch' cannot be written", path);
    *ret = before + 1;
    return 0;
}

static void close_fds(struct state_dir *d)
{
    int *const fds[] = {&d->jobs_fd, &d->dir_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

static void free_dir(struct state_dir *d)
{
    close_fds(d);
    free_ids(d);
    free(d->path);
    free(d);
}

static int enter(struct state_dir *d, struct err *e)
{
    const int rc = dir_enter_(d);
    if (rc == -EBUSY)
        return err_set(e, rc, "state directory '%s' is in use by another rendezvousd", d->path);
    if (rc == ERR_REFUSED)
        return err_set(e, rc, "'%s/lock' cannot be used: " STATE_FOLDER_FOREIGN, d->path);
    return rc < 0 ? err_start(e, -rc, "state directory '%s': it cannot be entered", d->path) : 0;
}

static int open_all(struct state_dir *d, const struct state_dir *above, const char *path, uint64_t *ret_epoch,
                    struct err *e)
{
    TRY(open_dirs(d, above, path, e));
    TRY(enter(d, e));
    TRY(check_versions(d, e));
    TRY(count_epoch(d, path, ret_epoch, e));
    return dir_watch_(d) < 0 ? err_set(e, -ENOMEM, "no memory for a state directory") : 0;
}

static int open_dir(struct state_dir **ret, uv_loop_t *loop, const struct state_dir *above, const char *path,
                    uint64_t *ret_epoch, struct err *e)
{
    struct state_dir *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(e, -ENOMEM, "no memory for a state directory");
    d->loop = loop;
    d->dir_fd = d->jobs_fd = d->fd = d->own.fd = -1;
    d->process = above ? above->process : &d->own;
    const int rc = open_all(d, above, path, ret_epoch, e);
    if (rc < 0) {
        dir_drain_(d, 0);
        free_dir(d);
        return rc;
    }
    *ret = d;
    return 0;
}

int state_dir_open(struct state_dir **ret, uv_loop_t *loop, const char *path, uint64_t *ret_epoch, struct err *e)
{
    return open_dir(ret, loop, NULL, path, ret_epoch, e);
}

int state_dir_open_within(struct state_dir **ret, struct state_dir *d, const char *name, struct err *e)
{
    char path[PATH_MAX];
    uint64_t epoch;
    if (snprintf(path, sizeof path, "%s/%s", d->path, name) >= (int)sizeof path)
        return err_set(e, -ENAMETOOLONG, "state directory '%.200s...': the name is too long", d->path);
    return open_dir(ret, d->loop, d, path, &epoch, e);
}

void state_dir_close(struct state_dir *d)
{
    if (!d)
        return;
    dir_drain_(d, LAST_MS);
    assert(!d->homes);
    free_dir(d);
}

size_t state_dir_damaged(const struct state_dir *d)
{
    return d->damaged;
}

/* --- reading */

int dir_read(struct dir_home *h, struct buf *ret, struct err *e)
{
    struct stat st;
    char name[DIR_ID_MAX + 8];
    snprintf(name, sizeof name, "%s.log", h->id);
    const int fd = state_folder_file(h->dir->jobs_fd, name, O_RDONLY);
    if (fd == ERR_REFUSED)
        return err_set(e, fd, "it cannot be read: " STATE_FOLDER_FOREIGN);
    int rc = fd < 0 ? fd : fstat(fd, &st) < 0 ? -errno : 0;
    if (rc < 0) {
        if (fd >= 0)
            close(fd);
        return err_errno(e, -rc, "it cannot be opened");
    }
    if (st.st_size > (off_t)STATE_FILE_MAX)
        rc = err_set(e, -EFBIG, "it has %lld bytes, more than %zu", (long long)st.st_size, STATE_FILE_MAX);
    if (rc == 0 && (rc = file_read_all(fd, ret)) < 0)
        rc = err_errno(e, -rc, "it cannot be read");
    close(fd);
    return rc;
}

/* Rename a damaged log. What was read of it is dropped; the file stays for inspection. */
static int set_aside(struct state_dir *d, const char *name, const struct err *why, struct err *e)
{
    char aside[DIR_ID_MAX + 16];
    snprintf(aside, sizeof aside, "%s.damaged", name);
    if (renameat(d->jobs_fd, name, d->jobs_fd, aside) < 0 || fsync(d->jobs_fd) < 0)
        return err_errno(e, errno, "it is damaged, and cannot be renamed to '%s'", aside);
    d->damaged++;
    log_error(MODULE,
              "job log 'jobs/%s' of the state directory is damaged: %s; it is set aside as '%s', its job is forgotten",
              name, why->text, aside);
    return 0;
}

static int hand_out(struct state_dir *d, const char *id, int (*take)(void *arg, struct rdzv_home *h, struct err *e),
                    void *arg, struct err *e)
{
    struct err why = {0};
    struct rdzv_home *h;
    char name[DIR_ID_MAX + 8];
    snprintf(name, sizeof name, "%s.log", id);
    int rc = state_dir_home(d, id, &h, &why);
    if (rc == 0) {
        ((struct dir_home *)h)->listed = true;
        rc = take(arg, h, &why);
        if (rc < 0)
            h->ops->close(h);
    }
    if (rc == ERR_CORRUPT)
        rc = set_aside(d, name, &why, &why);
    return rc < 0 ? err_set(e, rc, "job log 'jobs/%s' of the state directory: %s", name, why.text) : 0;
}

/* Remove files that an interrupted rewrite has left. */
static void remove_unfinished(struct state_dir *d)
{
    DIR *all = list_dir(d->jobs_fd);
    for (const struct dirent *f; all && (f = readdir(all));)
        if (ends_in(f->d_name, ".new"))
            unlinkat(d->jobs_fd, f->d_name, 0);
    if (all)
        closedir(all);
}

int state_dir_each(struct state_dir *d, int (*take)(void *arg, struct rdzv_home *h, struct err *e), void *arg,
                   struct err *e)
{
    int rc = 0;
    remove_unfinished(d);
    for (size_t i = 0; i < d->n_ids && rc == 0; i++)
        rc = hand_out(d, d->ids[i], take, arg, e);
    free_ids(d);
    close_fds(d); /* the writer has them open */
    return rc;
}
