/* The state directory: taking it over, loading, and what its owner may do with a log. See persist.h. */
#include "rendezvousd/jobs/persist.h"
#include "common/base/array.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "rendezvousd/jobs/persist_impl.h"
#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#define MODULE "persist"
#define LOCK_MS 1000
#define LOCK_PAUSE_MS 10
#define LAST_MS 2000 /* for a disk that does not answer, at the end */

/* --- opening */

static int open_dirs(struct persist *p, const char *dir, struct err *e)
{
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return err_errno(e, errno, "state directory '%s' cannot be made", dir);
    p->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->dir_fd < 0)
        return err_errno(e, errno, "state directory '%s'", dir);
    if (mkdirat(p->dir_fd, "jobs", 0700) < 0 && errno != EEXIST)
        return err_errno(e, errno, "'%s/jobs' cannot be made", dir);
    p->jobs_fd = openat(p->dir_fd, "jobs", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (p->jobs_fd < 0)
        return err_errno(e, errno, "'%s/jobs'", dir);
    return 0;
}

/* The lock goes with the daemon and the process that writes for it, however they end; the latter takes a moment. */
static int lock(struct persist *p, const char *dir, struct err *e)
{
    const int64_t deadline = clock_deadline(LOCK_MS);
    p->lock_fd = openat(p->dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (p->lock_fd < 0)
        return err_errno(e, errno, "'%s/lock'", dir);
    while (flock(p->lock_fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            return err_errno(e, errno, "'%s/lock' cannot be locked", dir);
        if (clock_left(deadline) == 0)
            return err_set(e, -EBUSY, "state directory '%s' is in use by another rendezvousd", dir);
        poll(NULL, 0, LOCK_PAUSE_MS);
    }
    return 0;
}

static int read_epoch(int dir_fd, uint64_t *ret)
{
    char text[32] = "", *end;
    int fd = openat(dir_fd, "epoch", O_RDONLY | O_CLOEXEC);
    *ret = 0;
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
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

static int write_epoch(int dir_fd, uint64_t epoch)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%" PRIu64 "\n", epoch);
    int fd = openat(dir_fd, "epoch.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int rc = file_write_all(fd, text, (size_t)n);
    if (rc == 0 && fsync(fd) < 0)
        rc = -errno;
    close(fd);
    if (rc == 0 && renameat(dir_fd, "epoch.new", dir_fd, "epoch") < 0)
        rc = -errno;
    if (rc == 0 && fsync(dir_fd) < 0)
        rc = -errno;
    return rc;
}

static int count_epoch(struct persist *p, const char *dir, uint64_t *ret, struct err *e)
{
    uint64_t before;
    int rc = read_epoch(p->dir_fd, &before);
    if (rc == ERR_CORRUPT)
        return err_set(e, ERR_CORRUPT, "'%s/epoch' is damaged: expected one decimal number", dir);
    if (rc < 0)
        return err_errno(e, -rc, "'%s/epoch'", dir);
    rc = write_epoch(p->dir_fd, before + 1);
    if (rc < 0)
        return err_errno(e, -rc, "'%s/epoch' cannot be written", dir);
    *ret = before + 1;
    return 0;
}

static void close_fds(struct persist *p)
{
    int *const fds[] = {&p->lock_fd, &p->jobs_fd, &p->dir_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

int persist_open(struct persist **ret, uv_loop_t *loop, const char *dir, uint64_t *ret_epoch, struct err *e)
{
    struct persist *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, -ENOMEM, "no memory for a state directory");
    p->loop = loop;
    p->dir_fd = p->jobs_fd = p->lock_fd = p->fd = -1;
    int rc = open_dirs(p, dir, e);
    if (rc == 0 && !(p->dir = realpath(dir, NULL)))
        rc = err_errno(e, errno, "state directory '%s'", dir);
    if (rc == 0)
        rc = lock(p, dir, e);
    if (rc == 0)
        rc = count_epoch(p, dir, ret_epoch, e);
    if (rc == 0)
        rc = persist_writer_open_(p, e);
    if (rc < 0) {
        close_fds(p);
        free(p->dir);
        free(p);
        return rc;
    }
    *ret = p;
    return 0;
}

void persist_close(struct persist *p)
{
    if (!p)
        return;
    persist_drain_(p, LAST_MS);
    assert(!p->logs);
    close_fds(p);
    free(p->dir);
    free(p);
}

/* --- logs */

static bool good_id(const char *id)
{
    size_t n = strlen(id);
    if (n == 0 || n > PERSIST_ID_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)id[i]) && id[i] != '-')
            return false;
    return true;
}

static int add_log(struct persist *p, const char *id, struct persist_log **ret, struct err *e)
{
    assert(good_id(id));
    struct persist_log *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, -ENOMEM, "no memory for the log of a job");
    l->p = p;
    snprintf(l->id, sizeof l->id, "%s", id);
    DL_APPEND(p->logs, l);
    *ret = l;
    return 0;
}

int persist_log_create(struct persist *p, const char *id, struct persist_log **ret, struct err *e)
{
    TRY(add_log(p, id, ret, e));
    (*ret)->rewrite = true; /* the file is made with the first record */
    int rc = persist_frame_header(&(*ret)->pending);
    if (rc == 0)
        return 0;
    persist_log_close(*ret);
    return err_set(e, rc, "no memory for the log of a job");
}

void persist_log_watch(struct persist_log *l, void (*durable)(void *arg), void *arg)
{
    l->on_durable = durable;
    l->arg = arg;
}

static void part(struct persist_log *l, enum log_fate fate)
{
    l->fate = fate;
    l->on_durable = NULL;
    if (l->last == 0 && !l->flies && fate == LOG_CLOSES)
        buf_clear(&l->pending); /* nothing but the header of a file that was not made */
    if (fate == LOG_GOES)
        buf_clear(&l->pending);
    persist_touch_(l);
}

void persist_log_close(struct persist_log *l)
{
    if (l)
        part(l, LOG_CLOSES);
}

void persist_log_remove(struct persist_log *l)
{
    if (l)
        part(l, LOG_GOES);
}

/* What no memory could be found for is as lost as what no disk takes. */
static void lose(struct persist_log *l)
{
    log_error(MODULE, "the log of job %s cannot be kept: no memory; the job goes on, but will not outlive this daemon",
              l->id);
    l->broken = true;
    buf_free(&l->pending);
    l->rewrite = false;
}

uint64_t persist_append(struct persist_log *l, const void *text, size_t n)
{
    l->last++;
    if (l->broken)
        return l->last;
    if (n > PERSIST_RECORD_MAX || persist_frame(&l->pending, (uint32_t)(l->last - l->offset), text, n) < 0) {
        lose(l);
        return l->last;
    }
    l->appended += n;
    persist_touch_(l);
    return l->last;
}

uint64_t persist_rewrite(struct persist_log *l, const void *text, size_t n)
{
    if (l->broken)
        return ++l->last;
    buf_clear(&l->pending);
    l->rewrite = true;
    l->base = n;
    l->appended = 0;
    l->offset = l->last;
    l->last++;
    if (n > PERSIST_RECORD_MAX || persist_frame_header(&l->pending) < 0 || persist_frame(&l->pending, 1, text, n) < 0) {
        lose(l);
        return l->last;
    }
    persist_touch_(l);
    return l->last;
}

bool persist_durable(const struct persist_log *l, uint64_t number)
{
    return l->broken || number <= l->durable;
}

uint64_t persist_last(const struct persist_log *l)
{
    return l->last;
}

void persist_sizes(const struct persist_log *l, size_t *ret_appended, size_t *ret_base)
{
    *ret_appended = l->appended;
    *ret_base = l->base;
}

size_t persist_damaged(const struct persist *p)
{
    return p->damaged;
}

/* --- loading */

static int read_file(int dir_fd, const char *name, struct buf *out, struct err *e)
{
    struct stat st;
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        int rc = errno;
        if (fd >= 0)
            close(fd);
        return err_errno(e, rc, "it cannot be opened");
    }
    int rc = 0;
    if (st.st_size > (off_t)PERSIST_FILE_MAX)
        rc = err_set(e, -EFBIG, "it has %lld bytes, more than %zu", (long long)st.st_size, PERSIST_FILE_MAX);
    if (rc == 0 && (rc = file_read_all(fd, out)) < 0)
        rc = err_errno(e, -rc, "it cannot be read");
    close(fd);
    return rc;
}

