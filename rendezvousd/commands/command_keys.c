/* Commands on keys of any type. */
#include "rendezvousd/commands/command_impl.h"
#include "rendezvousd/store/glob.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

static const char *const type_names[] = {[KEY_NONE] = "none", [KEY_STRING] = "string", [KEY_LIST] = "list"};

void command_del(struct conn *c, const struct request *rq)
{
    int64_t deleted = 0;
    for (size_t i = 1; i < rq->argc; i++)
        deleted += keyspace_delete(c->space->keys, rq->argv[i].p, rq->argv[i].n);
    reply_int(&c->reply, deleted);
}

void command_exists(struct conn *c, const struct request *rq)
{
    int64_t found = 0;
    for (size_t i = 1; i < rq->argc; i++)
        found += keyspace_type(c->space->keys, rq->argv[i].p, rq->argv[i].n) != KEY_NONE;
    reply_int(&c->reply, found);
}

void command_type(struct conn *c, const struct request *rq)
{
    reply_status(&c->reply, type_names[keyspace_type(c->space->keys, rq->argv[1].p, rq->argv[1].n)]);
}

static int rename_key(struct conn *c, const struct request *rq)
{
    const struct request_arg *from = &rq->argv[1], *to = &rq->argv[2];
    int rc = keyspace_rename(c->space->keys, from->p, from->n, to->p, to->n);
    if (rc == -ENOENT)
        reply_error(&c->reply, "ERR no such key");
    else if (rc < 0)
        say_failure(c, rc);
    return rc;
}

void command_rename(struct conn *c, const struct request *rq)
{
    if (rename_key(c, rq) == 0)
        reply_status(&c->reply, "OK");
}

void command_renamenx(struct conn *c, const struct request *rq)
{
    struct keyspace *k = c->space->keys;
    bool there = keyspace_type(k, rq->argv[1].p, rq->argv[1].n) != KEY_NONE;
    if (there && keyspace_type(k, rq->argv[2].p, rq->argv[2].n) != KEY_NONE)
        reply_int(&c->reply, 0);
    else if (rename_key(c, rq) == 0)
        reply_int(&c->reply, 1);
}

/* --- walks: RESP wants the count first, so each goes twice */

struct listing {
    struct conn *c;
    const struct request_arg *pattern, *type; /* NULL: any */
    size_t visited, matches;
    uint64_t work; /* what the pattern may still take */
    bool write;
};

static void list_key(void *arg, enum key_type type, const char *key, size_t key_len)
{
    struct listing *l = arg;
    l->visited++;
    if (l->type && !request_arg_is(l->type, type_names[type]))
        return;
    if (l->pattern && !glob_match(l->pattern->p, l->pattern->n, key, key_len, &l->work))
        return;
    l->matches++;
    if (l->write)
        reply_bulk(&l->c->reply, key, key_len);
}

/* The matches are counted: go again, and write them. False: there was no end of it. */
static bool may_write(struct listing *l)
{
    if (l->work == 0) {
        reply_error(&l->c->reply, "ERR the pattern takes too long");
        return false;
    }
    l->work = GLOB_WORK;
    l->write = true;
    return true;
}

void command_keys(struct conn *c, const struct request *rq)
{
    struct listing l = {.c = c, .pattern = &rq->argv[1], .work = GLOB_WORK};
    keyspace_walk(c->space->keys, list_key, &l);
    if (!may_write(&l))
        return;
    reply_array(&c->reply, l.matches);
    keyspace_walk(c->space->keys, list_key, &l);
}

/* As many buckets as hold `count` keys, but not for ever through empty ones. */
static uint64_t scan(struct listing *l, uint64_t cursor, int64_t count)
{
    uint64_t most = (uint64_t)count < UINT64_MAX / 10 ? (uint64_t)count * 10 : UINT64_MAX;
    l->visited = 0;
    do
        cursor = keyspace_scan(l->c->space->keys, cursor, list_key, l);
    while (cursor != 0 && l->visited < (uint64_t)count && --most > 0);
    return cursor;
}

/* Redis reads the cursor with strtoul: no sign, no blank before it. */
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
        } else if (more && request_arg_is(a, "type")) {
            l->type = a + 1;
            continue;
        }
        reply_error(&c->reply, SYNTAX_ERROR);
        return false;
    }
    return true;
}

