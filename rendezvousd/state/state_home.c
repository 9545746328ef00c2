/* The homes of jobs in a state directory: what must be written for each, and how that ends.
 *
 *   append ──► pending ──► a batch (state_batch.c) ──► landed: it stands
 *                             └─ failed: the file is to go, for it lacks what is told from now on.
 *                                  Once that was tried, all counts as standing: the log is lost. From time to time one
 *                                  of those asks its owner for something whole: if that can be written there is room
 *                                  again, and the others ask for theirs. From the asking on, what is appended waits
 *                                  for the disk as ever. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "rendezvousd/state/state_internal.h"
#include "rendezvousd/state/state_log.h"

#define MODULE "state"

/* --- what becomes of it */

enum dir_op dir_op_(const struct dir_home *h)
{
    return h->file == DIR_GOES  ? h->aside ? DIR_ASIDE : DIR_REMOVE
           : h->pending_whole   ? DIR_RENEW
           : h->pending.len > 0 ? DIR_APPEND
                                : DIR_NOTHING;
}

static void let_go(struct dir_home *h)
{
    if (h->file != DIR_GONE)
        h->file = DIR_GOES;
    h->pending_whole = false;
    buf_free(&h->pending);
}

static bool is_kept(const struct dir_home *h)
{
    return h->file == DIR_FOREIGN || h->file == DIR_OURS;
}

static void lose(struct dir_home *h, int rc)
{
    if (!is_kept(h))
        return;
    if (!h->base.unlogged)
        log_error(MODULE,
                  "the log of job %s cannot be written: %s; the job goes on, but will not outlive this daemon until it "
                  "can",
                  h->id, strerror(-rc));
    h->base.unlogged = true;
    let_go(h);
    dir_mark_(h);
    dir_retry_later_(h->dir);
}

void state_home_lose(struct rdzv_home *base, int rc)
{
    struct dir_home *h = (struct dir_home *)base;
    lose(h, rc);
    dir_start_(h->dir);
}

void state_home_set_aside(struct rdzv_home *base)
{
    struct dir_home *h = (struct dir_home *)base;
    if (!is_kept(h))
        return;
    h->aside = true;
    base->unlogged = false; /* it is meant to be removed */
    let_go(h);
    dir_mark_(h);
    dir_start_(h->dir);
}

static bool wants_room(const struct dir_home *h)
{
    return h->base.unlogged && h->base.rewrite && !h->closed && !is_kept(h);
}

static void stand(struct dir_home *h)
{
    struct dir_home *other, *next;
    h->base.stands = h->flying_last;
    if (!h->base.unlogged || h->flying_op != DIR_RENEW)
        return;
    h->base.unlogged = false;
    log_warn(MODULE, "the log of job %s is written again: the job outlives this daemon", h->id);
    DL_FOREACH_SAFE(h->dir->homes, other, next)
    {
        if (wants_room(other))
            other->base.rewrite(other->base.arg);
    }
}

static void not_removed(struct dir_home *h)
{
    const char *why = strerror(-h->result);
    if (h->dir->ends) {
        log_error(MODULE, "the log of job %s cannot be removed: %s; remove '%s/jobs/%s.log' before the next start",
                  h->id, why, h->dir->path, h->id);
        h->file = DIR_GONE;
        return;
    }
    if (!h->refused)
        log_error(MODULE,
                  "the log of job %s cannot be removed: %s; a restart would bring back what the job was: tried again "
                  "until it can",
                  h->id, why);
    h->refused = true;
    dir_retry_later_(h->dir);
}

static void free_home(struct dir_home *h)
{
    DL_DELETE(h->dir->homes, h);
    buf_free(&h->pending);
    free(h);
}