/* What was read of it is forgotten; the file stays for whoever wants to look at it. */
static int set_aside(struct persist *p, const char *name, const struct err *why, struct err *e)
{
    char aside[PERSIST_ID_MAX + 16];
    snprintf(aside, sizeof aside, "%s.damaged", name);
    if (renameat(p->jobs_fd, name, p->jobs_fd, aside) < 0 || fsync(p->jobs_fd) < 0)
        return err_errno(e, errno, "it is damaged, and cannot be renamed to '%s'", aside);
    p->damaged++;
    log_error(MODULE,
              "job log 'jobs/%s' of the state directory is damaged: %s; it is set aside as '%s', its job is forgotten",
              name, why->text, aside);
    return 0;
}

static int load_log(struct persist *p, const char *id, const char *name, const struct persist_reader *r, struct err *e)
{
    struct buf b = {.max = PERSIST_FILE_MAX + 1};
    struct err damage = {0};
    struct persist_log *l;
    void *arg;
    size_t good;
    int rc = read_file(p->jobs_fd, name, &b, e);
    if (rc == 0)
        rc = add_log(p, id, &l, e);
    if (rc < 0) {
        buf_free(&b);
        return rc;
    }
    rc = r->begin(r->arg, l, &arg, e);
    if (rc < 0) {
        persist_log_close(l);
        buf_free(&b);
        return rc;
    }
    rc = persist_parse(b.data ? b.data : "", b.len, r->record, arg, &good, &damage);
    if (rc == 0 && good < b.len)
        log_warn(MODULE, "'%s' ends within a record: its last %zu bytes are void", name, b.len - good);
    buf_free(&b);
    if (rc == 0)
        return r->end(arg, e);
    r->drop(arg);
    persist_log_close(l);
    return rc == -ENOMEM ? err_set(e, rc, "%s", damage.text) : set_aside(p, name, &damage, e);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* ret: malloc'ed names without ".log", sorted. What a rewrite has left unfinished is removed. */
static int list_logs(struct persist *p, char ***ret, size_t *ret_n, struct err *e)
{
    int fd = dup(p->jobs_fd);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return err_errno(e, errno, "the state directory cannot be listed");
    rewinddir(d);
    char **v = NULL;
    size_t n = 0, cap = 0;
    int rc = 0;
    for (struct dirent *f; rc == 0 && (f = readdir(d));) {
        size_t len = strlen(f->d_name);
        if (len > 4 && strcmp(f->d_name + len - 4, ".new") == 0)
            unlinkat(p->jobs_fd, f->d_name, 0);
        if (len <= 4 || strcmp(f->d_name + len - 4, ".log") != 0)
            continue;
        if (ARRAY_RESERVE(v, cap, n + 1) < 0 || !(v[n] = strndup(f->d_name, len - 4)))
            rc = err_set(e, -ENOMEM, "no memory for the names of jobs");
        else
            n++;
    }
    closedir(d);
    if (n)
        qsort(v, n, sizeof *v, by_name);
    *ret = v;
    *ret_n = n;
    return rc;
}

int persist_load(struct persist *p, const struct persist_reader *r, struct err *e)
{
    char **ids = NULL;
    size_t n = 0;
    int rc = list_logs(p, &ids, &n, e);
    for (size_t i = 0; i < n; i++) {
        char name[PERSIST_ID_MAX + 8];
        if (rc == 0 && good_id(ids[i])) {
            snprintf(name, sizeof name, "%s.log", ids[i]);
            rc = load_log(p, ids[i], name, r, e);
            if (rc < 0)
                err_wrap(e, "job log 'jobs/%s' of the state directory", name);
        }
        free(ids[i]);
    }
    free(ids);
    close_fds(p); /* the writer has them */
    return rc;
}
