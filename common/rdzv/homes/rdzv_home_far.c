/* A home that a process of its own has at hand (home_process.h): each call is a message, and waiting for its answer
 * ends with the deadline, whatever the process is stuck in.
 *
 * The handle's *door* is a socket pair, one end of which is sent to the process, where a thread opens the home and
 * serves it. A call whose answer did not come in time is still owed: the next one waits for it first, so that calls
 * happen in the order in which they were made, and none piles up. A door that breaks (the process was killed; another
 * one takes its place) is made anew by the next call. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/rdzv/homes/home_process.h"
#include "common/rdzv/homes/home_wire.h"
#include "common/rdzv/homes/rdzv_log_home.h"

struct far_home {
    struct rdzv_home base;
    int64_t io_timeout_ms, keep_ms;
    char *url, *run_id;
    const char *folder; /* in url, for people */
    int process_fd, fd; /* fd: our end of the door, -1: none */
    uint64_t asked;     /* number of the newest call */
    int64_t asked_ms;
    bool owed;       /* its answer has not come */
    struct buf body; /* of the call to come */
    struct home_inbox in;
};

/* --- the door */

static void shut(struct far_home *h)
{
    if (h->fd >= 0)
        close(h->fd);
    h->fd = -1;
    h->owed = false;
    h->in.head_n = 0;
    buf_clear(&h->in.body);
}

static int open_door(struct far_home *h, struct err *e)
{
    int ends[2];
    if (h->fd >= 0)
        return 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return err_errno(e, errno, "a socket to the process that has the shared folder '%s' open", h->folder);
    const int rc = home_process_ask(h->process_fd, h->keep_ms, h->url, h->run_id, ends[1]);
    close(ends[1]);
    if (rc < 0) {
        close(ends[0]);
        return err_errno(e, -rc, "the process that opens the shared folder '%s' cannot be asked", h->folder);
    }
    h->fd = ends[0];
    return 0;
}

/* --- calls */

/* What a door that broke, and a deadline that passed, say. */
static int explain(struct far_home *h, int rc, struct err *e)
{
    if (rc == -ETIMEDOUT)
        return err_set(e, rc, "the shared folder '%s' has not answered for %" PRId64 " ms", h->folder,
                       clock_ms() - h->asked_ms);
    if (rc == -ECANCELED)
        return err_set(e, rc, "the shared folder '%s' is waited for no longer", h->folder);
    shut(h);
    return err_set(e, -ECONNRESET, "the process that has the shared folder '%s' open is gone", h->folder);
}

/* Until the answer to the newest call is there. */
static int await(struct far_home *h, int64_t deadline, struct err *e)
{
    while (h->owed) {
        const int rc = home_receive(h->fd, &h->in, deadline, h->base.cancel_fd);
        if (rc < 0)
            return explain(h, rc, e);
        h->owed = h->in.head.number != h->asked;
    }
    return 0;
}

static int send_call(struct far_home *h, struct home_head *head, int64_t deadline, struct err *e)
{
    head->number = ++h->asked;
    h->asked_ms = clock_ms();
    const int rc = home_send(h->fd, head, &h->body, deadline, h->base.cancel_fd);
    if (rc == -ETIMEDOUT || rc == -ECANCELED) { /* a part of it, perhaps */
        explain(h, rc, e);
        shut(h);
        return rc;
    }
    h->owed = rc == 0;
    return rc < 0 ? explain(h, rc, e) : 0;
}

/* A body for the next call, to be filled. */
static struct buf *fresh(struct far_home *h)
{
    buf_clear(&h->body);
    return &h->body;
}

/* filled: what became of filling the body. *ret: the answer's pieces, borrowed until the next call. Returns what the
 * home did. */
static int call(struct far_home *h, int filled, struct home_head head, struct home_pieces *ret, struct err *e)
{
    const int64_t deadline = clock_deadline(h->io_timeout_ms);
    if (filled < 0)
        return err_set(e, filled, "no memory for a call to the shared folder '%s'", h->folder);
    TRY(await(h, deadline, e)); /* the one before */
    TRY(open_door(h, e));
    TRY(send_call(h, &head, deadline, e));
    TRY(await(h, deadline, e));
    struct home_pieces in = home_pieces(&h->in);
    const char *text = "";
    if (h->in.head.rc < 0) {
        home_take_text(&in, &text);
        return err_set(e, h->in.head.rc, "%s", text);
    }
    if (ret)
        *ret = in;
    return h->in.head.rc;
}