void dir_landed_(struct dir_home *h)
{
    if (h->flying_op == DIR_REMOVE || h->flying_op == DIR_ASIDE) {
        if (h->file == DIR_GOES && h->result < 0)
            not_removed(h);
        else if (h->file == DIR_GOES)
            h->file = DIR_GONE;
        if (!is_kept(h))
            h->base.stands = UINT64_MAX; /* everything counts as stored */
    } else if (h->result < 0 && h->flying_op != DIR_NOTHING) {
        lose(h, h->result);
    } else if (is_kept(h)) {
        stand(h);
    }
    if (h->closed && !h->dirty && h->file != DIR_GOES)
        free_home(h);
    else if (h->base.landed && (is_kept(h) || h->base.stands == UINT64_MAX))
        h->base.landed(h->base.arg);
}

void dir_retry_(struct state_dir *d)
{
    struct dir_home *h, *first = NULL;
    bool again = false;
    DL_FOREACH (d->homes, h) {
        if (h->file == DIR_GOES)
            dir_mark_(h);
        first = first || !wants_room(h) ? first : h;
        again = again || h->file == DIR_GOES || wants_room(h);
    }
    if (first) { /* move it to the end, so that the next call begins with another log */
        DL_DELETE(d->homes, first);
        DL_APPEND(d->homes, first);
        first->base.rewrite(first->base.arg);
    }
    if (again)
        dir_retry_later_(d);
    else
        d->retry_ms = 0;
    dir_start_(d);
}

/* --- the home */

/* The directory's lock serves as the claim. */
static int dir_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    (void)base, (void)e;
    snprintf(ret, RDZV_IDENTITY_MAX + 1, "directory");
    return 0;
}

static int dir_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    struct dir_home *h = (struct dir_home *)base;
    struct buf file = {.max = STATE_FILE_MAX + 1};
    size_t good;
    if (!h->listed)
        return 0;
    int rc = dir_read(h, &file, e);
    rc = rc ? rc : state_log_parse(file.data ? file.data : "", file.len, ret, &good, e);
    if (rc == 0 && good < file.len)
        log_warn(MODULE, "'%s.log' ends within a record: its last %zu bytes are void", h->id, file.len - good);
    buf_free(&file);
    return rc;
}

static int frame(struct dir_home *h, const struct rdzv_write *w)
{
    if (w->whole || h->file == DIR_FOREIGN) {
        buf_clear(&h->pending);
        h->file = DIR_OURS;
        h->pending_whole = true;
        h->records = 0;
        TRY(state_log_header(&h->pending));
    }
    if (w->decision->len > STATE_RECORD_MAX)
        return -E2BIG;
    return rdzv_frame_put(&h->pending, ++h->records, w->decision->data, w->decision->len);
}

/* Append a text. If there is no memory for it, the log counts as lost, as if the disk had refused it. */
static int dir_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct dir_home *h = (struct dir_home *)base;
    const bool anew = h->base.unlogged && !is_kept(h) && w->whole;
    (void)e;
    if (anew)
        base->stands = base->asked - 1;
    if (is_kept(h) || anew) {
        const int rc = frame(h, w);
        if (rc < 0)
            lose(h, rc);
        dir_mark_(h);
        dir_start_(h->dir);
    }
    return base->stands == UINT64_MAX ? 1 : RDZV_UNDER_WAY;
}

static void dir_forget(struct rdzv_home *base)
{
    base->unlogged = false; /* it is meant to be removed */
    let_go((struct dir_home *)base);
}

static void dir_close(struct rdzv_home *base)
{
    struct dir_home *h = (struct dir_home *)base;
    if (!h)
        return;
    h->closed = true;
    h->base.landed = NULL;
    dir_mark_(h);
    dir_start_(h->dir);
}

static const struct rdzv_home_ops dir_ops = {
    .name = "directory",
    .identity = dir_identity,
    .load = dir_load,
    .append = dir_append,
    .forget = dir_forget,
    .close = dir_close,
};

int state_dir_home(struct state_dir *d, const char *id, struct rdzv_home **ret, struct err *e)
{
    struct dir_home *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for the log of a job");
    h->base = (struct rdzv_home){.ops = &dir_ops, .cancel_fd = -1};
    h->dir = d;
    snprintf(h->id, sizeof h->id, "%s", id);
    DL_APPEND(d->homes, h);
    *ret = &h->base;
    return 0;
}
