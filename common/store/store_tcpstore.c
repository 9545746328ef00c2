/* The store over PyTorch's TCPStore protocol: real torchrun's agent store, or a bootstrap store of ours.
 *
 * - tcp://host:port speaks the newer generation (torch 2.2 and later), tcp://host:port?generation=1 the older. It
 *   cannot be detected: the newer handshake blocks an older server for all its clients.
 * - SET has no answer. A CHECK of the key is sent after it: the server answers in order, so its answer confirms the
 *   SET.
 * - GET of a missing key is an empty value in one generation and the end of the connection in the other: CHECK comes
 *   first.
 * - ADD to a value that is not a number ends the connection; the value is then read, to distinguish that from a lost
 *   connection. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/addr.h"
#include "common/net/tcpstore_conn.h"
#include "common/store/store.h"
#include "common/store/store_turn.h"

struct tcp_store {
    struct turn_store base;
    char *host, *port;
    struct tcpstore_conn conn;
};

/* --- requests */

static int put_key(struct tcp_store *s, enum tcpstore_verb verb, const char *key, struct err *e)
{
    TRY(tcpstore_put(&s->conn, verb, e));
    return tcpstore_put_bytes(&s->conn, key, strlen(key), e);
}

static int put_keys(struct tcp_store *s, enum tcpstore_verb verb, const char *const *keys, size_t n, struct err *e)
{
    TRY(tcpstore_put(&s->conn, verb, e));
    TRY(tcpstore_put_number(&s->conn, n, e));
    for (size_t i = 0; i < n; i++)
        TRY(tcpstore_put_bytes(&s->conn, keys[i], strlen(keys[i]), e));
    return 0;
}

/* *ret: whether they all exist. */
static int check(struct tcp_store *s, const char *const *keys, size_t n, bool *ret, int64_t deadline, struct err *e)
{
    int answer;
    TRY(put_keys(s, TCPSTORE_CHECK, keys, n, e));
    TRY(tcpstore_take_byte(&s->conn, &answer, deadline, e));
    *ret = answer == 0;
    return 0;
}

/* Get the value and append it. 1, or 0 if there is no such key. */
static int fetch(struct tcp_store *s, const char *key, struct buf *value, int64_t deadline, struct err *e)
{
    bool there;
    TRY(check(s, &key, 1, &there, deadline, e));
    if (!there)
        return 0;
    TRY(put_key(s, TCPSTORE_GET, key, e));
    TRY(tcpstore_take_bytes(&s->conn, value, deadline, e));
    return 1;
}

static int try_get(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    int rc = fetch((struct tcp_store *)base, c->keys[0], c->value, deadline, e);
    return rc == 0 ? err_set(e, -ENOENT, "no such key") : rc < 0 ? rc : 0;
}

static int try_set(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct tcp_store *s = (struct tcp_store *)base;
    bool ignored;
    TRY(put_key(s, TCPSTORE_SET, c->keys[0], e));
    TRY(tcpstore_put_bytes(&s->conn, c->data, c->len, e));
    return check(s, c->keys, 1, &ignored, deadline, e);
}

/* Attempt a wait. If it times out, the server goes on waiting; in both generations only the end of the connection
 * stops it. */
static int try_wait(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct tcp_store *s = (struct tcp_store *)base;
    int answer;
    TRY(put_keys(s, TCPSTORE_WAIT, c->keys, c->n, e));
    int rc = tcpstore_take_byte(&s->conn, &answer, deadline, e);
    if (rc == -ETIMEDOUT)
        return err_set(e, rc, "the deadline passed");
    if (rc == 0 && answer != 0) {
        tcpstore_hang_up(&s->conn);
        return err_set(e, -EPROTO, "the wait was answered with byte %d, expected 0", answer);
    }
    return rc;
}

