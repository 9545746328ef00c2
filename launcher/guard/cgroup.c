/* Makes, kills and removes the cgroups of a job and its rounds (cgroup.h). */
#include "launcher/guard/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "launcher/base/cgroup_path.h"

#define NAME "crun-"
#define YOUNG_S 60
#define LEAVE_MS 1000 /* ms: a reaped process may leave its cgroup a moment later */

struct cgroup {
    int dir_fd;               /* of the job */
    int round_fd;             /* -1: none */
    char round[32], last[32]; /* last: cgroup of the round before, "": it has been removed */
    char *shared;
};

/* Publish the path with its first byte last: if the agent is killed meanwhile, the path is empty, never cut. */
static void publish(char *shared, const char *path)
{
    strcpy(shared + 1, path + 1);
    atomic_signal_fence(memory_order_seq_cst);
    *(volatile char *)shared = path[0];
}

static bool write_kill(int dir_fd, const char *path)
{
    int fd = openat(dir_fd, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const bool done = write(fd, "1", 1) == 1;
    close(fd);
    return done;
}

/* Remove a cgroup with those that workers (a crun among them) made below it. */
static int remove_tree(int dir_fd, const char *name)
{
    if (unlinkat(dir_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return 0;
    const int error = errno, fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d && fd >= 0)
        close(fd);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_type == DT_DIR && e->d_name[0] != '.')
            remove_tree(fd, e->d_name);
    if (d)
        closedir(d);
    return !d ? -error : unlinkat(dir_fd, name, AT_REMOVEDIR) == 0 ? 0 : -errno;
}

/* Remove cgroups of a crun whose guardian and agent were killed at once. A live crun holds a lock; a new cgroup
 * without one is young. */
static void sweep(const char *own)
{
    DIR *d = opendir(own);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (strncmp(e->d_name, NAME, strlen(NAME)) != 0)
            continue;
        const int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0 && fstat(fd, &st) == 0 && time(NULL) - st.st_mtime > YOUNG_S && flock(fd, LOCK_EX | LOCK_NB) == 0)
            remove_tree(dirfd(d), e->d_name);
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
}

static int open_job(struct cgroup *c, const struct cgroup_path *at, struct err *e)
{
    char path[CGROUP_PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/" NAME "%d-%06x", at->own, (int)getpid(),
                     (unsigned)(clock_ns() / 1000) & 0xffffff);
    if (n >= (int)sizeof path)
        return err_set(e, -ENAMETOOLONG, "no cgroup for the job: the path of %.200s... is too long", at->own);
    publish(c->shared, path);
    if (mkdir(path, 0755) < 0) {
        int error = errno;
        c->shared[0] = '\0';
        return err_errno(e, error, "no cgroup for the job below %.200s", at->own);
    }
    c->dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->dir_fd < 0)
        return err_errno(e, errno, "%.200s", path);
    flock(c->dir_fd, LOCK_SH | LOCK_NB); /* see sweep() */
    if (faccessat(c->dir_fd, "cgroup.kill", W_OK, 0) < 0)
        return err_set(e, -ENOTSUP,
                       "no cgroup for the job: this kernel has no cgroup.kill (expected Linux 5.14 or newer)");
    return 0;
}

int cgroup_create(struct cgroup **ret, const struct cgroup_tables *t, char *shared, struct err *e)
{
    struct cgroup_path at;
    shared[0] = '\0';
    int rc = cgroup_tables_find(t, NULL, &at);
    if (rc < 0)
        return err_set(e, rc, "no cgroup for the job: no cgroup2 file system is mounted");
    struct cgroup *c = calloc(1, sizeof *c);
    if (!c)
        return err_errno(e, ENOMEM, "cgroup");
    *c = (struct cgroup){.dir_fd = -1, .round_fd = -1, .shared = shared};
    rc = open_job(c, &at, e);
    if (rc < 0) {
        cgroup_destroy(c);
        return rc;
    }
    sweep(at.own);
    *ret = c;
    return 0;
}

void cgroup_tidy(struct cgroup *c)
{
    if (c && c->last[0] && strcmp(c->last, c->round) != 0)
        remove_tree(c->dir_fd, c->last);
    if (c)
        c->last[0] = '\0';
}

static void end_round(struct cgroup *c)
{
    cgroup_tidy(c);
    if (c->round_fd < 0)
        return;
    close(c->round_fd);
    c->round_fd = -1;
    strcpy(c->last, c->round);
    c->round[0] = '\0';
}

int cgroup_begin_round(struct cgroup *c, uint64_t round, struct err *e)
{
    end_round(c);
    snprintf(c->round, sizeof c->round, "round-%llu", (unsigned long long)round);
    if (mkdirat(c->dir_fd, c->round, 0755) < 0 && errno != EEXIST)
        return err_errno(e, errno, "cgroup %s", c->round);
    c->round_fd = openat(c->dir_fd, c->round, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return c->round_fd < 0 ? err_errno(e, errno, "cgroup %s", c->round) : 0;
}

int cgroup_fd(const struct cgroup *c)
{
    return c ? c->round_fd : -1;
}

bool cgroup_kill(struct cgroup *c)
{
    return c && c->round_fd >= 0 && write_kill(c->round_fd, "cgroup.kill");
}

void cgroup_destroy(struct cgroup *c)
{
    if (!c)
        return;
    end_round(c);
    cgroup_tidy(c);
    if (c->dir_fd >= 0)
        close(c->dir_fd);
    if (c->shared[0] && remove_tree(AT_FDCWD, c->shared) == 0)
        c->shared[0] = '\0';
    free(c);
}

/* --- the guardian's */

bool cgroup_kill_at(const char *path)
{
    char file[CGROUP_PATH_MAX + 16];
    if (!path[0])
        return false;
    snprintf(file, sizeof file, "%s/cgroup.kill", path);
    return write_kill(AT_FDCWD, file);
}

void cgroup_remove_at(char *path)
{
    char file[CGROUP_PATH_MAX + 16];
    const int64_t end = clock_ms() + LEAVE_MS;
    if (!path[0])
        return;
    snprintf(file, sizeof file, "%s/cgroup.events", path);
    struct pollfd changed = {.fd = open(file, O_RDONLY | O_CLOEXEC), .events = POLLPRI};
    while (remove_tree(AT_FDCWD, path) == -EBUSY && clock_ms() < end) {
        char text[256];
        if (pread(changed.fd, text, sizeof text, 0) < 0) /* arms the poll */
            break;
        poll(&changed, 1, 10); /* it may have emptied between the two */
    }
    if (changed.fd >= 0)
        close(changed.fd);
    path[0] = '\0';
}
