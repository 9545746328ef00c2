/* The log of all jobs in a home that daemons share. See state_shared.h. */
#include "rendezvousd/state/state_shared.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/rdzv/wire/rdzv_frame.h"

#define ID_MAX 64
#define KEEP_BYTES ((size_t)1 << 20)

struct shared_home {
    struct rdzv_home base;
    struct state_shared *shared;
    char id[ID_MAX + 1];
    struct buf log; /* as it was loaded */
    bool written;   /* there is something of it in the log */
    struct shared_home *prev, *next;
};

struct state_shared {
    struct state_shared_options o;
    char identity[RDZV_IDENTITY_MAX + 1];
    struct shared_home *homes, *following; /* following: the one that state_shared_stands() looks at next */
    uint64_t asked;
    size_t logged, whole; /* bytes since the newest whole text; of that one */
    bool gathers;         /* appends go to `text`, to be written as one whole text */
    struct buf text;
};

int state_shared_create(struct state_shared **ret, const struct state_shared_options *o, struct err *e)
{
    struct state_shared *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, -ENOMEM, "no memory for the log of jobs");
    s->o = *o;
    *ret = s;
    return 0;
}

void state_shared_destroy(struct state_shared *s)
{
    if (!s)
        return;
    assert(!s->homes);
    buf_free(&s->text);
    free(s);
}

/* --- writing */

static void send_text(struct state_shared *s, const struct buf *text, bool whole)
{
    s->whole = whole ? text->len : s->whole;
    s->logged = whole ? 0 : s->logged + text->len;
    if (s->o.write(s->o.arg, text, whole, s->asked) < 0)
        s->o.unable(s->o.arg);
}

/* One whole text, of whole decisions of all jobs. A job that has no memory for its own leaves the log as it is. */
static void write_anew(struct state_shared *s)
{
    struct shared_home *h;
    bool complete = true;
    s->gathers = true;
    DL_FOREACH (s->homes, h) {
        const size_t before = s->text.len;
        if (h->written)
            h->base.rewrite(h->base.arg);
        complete = complete && (!h->written || s->text.len > before);
    }
    s->gathers = false;
    send_text(s, &s->text, complete);
    buf_free(&s->text);
}

static int frame(const struct shared_home *h, const struct rdzv_write *w, struct buf *out)
{
    TRY(buf_printf(out, "@job %s %zu %s\n", h->id, w->decision->len, w->whole || !h->written ? "whole" : "more"));
    return buf_add(out, w->decision->data, w->decision->len);
}

static int put(struct shared_home *h, const struct rdzv_write *w)
{
    struct state_shared *s = h->shared;
    struct buf one = {0};
    const int rc = w->decision->len > RDZV_FRAME_MAX ? -E2BIG : frame(h, w, s->gathers ? &s->text : &one);
    if (rc < 0)
        s->o.unable(s->o.arg);
    else if (!s->gathers)
        send_text(s, &one, false);
    h->written = true;
    buf_free(&one);
    return rc;
}

/* Numbers are those of the whole log, so that one says of all jobs what stands. */
static int shared_append(struct rdzv_home *base, const struct rdzv_write *w, struct err *e)
{
    struct shared_home *h = (struct shared_home *)base;
    struct state_shared *s = h->shared;
    s->asked = s->asked >= base->asked ? s->asked + 1 : base->asked;
    base->asked = s->asked;
    if (put(h, w) < 0)
        return err_set(e, -ENOMEM, "a decision does not fit into the log of jobs");
    if (!s->gathers && s->logged > KEEP_BYTES + 4 * s->whole) {
        s->asked++;
        write_anew(s);
    }
    return RDZV_UNDER_WAY;
}

void state_shared_stands(struct state_shared *s, uint64_t number)
{
    for (struct shared_home *h = s->homes; h; h = s->following) {
        const bool waits = h->base.asked > h->base.stands;
        s->following = h->next;
        h->base.stands = number > h->base.stands ? number : h->base.stands;
        if (waits && h->base.landed)
            h->base.landed(h->base.arg); /* jobs may be forgotten */
    }
}

/* --- the home of a job */

static int shared_identity(struct rdzv_home *base, char ret[RDZV_IDENTITY_MAX + 1], struct err *e)
{
    (void)e;
    memcpy(ret, ((struct shared_home *)base)->shared->identity, RDZV_IDENTITY_MAX + 1);
    return 0;
}

static int shared_load(struct rdzv_home *base, struct buf *ret, struct err *e)
{
    const struct shared_home *h = (struct shared_home *)base;
    const int rc = h->log.len ? buf_add(ret, h->log.data, h->log.len) : 0;
    return rc < 0 ? err_set(e, rc, "the log of a job does not fit in memory") : 0;
}

static void shared_forget(struct rdzv_home *base)
{
    struct shared_home *h = (struct shared_home *)base;
    struct state_shared *s = h->shared;
    struct buf line = {0};
    if (!h->written)
        return;
    h->written = false;
    if (s->gathers) /* of a text that begins anew it is no part */
        return;
    s->asked++;
    if (buf_printf(&line, "@gone %s\n", h->id) < 0)
        s->o.unable(s->o.arg);
    else
        send_text(s, &line, false);
    buf_free(&line);
}