static int tcp_connect(struct turn_store *base, int64_t deadline, struct err *e)
{
    struct tcp_store *s = (struct tcp_store *)base;
    if (s->conn.fd >= 0 && tcpstore_is_stale(&s->conn))
        tcpstore_hang_up(&s->conn);
    return s->conn.fd >= 0 ? 0 : tcpstore_dial(&s->conn, s->host, s->port, deadline, e);
}

/* An ADD ended the connection: find out whether the value was the reason (-EINVAL). */
static int look_at_value(struct tcp_store *s, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct buf value = {0};
    int64_t v;
    int rc = tcp_connect(&s->base, deadline, e);
    if (rc == 0)
        rc = fetch(s, c->keys[0], &value, deadline, e);
    if (rc == 1) {
        const char *text = value.data ? value.data : ""; /* an empty one takes no memory */
        if (strlen(text) != value.len || parse_i64(text, "", INT64_MIN, INT64_MAX, &v, NULL) < 0)
            rc = err_set(e, -EINVAL, "the value is not an integer");
        else if (__builtin_add_overflow(v, c->delta, &v))
            rc = err_set(e, -EINVAL, "the sum is not an integer of 64 bits");
    }
    buf_free(&value);
    return rc;
}

static int try_add(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct tcp_store *s = (struct tcp_store *)base;
    struct err why;
    TRY(put_key(s, TCPSTORE_ADD, c->keys[0], e));
    TRY(tcpstore_put_number(&s->conn, (uint64_t)c->delta, e));
    int rc = tcpstore_take_number(&s->conn, c->ret, deadline, e);
    if (rc == -ECONNRESET && look_at_value(s, c, deadline, &why) == -EINVAL)
        return err_set(e, -EINVAL, "%s", why.text);
    return rc;
}

static const struct store_attempts attempts = {tcp_connect, try_get, try_set, try_add, try_wait};

/* --- life */

static void tcp_close(struct store *store)
{
    struct tcp_store *s = (struct tcp_store *)store;
    tcpstore_finish(&s->conn);
    turn_store_finish(&s->base);
    free(s->host);
    free(s->port);
    free(s);
}

static int bad_address(struct err *e)
{
    return err_set(e, -EINVAL,
                   "expected tcp://host:port, tcp://[v6 address]:port, ?generation=1 behind it for torch before 2.2");
}

/* Parse "host:port" or "[v6]:port", perhaps with "?generation=N". */
static int split_address(struct tcp_store *s, const char *address, bool *older, struct err *e)
{
    const char *options = strchr(address, '?');
    const size_t len = options ? (size_t)(options - address) : strlen(address);
    *older = options && strcmp(options, "?generation=1") == 0;
    if (options && !*older && strcmp(options, "?generation=2") != 0)
        return bad_address(e);
    struct host_port to;
    if (!addr_split(address, len, &to) || to.bare_v6 || !to.port || addr_port(to.port, to.port_len) < 0)
        return bad_address(e);
    s->host = strndup(to.host, to.host_len);
    s->port = strndup(to.port, to.port_len);
    return s->host && s->port ? 0 : err_set(e, -ENOMEM, "out of memory");
}

static int tcp_open(struct store **ret, const char *address, const struct store_options *o, struct err *e)
{
    bool older = false;
    struct tcp_store *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, -ENOMEM, "open store 'tcp://%s': out of memory", address);
    int rc = turn_store_init(&s->base, &store_tcp_ops, &attempts, e);
    if (rc == 0)
        rc = split_address(s, address, &older, e);
    tcpstore_init(&s->conn, older, s->base.abort_fd);
    if (rc == 0)
        rc = turn_store_connect(&s->base, o, e);
    if (rc < 0) {
        tcp_close(&s->base.store);
        return e ? err_wrap(e, "open store 'tcp://%s'", address) : rc;
    }
    *ret = &s->base.store;
    return 0;
}

const struct store_ops store_tcp_ops = {.scheme = "tcp", .open = tcp_open, .close = tcp_close, TURN_STORE_OPS};
