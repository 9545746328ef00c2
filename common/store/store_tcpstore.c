/* The store over PyTorch's TCPStore protocol: real torchrun's agent store, or a bootstrap store of ours.
 *
 * - tcp://host:port speaks the newer generation (torch 2.2 and later), tcp://host:port?generation=1 the older. It
 *   cannot be found out: the newer handshake makes an older server stand still for all its clients.
 * - SET has no answer: a CHECK of the key behind it is one, because a server answers in order.
 * - GET of a missing key is an empty value in one generation and the end of the connection in the other: CHECK comes
 *   first.
 * - COMPARE_SET says what the key holds afterwards, not who put it there. So what it writes begins with a mark and a
 *   number nobody else draws; get takes both off again. An empty value is written with a mark as well: COMPARE_SET
 *   takes "" for "does not exist".
 * - ADD to something else than a number ends the connection; the value is looked at then, to tell that from a lost
 *   one. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/args/args.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/addr.h"
#include "common/net/tcpstore_conn.h"
#include "common/store/store.h"
#include "common/store/store_turn.h"

#define MARK                                                                                                           \
    "\xff\xfe"                                                                                                         \
    "crun"
enum { MARK_LEN = 6, DRAWN_LEN = 16, MARKED_LEN = MARK_LEN + DRAWN_LEN };

struct tcp_store {
    struct turn_store base;
    char *host, *port;
    struct tcpstore_conn conn;
};

/* --- marks */

static bool is_marked(const void *p, size_t n)
{
    return n >= MARKED_LEN && memcmp(p, MARK, MARK_LEN) == 0;
}

/* What the user wrote, of what the server holds. */
static void unmark(const struct buf *raw, const char **p, size_t *n)
{
    const size_t skip = is_marked(raw->data, raw->len) ? MARKED_LEN : 0;
    *p = raw->len > skip ? raw->data + skip : "";
    *n = raw->len - skip;
}

/* Room for the mark and the value, to be freed with buf_free(). */
static int mark(struct buf *ret, const void *p, size_t n, bool draw, struct err *e)
{
    char drawn[DRAWN_LEN] = {0};
    if (draw && getrandom(drawn, sizeof drawn, 0) != sizeof drawn)
        return err_errno(e, errno, "getrandom");
    int rc = buf_add(ret, MARK, MARK_LEN);
    if (rc == 0)
        rc = buf_add(ret, drawn, sizeof drawn);
    if (rc == 0)
        rc = buf_add(ret, p, n);
    return rc < 0 ? err_set(e, rc, "a value of %zu bytes is too large", n) : 0;
}

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

/* What the server holds. 1, or 0 if there is no such key. */
static int fetch(struct tcp_store *s, const char *key, struct buf *raw, int64_t deadline, struct err *e)
{
    bool there;
    TRY(check(s, &key, 1, &there, deadline, e));
    if (!there)
        return 0;
    TRY(put_key(s, TCPSTORE_GET, key, e));
    TRY(tcpstore_take_bytes(&s->conn, raw, deadline, e));
    return 1;
}

static int give(const struct buf *raw, struct buf *value, struct err *e)
{
    const char *p;
    size_t n;
    unmark(raw, &p, &n);
    int rc = value ? buf_add(value, p, n) : 0;
    return rc < 0 ? err_set(e, rc, "a value of %zu bytes exceeds what the buffer takes", n) : 0;
}

static int try_get(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct tcp_store *s = (struct tcp_store *)base;
    struct buf raw = {.max = c->value && c->value->max ? c->value->max + MARKED_LEN : 0};
    int rc = fetch(s, c->keys[0], &raw, deadline, e);
    if (rc == 0)
        rc = err_set(e, -ENOENT, "no such key");
    else if (rc > 0)
        rc = give(&raw, c->value, e);
    buf_free(&raw);
    return rc;
}

static int put_set(struct tcp_store *s, const char *key, const void *p, size_t n, struct err *e)
{
    TRY(put_key(s, TCPSTORE_SET, key, e));
    return tcpstore_put_bytes(&s->conn, p, n, e);
}

static int try_set(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct tcp_store *s = (struct tcp_store *)base;
    struct buf marked = {0};
    bool ignored;
    int rc = 0;
    if (c->desired_len == 0 || is_marked(c->desired, c->desired_len)) {
        rc = mark(&marked, c->desired, c->desired_len, false, e);
        if (rc == 0)
            rc = put_set(s, c->keys[0], marked.data, marked.len, e);
    } else
        rc = put_set(s, c->keys[0], c->desired, c->desired_len, e);
    buf_free(&marked);
    return rc < 0 ? rc : check(s, c->keys, 1, &ignored, deadline, e);
}

static int try_del(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct tcp_store *s = (struct tcp_store *)base;
    int64_t deleted, sum = 0;
    for (size_t i = 0; i < c->n; i++)
        TRY(put_key(s, TCPSTORE_DELETE, c->keys[i], e));
    for (size_t i = 0; i < c->n; i++) {
        TRY(tcpstore_take_number(&s->conn, &deleted, deadline, e));
        sum += deleted;
    }
    return (int)sum;
}

