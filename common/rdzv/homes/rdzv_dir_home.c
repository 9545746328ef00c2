/* The homes of jobs in a state directory, and writing: what has gathered goes to the process that writes
 * (rdzv_dir_writer.h), one batch at a time. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/net/resolve.h"
#include "common/rdzv/homes/rdzv_dir_internal.h"
#include "common/rdzv/homes/rdzv_dir_writer.h"

#define MODULE "state"
#define BATCH_BYTES ((size_t)64 << 20)
#define FOLLOW_MS 1000 /* from the end of its socket to that of the process */

/* --- what flies */

static void start(struct rdzv_dir *d);

static void touch(struct dir_home *h) /* it has something to write */
{
    struct rdzv_dir *d = h->dir;
    if (!h->dirty) {
        h->dirty = true;
        DL_APPEND2(d->dirty, h, dirty_prev, dirty_next);
    }
    start(d);
}

static enum dir_op op_of(const struct dir_home *h)
{
    return h->goes || h->voided ? DIR_REMOVE : h->rewrite ? DIR_RENEW : DIR_APPEND;
}

/* What is dirty, as one batch; what would make it too large comes with the next. */
static int take_off(struct rdzv_dir *d)
{
    struct dir_home *h, *next;
    struct home_head head = {0};
    int rc = 0;
    buf_clear(&d->batch);
    d->sent = 0;
    rc = buf_add(&d->batch, &head, sizeof head);
    DL_FOREACH_SAFE2(d->dirty, h, next, dirty_next)
    {
        if (d->batch.len >= BATCH_BYTES)
            break;
        DL_DELETE2(d->dirty, h, dirty_prev, dirty_next);
        DL_APPEND2(d->flying, h, fly_prev, fly_next);
        rc = rc ? rc : dir_writer_put(&d->batch, h->id, op_of(h), &h->pending);
        buf_clear(&h->pending);
        h->flying_closed = h->closed;
        h->flying_last = h->base.asked;
        h->rewrite = h->dirty = false;
    }
    if (rc < 0)
        return rc;
    head.bytes = (uint32_t)(d->batch.len - sizeof head);
    memcpy(d->batch.data, &head, sizeof head);
    return 0;
}

static void free_home(struct dir_home *h)
{
    DL_DELETE(h->dir->homes, h);
    buf_free(&h->pending);
    free(h);
}

/* From now on whatever its owner appends counts as standing. */
static void give_up(struct dir_home *h, const char *why)
{
    if (h->broken)
        return;
    log_error(MODULE, "the log of job %s cannot be written: %s; the job goes on, but will not outlive this daemon",
              h->id, why);
    h->broken = true;
    h->base.stands = UINT64_MAX;
    h->rewrite = false;
    buf_free(&h->pending);
}

static void land_one(struct dir_home *h)
{
    const bool lost = h->result == -EPIPE && (!h->flying_closed || h->goes);
    h->voided = false;
    if (lost) { /* nobody knows what of it was written: its file is to go */
        h->voided = true;
        touch(h);
    }
    if (h->flying_closed) {
        if (!lost)
            free_home(h);
        return;
    }
    if (h->result < 0)
        give_up(h, strerror(-h->result));
    if (!h->broken)
        h->base.stands = h->flying_last;
    if (h->base.landed)
        h->base.landed(h->base.arg);
}

static void land(struct rdzv_dir *d)
{
    struct dir_home *h, *next;
    d->landing = true;
    if (d->batch.cap > 1u << 20)
        buf_free(&d->batch);
    DL_FOREACH_SAFE2(d->flying, h, next, fly_next)
    {
        DL_DELETE2(d->flying, h, fly_prev, fly_next);
        land_one(h);
    }
    d->landing = false;
}

static void set_results(struct rdzv_dir *d, int rc)
{
    struct dir_home *h;
    DL_FOREACH2(d->flying, h, fly_next) h->result = rc;
}

/* --- the process */

static void on_ready(uv_poll_t *poll, int status, int events);

static void on_poll_closed(uv_handle_t *h)
{
    free(h);
}

