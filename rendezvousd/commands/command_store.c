/* Commands that Redis does not have, for the processes of a job. */
#include "rendezvousd/commands/command_impl.h"
#include <string.h>

#define WAIT_MAX_MS ((int64_t)30 * 24 * 3600 * 1000)

void command_store_ping(struct conn *c, const struct request *rq)
{
    (void)rq;
    reply_status(&c->reply, "STORE");
}

static void say_there(struct conn *c)
{
    reply_int(&c->reply, 1);
}

static void forget(struct conn *c, void *arg)
{
    waiters_remove(c->space->waiters, arg);
}

static void time_over(struct conn *c, void *arg)
{
    forget(c, arg);
    reply_int(&c->reply, 0);
}

static void looked(struct conn *c, int rc)
{
    reply_int(&c->reply, rc == 0);
}

/* STORE.WAIT key [key ...] timeout_ms: 1 as soon as all keys exist, 0 at the timeout. */
void command_store_wait(struct conn *c, const struct request *rq)
{
    const struct request_arg *t = &rq->argv[rq->argc - 1];
    static const struct blocked_ops blocked = {.timeout = time_over, .forget = forget};
    static const struct many_wait_ops wait = {.there = say_there, .failed = say_failure, .blocked = &blocked};
    static const struct many_ops look = {.one = many_exists_one, .end = looked};
    int64_t timeout_ms;
    if (!request_i64(t->p, t->n, &timeout_ms) || timeout_ms > WAIT_MAX_MS) {
        reply_error(&c->reply, "ERR timeout is not an integer or out of range");
        return;
    }
    if (timeout_ms < 0) {
        reply_error(&c->reply, "ERR timeout is negative");
        return;
    }
    if (timeout_ms == 0)
        many_begin(c, &look, &rq->argv[1], rq->argc - 2, 1);
    else
        many_wait(c, &rq->argv[1], rq->argc - 2, timeout_ms, &wait);
}

/* STORE.CAS key must_exist expected desired: [1 or 0, the key's value afterwards]. With must_exist 0 a missing key
 * is created, without looking at `expected`. */
void command_store_cas(struct conn *c, const struct request *rq)
{
    const struct request_arg *key = &rq->argv[1], *flag = &rq->argv[2], *expected = &rq->argv[3];
    int64_t must_exist;
    size_t n;
    if (!request_i64(flag->p, flag->n, &must_exist) || must_exist < 0 || must_exist > 1) {
        reply_error(&c->reply, SYNTAX_ERROR);
        return;
    }
    if (!want_string_or_none(c, key))
        return;
    const char *v = keyspace_get(c->space->keys, key->p, key->n, &n);
    bool swap = must_exist ? v && n == expected->n && memcmp(v, expected->p, n) == 0 : !v;
    if (swap) {
        const struct request_arg *desired = &rq->argv[4];
        int rc = keyspace_set(c->space->keys, key->p, key->n, desired->p, desired->n, KEYSPACE_KEEP);
        if (rc < 0) {
            say_failure(c, rc);
            return;
        }
    }
    reply_array(&c->reply, 2);
    reply_int(&c->reply, swap);
    reply_value(c, key);
}
