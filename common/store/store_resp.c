/* The store over RESP: rendezvousd, or a plain Redis.
 *
 * - One connection, dialled at open, one request at a time; turns, repetition and abort are store_turn.h's.
 * - After each dial STORE.PING tells the two servers apart. rendezvousd has STORE.WAIT.
 * - On a plain Redis every writer also publishes on "__store__:<key>"; a waiter subscribes on a second connection, then
 *   checks: a write after the check finds it subscribed, so none is missed.
 * - Calls are repeated on a new connection, except an add that has been sent. */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/redis_link.h"
#include "common/net/resp_conn.h"
#include "common/store/store.h"
#include "common/store/store_turn.h"

enum { SMALL_REPLY = 1 << 20 }; /* bytes of a reply that carries no value */

struct resp_store {
    struct turn_store base;
    struct redis_link link;
    struct resp_conn conn;
    struct resp_conn subscriber; /* plain Redis, during a wait */
    bool plain_redis;
};

enum { MAX_WORDS = 8 };

/* A request of a few words, which are borrowed. */
struct resp_words {
    const char *v[MAX_WORDS];
    size_t len[MAX_WORDS];
    int n;
};

static struct resp_words resp_words(const char *verb, const char *key);

static void resp_words_add(struct resp_words *w, const void *data, size_t len)
{
    w->v[w->n] = data ? data : "";
    w->len[w->n++] = len;
}

/* key may be NULL */
static struct resp_words resp_words(const char *verb, const char *key)
{
    struct resp_words w = {0};
    resp_words_add(&w, verb, strlen(verb));
    if (key)
        resp_words_add(&w, key, strlen(key));
    return w;
}

static int resp_words_append(const struct resp_words *w, struct resp_conn *c, struct err *e)
{
    return resp_append(c, w->n, w->v, w->len, e);
}

/* Queue "verb key... [last]", with prefix in front of every key. */
static int resp_words_append_many(struct resp_conn *c, const char *verb, const char *prefix,
                                  const struct store_call *call, const char *last, struct err *e)
{
    struct buf text = {0};
    size_t count = call->n + 1 + (last != NULL), at = 0;
    const char **v = calloc(count, sizeof *v);
    size_t *len = calloc(count, sizeof *len);
    int rc = v && len ? 0 : -ENOMEM;
    for (size_t i = 0; i < call->n && rc == 0; i++) {
        len[i + 1] = strlen(prefix) + strlen(call->keys[i]);
        rc = buf_printf(&text, "%s%s", prefix, call->keys[i]);
    }
    if (rc == 0) {
        v[0] = verb;
        len[0] = strlen(verb);
        for (size_t i = 1; i <= call->n; at += len[i++])
            v[i] = text.data + at;
        if (last) {
            v[count - 1] = last;
            len[count - 1] = strlen(last);
        }
        rc = resp_append(c, (int)count, v, len, e);
    } else
        err_set(e, rc, "out of memory");
    buf_free(&text);
    free(v);
    free(len);
    return rc;
}

/* Check the type of a reply: 0, or the error that it carries, or -EPROTO. */
static int resp_expect(const redisReply *r, int type, struct err *e)
{
    if (r->type == type)
        return 0;
    if (r->type != REDIS_REPLY_ERROR)
        return err_set(e, -EPROTO, "a reply of type %d where %d belongs", r->type, type);
    bool value_is_wrong =
        strstr(r->str, "not an integer") || strstr(r->str, "overflow") || strncmp(r->str, "WRONGTYPE", 9) == 0;
    return err_set(e, value_is_wrong ? -EINVAL : ERR_REFUSED, "the server says: %.300s", r->str);
}

/* Send what is queued and get one reply of the given type, which the caller frees. */
static int resp_ask(struct resp_conn *c, int type, redisReply **ret, int64_t deadline, struct err *e)
{
    redisReply *r;
    TRY(resp_exchange(c, 1, &r, deadline, e));
    int rc = resp_expect(r, type, e);
    if (rc < 0)
        freeReplyObject(r);
    else
        *ret = r;
    return rc;
}

