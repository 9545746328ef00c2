/* Commands on keys. Whoever creates or deletes a key tells the waiters. */
#include "rendezvousd/commands.h"
#include "rendezvousd/glob.h"
#include "rendezvousd/server_impl.h"
#include <errno.h>
#include <string.h>

#define NOT_AN_INTEGER "ERR value is not an integer or out of range"
#define SYNTAX_ERROR "ERR syntax error"

static void say_failure(struct conn *c, int rc)
{
    if (rc == -EINVAL)
        reply_error(&c->reply, NOT_AN_INTEGER);
    else if (rc == -ERANGE)
        reply_error(&c->reply, "ERR increment or decrement would overflow");
    else
        reply_error(&c->reply, "OOM command not allowed when used memory > 'maxmemory'.");
}

static const char *look_up(struct conn *c, const struct request_arg *key, size_t *len)
{
    return keyspace_get(c->space->keys, key->p, key->n, len);
}

static int store(struct conn *c, const struct request_arg *key, const struct request_arg *value)
{
    bool created;
    int rc = keyspace_set(c->space->keys, key->p, key->n, value->p, value->n, &created);
    if (rc == 0 && created)
        space_key_created(c->space, key);
    return rc;
}

static void reply_value(struct conn *c, const struct request_arg *key)
{
    size_t n;
    const char *v = look_up(c, key, &n);
    if (v)
        reply_bulk(&c->reply, v, n);
    else
        reply_nil(&c->reply);
}

void command_get(struct conn *c, const struct request *rq)
{
    reply_value(c, &rq->argv[1]);
}

void command_set(struct conn *c, const struct request *rq)
{
    bool nx = false, xx = false;
    size_t n;
    for (size_t i = 3; i < rq->argc; i++) {
        if (request_arg_is(&rq->argv[i], "nx"))
            nx = true;
        else if (request_arg_is(&rq->argv[i], "xx"))
            xx = true;
        else
            nx = xx = true;
    }
    if (nx && xx) {
        reply_error(&c->reply, SYNTAX_ERROR);
        return;
    }
    if ((nx || xx) && (look_up(c, &rq->argv[1], &n) != NULL) != xx) {
        reply_nil(&c->reply);
        return;
    }
    int rc = store(c, &rq->argv[1], &rq->argv[2]);
    if (rc < 0)
        say_failure(c, rc);
    else
        reply_status(&c->reply, "OK");
}

void command_setnx(struct conn *c, const struct request *rq)
{
    size_t n;
    if (look_up(c, &rq->argv[1], &n)) {
        reply_int(&c->reply, 0);
        return;
    }
    int rc = store(c, &rq->argv[1], &rq->argv[2]);
    if (rc < 0)
        say_failure(c, rc);
    else
        reply_int(&c->reply, 1);
}

static void add(struct conn *c, const struct request_arg *key, int64_t delta)
{
    int64_t sum;
    bool created;
    int rc = keyspace_add(c->space->keys, key->p, key->n, delta, &sum, &created);
    if (rc < 0) {
        say_failure(c, rc);
        return;
    }
    reply_int(&c->reply, sum);
    if (created)
        space_key_created(c->space, key);
}

void command_incr(struct conn *c, const struct request *rq)
{
    add(c, &rq->argv[1], 1);
}

void command_decr(struct conn *c, const struct request *rq)
{
    add(c, &rq->argv[1], -1);
}

void command_incrby(struct conn *c, const struct request *rq)
{
    int64_t delta;
    if (!request_i64(rq->argv[2].p, rq->argv[2].n, &delta))
        reply_error(&c->reply, NOT_AN_INTEGER);
    else
        add(c, &rq->argv[1], delta);
}

void command_decrby(struct conn *c, const struct request *rq)
{
    int64_t delta;
    if (!request_i64(rq->argv[2].p, rq->argv[2].n, &delta))
        reply_error(&c->reply, NOT_AN_INTEGER);
    else if (delta == INT64_MIN)
        reply_error(&c->reply, "ERR decrement would overflow");
    else
        add(c, &rq->argv[1], -delta);
}

void command_append(struct conn *c, const struct request *rq)
{
    const struct request_arg *key = &rq->argv[1], *v = &rq->argv[2];
    size_t len;
    bool created;
    int rc = keyspace_append(c->space->keys, key->p, key->n, v->p, v->n, &len, &created);
    if (rc < 0) {
        say_failure(c, rc);
        return;
    }
    reply_int(&c->reply, (int64_t)len);
    if (created)
        space_key_created(c->space, key);
}

void command_del(struct conn *c, const struct request *rq)
{
    int64_t deleted = 0;
    for (size_t i = 1; i < rq->argc; i++) {
        if (!keyspace_delete(c->space->keys, rq->argv[i].p, rq->argv[i].n))
            continue;
        deleted++;
        space_key_deleted(c->space, &rq->argv[i]);
    }
    reply_int(&c->reply, deleted);
}

