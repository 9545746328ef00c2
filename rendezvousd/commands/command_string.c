/* Commands on strings. */
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

/* --- SET and GETEX */

struct set_options {
    bool nx, xx, get, keep, persist;
    const struct request_arg *time; /* NULL: none given */
    const char *unit;               /* that of time */
    struct expiry_time expiry;
};

/* EX, PX, EXAT, PXAT: at most one of them, given twice counts as once. */
static bool time_option(struct set_options *o, const struct request *rq, size_t *i)
{
    static const struct {
        const char *name;
        bool seconds, absolute;
    } units[] = {{"ex", true, false}, {"px", false, false}, {"exat", true, true}, {"pxat", false, true}};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        if (!request_arg_is(&rq->argv[*i], units[u].name))
            continue;
        if (o->keep || o->persist || (o->unit && o->unit != units[u].name) || *i + 1 >= rq->argc)
            return false;
        o->unit = units[u].name;
        o->expiry = (struct expiry_time){.seconds = units[u].seconds, .absolute = units[u].absolute};
        o->time = &rq->argv[++*i];
        return true;
    }
    return false;
}

static bool parse_options(struct conn *c, const struct request *rq, size_t i, bool set, struct set_options *o)
{
    for (; i < rq->argc; i++) {
        const struct request_arg *a = &rq->argv[i];
        if (set && request_arg_is(a, "nx") && !o->xx)
            o->nx = true;
        else if (set && request_arg_is(a, "xx") && !o->nx)
            o->xx = true;
        else if (set && request_arg_is(a, "get"))
            o->get = true;
        else if (set && request_arg_is(a, "keepttl") && !o->unit)
            o->keep = true;
        else if (!set && request_arg_is(a, "persist") && !o->unit)
            o->persist = true;
        else if (!time_option(o, rq, &i)) {
            reply_error(&c->reply, SYNTAX_ERROR);
            return false;
        }
    }
    return true;
}

static bool resolve_time(struct conn *c, struct set_options *o, const char *command, int64_t *at)
{
    *at = o->keep ? KEYSPACE_KEEP : KEYSPACE_NEVER;
    if (!o->time)
        return true;
    return want_i64(c, o->time, &o->expiry.value) && expiry_at(c, &o->expiry, command, at);
}

static int store(struct conn *c, const struct request_arg *key, const struct request_arg *v, int64_t at)
{
    return keyspace_set_expiring(c->space->keys, key->p, key->n, v->p, v->n, at);
}

/* Of what is answered already only the error stays if the value cannot be stored. */
static bool store_or_say(struct conn *c, const struct request_arg *key, const struct request_arg *v, int64_t at,
                         size_t mark)
{
    int rc = store(c, key, v, at);
    if (rc == 0)
        return true;
    c->reply.out.len = mark;
    say_failure(c, rc);
    return false;
}

void command_set(struct conn *c, const struct request *rq)
{
    struct set_options o = {0};
    const struct request_arg *key = &rq->argv[1];
    size_t mark = c->reply.out.len;
    int64_t at;
    if (!parse_options(c, rq, 3, true, &o) || !resolve_time(c, &o, "set", &at))
        return;
    if (o.get) {
        if (!want_string_or_none(c, key))
            return;
        reply_value(c, key);
    }
    bool there = (o.nx || o.xx) && keyspace_type(c->space->keys, key->p, key->n) != KEY_NONE;
    if ((o.nx && there) || (o.xx && !there)) {
        if (!o.get)
            reply_nil(&c->reply);
        return;
    }
    if (store_or_say(c, key, &rq->argv[2], at, mark) && !o.get)
        reply_status(&c->reply, "OK");
}

static void set_for(struct conn *c, const struct request *rq, bool seconds, const char *command)
{
    struct set_options o = {.time = &rq->argv[2], .expiry = {.seconds = seconds}};
    int64_t at;
    if (resolve_time(c, &o, command, &at) && store_or_say(c, &rq->argv[1], &rq->argv[3], at, c->reply.out.len))
        reply_status(&c->reply, "OK");
}

void command_setex(struct conn *c, const struct request *rq)
{
    set_for(c, rq, true, "setex");
}

void command_psetex(struct conn *c, const struct request *rq)
{
    set_for(c, rq, false, "psetex");
}

void command_setnx(struct conn *c, const struct request *rq)
{
    const struct request_arg *key = &rq->argv[1];
    if (keyspace_type(c->space->keys, key->p, key->n) != KEY_NONE)
        reply_int(&c->reply, 0);
    else if (store_or_say(c, key, &rq->argv[2], KEYSPACE_NEVER, c->reply.out.len))
        reply_int(&c->reply, 1);
}

void command_getset(struct conn *c, const struct request *rq)
{
    size_t mark = c->reply.out.len;
    if (!want_string_or_none(c, &rq->argv[1]))
        return;
    reply_value(c, &rq->argv[1]);
    store_or_say(c, &rq->argv[1], &rq->argv[2], KEYSPACE_NEVER, mark);
}

void command_getdel(struct conn *c, const struct request *rq)
{
    if (!want_string_or_none(c, &rq->argv[1]))
        return;
    reply_value(c, &rq->argv[1]);
    keyspace_delete(c->space->keys, rq->argv[1].p, rq->argv[1].n);
}

