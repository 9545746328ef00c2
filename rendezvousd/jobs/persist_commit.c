/* Writing: what has gathered goes to the process that writes (persist_writer.h), one batch at a time. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
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
#include "rendezvousd/jobs/persist_impl.h"
#include "rendezvousd/jobs/persist_writer.h"

#define MODULE "persist"
#define BATCH_BYTES ((size_t)64 << 20)
#define FOLLOW_MS 1000 /* from the end of its socket to that of the process */

/* --- what flies */

static enum persist_op op_of(const struct persist_log *l, bool renewed)
{
    return l->fate == LOG_GOES || l->voided ? PERSIST_REMOVE : renewed ? PERSIST_RENEW : PERSIST_APPEND;
}

/* What is dirty, as one batch; what would make it too large comes with the next. */
static int take_off(struct persist *p)
{
    struct persist_log *l, *next;
    struct home_head head = {0};
    int rc = 0;
    buf_clear(&p->batch);
    p->sent = 0;
    rc = buf_add(&p->batch, &head, sizeof head);
    DL_FOREACH_SAFE2(p->dirty, l, next, dirty_next)
    {
        if (p->batch.len >= BATCH_BYTES)
            break;
        DL_DELETE2(p->dirty, l, dirty_prev, dirty_next);
        DL_APPEND2(p->flying, l, fly_prev, fly_next);
        rc = rc ? rc : persist_writer_put(&p->batch, l->id, op_of(l, l->rewrite), &l->pending);
        buf_clear(&l->pending);
        l->flying_fate = l->fate;
        l->flying_last = l->last;
        l->rewrite = l->dirty = false;
        l->flies = true;
    }
    if (rc < 0)
        return rc;
    head.bytes = (uint32_t)(p->batch.len - sizeof head);
    memcpy(p->batch.data, &head, sizeof head);
    return 0;
}

static void free_log(struct persist_log *l)
{
    DL_DELETE(l->p->logs, l);
    buf_free(&l->pending);
    free(l);
}

static void give_up(struct persist_log *l)
{
    if (l->broken)
        return;
    log_error(MODULE, "the log of job %s cannot be written: %s; the job goes on, but will not outlive this daemon",
              l->id, strerror(-l->result));
    l->broken = true;
    buf_free(&l->pending);
}

