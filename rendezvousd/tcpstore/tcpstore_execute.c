/* Executes requests of the TCPStore protocol, on the same keys as RESP, with their names unchanged (PyTorch's
 * clients put a '/' before their users' keys). An emptied queue does not exist. */
#include "rendezvousd/net/server_impl.h"
#include "rendezvousd/tcpstore/tcpstore_internal.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WALK_BUCKETS 512 /* at once: some 100 microseconds */
#define OP(name) (UINT32_C(1) << TCPSTORE_##name)
#define KEYLESS (OP(VALIDATE) | OP(CANCEL_WAIT) | OP(PING))
#define CHANGING                                                                                                       \
    (OP(SET) | OP(COMPARE_SET) | OP(ADD) | OP(APPEND) | OP(DELETE_KEY) | OP(MULTI_SET) | OP(QUEUE_PUSH) |              \
     OP(QUEUE_POP) | OP(BARRIER))

/* --- replies */

static void add_number(struct reply *r, uint64_t v, size_t bytes)
{
    unsigned char le[8];
    for (size_t i = 0; i < bytes; i++, v >>= 8)
        le[i] = (unsigned char)v;
    reply_raw(r, le, bytes);
}

static void add_bytes(struct reply *r, const void *p, size_t n)
{
    add_number(r, n, 8);
    reply_raw(r, p, n);
}

static void reply_i64(struct conn *c, int64_t v)
{
    add_number(&c->reply, (uint64_t)v, 8);
}

void tcpstore_reply_byte(struct conn *c, unsigned char byte)
{
    reply_raw(&c->reply, &byte, 1);
}

static void reply_bytes(struct conn *c, const void *p, size_t n)
{
    add_bytes(&c->reply, p, n);
}

/* --- keys and values */

static int key_error(int rc, const struct request_arg *key, struct err *e)
{
    const int shown = key->n < 64 ? (int)key->n : 64;
    if (rc == -ENOSPC || rc == -ENOMEM)
        return err_set(e, rc, "no memory for key '%.*s'", shown, key->p);
    if (rc == -ERANGE)
        return err_set(e, rc, "the sum in key '%.*s' fits no 64 bits", shown, key->p);
    if (rc < 0)
        return err_set(e, rc, "key '%.*s' holds another kind of value", shown, key->p);
    return 0;
}

static const char *look_up(struct conn *c, const struct request_arg *key, size_t *n)
{
    return keyspace_get(c->space->keys, key->p, key->n, n);
}

static bool exists(struct conn *c, const struct request_arg *key)
{
    return keyspace_type(c->space->keys, key->p, key->n) != KEY_NONE;
}

static int store(struct conn *c, const struct request_arg *key, const struct request_arg *value, struct err *e)
{
    return key_error(keyspace_set(c->space->keys, key->p, key->n, value->p, value->n, KEYSPACE_NEVER), key, e);
}

static int do_set(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    return store(c, &rq->argv[0], &rq->argv[1], e);
}

static int do_compare_set(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    const struct request_arg *expected = &rq->argv[1], *desired = &rq->argv[2];
    size_t n;
    const char *v = look_up(c, &rq->argv[0], &n);
    if (v ? n != expected->n || memcmp(v, expected->p, n) != 0 : expected->n > 0) {
        reply_bytes(c, v ? v : expected->p, v ? n : expected->n);
        return 0;
    }
    TRY(store(c, &rq->argv[0], desired, e));
    reply_bytes(c, desired->p, desired->n);
    return 0;
}

/* Count a client that reads a key for the first time: PyTorch's ranks do so when a process group connects, and each
 * has one connection. */
static void note_reader(struct conn *c)
{
    struct tcpstore_state *t = c->front_state;
    if (t->has_read)
        return;
    t->has_read = true;
    c->space->readers++;
    if (c->s->o.met && c->space == c->s->space)
        c->s->o.met(c->s->o.met_arg, c->space->readers);
}

static void reply_value(struct conn *c, const struct request_arg *key)
{
    size_t n = 0;
    note_reader(c);
    const char *v = look_up(c, key, &n);
    reply_bytes(c, v, v ? n : 0);
}

/* GET. Clients wait for a key before they get it. The older server closes the connection if the key is missing, and
 * its clients rely on that. */
static int do_get(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    const struct tcpstore_state *t = c->front_state;
    if (t->in.generation == TCPSTORE_OLDER && !exists(c, &rq->argv[0]))
        return err_set(e, -ENOENT, "there is no key '%.*s'", rq->argv[0].n < 64 ? (int)rq->argv[0].n : 64,
                       rq->argv[0].p);
    reply_value(c, &rq->argv[0]);
    return 0;
}

