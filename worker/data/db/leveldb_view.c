/* Makes a folder of links, by which a LevelDB can be read and stays as it is. */
#include "worker/data/db/leveldb_view.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "worker/data/db/leveldb_table.h"

enum { TAKEN = 16 }; /* names; the first that LevelDB meets ends its writing, some may be its own by then */

static int in_use(const char *path, const char *file, int fd, struct err *e)
{
    struct flock holder = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    char who[32] = "another process";
    if (fcntl(fd, F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK && holder.l_pid > 0)
        snprintf(who, sizeof who, "process %ld", (long)holder.l_pid);
    return err_set(e, ERR_DATA,
                   "the LevelDB '%s' is open in %s, which holds the lock on %s and may change it: end that process, or "
                   "train from a copy",
                   path, who, file);
}

/* LevelDB holds a write lock on the file LOCK while a data base is open. Ours is of the open file: locks of a process
 * end when it closes any descriptor of the file, that of another view. */
static int share_lock(const char *path, int *ret, struct err *e)
{
    char file[PATH_MAX + 8];
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    snprintf(file, sizeof file, "%s/LOCK", path);
    const int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0; /* never opened, or copied without it */
    if (fcntl(fd, F_OFD_SETLK, &lock) < 0 && (errno == EAGAIN || errno == EACCES)) {
        const int rc = in_use(path, file, fd, e);
        close(fd);
        return rc;
    }
    *ret = fd; /* where files cannot be locked: without */
    return 0;
}

static bool ends_with(const char *name, const char *tail)
{
    const size_t n = strlen(name), t = strlen(tail);
    return n > t && strcmp(name + n - t, tail) == 0;
}

static bool is_table(const char *name)
{
    return ends_with(name, ".ldb") || ends_with(name, ".sst");
}

/* Files that hold the data; its lock and its messages are not among them. */
static bool is_data(const char *name)
{
    return strcmp(name, "CURRENT") == 0 || strncmp(name, "MANIFEST-", 9) == 0 || is_table(name) ||
           ends_with(name, ".log");
}

static int link_files(const char *from, const char *view, struct err *e)
{
    char target[PATH_MAX + 300], link[PATH_MAX + 300];
    DIR *d = opendir(from);
    if (!d)
        return err_set(e, ERR_DATA, "cannot read the folder '%s': %s", from, strerror(errno));
    int rc = 0;
    for (struct dirent *entry; rc == 0 && (entry = readdir(d));) {
        if (!is_data(entry->d_name))
            continue;
        snprintf(target, sizeof target, "%s/%s", from, entry->d_name);
        snprintf(link, sizeof link, "%s/%s", view, entry->d_name);
        if (is_table(entry->d_name) && (rc = leveldb_table_check(target, e)) < 0)
            break;
        if (symlink(target, link) < 0)
            rc = err_set(e, ERR_OUTPUT, "cannot link %s: %s", link, strerror(errno));
    }
    closedir(d);
    return rc;
}

static int make_folder(struct leveldb_view *v, struct err *e)
{
    const char *tmp = getenv("TMPDIR");
    char *dir;
    if (asprintf(&dir, "%s/crun-leveldb-XXXXXX", tmp && *tmp ? tmp : "/tmp") < 0)
        return err_set(e, -ENOMEM, "no memory for a name");
    if (mkdtemp(dir)) {
        v->dir = dir;
        return 0;
    }
    const int rc = err_set(e, ERR_OUTPUT, "cannot make %s: %s", dir, strerror(errno));
    free(dir);
    return rc;
}

int leveldb_view_make(struct leveldb_view *v, const char *path, struct err *e)
{
    char from[PATH_MAX];
    *v = (struct leveldb_view){.lock_fd = -1};
    if (!realpath(path, from))
        return err_set(e, ERR_DATA, "cannot read '%s': %s", path, strerror(errno));
    int rc = share_lock(from, &v->lock_fd, e);
    if (rc == 0)
        rc = make_folder(v, e);
    if (rc == 0)
        rc = link_files(from, v->dir, e);
    if (rc < 0)
        leveldb_view_remove(v);
    return rc;
}

/* The largest number in a file's name. */
static unsigned long long newest(const char *dir)
{
    unsigned long long most = 0;
    DIR *d = opendir(dir);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        const char *digits = strncmp(entry->d_name, "MANIFEST-", 9) == 0 ? entry->d_name + 9 : entry->d_name;
        const unsigned long long n = *digits >= '0' && *digits <= '9' ? strtoull(digits, NULL, 10) : 0;
        most = n > most ? n : most;
    }
    if (d)
        closedir(d);
    return most;
}

void leveldb_view_freeze(const struct leveldb_view *v)
{
    char path[PATH_MAX + 32];
    const unsigned long long n = newest(v->dir);
    for (int i = 1; i <= TAKEN; i++) {
        snprintf(path, sizeof path, "%s/%06llu.ldb", v->dir, n + (unsigned long long)i);
        mkdir(path, 0700); /* one that is there: a merge that began at once; it ends at the next */
    }
}

void leveldb_view_remove(struct leveldb_view *v)
{
    DIR *d = v->dir ? opendir(v->dir) : NULL;
    if (d) {
        for (struct dirent *entry; (entry = readdir(d));)
            if (unlinkat(dirfd(d), entry->d_name, 0) < 0)        /* links and what LevelDB wrote here */
                unlinkat(dirfd(d), entry->d_name, AT_REMOVEDIR); /* names that were taken; "." and ".." refuse */
        closedir(d);
        rmdir(v->dir);
    }
    free(v->dir);
    if (v->lock_fd >= 0)
        close(v->lock_fd);
    *v = (struct leveldb_view){.lock_fd = -1};
}
