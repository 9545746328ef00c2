/* Commands beyond Redis: what a job's processes need of a store. */
#include "rendezvousd/commands/command_impl.h"
#include <string.h>

#define WAIT_MAX_MS ((int64_t)30 * 24 * 3600 * 1000)

void command_store_ping(struct conn *c, const struct request *rq)
{
    (void)rq;
    reply_status(&c->reply, "STORE");
}

/* STORE.WAIT key [key ...] timeout_ms: 1 in the moment when all exist, 0 at the timeout. */
void command_store_wait(struct conn *c, const struct request *rq)
{
    const struct request_arg *t = &rq->argv[rq->argc - 1];
    int64_t timeout_ms;
    size_t n = rq->argc - 2, found = 0;
    if (!request_i64(t->p, t->n, &timeout_ms) || timeout_ms > WAIT_MAX_MS) {
        reply_error(&c->reply, "ERR timeout is not an integer or out of range");
        return;
    }
    if (timeout_ms < 0) {
        reply_error(&c->reply, "ERR timeout is negative");
        return;
    }
    for (size_t i = 1; i <= n; i++)
        found += keyspace_type(c->space->keys, rq->argv[i].p, rq->argv[i].n) != KEY_NONE;
    if (found == n || timeout_ms == 0) {
        reply_int(&c->reply, found == n);
        return;
    }
    int rc = conn_wait(c, &rq->argv[1], n, timeout_ms);
    if (rc < 0)
        say_failure(c, rc);
}

/* STORE.CAS key must_exist expected desired: [1 or 0, what the key holds afterwards]. With must_exist 0 the key is made
 * if there is none, and expected is not looked at. */
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