void command_scan(struct conn *c, const struct request *rq)
{
    struct listing l = {.c = c, .work = GLOB_WORK};
    uint64_t cursor;
    int64_t count = 10;
    if (!read_cursor(&rq->argv[1], &cursor)) {
        reply_error(&c->reply, "ERR invalid cursor");
        return;
    }
    if (!scan_options(c, rq, &l, &count))
        return;
    char text[24];
    uint64_t next = scan(&l, cursor, count);
    if (!may_write(&l))
        return;
    reply_array(&c->reply, 2);
    reply_bulk(&c->reply, text, (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)next));
    reply_array(&c->reply, l.matches);
    scan(&l, cursor, count);
}

void command_randomkey(struct conn *c, const struct request *rq)
{
    uint64_t draw = 0;
    size_t n;
    (void)rq;
    if (getrandom(&draw, sizeof draw, GRND_NONBLOCK) < 0)
        draw = c->s->commands;
    const char *key = keyspace_random(c->space->keys, draw, &n);
    if (key)
        reply_bulk(&c->reply, key, n);
    else
        reply_nil(&c->reply);
}

/* --- all keys */

void command_dbsize(struct conn *c, const struct request *rq)
{
    (void)rq;
    keyspace_expire_due(c->space->keys, SIZE_MAX);
    reply_int(&c->reply, (int64_t)keyspace_count(c->space->keys));
}

void command_flushall(struct conn *c, const struct request *rq)
{
    if (rq->argc > 2 ||
        (rq->argc == 2 && !request_arg_is(&rq->argv[1], "sync") && !request_arg_is(&rq->argv[1], "async"))) {
        reply_error(&c->reply, SYNTAX_ERROR);
        return;
    }
    keyspace_clear(c->space->keys);
    reply_status(&c->reply, "OK");
}

/* --- what a key is made of */

static const char *encoding(struct keyspace *k, const struct request_arg *key)
{
    size_t n;
    int64_t number;
    const char *v = keyspace_get(k, key->p, key->n, &n);
    if (!v)
        return "quicklist";
    return request_i64(v, n, &number) ? "int" : n <= 44 ? "embstr" : "raw";
}

static bool want_key(struct conn *c, const struct request_arg *key)
{
    if (keyspace_type(c->space->keys, key->p, key->n) != KEY_NONE)
        return true;
    reply_nil(&c->reply);
    return false;
}

static void object_encoding(struct conn *c, const struct request *rq)
{
    if (want_key(c, &rq->argv[2]))
        reply_text(&c->reply, encoding(c->space->keys, &rq->argv[2]));
}

static void object_refcount(struct conn *c, const struct request *rq)
{
    if (want_key(c, &rq->argv[2]))
        reply_int(&c->reply, 1);
}

static void object_idletime(struct conn *c, const struct request *rq)
{
    if (want_key(c, &rq->argv[2]))
        reply_int(&c->reply, 0);
}

void command_object(struct conn *c, const struct request *rq)
{
    static const struct subcommand v[] = {
        {"encoding", 3, object_encoding}, {"refcount", 3, object_refcount}, {"idletime", 3, object_idletime}};
    RUN_SUBCOMMAND(c, rq, "object", v);
}

/* MEMORY USAGE key [SAMPLES n] */
static void memory_usage(struct conn *c, const struct request *rq)
{
    int64_t samples;
    bool option = rq->argc == 5 && request_arg_is(&rq->argv[3], "samples");
    if (rq->argc != 3 && !option) {
        reply_error(&c->reply, SYNTAX_ERROR);
        return;
    }
    if ((option && !want_i64(c, &rq->argv[4], &samples)) || !want_key(c, &rq->argv[2]))
        return;
    reply_int(&c->reply, (int64_t)keyspace_key_bytes(c->space->keys, rq->argv[2].p, rq->argv[2].n));
}

void command_memory(struct conn *c, const struct request *rq)
{
    static const struct subcommand v[] = {{"usage", -3, memory_usage}};
    RUN_SUBCOMMAND(c, rq, "memory", v);
}