static int bad_answer(const struct far_home *h, struct err *e)
{
    return err_set(e, -EPROTO, "the process that has the shared folder '%s' open gave no proper answer", h->folder);
}

/* --- what is asked */

static int far_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    struct far_home *h = (struct far_home *)base;
    struct home_pieces in;
    const char *text;
    fresh(h);
    TRY(call(h, 0, (struct home_head){.what = HOME_IDENTITY}, &in, e));
    if (home_take_text(&in, &text) < 0)
        return bad_answer(h, e);
    snprintf(ret, RDZV_IDENTITY_MAX + 1, "%s", text);
    return 0;
}

static int far_look(struct rdzv_home *base, struct rdzv_claim *ret, struct err *e)
{
    struct far_home *h = (struct far_home *)base;
    struct home_pieces in;
    int rc;
    fresh(h);
    TRY(rc = call(h, 0, (struct home_head){.what = HOME_LOOK}, &in, e));
    return rc == 1 && home_take_claim(&in, ret) < 0 ? bad_answer(h, e) : rc;
}

static int far_claim(struct rdzv_home *base, const struct rdzv_claim *seen, const struct rdzv_claim *own,
                     const struct buf *record, struct err *e)
{
    struct far_home *h = (struct far_home *)base;
    int filled = home_put(fresh(h), seen, sizeof *seen);
    filled = filled ? filled : home_put(&h->body, own, sizeof *own);
    filled = filled ? filled : home_put(&h->body, record->data, record->len);
    return call(h, filled, (struct home_head){.what = HOME_CLAIM}, NULL, e);
}

static int far_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    struct far_home *h = (struct far_home *)base;
    struct home_pieces in;
    const char *p;
    size_t n;
    fresh(h);
    TRY(call(h, 0, (struct home_head){.what = HOME_LOAD}, &in, e));
    if (home_take(&in, &p, &n) < 0)
        return bad_answer(h, e);
    return buf_add(ret, p, n) < 0 ? err_set(e, -ENOMEM, "the decision log does not fit in memory") : 0;
}

static int far_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct far_home *h = (struct far_home *)base;
    const uint32_t flags = (w->whole ? HOME_FLAG_WHOLE : 0) | (w->over ? HOME_FLAG_OVER : 0);
    int filled = home_put(fresh(h), w->decision->data, w->decision->len);
    filled = filled ? filled : home_put_text(&h->body, w->epoch);
    return call(h, filled, (struct home_head){.what = HOME_APPEND, .flags = flags}, NULL, e);
}

static int far_renew(struct rdzv_home *base, struct rdzv_claim *own, struct err *e)
{
    struct far_home *h = (struct far_home *)base;
    struct home_pieces in;
    int rc;
    const int filled = home_put(fresh(h), own, sizeof *own);
    TRY(rc = call(h, filled, (struct home_head){.what = HOME_RENEW}, &in, e));
    return rc == 1 && home_take_claim(&in, own) < 0 ? bad_answer(h, e) : rc;
}

static void far_forget(struct rdzv_home *base)
{
    struct far_home *h = (struct far_home *)base;
    fresh(h);
    call(h, 0, (struct home_head){.what = HOME_FORGET}, NULL, NULL);
}

/* --- the handle */

static void far_close(struct rdzv_home *base)
{
    struct far_home *h = (struct far_home *)base;
    if (!h)
        return;
    shut(h);
    rdzv_home_finish_(base);
    buf_free(&h->body);
    buf_free(&h->in.body);
    free(h->url);
    free(h->run_id);
    free(h);
}

static const struct rdzv_home_ops far_ops = {
    .name = "far",
    .identity = far_identity,
    .load = far_load,
    .append = far_append,
    .forget = far_forget,
    .close = far_close,
    .look = far_look,
    .claim = far_claim,
    .renew = far_renew,
};

int rdzv_home_far_open(struct rdzv_home **ret, const char *url, const struct rdzv_home_options *o, struct err *e)
{
    struct far_home *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for a shared folder");
    h->fd = -1;
    h->process_fd = o->process_fd;
    h->io_timeout_ms = o->io_timeout_ms;
    h->keep_ms = o->keep_ms;
    h->url = strdup(url);
    h->run_id = strdup(o->run_id);
    const int rc = rdzv_home_init_(&h->base, &far_ops, e);
    if (rc < 0 || !h->url || !h->run_id) {
        far_close(&h->base);
        return rc < 0 ? rc : err_set(e, -ENOMEM, "no memory for a shared folder");
    }
    h->folder = h->url + strlen("file://");
    *ret = &h->base;
    return 0;
}
