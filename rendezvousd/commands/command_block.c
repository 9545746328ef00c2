/* Lists that are waited for. A client that finds its lists empty becomes a waiter (waiters.h); when a list comes, those
 * who wait for it are served after the request (or transaction) that made it, in the order they came, until the list is
 * empty again. */
#include "rendezvousd/commands/command_impl.h"
#include "rendezvousd/commands/command_list.h"
#include "rendezvousd/store/list.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct list_wait {
    struct waiter *waiter;
    bool move, from_front, to_front;
    size_t to_len;
    char to[]; /* where the element goes (BLMOVE) */
};

/* --- the end of a wait */

static void wait_forget(struct conn *c, void *arg)
{
    struct list_wait *w = arg;
    waiters_remove(c->space->waiters, w->waiter);
    free(w);
}

static void wait_timeout(struct conn *c, void *arg)
{
    reply_nil_array(&c->reply);
    wait_forget(c, arg);
}

static const struct blocked_ops list_ops = {.timeout = wait_timeout, .forget = wait_forget};

/* --- giving */

static bool reply_popped(struct conn *c, const struct request_arg *key, bool front)
{
    struct item *it = keyspace_pop(c->space->keys, key->p, key->n, front);
    if (!it)
        return false;
    reply_array(&c->reply, 2);
    reply_bulk(&c->reply, key->p, key->n);
    reply_bulk(&c->reply, it->p, it->n);
    free(it);
    return true;
}

static bool give(struct conn *c, const struct list_wait *w, const struct request_arg *key)
{
    if (!w->move)
        return reply_popped(c, key, w->from_front);
    if (keyspace_type(c->space->keys, key->p, key->n) != KEY_LIST)
        return false; /* the list is gone, or is something else now */
    struct request_arg to = {w->to, w->to_len};
    return list_move(c, key, &to, w->from_front, w->to_front) != MOVED_NOTHING;
}

void block_serve(struct space *sp)
{
    struct request_arg key;
    struct conn *c;
    while ((c = waiters_next(sp->waiters, &key))) {
        struct list_wait *w = c->blocked_arg;
        if (!give(c, w, &key)) {
            waiters_pass(sp->waiters);
            continue;
        }
        wait_forget(c, w);
        conn_wake(c);
    }
}

/* --- waiting */

/* Seconds, with a fraction; 0: for ever (-1 ms). */
static bool want_timeout(struct conn *c, const struct request_arg *a, int64_t *ret_ms)
{
    char text[64], *end;
    double s = NAN;
    if (a->n > 0 && a->n < sizeof text && !strchr(" \t\n\v\f\r", a->p[0])) {
        memcpy(text, a->p, a->n);
        text[a->n] = 0;
        s = strtod(text, &end);
        if (*end || (size_t)(end - text) != a->n)
            s = NAN;
    }
    const char *no = isnan(s)                         ? "ERR timeout is not a float or out of range"
                     : s < 0                          ? "ERR timeout is negative"
                     : s > (double)INT64_MAX / 2000.0 ? "ERR timeout is out of range"
                                                      : NULL;
    if (no)
        reply_error(&c->reply, "%s", no);
    else
        *ret_ms = s == 0 ? -1
                         : (int64_t)(s * 1000) +
                               ((double)(int64_t)(s * 1000) < s * 1000); /* rounded up; libm costs crun start time */
    return !no;
}

static void block(struct conn *c, const struct request_arg *keys, size_t n, int64_t timeout_ms,
                  const struct list_wait *like, const struct request_arg *to)
{
    struct list_wait *w = malloc(sizeof *w + to->n);
    if (!w) {
        reply_error(&c->reply, NO_MEMORY);
        return;
    }
    *w = *like;
    w->to_len = to->n;
    if (to->n)
        memcpy(w->to, to->p, to->n);
    int rc = waiters_add_any(c->space->waiters, keys, n, c, &w->waiter);
    if (rc < 0) {
        free(w);
        say_failure(c, rc);
        return;
    }
    conn_block(c, &list_ops, w, timeout_ms);
}

static void pop_any(struct conn *c, const struct request *rq, bool front)
{
    const struct list_wait like = {.from_front = front};
    const struct request_arg *keys = &rq->argv[1];
    size_t n = rq->argc - 2;
    int64_t timeout_ms;
    if (!want_timeout(c, &rq->argv[rq->argc - 1], &timeout_ms))
        return;
    for (size_t i = 0; i < n; i++) {
        struct list *l;
        if (!want_list(c, &keys[i], &l))
            return;
        if (l) {
            reply_popped(c, &keys[i], front);
            return;
        }
    }
    if (c->in_exec)
        reply_nil_array(&c->reply);
    else
        block(c, keys, n, timeout_ms, &like, &(struct request_arg){NULL, 0});
}

void command_blpop(struct conn *c, const struct request *rq)
{
    pop_any(c, rq, true);
}

void command_brpop(struct conn *c, const struct request *rq)
{
    pop_any(c, rq, false);
}

static void move(struct conn *c, const struct request *rq, const struct request_arg *timeout, bool from_front,
                 bool to_front)
{
    const struct list_wait like = {.move = true, .from_front = from_front, .to_front = to_front};
    int64_t timeout_ms;
    if (!want_timeout(c, timeout, &timeout_ms))
        return;
    if (list_move(c, &rq->argv[1], &rq->argv[2], from_front, to_front) != MOVED_NOTHING)
        return;
    if (c->in_exec)
        reply_nil(&c->reply);
    else
        block(c, &rq->argv[1], 1, timeout_ms, &like, &rq->argv[2]);
}

void command_blmove(struct conn *c, const struct request *rq)
{
    bool from_front, to_front;
    if (want_end(c, &rq->argv[3], &from_front) && want_end(c, &rq->argv[4], &to_front))
        move(c, rq, &rq->argv[5], from_front, to_front);
}

void command_brpoplpush(struct conn *c, const struct request *rq)
{
    move(c, rq, &rq->argv[3], false, true);
}