static int add_to_number(struct conn *c, const struct request_arg *key, int64_t delta, int64_t *ret, struct err *e)
{
    return key_error(keyspace_add(c->space->keys, key->p, key->n, delta, tcpstore_read_i64, ret), key, e);
}

static int do_add(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    int64_t sum;
    TRY(add_to_number(c, &rq->argv[0], rq->number, &sum, e));
    reply_i64(c, sum);
    return 0;
}

static int do_append(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    const struct request_arg *key = &rq->argv[0], *v = &rq->argv[1];
    size_t len;
    return key_error(keyspace_append(c->space->keys, key->p, key->n, v->p, v->n, &len), key, e);
}

static int do_delete_key(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    const struct request_arg *key = &rq->argv[0];
    (void)e;
    reply_i64(c, keyspace_delete(c->space->keys, key->p, key->n));
    return 0;
}

static int64_t get_one(struct conn *c, const struct request_arg *a)
{
    const size_t before = c->reply.out.len;
    reply_value(c, a);
    return many_replied(c, before);
}

static int do_multi_get(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    static const struct many_ops ops = {.one = get_one};
    (void)e;
    many_begin(c, &ops, rq->argv, rq->argc, 1);
    return 0;
}

/* A request that was done in pieces has failed: close. */
static void fail(struct conn *c, int rc)
{
    const struct tcpstore_state *t = c->front_state;
    struct err e;
    err_set(&e, rc, "no memory for %zu names", t->next.argc);
    tcpstore_refuse(c, &e);
}

static void all_set(struct conn *c, int rc)
{
    many_release(c);
    if (rc < 0)
        fail(c, rc);
}

static int do_multi_set(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    static const struct many_ops ops = {.one = many_set_one, .end = all_set, .changes = true};
    const int rc = many_reserve(c, rq->argv, rq->argc);
    if (rc < 0)
        return err_set(e, rc, "no memory for %zu keys", rq->argc / 2);
    many_begin(c, &ops, rq->argv, rq->argc, 2);
    return 0;
}

/* Number of keys; queues are not counted, nor listed. */
static int do_num_keys(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    const struct keyspace *k = c->space->keys;
    (void)rq, (void)e;
    reply_i64(c, (int64_t)(keyspace_count(k) - keyspace_queues(k)));
    return 0;
}

static void list_key(void *arg, enum key_type type, const char *key, size_t key_len)
{
    struct tcpstore_walk *w = arg;
    if (type == KEY_QUEUE)
        return;
    add_bytes(&w->names, key, key_len);
    w->count++;
}

void tcpstore_walk_end(struct tcpstore_walk *w)
{
    buf_free(&w->names.out);
    *w = (struct tcpstore_walk){0};
}

/* Collect some of the keys; true: that was the last. */
static bool walk_on(struct conn *c)
{
    struct tcpstore_walk *w = &((struct tcpstore_state *)c->front_state)->walk;
    for (int buckets = WALK_BUCKETS; buckets > 0; buckets--) {
        w->cursor = keyspace_scan(c->space->keys, w->cursor, list_key, w);
        if (w->cursor == 0 || w->names.failed)
            break;
    }
    if (w->cursor != 0 && !w->names.failed)
        return false;
    reply_i64(c, (int64_t)w->count);
    reply_raw(&c->reply, w->names.out.data, w->names.out.len);
    c->reply.failed |= w->names.failed;
    tcpstore_walk_end(w);
    return true;
}

/* List keys. The count comes first in the answer, so all names are collected before. */
static int do_list_keys(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    struct tcpstore_walk *w = &((struct tcpstore_state *)c->front_state)->walk;
    (void)rq, (void)e;
    buf_init(&w->names.out, c->s->o.max_output_bytes);
    c->work = walk_on;
    return 0;
}

/* --- queues */

/* Push an item. It wakes one client that waits for the queue, because only one can have it. */
static int do_queue_push(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    const struct request_arg *key = &rq->argv[0], *v = &rq->argv[1];
    struct space *sp = c->space;
    sp->wake_one = true;
    int rc = keyspace_push(sp->keys, key->p, key->n, v->p, v->n);
    sp->wake_one = false;
    TRY(key_error(rc, key, e));
    waiters_created_one(sp->waiters, key->p, key->n);
    return 0;
}

static int queue_length(struct conn *c, const struct request_arg *key, size_t *ret, struct err *e)
{
    return key_error(keyspace_queue_length(c->space->keys, key->p, key->n, ret), key, e);
}

