/* A blocking client connection that speaks RESP2 (resp_conn.h). */
#include "common/net/resp_conn.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/dial.h"
#include "common/net/resolve.h"
#include "common/net/tls_stream.h"

enum { MAX_ARRAY = 65536 /* elements of a reply */ };

void resp_init(struct resp_conn *c, int abort_fd)
{
    *c = (struct resp_conn){.fd = -1, .abort_fd = abort_fd, .max_reply = (size_t)1 << 20};
    buf_init(&c->out, 0);
}

void resp_hang_up(struct resp_conn *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    if (c->reader)
        redisReaderFree(c->reader);
    c->reader = NULL;
    tls_stream_free(c->tls);
    c->tls = NULL;
    buf_clear(&c->out);
    buf_free(&c->plain);
    buf_free(&c->cipher);
}

void resp_finish(struct resp_conn *c)
{
    resp_hang_up(c);
    buf_free(&c->out);
}

int resp_dial(struct resp_conn *c, const char *host, const char *port, int64_t deadline, struct err *e)
{
    resp_hang_up(c);
    TRY(dial(host, port, deadline, c->abort_fd, &c->fd, e));
    if ((c->reader = resp_reader_create(&c->bound, MAX_ARRAY)))
        return 0;
    resp_hang_up(c);
    return err_set(e, -ENOMEM, "out of memory");
}

bool resp_is_stale(const struct resp_conn *c)
{
    char byte;
    ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n > 0 && !c->tls) /* bytes on an idle TLS connection may be TLS's own messages */ ||
           (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

int resp_append(struct resp_conn *c, int argc, const char *const *argv, const size_t *lens, struct err *e)
{
    char *text = NULL;
    long long n = redisFormatCommandArgv(&text, argc, (const char **)argv, lens);
    if (n < 0)
        return err_set(e, -ENOMEM, "a request that large does not fit in memory");
    int rc = buf_add(&c->out, text, (size_t)n);
    redisFreeCommand(text);
    return rc < 0 ? err_set(e, rc, "a request of %lld bytes is too large", n) : 0;
}

static int send_bytes(struct resp_conn *c, struct buf *out, int64_t deadline, struct err *e)
{
    for (size_t sent = 0; sent < out->len;) {
        ssize_t n = send(c->fd, out->data + sent, out->len - sent, MSG_NOSIGNAL);
        if (n >= 0)
            sent += (size_t)n;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            TRY(wait_fd(c->fd, POLLOUT, deadline, c->abort_fd, e));
        else if (errno != EINTR)
            return err_errno(e, errno, "send");
    }
    buf_clear(out);
    return 0;
}

static int send_all(struct resp_conn *c, int64_t deadline, struct err *e)
{
    if (!c->tls)
        return send_bytes(c, &c->out, deadline, e);
    TRY(tls_stream_write(c->tls, c->out.data, c->out.len, &c->cipher, e));
    buf_clear(&c->out);
    return send_bytes(c, &c->cipher, deadline, e);
}

static int feed_tls(struct resp_conn *c, const char *p, size_t n, int64_t deadline, struct err *e)
{
    struct err unsent;
    int rc = tls_stream_feed(c->tls, p, n, &c->plain, &c->cipher, e);
    int sent = send_bytes(c, &c->cipher, deadline, rc < 0 ? &unsent : e);
    TRY(rc < 0 ? rc : sent);
    TRY(resp_reader_feed(&c->bound, c->reader, c->plain.data, c->plain.len, e));
    buf_clear(&c->plain);
    return rc == 1 ? err_set(e, -ECONNRESET, "the server closed the connection") : 0;
}

/* Read once and feed the codec. */
static int feed(struct resp_conn *c, int64_t deadline, struct err *e)
{
    char chunk[16384];
    TRY(wait_fd(c->fd, POLLIN, deadline, c->abort_fd, e));
    ssize_t n = recv(c->fd, chunk, sizeof chunk, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    if (n < 0)
        return err_errno(e, errno, "receive");
    if (n == 0)
        return err_set(e, -ECONNRESET, "the server closed the connection");
    return c->tls ? feed_tls(c, chunk, (size_t)n, deadline, e)
                  : resp_reader_feed(&c->bound, c->reader, chunk, (size_t)n, e);
}

int resp_start_tls(struct resp_conn *c, struct tls_context *ctx, const char *server_name, int64_t deadline,
                   struct err *e)
{
    int rc = tls_stream_create(&c->tls, ctx, server_name, e);
    if (rc == 0)
        rc = feed_tls(c, "", 0, deadline, e);
    while (rc == 0 && !tls_stream_ready(c->tls))
        rc = feed(c, deadline, e);
    if (e && (rc == -ETIMEDOUT || rc == -ECONNRESET))
        err_wrap(e, "the TLS handshake (does it speak TLS?)");
    if (rc < 0)
        resp_hang_up(c);
    return rc;
}

/* The deadline holds for the whole reply: a server that sends one without end gets no more time than a silent one. */
static int receive(struct resp_conn *c, redisReply **reply, int64_t deadline, struct err *e)
{
    for (;;) {
        const int rc = resp_reader_take(&c->bound, c->reader, c->max_reply, reply, e);
        if (rc != 0)
            return rc < 0 ? rc : 0;
        if (c->bound.bytes > 0 && clock_left(deadline) == 0)
            return err_set(e, -ETIMEDOUT, "the deadline passed within a reply");
        TRY(feed(c, deadline, e));
    }
}

int resp_send(struct resp_conn *c, int64_t deadline, struct err *e)
{
    int rc = send_all(c, deadline, e);
    if (rc < 0)
        resp_hang_up(c);
    return rc;
}

int resp_receive(struct resp_conn *c, redisReply **reply, int64_t deadline, struct err *e)
{
    int rc = receive(c, reply, deadline, e);
    if (rc < 0)
        resp_hang_up(c);
    return rc;
}

int resp_exchange(struct resp_conn *c, size_t n, redisReply **replies, int64_t deadline, struct err *e)
{
    size_t got = 0;
    int rc = send_all(c, deadline, e);
    while (rc == 0 && got < n) {
        rc = receive(c, &replies[got], deadline, e);
        got += rc == 0;
    }
    if (rc < 0) {
        resp_hang_up(c);
        while (got > 0)
            freeReplyObject(replies[--got]);
    }
    return rc;
}
