#include "worker/data/db/leveldb_view.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"

/* Another process has the original open: LevelDB holds a write lock on the file LOCK while it does. */
static int check_unlocked(const char *path, struct err *e)
{
    char file[PATH_MAX + 8];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    snprintf(file, sizeof file, "%s/LOCK", path);
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0; /* never opened, or copied without it */
    const bool held = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    close(fd);
    if (!held)
        return 0;
    return err_set(e, ERR_DATA,
                   "the LevelDB '%s' is open in process %ld, which holds the lock on %s and may change it: end that "
                   "process, or train from a copy",
                   path, (long)lock.l_pid, file);
}

static bool ends_with(const char *name, const char *tail)
{
    const size_t n = strlen(name), t = strlen(tail);
    return n > t && strcmp(name + n - t, tail) == 0;
}

/* Files that hold the data; its lock and its messages are not among them. */
static bool is_data(const char *name)
{
    return strcmp(name, "CURRENT") == 0 || strncmp(name, "MANIFEST-", 9) == 0 || ends_with(name, ".ldb") ||
           ends_with(name, ".sst") || ends_with(name, ".log");
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
        if (symlink(target, link) < 0)
            rc = err_set(e, ERR_OUTPUT, "cannot link %s: %s", link, strerror(errno));
    }
    closedir(d);
    return rc;
}

int leveldb_view_make(const char *path, char **ret, struct err *e)
{
    const char *tmp = getenv("TMPDIR");
    char from[PATH_MAX], *view = NULL;
    if (!realpath(path, from))
        return err_set(e, ERR_DATA, "cannot read '%s': %s", path, strerror(errno));
    TRY(check_unlocked(from, e));
    if (asprintf(&view, "%s/crun-leveldb-XXXXXX", tmp && *tmp ? tmp : "/tmp") < 0)
        return err_set(e, -ENOMEM, "no memory for a name");
    if (!mkdtemp(view)) {
        int rc = err_set(e, ERR_OUTPUT, "cannot make %s: %s", view, strerror(errno));
        free(view);
        return rc;
    }
    int rc = link_files(from, view, e);
    if (rc < 0)
        leveldb_view_remove(view);
    else
        *ret = view;
    return rc;
}

void leveldb_view_remove(char *view)
{
    DIR *d = view ? opendir(view) : NULL;
    if (d) {
        for (struct dirent *entry; (entry = readdir(d));)
            unlinkat(dirfd(d), entry->d_name, 0); /* links and what LevelDB wrote here; "." and ".." refuse */
        closedir(d);
        rmdir(view);
    }
    free(view);
}