static void land(struct persist *p)
{
    struct persist_log *l, *next;
    p->landing = true;
    if (p->batch.cap > 1u << 20)
        buf_free(&p->batch);
    DL_FOREACH_SAFE2(p->flying, l, next, fly_next)
    {
        DL_DELETE2(p->flying, l, fly_prev, fly_next);
        l->flies = l->voided = false;
        const bool lost = l->result == -EPIPE && l->flying_fate != LOG_CLOSES;
        if (lost) { /* nobody knows what of it was written: its file is to go */
            l->voided = true;
            persist_touch_(l);
        }
        if (l->flying_fate != LOG_LIVES) {
            if (!lost)
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

static void set_results(struct persist *p, int rc)
{
    struct persist_log *l;
    DL_FOREACH2(p->flying, l, fly_next) l->result = rc;
}

/* --- the process */

static void on_ready(uv_poll_t *poll, int status, int events);

static void on_poll_closed(uv_handle_t *h)
{
    free(h);
}

int persist_writer_open_(struct persist *p, struct err *e)
{
    uv_poll_t *poll = calloc(1, sizeof *poll);
    const int fd = poll ? persist_writer_start(p->dir, p->jobs_fd, p->lock_fd, &p->writer) : -ENOMEM;
    int rc = fd < 0 ? fd : uv_poll_init(p->loop, poll, fd);
    if (rc < 0) {
        free(poll);
        if (fd >= 0)
            close(fd);
        return err_errno(e, -rc, "no process that writes the state directory");
    }
    poll->data = p;
    p->poll = poll;
    p->fd = fd;
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

static void close_socket(struct persist *p)
{
    if (p->fd < 0)
        return;
    uv_close((uv_handle_t *)p->poll, on_poll_closed);
    close(p->fd);
    p->fd = -1;
    p->answer.head_n = 0;
    buf_clear(&p->answer.body);
}

/* It was killed. What it had is lost, and its logs with it; those that follow go to another one. */
static void replace_writer(struct persist *p)
{
    struct err e;
    close_socket(p);
    kill(p->writer, SIGKILL);
    reap(p->writer, FOLLOW_MS);
    log_error(MODULE, "the process that writes the state directory (pid %d) has ended", (int)p->writer);
    if (persist_writer_open_(p, &e) < 0)
        log_error(MODULE, "%s", e.text);
}

/* --- batches */

static int send_some(struct persist *p)
{
    while (p->sent < p->batch.len) {
        const ssize_t n = send(p->fd, p->batch.data + p->sent, p->batch.len - p->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n < 0 && errno != EINTR)
            return -EPIPE;
        p->sent += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* 1: the batch is answered; 0: not yet. */
static int receive_some(struct persist *p)
{
    const int rc = home_receive(p->fd, &p->answer, clock_ms(), -1);
    if (rc < 0)
        return rc == -ETIMEDOUT ? 0 : -EPIPE;
    struct persist_log *l;
    const char *at = p->answer.body.data;
    size_t left = p->answer.body.len;
    DL_FOREACH2(p->flying, l, fly_next)
    {
        int32_t result = -EIO;
        if (left >= sizeof result) {
            memcpy(&result, at, sizeof result);
            at += sizeof result;
            left -= sizeof result;
        }
        l->result = result;
    }
    return 1;
}

/* One that flies: 1: it has landed, or is lost. */
static int go_on(struct persist *p)
{
    int rc = send_some(p);
    rc = rc ? rc : receive_some(p);
    if (rc == 0)
        return 0;
    p->flies = false;
    uv_poll_stop(p->poll);
    if (rc < 0) {
        set_results(p, -EPIPE);
        replace_writer(p);
    }
    land(p);
    return 1;
}

static void await(struct persist *p)
{
    uv_poll_start(p->poll, UV_READABLE | (p->sent < p->batch.len ? UV_WRITABLE : 0), on_ready);
}

static void start(struct persist *p)
{
    while (!p->flies && !p->landing && p->dirty) {
        int rc = take_off(p);
        rc = rc == 0 && p->fd < 0 ? -EIO : rc;
        if (rc < 0) {
            set_results(p, rc);
            land(p);
            continue;
        }
        p->flies = true;
        if (send_some(p) < 0)
            go_on(p);
        else
            await(p);
    }
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
    struct persist *p = poll->data;
    (void)status, (void)events;
    if (go_on(p))
        start(p);
    else
        await(p);
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

/* --- the end */

static bool is_settled(struct persist *p, int64_t deadline)
{
    for (start(p); p->flies; start(p)) {
        const short events = (short)(POLLIN | (p->sent < p->batch.len ? POLLOUT : 0));
        if (wait_fd(p->fd, events, deadline, -1, NULL) < 0)
            return false;
        go_on(p);
    }
    return true;
}

/* The disk does not answer: whatever is left of logs is let go of. */
static void abandon(struct persist *p, int64_t waited_ms)
{
    log_error(MODULE,
              "the state directory '%s' has not answered for %lld ms: what was decided last may be missing there; "
              "process %d goes on writing when it answers, and no rendezvousd can use it before",
              p->dir, (long long)waited_ms, (int)p->writer);
    set_results(p, 0);
    p->flies = false;
    land(p);
    while (p->dirty) {
        take_off(p);
        set_results(p, 0);
        land(p);
    }
}

void persist_drain_(struct persist *p, int64_t most_ms)
{
    const bool settled = is_settled(p, clock_deadline(most_ms));
    if (!settled)
        abandon(p, most_ms);
    close_socket(p);
    if (settled && p->writer > 0)
        reap(p->writer, FOLLOW_MS);
    buf_free(&p->batch);
    buf_free(&p->answer.body);
}
