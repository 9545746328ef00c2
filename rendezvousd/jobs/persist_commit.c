/* Writing: what has gathered goes to disk on a thread of libuv's pool, one batch at a time. */
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "rendezvousd/jobs/persist_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#define MODULE "persist"

void persist_file_name_(const struct persist_log *l, char *out, size_t cap, const char *suffix)
{
    snprintf(out, cap, "%s%s", l->id, suffix);
}

/* --- on the thread */

static int sync_fd(int fd)
{
    return fdatasync(fd) < 0 ? -errno : 0;
}

/* The old file stays until the new one is whole. */
static int write_new(struct persist_log *l)
{
    char name[PERSIST_ID_MAX + 8], fresh[PERSIST_ID_MAX + 8];
    const int dir = l->p->jobs_fd;
    persist_file_name_(l, name, sizeof name, ".log");
    persist_file_name_(l, fresh, sizeof fresh, ".new");
    int fd = openat(dir, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int rc = file_write_all(fd, l->flying.data, l->flying.len);
    if (rc == 0)
        rc = sync_fd(fd);
    if (rc == 0 && renameat(dir, fresh, dir, name) < 0)
        rc = -errno;
    if (rc == 0)
        rc = fsync(dir) < 0 ? -errno : 0;
    if (rc < 0) {
        close(fd);
        unlinkat(dir, fresh, 0);
        return rc;
    }
    if (l->fd >= 0)
        close(l->fd);
    l->fd = fd;
    return 0;
}

static int write_log(struct persist_log *l)
{
    if (l->flying.len == 0)
        return 0;
    if (l->flying_rewrite)
        return write_new(l);
    TRY(file_write_all(l->fd, l->flying.data, l->flying.len));
    return sync_fd(l->fd);
}

static void drop_file(struct persist_log *l)
{
    char name[PERSIST_ID_MAX + 8];
    persist_file_name_(l, name, sizeof name, ".log");
    unlinkat(l->p->jobs_fd, name, 0);
}

static void write_flying(struct persist *p)
{
    struct persist_log *l;
    DL_FOREACH2(p->flying, l, fly_next)
    {
        l->result = l->flying_fate == LOG_GOES ? 0 : write_log(l);
        if (l->flying_fate == LOG_GOES || l->result < 0)
            drop_file(l);
    }
}

static void on_work(uv_work_t *w)
{
    struct persist_work *work = w->data;
    write_flying(work->p);
    uv_sem_post(&work->done);
}

/* --- on the loop */

static void take_off(struct persist *p)
{
    struct persist_log *l, *next;
    DL_FOREACH_SAFE2(p->dirty, l, next, dirty_next)
    {
        struct buf empty = l->flying;
        DL_DELETE2(p->dirty, l, dirty_prev, dirty_next);
        DL_APPEND2(p->flying, l, fly_prev, fly_next);
        l->flying = l->pending;
        l->pending = empty;
        buf_clear(&l->pending);
        l->flying_rewrite = l->rewrite;
        l->flying_fate = l->fate;
        l->flying_last = l->last;
        l->rewrite = false;
        l->dirty = false;
        l->flies = true;
    }
}

static void free_log(struct persist_log *l)
{
    DL_DELETE(l->p->logs, l);
    if (l->fd >= 0)
        close(l->fd);
    buf_free(&l->pending);
    buf_free(&l->flying);
    free(l);
}

static void give_up(struct persist_log *l)
{
    log_error(MODULE, "the log of job %s cannot be written: %s; the job goes on, but will not outlive this daemon",
              l->id, strerror(-l->result));
    l->broken = true;
    buf_free(&l->pending);
}

static void land(struct persist *p)
{
    struct persist_log *l, *next;
    p->landing = true;
    DL_FOREACH_SAFE2(p->flying, l, next, fly_next)
    {
        DL_DELETE2(p->flying, l, fly_prev, fly_next);
        l->flies = false;
        if (l->flying.cap > 1u << 20)
            buf_free(&l->flying);
        if (l->flying_fate != LOG_LIVES) {
            free_log(l);
            continue;
        }
        if (l->result < 0)
            give_up(l);
        l->durable = l->flying_last;
        if (l->on_durable)
            l->on_durable(l->arg);
    }
    p->landing = false;
}

static void start(struct persist *p);

static void free_work(struct persist_work *work)
{
    uv_sem_destroy(&work->done);
    free(work);
}

static void on_worked(uv_work_t *w, int status)
{
    struct persist_work *work = w->data;
    struct persist *p = work->p;
    (void)status; /* never cancelled */
    free_work(work);
    if (!p)
        return;
    p->work = NULL;
    land(p);
    start(p);
}

static struct persist_work *begin_work(struct persist *p)
{
    struct persist_work *work = calloc(1, sizeof *work);
    if (!work)
        return NULL;
    work->work.data = work;
    work->p = p;
    if (uv_sem_init(&work->done, 0) < 0) {
        free(work);
        return NULL;
    }
    if (uv_queue_work(p->loop, &work->work, on_work, on_worked) < 0) {
        free_work(work);
        return NULL;
    }
    return work;
}

static void start(struct persist *p)
{
    while (!p->work && !p->landing && p->dirty) {
        take_off(p);
        p->work = begin_work(p);
        if (p->work)
            return;
        write_flying(p); /* no memory for a thread's work: late is better than never */
        land(p);
    }
}

void persist_touch_(struct persist_log *l)
{
    struct persist *p = l->p;
    if (!l->dirty) {
        l->dirty = true;
        DL_APPEND2(p->dirty, l, dirty_prev, dirty_next);
    }
    start(p);
}

void persist_drain_(struct persist *p)
{
    if (p->work) {
        uv_sem_wait(&p->work->done);
        p->work->p = NULL;
        p->work = NULL;
        land(p);
    }
    while (p->dirty) {
        take_off(p);
        write_flying(p);
        land(p);
    }
}