static int resp_ask_integer(struct resp_conn *c, int64_t *ret, int64_t deadline, struct err *e)
{
    redisReply *r;
    TRY(resp_ask(c, REDIS_REPLY_INTEGER, &r, deadline, e));
    *ret = r->integer;
    freeReplyObject(r);
    return 0;
}

/* Append the reply's value to the caller's buffer, unless either is missing. */
static int resp_take_value(const redisReply *r, struct buf *value, struct err *e)
{
    int rc = value && r->type == REDIS_REPLY_STRING ? buf_add(value, r->str, (size_t)r->len) : 0;
    return rc < 0 ? err_set(e, rc, "a value of %zu bytes does not fit", (size_t)r->len) : 0;
}

#define CHANNEL "__store__:"

static int queue_transaction(struct resp_store *s, const struct resp_words *w, const char *key, struct err *e)
{
    char *channel;
    if (asprintf(&channel, CHANNEL "%s", key) < 0)
        return err_set(e, -ENOMEM, "out of memory");
    struct resp_words multi = resp_words("MULTI", NULL), publish = resp_words("PUBLISH", channel),
                      exec = resp_words("EXEC", NULL);
    resp_words_add(&publish, "", 0);
    const struct resp_words *all[] = {&multi, w, &publish, &exec};
    int rc = 0;
    for (size_t i = 0; i < 4 && rc == 0; i++)
        rc = resp_words_append(all[i], &s->conn, e);
    free(channel);
    if (rc < 0)
        resp_hang_up(&s->conn); /* drops queued requests */
    return rc;
}

/* Send a write and its announcement as a transaction. *ret contains the write's reply; the caller frees it. */
static int transaction(struct resp_store *s, const struct resp_words *w, const char *key, redisReply **ret,
                       int64_t deadline, struct err *e)
{
    redisReply *r[4];
    TRY(queue_transaction(s, w, key, e));
    TRY(resp_exchange(&s->conn, 4, r, deadline, e));
    int rc = resp_expect(r[1], REDIS_REPLY_STATUS, e);
    if (rc == 0)
        rc = resp_expect(r[3], REDIS_REPLY_ARRAY, e);
    if (rc == 0 && r[3]->elements != 2)
        rc = err_set(e, -EPROTO, "EXEC: %zu replies, expected 2", r[3]->elements);
    *ret = r[3];
    for (int i = 0; i < (rc == 0 ? 3 : 4); i++)
        freeReplyObject(r[i]);
    return rc;
}

/* Calls that rendezvousd has commands for, made of a plain Redis' commands. w: the write to the key. */
static int redis_set(struct resp_store *s, const struct resp_words *w, const char *key, int64_t deadline, struct err *e)
{
    redisReply *r;
    TRY(transaction(s, w, key, &r, deadline, e));
    int rc = resp_expect(r->element[0], REDIS_REPLY_STATUS, e);
    freeReplyObject(r);
    return rc;
}

static int redis_add(struct resp_store *s, const struct resp_words *w, const char *key, int64_t *ret, int64_t deadline,
                     struct err *e)
{
    redisReply *r;
    TRY(transaction(s, w, key, &r, deadline, e));
    int rc = resp_expect(r->element[0], REDIS_REPLY_INTEGER, e);
    if (rc == 0)
        *ret = r->element[0]->integer;
    freeReplyObject(r);
    return rc;
}

static int all_exist(struct resp_store *s, const struct store_call *c, int64_t deadline, struct err *e)
{
    int64_t found;
    TRY(resp_words_append_many(&s->conn, "EXISTS", "", c, NULL, e));
    TRY(resp_ask_integer(&s->conn, &found, deadline, e));
    return found == (int64_t)c->n;
}

