/* Commands on string values: GET, SET, INCR, APPEND, MGET and the like. */
#include "rendezvousd/commands/command_impl.h"
#include <errno.h>
#include <string.h>

void command_get(struct conn *c, const struct request *rq)
{
    size_t n;
    const char *v = keyspace_get(c->space->keys, rq->argv[1].p, rq->argv[1].n, &n);
    if (v)
        reply_bulk(&c->reply, v, n);
    else if (want_string_or_none(c, &rq->argv[1]))
        reply_nil(&c->reply);
}

/* --- SET */

struct set_options {
    bool nx, xx, get;
    const struct request_arg *seconds, *ms; /* at most one of them; if an option is given twice, the last one counts */
};

static bool parse_options(struct conn *c, const struct request *rq, struct set_options *o)
{
    for (size_t i = 3; i < rq->argc; i++) {
        const struct request_arg *a = &rq->argv[i];
        bool more = i + 1 < rq->argc;
        if (request_arg_is(a, "nx") && !o->xx)
            o->nx = true;
        else if (request_arg_is(a, "xx") && !o->nx)
            o->xx = true;
        else if (request_arg_is(a, "get"))
            o->get = true;
        else if (more && request_arg_is(a, "ex") && !o->ms)
            o->seconds = &rq->argv[++i];
        else if (more && request_arg_is(a, "px") && !o->seconds)
            o->ms = &rq->argv[++i];
        else {
            reply_error(&c->reply, SYNTAX_ERROR);
            return false;
        }
    }
    return true;
}

static bool resolve_time(struct conn *c, const struct set_options *o, int64_t *at)
{
    const struct request_arg *time = o->seconds ? o->seconds : o->ms;
    int64_t ms;
    *at = KEYSPACE_NEVER;
    if (!time)
        return true;
    if (!want_i64(c, time, &ms))
        return false;
    if (ms > 0 && !(o->seconds && __builtin_mul_overflow(ms, (int64_t)1000, &ms)) &&
        !__builtin_add_overflow(ms, keyspace_now(c->space->keys), at))
        return true;
    reply_error(&c->reply, "ERR invalid expire time in 'set' command");
    return false;
}

static int store(struct conn *c, const struct request_arg *key, const struct request_arg *v, int64_t at)
{
    return keyspace_set(c->space->keys, key->p, key->n, v->p, v->n, at);
}

static bool is_there(struct conn *c, const struct request_arg *key)
{
    return keyspace_type(c->space->keys, key->p, key->n) != KEY_NONE;
}

void command_set(struct conn *c, const struct request *rq)
{
    struct set_options o = {0};
    const struct request_arg *key = &rq->argv[1];
    size_t mark = c->reply.out.len;
    int64_t at;
    if (!parse_options(c, rq, &o) || !resolve_time(c, &o, &at))
        return;
    if (o.get) {
        if (!want_string_or_none(c, key))
            return;
        reply_value(c, key);
    }
    if ((o.nx && is_there(c, key)) || (o.xx && !is_there(c, key))) {
        if (!o.get)
            reply_nil(&c->reply);
        return;
    }
    int rc = store(c, key, &rq->argv[2], at);
    if (rc < 0) {
        c->reply.out.len = mark; /* drop what has been written of the reply, except the error */
        say_failure(c, rc);
    } else if (!o.get) {
        reply_status(&c->reply, "OK");
    }
}

void command_setnx(struct conn *c, const struct request *rq)
{
    bool there = is_there(c, &rq->argv[1]);
    int rc = there ? 0 : store(c, &rq->argv[1], &rq->argv[2], KEYSPACE_NEVER);
    if (rc < 0)
        say_failure(c, rc);
    else
        reply_int(&c->reply, !there);
}

void command_getdel(struct conn *c, const struct request *rq)
{
    if (!want_string_or_none(c, &rq->argv[1]))
        return;
    reply_value(c, &rq->argv[1]);
    keyspace_delete(c->space->keys, rq->argv[1].p, rq->argv[1].n);
}

/* --- several keys */

static int64_t get_one(struct conn *c, const struct request_arg *a)
{
    const size_t before = c->reply.out.len;
    reply_value(c, a);
    return many_replied(c, before);
}

void command_mget(struct conn *c, const struct request *rq)
{
    static const struct many_ops ops = {.one = get_one};
    reply_array(&c->reply, rq->argc - 1);
    many_begin(c, &ops, &rq->argv[1], rq->argc - 1, 1);
}

static void all_set(struct conn *c, int rc)
{
    many_release(c);
    if (rc < 0)
        say_failure(c, rc);
    else
        reply_status(&c->reply, "OK");
}

void command_mset(struct conn *c, const struct request *rq)
{
    static const struct many_ops ops = {.one = many_set_one, .end = all_set, .changes = true};
    if (rq->argc % 2 == 0) {
        reply_error(&c->reply, "ERR wrong number of arguments for 'mset' command");
        return;
    }
    const int rc = many_reserve(c, &rq->argv[1], rq->argc - 1);
    if (rc < 0)
        say_failure(c, rc);
    else
        many_begin(c, &ops, &rq->argv[1], rq->argc - 1, 2);
}

/* --- counters */

static void add_to_number(struct conn *c, const struct request_arg *key, int64_t delta)
{
    int64_t sum;
    int rc = keyspace_add(c->space->keys, key->p, key->n, delta, request_i64, &sum);
    if (rc < 0)
        say_failure(c, rc);
    else
        reply_int(&c->reply, sum);
}

void command_incr(struct conn *c, const struct request *rq)
{
    add_to_number(c, &rq->argv[1], 1);
}

void command_decr(struct conn *c, const struct request *rq)
{
    add_to_number(c, &rq->argv[1], -1);
}

void command_incrby(struct conn *c, const struct request *rq)
{
    int64_t delta;
    if (want_i64(c, &rq->argv[2], &delta))
        add_to_number(c, &rq->argv[1], delta);
}

void command_decrby(struct conn *c, const struct request *rq)
{
    int64_t delta;
    if (!want_i64(c, &rq->argv[2], &delta))
        return;
    if (delta == INT64_MIN)
        reply_error(&c->reply, "ERR decrement would overflow");
    else
        add_to_number(c, &rq->argv[1], -delta);
}

/* --- length */

static size_t length(struct conn *c, const struct request_arg *key)
{
    size_t n;
    return keyspace_get(c->space->keys, key->p, key->n, &n) ? n : 0;
}

void command_append(struct conn *c, const struct request *rq)
{
    const struct request_arg *key = &rq->argv[1], *v = &rq->argv[2];
    size_t len;
    if (!want_string_or_none(c, key))
        return;
    if (v->n > c->s->o.max_request_bytes || length(c, key) > c->s->o.max_request_bytes - v->n) {
        reply_error(&c->reply, "ERR string exceeds maximum allowed size (proto-max-bulk-len)");
        return;
    }
    int rc = keyspace_append(c->space->keys, key->p, key->n, v->p, v->n, &len);
    if (rc < 0)
        say_failure(c, rc);
    else
        reply_int(&c->reply, (int64_t)len);
}

void command_strlen(struct conn *c, const struct request *rq)
{
    if (want_string_or_none(c, &rq->argv[1]))
        reply_int(&c->reply, (int64_t)length(c, &rq->argv[1]));
}
