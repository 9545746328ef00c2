/* BARRIER: callers of a key wait until as many have come as each of them expects. The count is the key's value; the
 * waiting callers are kept here, by key-space. A waiting connection holds a reference to its key-space, so a
 * key-space that is freed has no barrier. */
#include "rendezvousd/net/server_impl.h"
#include "rendezvousd/tcpstore/tcpstore_internal.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/seeded_hash.h"
#include <utlist.h>

struct barrier {
    UT_hash_handle hh;
    struct barrier_link *waiting;
    size_t key_len;
    char key[];
};

static struct barrier_link *link_of(struct conn *c)
{
    return &((struct tcpstore_state *)c->front_state)->barrier;
}

static size_t barrier_bytes(size_t key_len)
{
    return sizeof(struct barrier) + key_len;
}

static struct barrier *find_barrier(const struct space *sp, const struct request_arg *key)
{
    struct barrier *b;
    HASH_FIND(hh, sp->barriers, key->p, key->n, b);
    return b;
}

static int add_barrier(struct space *sp, const struct request_arg *key, struct barrier **ret)
{
    if (!keyspace_fits(sp->keys, barrier_bytes(key->n)))
        return -ENOSPC;
    struct barrier *b = calloc(1, barrier_bytes(key->n));
    if (!b)
        return -ENOMEM;
    memcpy(b->key, key->p, key->n);
    b->key_len = key->n;
    HASH_ADD_KEYPTR(hh, sp->barriers, b->key, b->key_len, b);
    if (!b->hh.tbl) {
        free(b);
        return -ENOMEM;
    }
    keyspace_charge(sp->keys, (ptrdiff_t)barrier_bytes(key->n));
    *ret = b;
    return 0;
}

/* Remove a caller; the last one frees the barrier. */
static void leave(struct conn *c, void *arg)
{
    struct barrier_link *l = link_of(c);
    struct barrier *b = l->of;
    (void)arg;
    DL_DELETE(b->waiting, l);
    l->of = NULL;
    if (b->waiting)
        return;
    keyspace_charge(c->space->keys, -(ptrdiff_t)barrier_bytes(b->key_len));
    HASH_DEL(c->space->barriers, b);
    free(b);
}

int tcpstore_barrier_wait(struct conn *c, const struct request_arg *key, int64_t world)
{
    static const struct blocked_ops ops = {.timeout = leave, .forget = leave, .interrupt = leave};
    struct barrier *b = find_barrier(c->space, key);
    if (!b)
        TRY(add_barrier(c->space, key, &b));
    struct barrier_link *l = link_of(c);
    *l = (struct barrier_link){.c = c, .world = world, .of = b};
    DL_APPEND(b->waiting, l);
    conn_block(c, &ops, NULL, -1);
    return 0;
}

void tcpstore_barrier_reached(struct space *sp, const struct request_arg *key, int64_t count)
{
    struct barrier *b = find_barrier(sp, key);
    struct barrier_link *l = b ? b->waiting : NULL, *next;
    for (; l; l = next) {
        next = l->next; /* before the last link frees b */
        if (l->world > count)
            continue;
        struct conn *c = l->c;
        leave(c, NULL);
        tcpstore_reply_byte(c, TCPSTORE_STOP_WAITING);
        conn_wake(c);
    }
}
