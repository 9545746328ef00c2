/* Executes requests with many names in pieces (many.h). */
#include "rendezvousd/net/many.h"
#include "rendezvousd/net/server_impl.h"
#include <errno.h>
#include <utlist.h>

static bool is_over(const struct many *m)
{
    return m->at == m->count;
}

/* 0, or what ends it. */
static int do_piece(struct conn *c)
{
    struct many *m = &c->many;
    int64_t moved = 0;
    for (int left = MANY_NAMES; left > 0 && moved < MANY_BYTES && !is_over(m); left--, m->at += m->stride) {
        const int64_t n = m->ops->one(c, &m->words[m->at]);
        if (n < 0)
            return (int)n;
        moved += n;
    }
    return 0;
}

static void let_go(struct conn *c)
{
    if (c->space->holder == c)
        c->space->holder = NULL;
    c->yields = c->many.cut;
}

/* conn.work */
static bool go_on(struct conn *c)
{
    struct many *m = &c->many;
    const int rc = do_piece(c);
    if (rc == 0 && !is_over(m))
        return false;
    const struct many_ops *ops = m->ops;
    m->ops = NULL;
    if (ops->end)
        ops->end(c, rc);
    if (m->ops) /* it has begun another request */
        return false;
    let_go(c);
    return true;
}

void many_begin(struct conn *c, const struct many_ops *ops, const struct request_arg *a, size_t n, size_t stride)
{
    struct many *m = &c->many;
    m->ops = ops;
    m->words = a;
    m->count = n;
    m->at = 0;
    m->stride = stride;
    m->cut = c->space->holder == c;
    if (go_on(c))
        return;
    m->cut = true;
    c->space->holder = c;
    c->work = go_on;
}

static void leave_line(struct conn *c)
{
    if (c->many.in_line)
        DL_DELETE2(c->space->line, c, many.prev, many.next);
    c->many.in_line = false;
}

/* Must c wait for the keys? Waiters form a line only behind a request that holds the keys. While the line is served,
 * each once, newcomers wait beside it: so it ends, and a client that asks all the time cannot keep others in it for
 * ever. */
bool many_waits(struct conn *c)
{
    struct space *sp = c->space;
    const bool held = sp->holder && sp->holder != c;
    if (held && !c->many.in_line) {
        DL_APPEND2(sp->line, c, many.prev, many.next);
        c->many.in_line = true;
    }
    c->yields = held || (sp->line && sp->line != c);
    if (!c->yields)
        leave_line(c);
    return c->yields;
}

bool many_leave(struct conn *c)
{
    const struct many_ops *ops = c->many.ops;
    leave_line(c);
    if (!ops)
        return false;
    if (ops->changes)
        return true;
    c->many.ops = NULL;
    if (ops->end)
        ops->end(c, -ECANCELED);
    let_go(c);
    return false;
}

/* --- reading and storing */

int64_t many_exists_one(struct conn *c, const struct request_arg *a)
{
    return keyspace_type(c->space->keys, a->p, a->n) == KEY_NONE ? -ENOENT : 0;
}

int64_t many_replied(const struct conn *c, size_t before)
{
    return c->reply.failed ? -E2BIG : (int64_t)(c->reply.out.len - before); /* a reply that does not fit closes c */
}

int many_reserve(struct conn *c, const struct request_arg *a, size_t n)
{
    size_t need = 0;
    for (size_t i = 0; i < n; i += 2)
        need += keyspace_entry_bytes(a[i].n, a[i + 1].n);
    if (!keyspace_fits(c->space->keys, need))
        return -ENOSPC;
    keyspace_charge(c->space->keys, (ptrdiff_t)need);
    c->many.reserved = need;
    return 0;
}

static void give_back(struct conn *c, size_t bytes)
{
    keyspace_charge(c->space->keys, -(ptrdiff_t)bytes);
    c->many.reserved -= bytes;
}

int64_t many_set_one(struct conn *c, const struct request_arg *a)
{
    give_back(c, keyspace_entry_bytes(a[0].n, a[1].n));
    const int rc = keyspace_set(c->space->keys, a[0].p, a[0].n, a[1].p, a[1].n, KEYSPACE_NEVER);
    return rc < 0 ? rc : (int64_t)a[1].n;
}

void many_release(struct conn *c)
{
    give_back(c, c->many.reserved);
}

/* --- waiting: if a key is missing, all keys are given to a waiter */

static void on_all_there(void *arg)
{
    struct conn *c = arg;
    c->many.wait->there(c);
    conn_wake(c);
}

static int64_t name_one(struct conn *c, const struct request_arg *a)
{
    return waiters_name(c->many.waiter, a);
}

static void named(struct conn *c, int rc)
{
    struct many *m = &c->many;
    if (rc == 0 && !waiters_settle(m->waiter)) {
        conn_block(c, m->wait->blocked, m->waiter, m->timeout_ms);
        return;
    }
    waiters_remove(c->space->waiters, m->waiter);
    if (rc == 0)
        m->wait->there(c);
    else if (rc != -ECANCELED)
        m->wait->failed(c, rc);
}

static void looked(struct conn *c, int rc)
{
    static const struct many_ops naming = {.one = name_one, .end = named};
    struct many *m = &c->many;
    if (rc == -ENOENT)
        rc = waiters_begin(c->space->waiters, m->words, m->count, on_all_there, c, &m->waiter);
    else if (rc == 0)
        rc = 1;
    if (rc == 0)
        many_begin(c, &naming, m->words, m->count, 1);
    else if (rc > 0)
        m->wait->there(c);
    else if (rc != -ECANCELED)
        m->wait->failed(c, rc);
}

void many_wait(struct conn *c, const struct request_arg *keys, size_t n, int64_t timeout_ms,
               const struct many_wait_ops *ops)
{
    static const struct many_ops looking = {.one = many_exists_one, .end = looked};
    c->many.wait = ops;
    c->many.timeout_ms = timeout_ms;
    many_begin(c, &looking, keys, n, 1);
}
