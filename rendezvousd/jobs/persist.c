/* The state directory: taking it over, and what its owner may do with a log. See persist.h. */
#include "rendezvousd/jobs/persist.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "rendezvousd/jobs/persist_impl.h"
#include <assert.h>
#include <ctype.h>
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

void persist_close_fds_(struct persist *p)
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
        persist_close_fds_(p);
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
    persist_close_fds_(p);
    free(p->dir);
    free(p);
}

/* --- logs */

bool persist_good_id_(const char *id)
{
    size_t n = strlen(id);
    if (n == 0 || n > PERSIST_ID_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)id[i]) && id[i] != '-')
            return false;
    return true;
}

int persist_add_log_(struct persist *p, const char *id, struct persist_log **ret, struct err *e)
{
    assert(persist_good_id_(id));
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
    TRY(persist_add_log_(p, id, ret, e));
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
