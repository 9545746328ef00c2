/* Speaks RESP2 over one connection: TLS, proof of identity, then requests and replies in order. See rdzv_conn.h. */
#include "launcher/rendezvous/rdzv_conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/auth/auth.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/net/resp_reader.h"
#include "common/net/tls_stream.h"
#include "common/rdzv/wire/rdzv_wire.h"

#define REPLY_MAX ((size_t)1 << 20) /* bytes of a reply: a page of members' addresses is the longest */
#define ARRAY_MAX 16                /* elements of an answer */
#define READ_BYTES 16384

enum greeting { GREET_TLS, GREET_AUTH, GREET_PROOF, GREET_DONE };

struct rdzv_conn {
    uv_tcp_t tcp;
    int fd;
    struct rdzv_conn_options o;
    enum greeting greeting;
    struct auth_client auth;
    struct tls_stream *tls;
    struct buf plain;  /* with TLS: received */
    struct buf unsent; /* with TLS: encrypted */
    redisReader *reader;
    struct resp_bound bound;
    uv_timer_t soon; /* for what must not be reported from inside open() */
    int open_handles;
    bool closing, lost;
    bool heard; /* a reply */
    char bytes[READ_BYTES];
};

struct out {
    uv_write_t req;
    struct rdzv_conn *c;
    char data[];
};

/* --- the end */

static void on_closed(uv_handle_t *h)
{
    struct rdzv_conn *c = h->data;
    if (--c->open_handles > 0)
        return;
    tls_stream_free(c->tls);
    auth_client_end(&c->auth);
    buf_free(&c->plain);
    buf_free(&c->unsent);
    if (c->reader)
        redisReaderFree(c->reader);
    free(c);
}

void rdzv_conn_close(struct rdzv_conn *c)
{
    if (!c || c->closing)
        return;
    c->closing = true;
    uv_close((uv_handle_t *)&c->tcp, on_closed);
    uv_close((uv_handle_t *)&c->soon, on_closed);
}

static void lose(struct rdzv_conn *c, enum rdzv_lost how, const char *why)
{
    if (c->closing || c->lost)
        return;
    c->lost = true;
    uv_read_stop((uv_stream_t *)&c->tcp);
    c->o.lost(c->o.arg, how, why);
}

static void lose_stranger(struct rdzv_conn *c)
{
    lose(c, RDZV_STRANGER, "answers, but is no rendezvous");
}

static void lose_malformed(struct rdzv_conn *c, const char *why)
{
    if (c->heard)
        lose(c, RDZV_LOST, why);
    else
        lose_stranger(c);
}

/* --- sending */

static void on_written(uv_write_t *req, int status)
{
    struct out *out = (struct out *)req;
    struct rdzv_conn *c = out->c;
    free(out);
    if (status < 0 && status != UV_ECANCELED)
        lose(c, RDZV_LOST, uv_strerror(status));
}

static int write_unsent(struct rdzv_conn *c)
{
    const size_t n = c->unsent.len;
    if (n == 0)
        return 0;
    struct out *out = malloc(sizeof *out + n);
    if (!out)
        return -ENOMEM;
    memcpy(out->data, c->unsent.data, n);
    buf_clear(&c->unsent);
    out->c = c;
    uv_buf_t b = uv_buf_init(out->data, (unsigned)n);
    int rc = uv_write(&out->req, (uv_stream_t *)&c->tcp, &b, 1, on_written);
    if (rc < 0)
        free(out);
    return rc;
}

int rdzv_conn_queue(struct rdzv_conn *c, int argc, const char *const *argv, const size_t *lens)
{
    char *text = NULL;
    if (c->closing || c->lost)
        return -EPIPE;
    long long n = redisFormatCommandArgv(&text, argc, (const char **)argv, lens);
    if (n < 0)
        return -ENOMEM;
    int rc =
        c->tls ? tls_stream_write(c->tls, text, (size_t)n, &c->unsent, NULL) : buf_add(&c->unsent, text, (size_t)n);
    redisFreeCommand(text);
    return rc;
}