/* A wait whose time is over leaves the server waiting; only the end of the connection informs it in both
 * generations. */
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

/* --- add */

static int tcp_connect(struct turn_store *base, int64_t deadline, struct err *e)
{
    struct tcp_store *s = (struct tcp_store *)base;
    if (s->conn.fd >= 0 && tcpstore_is_stale(&s->conn))
        tcpstore_hang_up(&s->conn);
    return s->conn.fd >= 0 ? 0 : tcpstore_dial(&s->conn, s->host, s->port, deadline, e);
}

static int compare_set(struct tcp_store *s, const char *key, const void *expected, size_t expected_len,
                       const void *desired, size_t desired_len, struct buf *ret, int64_t deadline, struct err *e)
{
    TRY(put_key(s, TCPSTORE_COMPARE_SET, key, e));
    TRY(tcpstore_put_bytes(&s->conn, expected, expected_len, e));
    TRY(tcpstore_put_bytes(&s->conn, desired, desired_len, e));
    return tcpstore_take_bytes(&s->conn, ret, deadline, e);
}

/* After an ADD that ended the connection: is the value to blame? 0: no. -EINVAL: yes. 1: it was a marked number, and is
 * none any more. */
static int look_at_value(struct tcp_store *s, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct buf raw = {0}, after = {0};
    const char *p;
    size_t n;
    int64_t v;
    int rc = tcp_connect(&s->base, deadline, e);
    if (rc == 0)
        rc = fetch(s, c->keys[0], &raw, deadline, e);
    if (rc == 1) {
        unmark(&raw, &p, &n);
        if (strlen(p) != n || parse_i64(p, "", INT64_MIN, INT64_MAX, &v, NULL) < 0)
            rc = err_set(e, -EINVAL, "the value is not an integer");
        else if (__builtin_add_overflow(v, c->delta, &v))
            rc = err_set(e, -EINVAL, "the sum is not an integer of 64 bits");
        else if (is_marked(raw.data, raw.len)) /* whoever does this first: the number is the same */
            rc = compare_set(s, c->keys[0], raw.data, raw.len, p, n, &after, deadline, e) < 0 ? -ECONNRESET : 1;
        else
            rc = 0;
    }
    buf_free(&raw);
    buf_free(&after);
    return rc;
}

static int try_add(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct tcp_store *s = (struct tcp_store *)base;
    for (;;) {
        int64_t sum;
        struct err why = {0};
        TRY(put_key(s, TCPSTORE_ADD, c->keys[0], e));
        TRY(tcpstore_put_number(&s->conn, (uint64_t)c->delta, e));
        int rc = tcpstore_take_number(&s->conn, &sum, deadline, e);
        if (rc == 0)
            *c->ret = sum;
        if (rc != -ECONNRESET)
            return rc;
        int found = look_at_value(s, c, deadline, &why);
        if (found == -EINVAL)
            return err_set(e, found, "%s", why.text);
        if (found != 1)
            return rc;
    }
}

/* --- compare and set */

/* 1: swapped. 0: not; raw is what the key holds (raw->data NULL: nothing). -EAGAIN: somebody was faster, look again. */
static int swap(struct tcp_store *s, const struct store_call *c, const struct buf *ours, struct buf *raw,
                int64_t deadline, struct err *e)
{
    const char *p;
    size_t n;
    int there = fetch(s, c->keys[0], raw, deadline, e);
    if (there < 0)
        return there;
    unmark(raw, &p, &n);
    const bool equal = there && c->expected && n == c->expected_len && memcmp(p, c->expected, n) == 0;
    if (c->expected ? !equal : there) {
        if (!there)
            buf_free(raw);
        return 0;
    }
    struct buf after = {0};
    int rc = compare_set(s, c->keys[0], raw->data, raw->len, ours->data, ours->len, &after, deadline, e);
    if (rc == 0)
        rc = after.len == ours->len && memcmp(after.data, ours->data, ours->len) == 0 ? 1 : -EINPROGRESS;
    buf_free(&after);
    return rc;
}

static int try_cas(struct turn_store *base, const struct store_call *c, int64_t deadline, struct err *e)
{
    struct tcp_store *s = (struct tcp_store *)base;
    struct buf ours = {0}, raw = {0};
    int rc = mark(&ours, c->desired, c->desired_len, true, e);
    while (rc == 0 || rc == -EINPROGRESS) {
        buf_clear(&raw);
        rc = swap(s, c, &ours, &raw, deadline, e);
        if (rc >= 0)
            break;
    }
    if (rc >= 0 && c->value && (rc == 1 || raw.len > 0)) {
        int given = give(rc == 1 ? &ours : &raw, c->value, e);
        rc = given < 0 ? given : rc;
    }
    buf_free(&ours);
    buf_free(&raw);
    return rc;
}

static const struct store_attempts attempts = {tcp_connect, try_get, try_set, try_add, try_cas, try_wait, try_del};

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

/* "host:port" or "[v6]:port", then perhaps "?generation=N". */
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
