/* The store over RESP: rendezvousd, or a plain Redis.
 *
 * - One connection, dialled at open, one request at a time; turns, repetition and abort are store_turn.h's.
 * - After each dial STORE.PING tells the two servers apart. rendezvousd has STORE.WAIT.
 * - On a plain Redis every writer also publishes on "__store__:<key>"; a waiter subscribes on a second connection, then
 *   checks: a write after the check finds it subscribed, so none is missed.
 * - What may be repeated on a new connection is repeated; add is not, once sent. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/store/store_resp_internal.h"

enum { WAIT_GRACE_MS = 50 /* the server's own timeout comes first: the connection stays usable */ };

/* --- the operations */

/* Before a reply that carries the value: let it be as large as the caller's buffer takes. */
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

/* What may be shown of a URL: no user, no password. */
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

/* One row for each way to name a server: redis_link.h says what they mean. */
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