static void shared_close(struct rdzv_home *base)
{
    struct shared_home *h = (struct shared_home *)base;
    if (!h)
        return;
    if (h->shared->following == h)
        h->shared->following = h->next;
    DL_DELETE(h->shared->homes, h);
    buf_free(&h->log);
    free(h);
}

static const struct rdzv_home_ops shared_ops = {
    .name = "shared",
    .identity = shared_identity,
    .load = shared_load,
    .append = shared_append,
    .forget = shared_forget,
    .close = shared_close,
};

static struct shared_home *find(struct state_shared *s, const char *id)
{
    struct shared_home *h;
    DL_FOREACH (s->homes, h)
        if (strcmp(h->id, id) == 0)
            return h;
    return NULL;
}

int state_shared_home(struct state_shared *s, const char *id, struct rdzv_home **ret, struct err *e)
{
    struct shared_home *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for the log of a job");
    h->base = (struct rdzv_home){.ops = &shared_ops, .cancel_fd = -1};
    h->shared = s;
    snprintf(h->id, sizeof h->id, "%s", id);
    DL_APPEND(s->homes, h);
    *ret = &h->base;
    return 0;
}

/* --- taking over */

struct record {
    char id[ID_MAX + 1];
    size_t bytes;
    bool whole, gone, reign;
};

/* "@job ID BYTES whole", "@gone ID" or "@reign ..." */
static bool read_line(const char *p, size_t n, struct record *ret)
{
    char line[ID_MAX + 48], how[8];
    *ret = (struct record){.reign = n > 7 && memcmp(p, "@reign ", 7) == 0};
    if (ret->reign)
        return true;
    if (n >= sizeof line)
        return false;
    snprintf(line, sizeof line, "%.*s", (int)n, p);
    ret->gone = sscanf(line, "@gone %64s", ret->id) == 1;
    if (ret->gone || sscanf(line, "@job %64s %zu %7s", ret->id, &ret->bytes, how) != 3)
        return ret->gone;
    ret->whole = strcmp(how, "whole") == 0;
    return ret->whole || strcmp(how, "more") == 0;
}

static int keep(struct state_shared *s, const struct record *r, const char *text, struct err *e)
{
    struct shared_home *h = find(s, r->id);
    struct rdzv_home *fresh;
    if (!h) {
        if (r->gone)
            return 0;
        TRY(state_shared_home(s, r->id, &fresh, e));
        h = (struct shared_home *)fresh;
    }
    if (r->gone || r->whole)
        buf_clear(&h->log);
    h->written = !r->gone;
    return buf_add(&h->log, text, r->bytes) < 0 ? err_set(e, -ENOMEM, "no memory for the log of jobs") : 0;
}

static int parse(struct state_shared *s, const char *text, size_t n, struct err *e)
{
    struct record r;
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(text + at, '\n', n - at);
        const size_t len = nl ? (size_t)(nl - text) - at : 0;
        if (!nl || !read_line(text + at, len, &r) || r.bytes > n - at - len - 1)
            return err_set(e, ERR_CORRUPT, "the log of jobs that daemons share is malformed at byte %zu of %zu", at, n);
        if (!r.reign)
            TRY(keep(s, &r, text + at + len + 1, e));
        at += len + 1 + r.bytes;
    }
    return 0;
}

static int by_id(const struct shared_home *a, const struct shared_home *b)
{
    return strcmp(a->id, b->id);
}

static int hand_over(struct shared_home *h, int (*take)(void *arg, struct rdzv_home *h, struct err *e), void *arg,
                     struct err *e)
{
    struct err why = {0};
    char id[ID_MAX + 1];
    memcpy(id, h->id, sizeof id);
    const int rc = take(arg, &h->base, &why);
    if (rc < 0)
        shared_close(&h->base);
    if (rc == ERR_CORRUPT)
        log_error("state", "the log of job %s in the state that daemons share is damaged: %s; the job is forgotten", id,
                  why.text);
    return rc == ERR_CORRUPT || rc >= 0 ? 0 : err_set(e, rc, "the log of job %s: %s", id, why.text);
}

int state_shared_take_over(struct state_shared *s, const char *identity, const char *text, size_t n,
                           int (*take)(void *arg, struct rdzv_home *h, struct err *e), void *arg, struct err *e)
{
    struct shared_home *h, *next;
    bool complete = true;
    snprintf(s->identity, sizeof s->identity, "%s", identity);
    int rc = parse(s, text, n, e);
    DL_SORT(s->homes, by_id);
    s->gathers = true;
    DL_FOREACH_SAFE(s->homes, h, next)
    {
        const size_t before = s->text.len;
        if (rc < 0 || !h->written) {
            shared_close(&h->base);
            continue;
        }
        rc = hand_over(h, take, arg, e);
        complete = complete && s->text.len > before; /* one that decides nothing yet keeps its log as it is */
    }
    s->gathers = false;
    if (rc == 0 && s->text.len)
        send_text(s, &s->text, complete);
    buf_free(&s->text);
    return rc;
}
