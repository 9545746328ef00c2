#include "common/rdzv/homes/home_serve.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/array.h"
#include "common/base/err.h"
#include "common/rdzv/homes/home_wire.h"

struct served {
    struct rdzv_home *home;
    struct home_inbox in;
    struct home_head head; /* of the answer */
    struct buf body;
    struct rdzv_view view;
    struct rdzv_slot_write *slots;
    size_t slot_cap;
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

/* --- every node */

static int exchange(struct served *s, struct home_pieces *in, struct err *e)
{
    const char *node;
    struct buf beat;
    struct rdzv_view *v = &s->view;
    TRY(home_take_text(in, &node));
    TRY(take_buf(in, &beat));
    TRY(s->home->ops->exchange(s->home, node, &beat, s->in.head.flags & HOME_FLAG_CALL, v, e));
    TRY(home_put_text(&s->body, v->epoch));
    TRY(home_put_text(&s->body, v->identity));
    TRY(home_put(&s->body, v->pulse.data, v->pulse.len));
    return home_put(&s->body, v->slot.data, v->slot.len);
}

static int wait_slot(struct served *s, struct home_pieces *in, struct err *e)
{
    const char *node;
    TRY(home_take_text(in, &node));
    return s->home->ops->wait_slot(s->home, node, s->in.head.ms, e);
}

static int forget(struct served *s, struct home_pieces *in, struct err *e)
{
    const char *node;
    (void)e;
    TRY(home_take_text(in, &node));
    s->home->ops->forget(s->home, node);
    return 0;
}

/* --- the leader */

static int identity(struct served *s, struct home_pieces *in, struct err *e)
{
    char text[RDZV_IDENTITY_MAX + 1];
    (void)in;
    TRY(s->home->ops->identity(s->home, text, e));
    s->head.ms = s->home->ops->lag_ms ? s->home->ops->lag_ms(s->home) : 0;
    return home_put_text(&s->body, text);
}

static int claim(struct served *s, struct home_pieces *in, struct err *e)
{
    const char *seen, *epoch;
    struct buf record;
    TRY(home_take_text(in, &seen));
    TRY(home_take_text(in, &epoch));
    TRY(take_buf(in, &record));
    return s->home->ops->claim(s->home, seen, epoch, &record, e);
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
    size_t n = 0;
    TRY(take_buf(in, &decision));
    while (in->p < in->end) {
        TRY(ARRAY_RESERVE(s->slots, s->slot_cap, n + 1));
        TRY(home_take_slot(in, &s->slots[n++]));
    }
    const struct rdzv_write w = {.decision = decision.len ? &decision : NULL,
                                 .slots = s->slots,
                                 .slot_count = n,
                                 .whole = s->in.head.flags & HOME_FLAG_WHOLE,
                                 .over = s->in.head.flags & HOME_FLAG_OVER};
    return s->home->ops->append(s->home, &w, e);
}

static int pulse(struct served *s, struct home_pieces *in, struct err *e)
{
    struct buf record;
    TRY(take_buf(in, &record));
    return s->home->ops->pulse(s->home, &record, e);
}

struct beats {
    struct buf *body;
    int rc;
};

static void put_beat(void *arg, const char *node, const char *beat, size_t n)
{
    struct beats *b = arg;
    b->rc = b->rc ? b->rc : home_put_text(b->body, node);
    b->rc = b->rc ? b->rc : home_put(b->body, beat, n);
}

static int beats(struct served *s, struct home_pieces *in, struct err *e)
{
    struct beats b = {.body = &s->body};
    (void)in;
    TRY(s->home->ops->beats(s->home, s->in.head.flags & HOME_FLAG_ALL, put_beat, &b, e));
    return b.rc;
}

static int wait_calls(struct served *s, struct home_pieces *in, struct err *e)
{
    (void)in;
    return s->home->ops->wait_calls(s->home, s->in.head.ms, e);
}

/* --- calls */

typedef int serve_call(struct served *s, struct home_pieces *in, struct err *e);

static serve_call *const calls[] = {
    [HOME_EXCHANGE] = exchange,     [HOME_WAIT_SLOT] = wait_slot, [HOME_FORGET] = forget,
    [HOME_IDENTITY] = identity,     [HOME_CLAIM] = claim,         [HOME_LOAD] = load,
    [HOME_APPEND] = append,         [HOME_PULSE] = pulse,         [HOME_BEATS] = beats,
    [HOME_WAIT_CALLS] = wait_calls,
};

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
    buf_free(&s.view.pulse);
    buf_free(&s.view.slot);
    free(s.slots);
}
