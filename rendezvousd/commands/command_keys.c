/* Commands on keys of any type: DEL, EXISTS, TYPE, EXPIRE, SCAN and the like. */
#include "rendezvousd/commands/command_impl.h"
#include "rendezvousd/store/glob.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static void reply_found(struct conn *c, int rc)
{
    (void)rc;
    reply_int(&c->reply, c->many.found);
}

static int64_t delete_one(struct conn *c, const struct request_arg *a)
{
    const size_t before = keyspace_bytes(c->space->keys);
    c->many.found += keyspace_delete(c->space->keys, a->p, a->n);
    return (int64_t)(before - keyspace_bytes(c->space->keys));
}

void command_del(struct conn *c, const struct request *rq)
{
    static const struct many_ops ops = {.one = delete_one, .end = reply_found, .changes = true};
    c->many.found = 0;
    many_begin(c, &ops, &rq->argv[1], rq->argc - 1, 1);
}

static int64_t count_one(struct conn *c, const struct request_arg *a)
{
    c->many.found += many_exists_one(c, a) == 0;
    return 0;
}

void command_exists(struct conn *c, const struct request *rq)
{
    static const struct many_ops ops = {.one = count_one, .end = reply_found};
    c->many.found = 0;
    many_begin(c, &ops, &rq->argv[1], rq->argc - 1, 1);
}

void command_type(struct conn *c, const struct request *rq)
{
    static const char *const names[] = {[KEY_NONE] = "none", [KEY_STRING] = "string", [KEY_QUEUE] = "list"};
    reply_status(&c->reply, names[keyspace_type(c->space->keys, rq->argv[1].p, rq->argv[1].n)]);
}

/* --- keys that expire, by the loop's monotonic clock: setting the wall clock has no effect */

void command_expire(struct conn *c, const struct request *rq)
{
    struct keyspace *k = c->space->keys;
    const struct request_arg *key = &rq->argv[1];
    int64_t at;
    if (!want_i64(c, &rq->argv[2], &at))
        return;
    if (__builtin_mul_overflow(at, (int64_t)1000, &at) || __builtin_add_overflow(at, keyspace_now(k), &at)) {
        reply_error(&c->reply, "ERR invalid expire time in 'expire' command");
        return;
    }
    int rc = keyspace_type(k, key->p, key->n) == KEY_NONE ? -ENOENT : 0;
    if (rc == 0 && at <= keyspace_now(k))
        keyspace_delete(k, key->p, key->n);
    else if (rc == 0)
        rc = keyspace_expire(k, key->p, key->n, at);
    if (rc == -ENOMEM)
        say_failure(c, rc);
    else
        reply_int(&c->reply, rc == 0);
}

void command_persist(struct conn *c, const struct request *rq)
{
    const struct request_arg *key = &rq->argv[1];
    bool had = keyspace_expiry(c->space->keys, key->p, key->n) > 0;
    if (had)
        keyspace_expire(c->space->keys, key->p, key->n, KEYSPACE_NEVER);
    reply_int(&c->reply, had);
}

void command_ttl(struct conn *c, const struct request *rq)
{
    int64_t at = keyspace_expiry(c->space->keys, rq->argv[1].p, rq->argv[1].n);
    if (at <= 0)
        reply_int(&c->reply, at == KEYSPACE_NEVER ? -1 : -2);
    else
        reply_int(&c->reply, (at - keyspace_now(c->space->keys) + 500) / 1000);
}

/* --- SCAN */

#define SCAN_KEYS 1000   /* limit, whatever COUNT says: COUNT is a hint */
#define SCAN_STEPS 4096  /* buckets, many of which may be empty */
#define SCAN_BYTES 65536 /* of names; the bucket with which it is exceeded is the last */

struct listing {
    const struct request_arg *pattern; /* NULL: any */
    struct reply names;
    size_t visited, matches;
    uint64_t work; /* steps left for the pattern */
};

static void list_key(void *arg, enum key_type type, const char *key, size_t key_len)
{
    struct listing *l = arg;
    (void)type;
    l->visited++;
    if (l->pattern && !glob_match(l->pattern->p, l->pattern->n, key, key_len, &l->work))
        return;
    l->matches++;
    reply_bulk(&l->names, key, key_len);
}

static uint64_t scan(struct conn *c, struct listing *l, uint64_t cursor, size_t count)
{
    size_t steps = SCAN_STEPS;
    do
        cursor = keyspace_scan(c->space->keys, cursor, list_key, l);
    while (cursor != 0 && l->visited < count && l->names.out.len < SCAN_BYTES && l->work > 0 && --steps > 0);
    return cursor;
}

/* Parse a cursor as Redis does with strtoul, but without sign or leading blanks. */
static bool read_cursor(const struct request_arg *a, uint64_t *ret)
{
    uint64_t v = 0;
    for (size_t i = 0; i < a->n; i++) {
        unsigned d = (unsigned char)a->p[i] - (unsigned)'0';
        if (d > 9 || __builtin_mul_overflow(v, (uint64_t)10, &v) || __builtin_add_overflow(v, (uint64_t)d, &v))
            return false;
    }
    *ret = v;
    return a->n > 0;
}

static bool scan_options(struct conn *c, const struct request *rq, struct listing *l, int64_t *count)
{
    for (size_t i = 2; i < rq->argc; i += 2) {
        const struct request_arg *a = &rq->argv[i];
        bool more = i + 1 < rq->argc;
        if (more && request_arg_is(a, "count")) {
            if (!want_i64(c, a + 1, count))
                return false;
            if (*count >= 1)
                continue;
        } else if (more && request_arg_is(a, "match")) {
            l->pattern = a + 1;
            continue;
        }
        reply_error(&c->reply, SYNTAX_ERROR);
        return false;
    }
    return true;
}

static void reply_listing(struct conn *c, const struct listing *l, uint64_t next)
{
    char text[24];
    reply_array(&c->reply, 2);
    reply_bulk(&c->reply, text, (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)next));
    reply_array(&c->reply, l->matches);
    reply_raw(&c->reply, l->names.out.data, l->names.out.len);
    c->reply.failed |= l->names.failed;
}

void command_scan(struct conn *c, const struct request *rq)
{
    struct listing l = {.names.out.max = c->s->o.max_output_bytes, .work = GLOB_WORK};
    uint64_t cursor;
    int64_t count = 10;
    if (!read_cursor(&rq->argv[1], &cursor)) {
        reply_error(&c->reply, "ERR invalid cursor");
        return;
    }
    if (!scan_options(c, rq, &l, &count))
        return;
    uint64_t next = scan(c, &l, cursor, count < SCAN_KEYS ? (size_t)count : SCAN_KEYS);
    if (l.work == 0)
        reply_error(&c->reply, "ERR the pattern takes too long");
    else
        reply_listing(c, &l, next);
    buf_free(&l.names.out);
}

/* --- all keys */

void command_dbsize(struct conn *c, const struct request *rq)
{
    (void)rq;
    reply_int(&c->reply, (int64_t)keyspace_count(c->space->keys));
}

void command_flushdb(struct conn *c, const struct request *rq)
{
    if (rq->argc > 2 ||
        (rq->argc == 2 && !request_arg_is(&rq->argv[1], "sync") && !request_arg_is(&rq->argv[1], "async"))) {
        reply_error(&c->reply, SYNTAX_ERROR);
        return;
    }
    keyspace_clear(c->space->keys);
    reply_status(&c->reply, "OK");
}