int rdzv_conn_send(struct rdzv_conn *c, int argc, const char *const *argv, const size_t *lens)
{
    int rc = rdzv_conn_queue(c, argc, argv, lens);
    return rc < 0 ? rc : write_unsent(c);
}

/* --- who we are, and who they are */

static void be_ready(struct rdzv_conn *c)
{
    c->greeting = GREET_DONE;
    auth_client_end(&c->auth);
    c->o.ready(c->o.arg);
}

static void introduce(struct rdzv_conn *c)
{
    struct err e = {0};
    if (!c->o.token) {
        be_ready(c);
        return;
    }
    c->greeting = GREET_AUTH;
    if (auth_client_begin(&c->auth, c->o.token, &e) < 0) {
        lose(c, RDZV_DENIED, e.text);
        return;
    }
    const char *argv[] = {"STORE.AUTH", c->auth.token.principal, c->auth.nonce};
    if (rdzv_conn_send(c, 3, argv, NULL) < 0)
        lose(c, RDZV_LOST, "cannot send");
}

static bool is_error(const redisReply *r, const char *word)
{
    size_t n = strlen(word);
    return r->type == REDIS_REPLY_ERROR && r->len >= n && strncmp(r->str, word, n) == 0;
}

static bool is_denial(const redisReply *r)
{
    return is_error(r, "NOAUTH") || is_error(r, "WRONGPASS") || is_error(r, "NOPERM");
}

static void on_challenge(struct rdzv_conn *c, const redisReply *r)
{
    char proof[AUTH_HEX + 1];
    struct err e = {0};
    if (r->type == REDIS_REPLY_STATUS && c->o.unproved) {
        be_ready(c);
        return;
    }
    if (r->type == REDIS_REPLY_STATUS) {
        lose(c, RDZV_DENIED, "the server does not prove who it is: give it a token file, or say --insecure");
        return;
    }
    if (is_error(r, "ERR unknown command")) { /* a Redis */
        lose_stranger(c);
        return;
    }
    if (r->type == REDIS_REPLY_ERROR) {
        lose(c, is_denial(r) ? RDZV_DENIED : RDZV_LOST, rdzv_refusal(r->str));
        return;
    }
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 3 || r->element[0]->type != REDIS_REPLY_STRING ||
        r->element[1]->type != REDIS_REPLY_STRING || r->element[2]->type != REDIS_REPLY_STRING) {
        lose(c, RDZV_LOST, "the server's challenge makes no sense");
        return;
    }
    int rc = auth_client_answer(&c->auth, r->element[0]->str, r->element[0]->len, r->element[1]->str,
                                r->element[1]->len, r->element[2]->str, r->element[2]->len, proof, &e);
    if (rc < 0) {
        lose(c, RDZV_DENIED, e.text);
        return;
    }
    c->greeting = GREET_PROOF;
    if (rdzv_conn_send(c, 2, (const char *[]){"STORE.PROVE", proof}, NULL) < 0)
        lose(c, RDZV_LOST, "cannot send");
}

static void on_verdict(struct rdzv_conn *c, const redisReply *r)
{
    if (r->type == REDIS_REPLY_STATUS)
        be_ready(c);
    else if (r->type == REDIS_REPLY_ERROR)
        lose(c, is_denial(r) ? RDZV_DENIED : RDZV_LOST, rdzv_refusal(r->str));
    else
        lose(c, RDZV_LOST, "the server's verdict makes no sense");
}

/* --- receiving */

static void handle_reply(struct rdzv_conn *c, const redisReply *r)
{
    c->heard = true;
    switch (c->greeting) {
    case GREET_TLS:
        lose(c, RDZV_LOST, "the server speaks before it is asked");
        break;
    case GREET_AUTH:
        on_challenge(c, r);
        break;
    case GREET_PROOF:
        on_verdict(c, r);
        break;
    case GREET_DONE:
        c->o.reply(c->o.arg, r);
        break;
    }
}

