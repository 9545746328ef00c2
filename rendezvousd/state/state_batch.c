/* Sends batches of changes to the process that writes (state_writer.h), one at a time, through a connection (a
 * *door*). If that process ends, the batch is lost with the door; the next batch opens another one. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/net/resolve.h"
#include "rendezvousd/state/state_internal.h"

#define MODULE "state"
#define BATCH_BYTES ((size_t)64 << 20)
#define FOLLOW_MS 1000 /* ms from the end of its doors to the end of the process */
#define RETRY_MS 100   /* ms between a failure and another try; doubled each time, up to */
#define RETRY_MOST_MS 30000

/* --- what flies */

void dir_mark_(struct dir_home *h)
{
    struct state_dir *d = h->dir;
    if (!h->dirty)
        DL_APPEND2(d->dirty, h, dirty_prev, dirty_next);
    h->dirty = true;
}

/* Make a batch of what is dirty; what would make it too large comes with the next. */
static int take_off(struct state_dir *d)
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
        h->flying_op = dir_op_(h);
        h->flying_last = h->base.asked;
        rc = rc ? rc : dir_writer_put(&d->batch, h->id, h->flying_op, &h->pending);
        buf_clear(&h->pending);
        h->pending_whole = h->dirty = false;
    }
    if (rc < 0)
        return rc;
    head.bytes = (uint32_t)(d->batch.len - sizeof head);
    memcpy(d->batch.data, &head, sizeof head);
    return 0;
}

static void land(struct state_dir *d)
{
    struct dir_home *h, *next;
    d->landing = true;
    if (d->batch.cap > 1u << 20)
        buf_free(&d->batch);
    DL_FOREACH_SAFE2(d->flying, h, next, fly_next)
    {
        DL_DELETE2(d->flying, h, fly_prev, fly_next);
        dir_landed_(h);
    }
    d->landing = false;
}

static void set_results(struct state_dir *d, int rc)
{
    struct dir_home *h;
    DL_FOREACH2(d->flying, h, fly_next) h->result = rc;
}

/* --- the door */

static void on_ready(uv_poll_t *poll, int status, int events);

static void on_handle_closed(uv_handle_t *h)
{
    free(h);
}

int dir_watch_(struct state_dir *d)
{
    uv_poll_t *poll = calloc(1, sizeof *poll);
    const int rc = poll ? uv_poll_init(d->loop, poll, d->fd) : -ENOMEM;
    if (rc < 0) {
        free(poll);
        return rc;
    }
    poll->data = d;
    d->poll = poll;
    return 0;
}

static void close_door(struct state_dir *d)
{
    if (d->poll)
        uv_close((uv_handle_t *)d->poll, on_handle_closed);
    if (d->fd >= 0)
        close(d->fd);
    d->poll = NULL;
    d->fd = -1;
    d->answer.head_n = 0;
    buf_clear(&d->answer.body);
}

static int open_door(struct state_dir *d)
{
    TRY(d->fd = state_process_door(d->process, d->path));
    const int rc = dir_watch_(d);
    if (rc < 0)
        close_door(d);
    return rc;
}

int dir_enter_(struct state_dir *d)
{
    const struct home_head nothing = {0};
    const struct buf none = {0};
    TRY(d->fd = state_process_door(d->process, d->path));
    TRY(home_send(d->fd, &nothing, &none, INT64_MAX, -1));
    TRY(home_receive(d->fd, &d->answer, INT64_MAX, -1));
    return d->answer.head.rc;
}

/* --- batches */

static int send_some(struct state_dir *d)
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

static void take_results(struct state_dir *d)
{
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
}

/* 1: the batch is answered; 0: not yet. */
static int receive_some(struct state_dir *d)
{
    const int rc = home_receive(d->fd, &d->answer, clock_ms(), -1);
    if (rc < 0)
        return rc == -ETIMEDOUT ? 0 : -EPIPE;
    TRY(d->answer.head.rc); /* the directory is not ours */
    take_results(d);
    return 1;
}

/* Continue the batch under way. 1: it has landed (was written), or is lost with its door. */
static int go_on(struct state_dir *d)
{
    int rc = send_some(d);
    rc = rc ? rc : receive_some(d);
    if (rc == 0)
        return 0;
    d->flies = false;
    uv_poll_stop(d->poll);
    if (rc < 0) {
        set_results(d, rc);
        close_door(d);
        if (rc == -EPIPE)
            state_process_broke(d->process);
    }
    land(d);
    return 1;
}

static void await(struct state_dir *d)
{
    uv_poll_start(d->poll, UV_READABLE | (d->sent < d->batch.len ? UV_WRITABLE : 0), on_ready);
}

void dir_start_(struct state_dir *d)
{
    while (!d->flies && !d->landing && d->dirty) {
        int rc = take_off(d);
        rc = rc == 0 && d->fd < 0 ? open_door(d) : rc;
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
    struct state_dir *d = poll->data;
    (void)status, (void)events;
    if (go_on(d))
        dir_start_(d);
    else
        await(d);
}

/* --- again */

static void on_retry(uv_timer_t *t)
{
    dir_retry_(t->data);
}

static uv_timer_t *timer_of(struct state_dir *d)
{
    if (!d->retry && (d->retry = calloc(1, sizeof *d->retry))) {
        uv_timer_init(d->loop, d->retry);
        d->retry->data = d;
    }
    return d->retry;
}

/* Set the timer for another try. If there is no memory for a timer, it is tried at the end. */
void dir_retry_later_(struct state_dir *d)
{
    uv_timer_t *t = d->ends ? NULL : timer_of(d);
    if (!t || uv_is_active((uv_handle_t *)t))
        return;
    d->retry_ms = d->retry_ms ? d->retry_ms : RETRY_MS;
    uv_timer_start(t, on_retry, (uint64_t)d->retry_ms, 0);
    d->retry_ms = d->retry_ms < RETRY_MOST_MS / 2 ? 2 * d->retry_ms : RETRY_MOST_MS;
}

/* --- the end */

static bool is_settled(struct state_dir *d, int64_t deadline)
{
    for (dir_start_(d); d->flies; dir_start_(d)) {
        const short events = (short)(POLLIN | (d->sent < d->batch.len ? POLLOUT : 0));
        if (wait_fd(d->fd, events, deadline, -1, NULL) < 0)
            return false;
        go_on(d);
    }
    return true;
}

/* The disk does not answer: give up what is left to write. */
static void abandon(struct state_dir *d, int64_t waited_ms)
{
    log_error(MODULE,
              "the state directory '%s' has not answered for %lld ms: what was decided last may be missing there; "
              "process %d goes on writing when it answers, and no rendezvousd can use it before",
              d->path, (long long)waited_ms, (int)d->process->pid);
    set_results(d, 0);
    d->flies = false;
    land(d);
    while (d->dirty) {
        take_off(d);
        set_results(d, 0);
        land(d);
    }
}

static void close_timer(struct state_dir *d)
{
    if (d->retry)
        uv_close((uv_handle_t *)d->retry, on_handle_closed);
    d->retry = NULL;
}

void dir_drain_(struct state_dir *d, int64_t most_ms)
{
    d->ends = true;
    dir_retry_(d);
    const bool settled = is_settled(d, clock_deadline(most_ms));
    if (!settled)
        abandon(d, most_ms);
    close_door(d);
    close_timer(d);
    state_process_end(&d->own, settled ? FOLLOW_MS : 0);
    buf_free(&d->batch);
    buf_free(&d->answer.body);
}