int dir_writer_open(struct rdzv_dir *d, struct err *e)
{
    uv_poll_t *poll = calloc(1, sizeof *poll);
    const int fd = poll ? dir_writer_start(d->path, d->jobs_fd, d->lock_fd, &d->writer) : -ENOMEM;
    int rc = fd < 0 ? fd : uv_poll_init(d->loop, poll, fd);
    if (rc < 0) {
        free(poll);
        if (fd >= 0)
            close(fd);
        return err_errno(e, -rc, "no process that writes the state directory");
    }
    poll->data = d;
    d->poll = poll;
    d->fd = fd;
    return 0;
}

/* True: it is gone. */
static bool reap(pid_t pid, int64_t most_ms)
{
    struct pollfd f = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    if (f.fd >= 0) {
        poll(&f, 1, clock_left(clock_deadline(most_ms)));
        close(f.fd);
    }
    return waitpid(pid, NULL, WNOHANG) != 0;
}

static void close_socket(struct rdzv_dir *d)
{
    if (d->fd < 0)
        return;
    uv_close((uv_handle_t *)d->poll, on_poll_closed);
    close(d->fd);
    d->fd = -1;
    d->answer.head_n = 0;
    buf_clear(&d->answer.body);
}

/* It was killed. What it had is lost, and its logs with it; those that follow go to another one. */
static void replace_writer(struct rdzv_dir *d)
{
    struct err e;
    close_socket(d);
    kill(d->writer, SIGKILL);
    reap(d->writer, FOLLOW_MS);
    log_error(MODULE, "the process that writes the state directory (pid %d) has ended", (int)d->writer);
    if (dir_writer_open(d, &e) < 0)
        log_error(MODULE, "%s", e.text);
}

/* --- batches */

static int send_some(struct rdzv_dir *d)
{
    while (d->sent < d->batch.len) {
        const ssize_t n = send(d->fd, d->batch.data + d->sent, d->batch.len - d->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n < 0 && errno != EINTR)
            return -EPIPE;
        d->sent += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* 1: the batch is answered; 0: not yet. */
static int receive_some(struct rdzv_dir *d)
{
    const int rc = home_receive(d->fd, &d->answer, clock_ms(), -1);
    if (rc < 0)
        return rc == -ETIMEDOUT ? 0 : -EPIPE;
    struct dir_home *h;
    const char *at = d->answer.body.data;
    size_t left = d->answer.body.len;
    DL_FOREACH2(d->flying, h, fly_next)
    {
        int32_t result = -EIO;
        if (left >= sizeof result) {
            memcpy(&result, at, sizeof result);
            at += sizeof result;
            left -= sizeof result;
        }
        h->result = result;
    }
    return 1;
}

/* One that flies: 1: it has landed, or is lost. */
static int go_on(struct rdzv_dir *d)
{
    int rc = send_some(d);
    rc = rc ? rc : receive_some(d);
    if (rc == 0)
        return 0;
    d->flies = false;
    uv_poll_stop(d->poll);
    if (rc < 0) {
        set_results(d, -EPIPE);
        replace_writer(d);
    }
    land(d);
    return 1;
}

static void await(struct rdzv_dir *d)
{
    uv_poll_start(d->poll, UV_READABLE | (d->sent < d->batch.len ? UV_WRITABLE : 0), on_ready);
}

static void start(struct rdzv_dir *d)
{
    while (!d->flies && !d->landing && d->dirty) {
        int rc = take_off(d);
        rc = rc == 0 && d->fd < 0 ? -EIO : rc;
        if (rc < 0) {
            set_results(d, rc);
            land(d);
            continue;
        }
        d->flies = true;
        if (send_some(d) < 0)
            go_on(d);
        else
            await(d);
    }
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
    struct rdzv_dir *d = poll->data;
    (void)status, (void)events;
    if (go_on(d))
        start(d);
    else
        await(d);
}

/* --- the end */

static bool is_settled(struct rdzv_dir *d, int64_t deadline)
{
    for (start(d); d->flies; start(d)) {
        const short events = (short)(POLLIN | (d->sent < d->batch.len ? POLLOUT : 0));
        if (wait_fd(d->fd, events, deadline, -1, NULL) < 0)
            return false;
        go_on(d);
    }
    return true;
}

/* The disk does not answer: whatever is left of logs is let go of. */
static void abandon(struct rdzv_dir *d, int64_t waited_ms)
{
    log_error(MODULE,
              "the state directory '%s' has not answered for %lld ms: what was decided last may be missing there; "
              "process %d goes on writing when it answers, and no rendezvousd can use it before",
              d->path, (long long)waited_ms, (int)d->writer);
    set_results(d, 0);
    d->flies = false;
    land(d);
    while (d->dirty) {
        take_off(d);
        set_results(d, 0);
        land(d);
    }
}

void dir_drain(struct rdzv_dir *d, int64_t most_ms)
{
    const bool settled = is_settled(d, clock_deadline(most_ms));
    if (!settled)
        abandon(d, most_ms);
    close_socket(d);
    if (settled && d->writer > 0)
        reap(d->writer, FOLLOW_MS);
    buf_free(&d->batch);
    buf_free(&d->answer.body);
}

/* --- the home */

static int dir_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    (void)base, (void)e;
    snprintf(ret, RDZV_IDENTITY_MAX + 1, "directory");
    return 0;
}

/* The directory's lock is the claim. */
static int dir_claim(struct rdzv_home *base, const char *seen, const char *epoch, const struct buf *record,
                     struct err *e)
{
    (void)base, (void)seen, (void)epoch, (void)record, (void)e;
    return 1;
}

static int dir_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    struct dir_home *h = (struct dir_home *)base;
    struct buf file = {.max = RDZV_DIR_FILE_MAX + 1};
    size_t good;
    if (!h->listed)
        return 0;
    int rc = dir_read(h, &file, e);
    rc = rc ? rc : rdzv_dir_parse(file.data ? file.data : "", file.len, ret, &good, e);
    if (rc == 0 && good < file.len)
        log_warn(MODULE, "'%s.log' ends within a record: its last %zu bytes are void", h->id, file.len - good);
    buf_free(&file);
    return rc;
}