void command_getex(struct conn *c, const struct request *rq)
{
    const struct request_arg *key = &rq->argv[1];
    struct keyspace *k = c->space->keys;
    struct set_options o = {0};
    int64_t at;
    if (!parse_options(c, rq, 2, false, &o) || !want_string_or_none(c, key))
        return;
    if (keyspace_type(k, key->p, key->n) == KEY_NONE) {
        reply_nil(&c->reply);
        return;
    }
    if (!resolve_time(c, &o, "getex", &at))
        return;
    reply_value(c, key);
    if (o.time && at <= keyspace_now(k))
        keyspace_delete(k, key->p, key->n);
    else if (o.time)
        keyspace_expire(k, key->p, key->n, at);
    else if (o.persist && keyspace_expiry(k, key->p, key->n) > 0)
        keyspace_expire(k, key->p, key->n, KEYSPACE_NEVER);
}

/* --- several keys */

void command_mget(struct conn *c, const struct request *rq)
{
    reply_array(&c->reply, rq->argc - 1);
    for (size_t i = 1; i < rq->argc && !c->reply.failed; i++)
        reply_value(c, &rq->argv[i]);
}

/* All or nothing: room for all as if all were new is asked for first. */
static int store_all(struct conn *c, const struct request *rq)
{
    size_t need = 0;
    for (size_t i = 1; i < rq->argc; i += 2)
        need += keyspace_entry_bytes(rq->argv[i].n, rq->argv[i + 1].n);
    int rc = keyspace_fits(c->space->keys, need) ? 0 : -ENOSPC;
    for (size_t i = 1; rc == 0 && i < rq->argc; i += 2)
        rc = store(c, &rq->argv[i], &rq->argv[i + 1], KEYSPACE_NEVER);
    return rc;
}

void command_mset(struct conn *c, const struct request *rq)
{
    int rc;
    if (rq->argc % 2 == 0)
        reply_error(&c->reply, "ERR wrong number of arguments for 'mset' command");
    else if ((rc = store_all(c, rq)) < 0)
        say_failure(c, rc);
    else
        reply_status(&c->reply, "OK");
}

void command_msetnx(struct conn *c, const struct request *rq)
{
    bool there = false;
    int rc;
    if (rq->argc % 2 == 0) {
        reply_error(&c->reply, "ERR wrong number of arguments for 'msetnx' command");
        return;
    }
    for (size_t i = 1; i < rq->argc; i += 2)
        there |= keyspace_type(c->space->keys, rq->argv[i].p, rq->argv[i].n) != KEY_NONE;
    if (!there && (rc = store_all(c, rq)) < 0)
        say_failure(c, rc);
    else
        reply_int(&c->reply, !there);
}

/* --- counters */

static void add_to_number(struct conn *c, const struct request_arg *key, int64_t delta)
{
    int64_t sum;
    int rc = keyspace_add(c->space->keys, key->p, key->n, delta, &sum, NULL);
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

/* --- parts */

static bool fits_string(struct conn *c, int64_t n, size_t more)
{
    if (n <= STRING_MAX && (int64_t)more <= STRING_MAX - n)
        return true;
    reply_error(&c->reply, "ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    return false;
}

static size_t length(struct conn *c, const struct request_arg *key)
{
    size_t n;
    return keyspace_get(c->space->keys, key->p, key->n, &n) ? n : 0;
}

void command_append(struct conn *c, const struct request *rq)
{
    const struct request_arg *key = &rq->argv[1], *v = &rq->argv[2];
    size_t len;
    if (!want_string_or_none(c, key) || !fits_string(c, (int64_t)length(c, key), v->n))
        return;
    int rc = keyspace_append(c->space->keys, key->p, key->n, v->p, v->n, &len, NULL);
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

void command_setrange(struct conn *c, const struct request *rq)
{
    const struct request_arg *key = &rq->argv[1], *v = &rq->argv[3];
    int64_t offset;
    size_t len;
    if (!want_i64(c, &rq->argv[2], &offset))
        return;
    if (offset < 0) {
        reply_error(&c->reply, "ERR offset is out of range");
        return;
    }
    if (!want_string_or_none(c, key))
        return;
    if (v->n == 0) {
        reply_int(&c->reply, (int64_t)length(c, key));
        return;
    }
    if (!fits_string(c, offset, v->n))
        return;
    int rc = keyspace_set_range(c->space->keys, key->p, key->n, (size_t)offset, v->p, v->n, &len);
    if (rc < 0)
        say_failure(c, rc);
    else
        reply_int(&c->reply, (int64_t)len);
}

void command_getrange(struct conn *c, const struct request *rq)
{
    const struct request_arg *key = &rq->argv[1];
    int64_t from, to;
    if (!want_i64(c, &rq->argv[2], &from) || !want_i64(c, &rq->argv[3], &to) || !want_string_or_none(c, key))
        return;
    size_t len = 0;
    const char *v = keyspace_get(c->space->keys, key->p, key->n, &len);
    int64_t n = v ? (int64_t)len : 0;
    bool none = from < 0 && to < 0 && from > to;
    from = from < 0 ? from + n : from;
    to = to < 0 ? to + n : to;
    from = from < 0 ? 0 : from;
    to = to < 0 ? 0 : to >= n ? n - 1 : to;
    if (none || n == 0 || from > to)
        reply_bulk(&c->reply, "", 0);
    else
        reply_bulk(&c->reply, v + from, (size_t)(to - from + 1));
}
