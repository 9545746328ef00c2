/* A blocking client connection that speaks the TCPStore protocol (tcpstore_conn.h). */
#include "common/net/tcpstore_conn.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/dial.h"
#include "common/net/resolve.h"

enum { HANDSHAKE = 0, PING = 13, MAGIC = 0x3C85F7CE };

void tcpstore_init(struct tcpstore_conn *c, bool older, int abort_fd)
{
    *c = (struct tcpstore_conn){.fd = -1, .older = older, .abort_fd = abort_fd};
}

void tcpstore_hang_up(struct tcpstore_conn *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    buf_clear(&c->out);
    c->sent = 0;
}

void tcpstore_finish(struct tcpstore_conn *c)
{
    tcpstore_hang_up(c);
    buf_free(&c->out);
}

bool tcpstore_is_stale(const struct tcpstore_conn *c)
{
    char byte;
    ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* --- requests */

static int put_bytes(struct tcpstore_conn *c, const void *p, size_t n, struct err *e)
{
    int rc = buf_add(&c->out, p, n);
    if (rc == 0)
        return 0;
    err_set(e, rc, "a request of %zu bytes is too large", c->out.len + n);
    tcpstore_hang_up(c); /* drops queued requests */
    return rc;
}

static int put_little_endian(struct tcpstore_conn *c, uint64_t v, size_t bytes, struct err *e)
{
    unsigned char le[8];
    for (size_t i = 0; i < bytes; i++, v >>= 8)
        le[i] = (unsigned char)v;
    return put_bytes(c, le, bytes, e);
}

int tcpstore_put(struct tcpstore_conn *c, enum tcpstore_verb verb, struct err *e)
{
    static const unsigned char codes[][2] = {
#define X(name, newer, older) [TCPSTORE_##name] = {newer, older},
        TCPSTORE_REQUESTS(X)
#undef X
    };
    return put_bytes(c, &codes[verb][c->older], 1, e);
}

int tcpstore_put_number(struct tcpstore_conn *c, uint64_t v, struct err *e)
{
    return put_little_endian(c, v, 8, e);
}

int tcpstore_put_bytes(struct tcpstore_conn *c, const void *p, size_t n, struct err *e)
{
    TRY(tcpstore_put_number(c, n, e));
    return put_bytes(c, p, n, e);
}

static int send_all(struct tcpstore_conn *c, int64_t deadline, struct err *e)
{
    while (c->sent < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);
        if (n >= 0)
            c->sent += (size_t)n;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            TRY(wait_fd(c->fd, POLLOUT, deadline, c->abort_fd, e));
        else if (errno != EINTR)
            return err_errno(e, errno, "send");
    }
    buf_clear(&c->out);
    c->sent = 0;
    return 0;
}

/* --- answers */

static int receive(struct tcpstore_conn *c, char *p, size_t n, int64_t deadline, struct err *e)
{
    while (n > 0) {
        ssize_t got = recv(c->fd, p, n, 0);
        if (got == 0)
            return err_set(e, -ECONNRESET, "the server closed the connection");
        if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            return err_errno(e, errno, "receive");
        if (got < 0)
            TRY(wait_fd(c->fd, POLLIN, deadline, c->abort_fd, e));
        else {
            p += got;
            n -= (size_t)got;
            if (n > 0 && clock_left(deadline) == 0)
                return err_set(e, -ETIMEDOUT, "the deadline passed within an answer");
        }
    }
    return 0;
}

static int take(struct tcpstore_conn *c, char *p, size_t n, int64_t deadline, struct err *e)
{
    int rc = send_all(c, deadline, e);
    if (rc == 0)
        rc = receive(c, p, n, deadline, e);
    if (rc < 0)
        tcpstore_hang_up(c);
    return rc;
}

int tcpstore_take_byte(struct tcpstore_conn *c, int *ret, int64_t deadline, struct err *e)
{
    char byte;
    TRY(take(c, &byte, 1, deadline, e));
    *ret = (unsigned char)byte;
    return 0;
}

static int take_little_endian(struct tcpstore_conn *c, size_t bytes, uint64_t *ret, int64_t deadline, struct err *e)
{
    unsigned char le[8];
    uint64_t v = 0;
    TRY(take(c, (char *)le, bytes, deadline, e));
    for (size_t i = bytes; i-- > 0;)
        v = v << 8 | le[i];
    *ret = v;
    return 0;
}

int tcpstore_take_number(struct tcpstore_conn *c, int64_t *ret, int64_t deadline, struct err *e)
{
    uint64_t v;
    TRY(take_little_endian(c, 8, &v, deadline, e));
    *ret = (int64_t)v;
    return 0;
}

/* Read a value. Memory grows with the bytes received, not with the length that was announced. */
static int take_value(struct tcpstore_conn *c, uint64_t n, struct buf *value, int64_t deadline, struct err *e)
{
    enum { CHUNK = 1 << 20 };
    while (n > 0) {
        const size_t more = n < CHUNK ? (size_t)n : CHUNK;
        const int rc = buf_reserve(value, more);
        if (rc < 0)
            return err_set(e, rc, "a value exceeds what the buffer takes");
        TRY(take(c, value->data + value->len, more, deadline, e));
        value->len += more;
        value->data[value->len] = 0;
        n -= more;
    }
    return 0;
}

int tcpstore_take_bytes(struct tcpstore_conn *c, struct buf *value, int64_t deadline, struct err *e)
{
    const size_t before = value->len, max = value->max ? value->max : (size_t)1 << 30;
    uint64_t n;
    TRY(take_little_endian(c, 8, &n, deadline, e));
    int rc = n > max || before > max - n
                 ? err_set(e, -E2BIG, "a value of %llu bytes exceeds what the buffer takes", (unsigned long long)n)
                 : take_value(c, n, value, deadline, e);
    if (rc < 0) {
        tcpstore_hang_up(c); /* close, because the rest of the value is still coming */
        value->len = before;
    }
    return rc;
}

/* --- beginning */

/* The hand-shake of the newer generation. (A server of the older one would read it as a key of a gigabyte, and block
 * for everybody.) */
static int shake_hands(struct tcpstore_conn *c, int64_t deadline, struct err *e)
{
    const unsigned char first = HANDSHAKE, ping = PING;
    const uint64_t nonce = (uint64_t)getpid() & 0xffffffff;
    uint64_t answer;
    TRY(put_bytes(c, &first, 1, e));
    TRY(put_little_endian(c, MAGIC, 4, e));
    TRY(put_bytes(c, &ping, 1, e));
    TRY(put_little_endian(c, nonce, 4, e));
    TRY(take_little_endian(c, 4, &answer, deadline, e));
    if (answer == nonce)
        return 0;
    tcpstore_hang_up(c);
    return err_set(e, -EPROTO, "this is no server of PyTorch's TCPStore: it answered the handshake wrongly");
}

int tcpstore_dial(struct tcpstore_conn *c, const char *host, const char *port, int64_t deadline, struct err *e)
{
    tcpstore_hang_up(c);
    TRY(dial(host, port, deadline, c->abort_fd, &c->fd, e));
    return c->older ? 0 : shake_hands(c, deadline, e);
}