static int plain_wait_subscribed(struct resp_store *s, const struct store_call *c, int64_t deadline, struct err *e)
{
    redisReply *r;
    TRY(resp_words_append_many(&s->subscriber, "SUBSCRIBE", CHANNEL, c, NULL, e));
    for (size_t i = 0; i < c->n; i++) {
        TRY(i == 0 ? resp_exchange(&s->subscriber, 1, &r, deadline, e) : resp_receive(&s->subscriber, &r, deadline, e));
        freeReplyObject(r);
    }
    for (;;) {
        int rc = all_exist(s, c, deadline, e);
        if (rc != 0)
            return rc < 0 ? rc : 0;
        TRY(resp_receive(&s->subscriber, &r, deadline, e));
        freeReplyObject(r);
    }
}

static int redis_wait(struct resp_store *s, const struct store_call *c, int64_t deadline, struct err *e)
{
    int rc = all_exist(s, c, deadline, e);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    TRY(redis_link_dial(&s->link, &s->subscriber, deadline, e));
    rc = plain_wait_subscribed(s, c, deadline, e);
    resp_hang_up(&s->subscriber);
    return rc;
}

enum { WAIT_GRACE_MS = 50 /* the server's own timeout should come first: then the connection stays usable */ };

/* --- the operations */

/* Let the next reply, which carries the value, be as large as the caller's buffer allows. */
static void expect_value(struct resp_store *s, const struct buf *value)
{
    size_t max = value && value->max ? value->max : (size_t)1 << 30;
    s->conn.max_reply = max + SMALL_REPLY;
}

static int try_get(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct resp_store *s = (struct resp_store *)base;
    struct resp_words w = resp_words("GET", c->keys[0]);
    redisReply *r;
    expect_value(s, c->value);
    TRY(resp_words_append(&w, &s->conn, e));
    TRY(resp_exchange(&s->conn, 1, &r, deadline, e));
    int rc = r->type == REDIS_REPLY_NIL ? err_set(e, -ENOENT, "no such key") : resp_expect(r, REDIS_REPLY_STRING, e);
    if (rc == 0)
        rc = resp_take_value(r, c->value, e);
    freeReplyObject(r);
    return rc;
}

static int try_set(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct resp_store *s = (struct resp_store *)base;
    struct resp_words w = resp_words("SET", c->keys[0]);
    redisReply *r;
    resp_words_add(&w, c->data, c->len);
    if (s->plain_redis)
        return redis_set(s, &w, c->keys[0], deadline, e);
    TRY(resp_words_append(&w, &s->conn, e));
    TRY(resp_ask(&s->conn, REDIS_REPLY_STATUS, &r, deadline, e));
    freeReplyObject(r);
    return 0;
}

static int try_add(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct resp_store *s = (struct resp_store *)base;
    struct resp_words w = resp_words("INCRBY", c->keys[0]);
    char delta[24];
    resp_words_add(&w, delta, (size_t)snprintf(delta, sizeof delta, "%" PRId64, c->delta));
    if (s->plain_redis)
        return redis_add(s, &w, c->keys[0], c->ret, deadline, e);
    TRY(resp_words_append(&w, &s->conn, e));
    return resp_ask_integer(&s->conn, c->ret, deadline, e);
}

static int try_wait(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct resp_store *s = (struct resp_store *)base;
    char timeout[16];
    int64_t there;
    if (s->plain_redis)
        return redis_wait(s, c, deadline, e);
    snprintf(timeout, sizeof timeout, "%d", clock_left(deadline));
    TRY(resp_words_append_many(&s->conn, "STORE.WAIT", "", c, timeout, e));
    TRY(resp_ask_integer(&s->conn, &there, deadline > INT64_MAX - WAIT_GRACE_MS ? deadline : deadline + WAIT_GRACE_MS,
                         e));
    return there ? 0 : err_set(e, -ETIMEDOUT, "the deadline passed");
}

/* --- connection */