static int frame(struct dir_home *h, const struct rdzv_write *w)
{
    if (w->decision->len > RDZV_DIR_RECORD_MAX)
        return -E2BIG;
    if (w->whole || !h->begun) {
        buf_clear(&h->pending);
        h->rewrite = h->begun = true;
        h->records = 0;
        TRY(rdzv_dir_frame_header(&h->pending));
    }
    return rdzv_dir_frame(&h->pending, ++h->records, w->decision->data, w->decision->len);
}

/* What no memory could be found for is as lost as what no disk takes. */
static int dir_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct dir_home *h = (struct dir_home *)base;
    (void)e;
    const int rc = h->broken ? 0 : frame(h, w);
    if (rc < 0)
        give_up(h, strerror(-rc));
    else if (!h->broken)
        touch(h);
    return h->broken ? 1 : RDZV_UNDER_WAY;
}

static void dir_forget(struct rdzv_home *base, const char *node)
{
    struct dir_home *h = (struct dir_home *)base;
    (void)node;
    h->goes = true;
    buf_clear(&h->pending);
}

static void dir_close(struct rdzv_home *base)
{
    struct dir_home *h = (struct dir_home *)base;
    if (!h)
        return;
    h->closed = true;
    h->base.landed = NULL;
    touch(h);
}

static const struct rdzv_home_ops dir_ops = {
    .name = "directory",
    .identity = dir_identity,
    .claim = dir_claim,
    .load = dir_load,
    .append = dir_append,
    .forget = dir_forget,
    .close = dir_close,
};

int rdzv_dir_home(struct rdzv_dir *d, const char *id, struct rdzv_home **ret, struct err *e)
{
    struct dir_home *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for the log of a job");
    h->base = (struct rdzv_home){.ops = &dir_ops, .wake_fd = -1, .cancel_fd = -1};
    h->dir = d;
    snprintf(h->id, sizeof h->id, "%s", id);
    DL_APPEND(d->homes, h);
    *ret = &h->base;
    return 0;
}