/* Pop an item: reply with the length before, and the item if there is one. */
static int do_queue_pop(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    const struct request_arg *key = &rq->argv[0];
    size_t n;
    TRY(queue_length(c, key, &n, e));
    reply_i64(c, (int64_t)n);
    struct item *it = n > 0 ? keyspace_pop(c->space->keys, key->p, key->n) : NULL;
    if (it)
        reply_bytes(c, it->p, it->n);
    free(it);
    return 0;
}

static int do_queue_len(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    size_t n;
    TRY(queue_length(c, &rq->argv[0], &n, e));
    reply_i64(c, (int64_t)n);
    return 0;
}

/* --- waiting */

static void looked(struct conn *c, int rc)
{
    tcpstore_reply_byte(c, rc == 0 ? TCPSTORE_READY : TCPSTORE_NOT_READY);
}

static int do_check(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    static const struct many_ops ops = {.one = many_exists_one, .end = looked};
    (void)e;
    many_begin(c, &ops, rq->argv, rq->argc, 1);
    return 0;
}

static void say_there(struct conn *c)
{
    tcpstore_reply_byte(c, TCPSTORE_STOP_WAITING);
}

static void stop_waiting(struct conn *c, void *arg)
{
    waiters_remove(c->space->waiters, arg);
}

static int do_wait(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    static const struct blocked_ops blocked = {
        .timeout = stop_waiting, .forget = stop_waiting, .interrupt = stop_waiting};
    static const struct many_wait_ops ops = {.there = say_there, .failed = fail, .blocked = &blocked};
    (void)e;
    many_wait(c, rq->argv, rq->argc, -1, &ops);
    return 0;
}

/* The wait has ended already: this request ended it, or a key did, whose answer was sent before. */
static int do_cancel_wait(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    (void)rq, (void)e;
    tcpstore_reply_byte(c, TCPSTORE_WAIT_CANCELED);
    return 0;
}

static int do_barrier(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    const struct request_arg *key = &rq->argv[0];
    int64_t count;
    TRY(add_to_number(c, key, 1, &count, e));
    tcpstore_barrier_reached(c->space, key, count);
    if (count < rq->number)
        return key_error(tcpstore_barrier_wait(c, key, rq->number), key, e);
    tcpstore_reply_byte(c, TCPSTORE_STOP_WAITING);
    return 0;
}

/* --- the connection */

static int do_validate(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    struct tcpstore_state *t = c->front_state;
    if (t->validated || rq->number != TCPSTORE_MAGIC)
        return err_set(e, -EPROTO, "expected once, with %#x", TCPSTORE_MAGIC);
    t->validated = true;
    return 0;
}

static int do_ping(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    (void)e;
    add_number(&c->reply, (uint64_t)rq->number, 4);
    return 0;
}

int tcpstore_execute(struct conn *c, const struct tcpstore_request *rq, struct err *e)
{
    static int (*const handlers[TCPSTORE_OP_COUNT])(struct conn *, const struct tcpstore_request *, struct err *) = {
        [TCPSTORE_VALIDATE] = do_validate,
        [TCPSTORE_SET] = do_set,
        [TCPSTORE_COMPARE_SET] = do_compare_set,
        [TCPSTORE_GET] = do_get,
        [TCPSTORE_ADD] = do_add,
        [TCPSTORE_CHECK] = do_check,
        [TCPSTORE_WAIT] = do_wait,
        [TCPSTORE_NUM_KEYS] = do_num_keys,
        [TCPSTORE_DELETE_KEY] = do_delete_key,
        [TCPSTORE_APPEND] = do_append,
        [TCPSTORE_MULTI_GET] = do_multi_get,
        [TCPSTORE_MULTI_SET] = do_multi_set,
        [TCPSTORE_CANCEL_WAIT] = do_cancel_wait,
        [TCPSTORE_PING] = do_ping,
        [TCPSTORE_QUEUE_PUSH] = do_queue_push,
        [TCPSTORE_QUEUE_POP] = do_queue_pop,
        [TCPSTORE_QUEUE_LEN] = do_queue_len,
        [TCPSTORE_LIST_KEYS] = do_list_keys,
        [TCPSTORE_BARRIER] = do_barrier,
    };
    if (!((KEYLESS >> rq->op) & 1) && many_waits(c))
        return 0;
    c->space->changes += ((CHANGING >> rq->op) & 1) != 0;
    const int rc = handlers[rq->op](c, rq, e);
    return rc < 0 ? rc : 1;
}