/* Which server is it? */
static int probe(struct resp_store *s, int64_t deadline, struct err *e)
{
    struct resp_words w = resp_words("STORE.PING", NULL);
    redisReply *r;
    TRY(resp_words_append(&w, &s->conn, e));
    TRY(resp_exchange(&s->conn, 1, &r, deadline, e));
    s->plain_redis = r->type == REDIS_REPLY_ERROR && strncmp(r->str, "ERR unknown command", 19) == 0;
    int rc = s->plain_redis ? 0 : resp_expect(r, REDIS_REPLY_STATUS, e);
    freeReplyObject(r);
    if (rc < 0)
        resp_hang_up(&s->conn);
    return rc;
}

static int resp_connect(struct turn_store *base, int64_t deadline, struct err *e)
{
    struct resp_store *s = (struct resp_store *)base;
    s->conn.max_reply = SMALL_REPLY;
    if (s->conn.fd >= 0 && resp_is_stale(&s->conn))
        resp_hang_up(&s->conn);
    if (s->conn.fd >= 0)
        return 0;
    TRY(redis_link_dial(&s->link, &s->conn, deadline, e));
    return probe(s, deadline, e);
}

static const struct store_attempts attempts = {resp_connect, try_get, try_set, try_add, try_wait};

/* --- life */

static void resp_close(struct store *store)
{
    struct resp_store *s = (struct resp_store *)store;
    resp_finish(&s->conn);
    resp_finish(&s->subscriber);
    turn_store_finish(&s->base);
    redis_link_finish(&s->link);
    free(s);
}

/* resp:// requires a port. */
static int parse(struct resp_store *s, const char *url, struct err *e)
{
    int rc = redis_link_parse(&s->link, url, e);
    const char *end = url + strcspn(url, "/") + 2, *last = strrchr(end, ':');
    bool exact = last && !strchr(last, ']') && !strpbrk(end, "/,@");
    if (s->link.plain && (rc < 0 || !exact))
        return err_set(e, -EINVAL, "expected resp://host:port or resp://[v6 address]:port");
    return rc;
}

/* The part of a URL that messages may show: without user and password. */
static const char *shown(const char *address)
{
    const char *at = strrchr(address, '@');
    return at ? at + 1 : address;
}

static int open_kind(const struct store_ops *ops, struct store **ret, const char *address,
                     const struct store_options *o, struct err *e)
{
    char url[1024];
    struct resp_store *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, -ENOMEM, "open store '%s://%s': out of memory", ops->scheme, shown(address));
    int rc = turn_store_init(&s->base, ops, &attempts, e);
    resp_init(&s->conn, s->base.abort_fd);
    resp_init(&s->subscriber, s->base.abort_fd);
    if (rc == 0 && (size_t)snprintf(url, sizeof url, "%s://%s", ops->scheme, address) >= sizeof url)
        rc = err_set(e, -EINVAL, "a URL has at most %zu bytes", sizeof url - 1);
    if (rc == 0)
        rc = parse(s, url, e);
    if (rc == 0)
        rc = turn_store_connect(&s->base, o, e);
    if (rc < 0) {
        resp_close(&s->base.store);
        return e ? err_wrap(e, "open store '%s://%s'", ops->scheme, shown(address)) : rc;
    }
    *ret = &s->base.store;
    return 0;
}

/* One row for each way to name a server; redis_link.h explains them. */
#define KIND(id, text)                                                                                                 \
    static int open_##id(struct store **ret, const char *address, const struct store_options *o, struct err *e)        \
    {                                                                                                                  \
        return open_kind(&store_##id##_ops, ret, address, o, e);                                                       \
    }                                                                                                                  \
    const struct store_ops store_##id##_ops = {                                                                        \
        .scheme = (text), .open = open_##id, .close = resp_close, TURN_STORE_OPS};
KIND(resp, "resp")
KIND(redis, "redis")
KIND(rediss, "rediss")
KIND(sentinel, "redis+sentinel")
KIND(sentinels, "rediss+sentinel")