void command_exists(struct conn *c, const struct request *rq)
{
    int64_t found = 0;
    size_t n;
    for (size_t i = 1; i < rq->argc; i++)
        found += look_up(c, &rq->argv[i], &n) != NULL;
    reply_int(&c->reply, found);
}

void command_mget(struct conn *c, const struct request *rq)
{
    reply_array(&c->reply, rq->argc - 1);
    for (size_t i = 1; i < rq->argc && !c->reply.failed; i++)
        reply_value(c, &rq->argv[i]);
}

/* All or nothing: room for all as if all were new is asked for first. */
void command_mset(struct conn *c, const struct request *rq)
{
    size_t need = 0;
    if (rq->argc % 2 == 0) {
        reply_error(&c->reply, "ERR wrong number of arguments for 'mset' command");
        return;
    }
    for (size_t i = 1; i < rq->argc; i += 2)
        need += keyspace_entry_bytes(rq->argv[i].n, rq->argv[i + 1].n);
    int rc = keyspace_fits(c->space->keys, need) ? 0 : -ENOSPC;
    for (size_t i = 1; rc == 0 && i < rq->argc; i += 2)
        rc = store(c, &rq->argv[i], &rq->argv[i + 1]);
    if (rc < 0)
        say_failure(c, rc);
    else
        reply_status(&c->reply, "OK");
}

struct listing {
    struct conn *c;
    const struct request_arg *pattern;
    int64_t matches;
    bool write;
};

static void list_key(void *arg, const char *key, size_t key_len)
{
    struct listing *l = arg;
    if (!glob_match(l->pattern->p, l->pattern->n, key, key_len))
        return;
    l->matches++;
    if (l->write)
        reply_bulk(&l->c->reply, key, key_len);
}

void command_keys(struct conn *c, const struct request *rq)
{
    struct listing l = {.c = c, .pattern = &rq->argv[1]};
    keyspace_each(c->space->keys, list_key, &l); /* RESP wants the count first */
    reply_array(&c->reply, (size_t)l.matches);
    l.write = true;
    keyspace_each(c->space->keys, list_key, &l);
}

void command_dbsize(struct conn *c, const struct request *rq)
{
    (void)rq;
    reply_int(&c->reply, (int64_t)keyspace_count(c->space->keys));
}

static void forget_key(void *arg, const char *key, size_t key_len)
{
    space_key_deleted(arg, &(struct request_arg){key, key_len});
}

void command_flushall(struct conn *c, const struct request *rq)
{
    if (rq->argc > 2 ||
        (rq->argc == 2 && !request_arg_is(&rq->argv[1], "sync") && !request_arg_is(&rq->argv[1], "async"))) {
        reply_error(&c->reply, SYNTAX_ERROR);
        return;
    }
    keyspace_each(c->space->keys, forget_key, c->space);
    keyspace_clear(c->space->keys);
    reply_status(&c->reply, "OK");
}

/* ---- beyond Redis ------------------------------------------------------------------------------------------------- */

#define WAIT_MAX_MS ((int64_t)30 * 24 * 3600 * 1000)

/* STORE.WAIT key [key ...] timeout_ms: 1 in the moment when all exist, 0 at the timeout. */
void command_store_wait(struct conn *c, const struct request *rq)
{
    const struct request_arg *t = &rq->argv[rq->argc - 1];
    int64_t timeout_ms;
    size_t n = rq->argc - 2, len, found = 0;
    if (!request_i64(t->p, t->n, &timeout_ms) || timeout_ms > WAIT_MAX_MS) {
        reply_error(&c->reply, "ERR timeout is not an integer or out of range");
        return;
    }
    if (timeout_ms < 0) {
        reply_error(&c->reply, "ERR timeout is negative");
        return;
    }
    for (size_t i = 1; i <= n; i++)
        found += look_up(c, &rq->argv[i], &len) != NULL;
    if (found == n || timeout_ms == 0) {
        reply_int(&c->reply, found == n);
        return;
    }
    int rc = conn_wait(c, &rq->argv[1], n, timeout_ms);
    if (rc < 0)
        say_failure(c, rc);
}

/* STORE.CAS key must_exist expected desired: [1 or 0, what the key holds afterwards]. With must_exist 0 the key is made if there is
 * none, and expected is not looked at. */
void command_store_cas(struct conn *c, const struct request *rq)
{
    const struct request_arg *key = &rq->argv[1], *flag = &rq->argv[2], *expected = &rq->argv[3];
    int64_t must_exist;
    size_t n;
    if (!request_i64(flag->p, flag->n, &must_exist) || must_exist < 0 || must_exist > 1) {
        reply_error(&c->reply, SYNTAX_ERROR);
        return;
    }
    const char *v = look_up(c, key, &n);
    bool swap = must_exist ? v && n == expected->n && memcmp(v, expected->p, n) == 0 : !v;
    if (swap) {
        int rc = store(c, key, &rq->argv[4]);
        if (rc < 0) {
            say_failure(c, rc);
            return;
        }
    }
    reply_array(&c->reply, 2);
    reply_int(&c->reply, swap);
    reply_value(c, key);
}