static void decode(struct rdzv_conn *c, const char *data, size_t n)
{
    struct err e = {0};
    redisReply *r;
    int rc = resp_reader_feed(&c->bound, c->reader, data, n, &e);
    while (rc == 0 && !c->closing && !c->lost &&
           (rc = resp_reader_take(&c->bound, c->reader, REPLY_MAX, &r, &e)) == 1) {
        handle_reply(c, r);
        freeReplyObject(r);
        rc = 0;
    }
    if (rc < 0)
        lose_malformed(c, e.text);
}

static void decrypt(struct rdzv_conn *c, const char *data, size_t n)
{
    struct err e = {0};
    int rc = tls_stream_feed(c->tls, data, n, &c->plain, &c->unsent, &e);
    if (write_unsent(c) < 0 && rc == 0)
        rc = err_set(&e, -EPIPE, "cannot send");
    if (rc < 0) {
        lose(c, c->greeting == GREET_TLS ? RDZV_DENIED : RDZV_LOST, e.text);
        return;
    }
    if (c->greeting == GREET_TLS && tls_stream_ready(c->tls))
        introduce(c);
    if (c->plain.len && !c->closing && !c->lost)
        decode(c, c->plain.data, c->plain.len);
    if (!c->closing)
        buf_clear(&c->plain);
    if (rc == 1)
        lose(c, RDZV_LOST, "the server closed the connection");
}

static void give_memory(uv_handle_t *h, size_t hint, uv_buf_t *ret)
{
    struct rdzv_conn *c = h->data;
    (void)hint;
    *ret = uv_buf_init(c->bytes, sizeof c->bytes);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct rdzv_conn *c = s->data;
    (void)b;
    if (n > 0 && c->tls)
        decrypt(c, c->bytes, (size_t)n);
    else if (n > 0)
        decode(c, c->bytes, (size_t)n);
    else if (n < 0)
        lose(c, RDZV_LOST, n == UV_EOF ? "the server closed the connection" : uv_strerror((int)n));
}

/* --- the beginning */

static void begin(uv_timer_t *t)
{
    struct rdzv_conn *c = t->data;
    int rc = uv_read_start((uv_stream_t *)&c->tcp, give_memory, on_read);
    if (rc < 0)
        lose(c, RDZV_LOST, uv_strerror(rc));
    else if (c->tls)
        decrypt(c, NULL, 0);
    else
        introduce(c);
}

static int prepare(struct rdzv_conn *c, struct err *e)
{
    if (!(c->reader = resp_reader_create(&c->bound, ARRAY_MAX)))
        return err_set(e, -ENOMEM, "no memory for a connection");
    if (c->o.tls)
        return tls_stream_create(&c->tls, c->o.tls, c->o.server_name, e);
    return 0;
}

int rdzv_conn_open(struct rdzv_conn **ret, uv_loop_t *loop, int fd, const struct rdzv_conn_options *o, struct err *e)
{
    struct rdzv_conn *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return err_set(e, -ENOMEM, "no memory for a connection");
    }
    c->o = *o;
    c->fd = fd;
    c->open_handles = 2;
    uv_tcp_init(loop, &c->tcp);
    uv_timer_init(loop, &c->soon);
    c->tcp.data = c->soon.data = c;
    int rc = uv_tcp_open(&c->tcp, fd);
    if (rc < 0) {
        close(fd);
        err_errno(e, -rc, "connection");
    } else {
        rc = prepare(c, e);
    }
    if (rc < 0) {
        rdzv_conn_close(c);
        return rc;
    }
    uv_timer_start(&c->soon, begin, 0, 0);
    *ret = c;
    return 0;
}

int rdzv_conn_fd(const struct rdzv_conn *c)
{
    return c->fd;
}
