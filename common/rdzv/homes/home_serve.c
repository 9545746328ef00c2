/* Answers the calls that come over a socket by calls of the home at hand. See home_serve.h. */
#include "common/rdzv/homes/home_serve.h"

#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "common/rdzv/homes/home_wire.h"

struct served {
    struct rdzv_home *home;
    struct home_inbox in;
    struct home_head head; /* of the answer */
    struct buf body;
};

/* A piece as a text that is only read. */
static int take_buf(struct home_pieces *in, struct buf *ret)
{
    const char *p;
    size_t n;
    TRY(home_take(in, &p, &n));
    *ret = (struct buf){.data = (char *)p, .len = n};
    return 0;
}

static int identity(struct served *s, struct home_pieces *in, struct err *e)
{
    char text[RDZV_IDENTITY_MAX + 1];
    (void)in;
    TRY(s->home->ops->identity(s->home, text, e));
    return home_put_text(&s->body, text);
}

static int look(struct served *s, struct home_pieces *in, struct err *e)
{
    struct rdzv_claim seen;
    (void)in;
    const int rc = s->home->ops->look(s->home, &seen, e);
    if (rc == 1)
        TRY(home_put(&s->body, &seen, sizeof seen));
    return rc;
}

static int claim(struct served *s, struct home_pieces *in, struct err *e)
{
    struct rdzv_claim seen, own;
    struct buf record;
    TRY(home_take_claim(in, &seen));
    TRY(home_take_claim(in, &own));
    TRY(take_buf(in, &record));
    return s->home->ops->claim(s->home, &seen, &own, &record, e);
}

static int load(struct served *s, struct home_pieces *in, struct err *e)
{
    struct buf log = {0};
    (void)in;
    int rc = s->home->ops->load(s->home, &log, e);
    rc = rc ? rc : home_put(&s->body, log.data, log.len);
    buf_free(&log);
    return rc;
}

static int append(struct served *s, struct home_pieces *in, struct err *e)
{
    struct buf decision;
    const char *epoch;
    TRY(take_buf(in, &decision));
    TRY(home_take_text(in, &epoch));
    const struct rdzv_write w = {.decision = &decision,
                                 .epoch = epoch,
                                 .whole = s->in.head.flags & HOME_FLAG_WHOLE,
                                 .over = s->in.head.flags & HOME_FLAG_OVER};
    return s->home->ops->append(s->home, &w, e);
}

static int renew(struct served *s, struct home_pieces *in, struct err *e)
{
    struct rdzv_claim own;
    TRY(home_take_claim(in, &own));
    const int rc = s->home->ops->renew(s->home, &own, e);
    if (rc == 1)
        TRY(home_put(&s->body, &own, sizeof own));
    return rc;
}

static int forget(struct served *s, struct home_pieces *in, struct err *e)
{
    (void)in, (void)e;
    s->home->ops->forget(s->home);
    return 0;
}

/* --- calls */

typedef int serve_call(struct served *s, struct home_pieces *in, struct err *e);

static serve_call *const calls[] = {
    [HOME_IDENTITY] = identity, [HOME_LOOK] = look,   [HOME_CLAIM] = claim,  [HOME_LOAD] = load,
    [HOME_APPEND] = append,     [HOME_RENEW] = renew, [HOME_FORGET] = forget};

static void serve_one(struct served *s)
{
    struct home_pieces in = home_pieces(&s->in);
    struct err e = {0};
    s->head = (struct home_head){.number = s->in.head.number};
    buf_clear(&s->body);
    s->head.rc = s->in.head.what < sizeof calls / sizeof *calls ? calls[s->in.head.what](s, &in, &e) : -EPROTO;
    if (s->head.rc >= 0)
        return;
    buf_clear(&s->body);
    if (home_put_text(&s->body, e.text[0] ? e.text : strerror(-s->head.rc)) < 0)
        buf_clear(&s->body);
}

void home_serve(struct rdzv_home *home, int fd)
{
    struct served s = {.home = home};
    buf_init(&s.body, (size_t)2 << 30);
    while (home_receive(fd, &s.in, INT64_MAX, -1) == 0) {
        serve_one(&s);
        if (home_send(fd, &s.head, &s.body, INT64_MAX, -1) < 0)
            break;
    }
    home->ops->close(home);
    buf_free(&s.in.body);
    buf_free(&s.body);
}
