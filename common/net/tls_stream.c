/* TLS without sockets: OpenSSL between two memory BIOs (tls_stream.h). */
#include "common/net/tls_stream.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/net/ssl_lib.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tls_context {
    const struct ssl_lib *ssl;
    const struct crypto_lib *crypto;
    SSL_CTX *ctx;
};

struct tls_stream {
    const struct ssl_lib *ssl;
    const struct crypto_lib *crypto;
    SSL *s;
    BIO *in, *out;      /* owned by s */
    struct buf pending; /* plain text, until the handshake is over */
    bool ready;
};

/* --- context */

static int ssl_error(const struct crypto_lib *crypto, int code, struct err *e, const char *what)
{
    unsigned long n = crypto->ERR_get_error();
    const char *reason = n ? crypto->ERR_reason_error_string(n) : NULL;
    crypto->ERR_clear_error();
    return err_set(e, code, "%s: %s", what, reason ? reason : "failed");
}

static int file_error(const struct tls_context *c, struct err *e, const char *kind, const char *path)
{
    char what[320];
    snprintf(what, sizeof what, "%s '%.280s' cannot be used", kind, path);
    if (access(path, R_OK) < 0) { /* for which OpenSSL has no error text */
        const int why = errno;
        c->crypto->ERR_clear_error();
        return err_set(e, ERR_USAGE, "%s: %s", what, strerror(why));
    }
    return ssl_error(c->crypto, ERR_USAGE, e, what);
}

static int context_open(struct tls_context **ret, struct err *e)
{
    struct tls_context *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, -ENOMEM, "no memory for TLS");
    c->ssl = ssl_lib(e);
    c->crypto = c->ssl ? crypto_lib(e) : NULL;
    if (!c->crypto) {
        free(c);
        return -ENOENT;
    }
    c->crypto->ERR_clear_error();
    c->ctx = c->ssl->SSL_CTX_new(c->ssl->TLS_method());
    *ret = c;
    if (!c->ctx)
        return ssl_error(c->crypto, -EIO, e, "TLS cannot be set up");
    c->ssl->SSL_CTX_ctrl(c->ctx, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, NULL);
    /* Connections are few and long: save the memory of tickets and idle buffers. */
    c->ssl->SSL_CTX_ctrl(c->ctx, SSL_CTRL_MODE, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE, NULL);
    return 0;
}

static int use_certificate(struct tls_context *c, const char *cert, const char *key, struct err *e)
{
    if (c->ssl->SSL_CTX_use_certificate_chain_file(c->ctx, cert) != 1)
        return file_error(c, e, "certificate", cert);
    if (c->ssl->SSL_CTX_use_PrivateKey_file(c->ctx, key, SSL_FILETYPE_PEM) != 1)
        return file_error(c, e, "private key", key);
    if (c->ssl->SSL_CTX_check_private_key(c->ctx) != 1)
        return file_error(c, e, "private key (it does not belong to the certificate)", key);
    return 0;
}

static int ask_client_certificates(struct tls_context *c, const char *ca, struct err *e)
{
    if (c->ssl->SSL_CTX_load_verify_locations(c->ctx, ca, NULL) != 1)
        return file_error(c, e, "client authority", ca);
    c->ssl->SSL_CTX_set_client_CA_list(c->ctx, c->ssl->SSL_load_client_CA_file(ca));
    c->ssl->SSL_CTX_set_verify(c->ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return 0;
}

static int keep_or_free(int rc, struct tls_context *c, struct tls_context **ret)
{
    if (rc < 0)
        tls_context_free(c);
    else
        *ret = c;
    return rc;
}

int tls_context_server(struct tls_context **ret, const char *cert, const char *key, const char *client_ca,
                       struct err *e)
{
    struct tls_context *c = NULL;
    int rc = context_open(&c, e);
    if (rc == 0)
        rc = use_certificate(c, cert, key, e);
    if (rc == 0 && client_ca)
        rc = ask_client_certificates(c, client_ca, e);
    return keep_or_free(rc, c, ret);
}

int tls_context_client(struct tls_context **ret, const char *ca, const char *cert, const char *key, struct err *e)
{
    struct tls_context *c = NULL;
    int rc = context_open(&c, e);
    if (rc == 0 && ca && c->ssl->SSL_CTX_load_verify_locations(c->ctx, ca, NULL) != 1)
        rc = file_error(c, e, "authority", ca);
    if (rc == 0 && !ca && c->ssl->SSL_CTX_set_default_verify_paths(c->ctx) != 1)
        rc = ssl_error(c->crypto, -EIO, e, "the system's authorities cannot be read");
    if (rc == 0 && cert)
        rc = use_certificate(c, cert, key ? key : cert, e);
    if (rc == 0)
        c->ssl->SSL_CTX_set_verify(c->ctx, SSL_VERIFY_PEER, NULL);
    return keep_or_free(rc, c, ret);
}

void tls_context_free(struct tls_context *c)
{
    if (c && c->ctx)
        c->ssl->SSL_CTX_free(c->ctx);
    free(c);
}

/* --- stream */

static int expect_name(struct tls_stream *t, const char *name, struct err *e)
{
    unsigned char bytes[sizeof(struct in6_addr)];
    bool address = inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1;
    int ok = address ? t->crypto->X509_VERIFY_PARAM_set1_ip_asc(t->ssl->SSL_get0_param(t->s), name)
                     : t->ssl->SSL_set1_host(t->s, name);
    if (!ok)
        return err_set(e, -EINVAL, "'%s' is no name that a certificate can be for", name);
    if (!address)
        t->ssl->SSL_ctrl(t->s, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, (void *)(size_t)name);
    return 0;
}

int tls_stream_create(struct tls_stream **ret, struct tls_context *c, const char *server_name, struct err *e)
{
    struct tls_stream *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, -ENOMEM, "no memory for a TLS stream");
    t->ssl = c->ssl;
    t->crypto = c->crypto;
    t->s = t->ssl->SSL_new(c->ctx);
    t->in = t->crypto->BIO_new(t->crypto->BIO_s_mem());
    t->out = t->crypto->BIO_new(t->crypto->BIO_s_mem());
    if (!t->s || !t->in || !t->out) {
        t->crypto->BIO_free(t->in);
        t->crypto->BIO_free(t->out);
        t->ssl->SSL_free(t->s);
        free(t);
        return err_set(e, -ENOMEM, "no memory for a TLS stream");
    }
    t->ssl->SSL_set_bio(t->s, t->in, t->out);
    if (server_name)
        t->ssl->SSL_set_connect_state(t->s);
    else
        t->ssl->SSL_set_accept_state(t->s);
    int rc = server_name ? expect_name(t, server_name, e) : 0;
    if (rc < 0)
        tls_stream_free(t);
    else
        *ret = t;
    return rc;
}

void tls_stream_free(struct tls_stream *t)
{
    if (!t)
        return;
    t->ssl->SSL_free(t->s);
    buf_free(&t->pending);
    free(t);
}

static int drain(struct tls_stream *t, struct buf *cipher)
{
    char part[16 * 1024];
    int n;
    while ((n = t->crypto->BIO_read(t->out, part, sizeof part)) > 0)
        TRY(buf_add(cipher, part, (size_t)n));
    return 0;
}

static int refused(struct tls_stream *t, struct err *e)
{
    long verify = t->ssl->SSL_get_verify_result(t->s);
    if (!t->ready && verify != X509_V_OK) {
        t->crypto->ERR_clear_error();
        return err_set(e, -ECONNABORTED, "TLS: the peer's certificate is refused: %s",
                       t->crypto->X509_verify_cert_error_string(verify));
    }
    return ssl_error(t->crypto, -ECONNABORTED, e, "TLS");
}

/* 1: go on, 0: wait for more bytes. */
static int verdict(struct tls_stream *t, int n, struct err *e)
{
    if (n > 0)
        return 1;
    int code = t->ssl->SSL_get_error(t->s, n);
    return code == SSL_ERROR_WANT_READ || code == SSL_ERROR_WANT_WRITE || code == SSL_ERROR_ZERO_RETURN ? 0
                                                                                                        : refused(t, e);
}

static int seal(struct tls_stream *t, const char *p, size_t n, struct err *e)
{
    for (size_t at = 0; at < n;) {
        size_t part = n - at < (1 << 30) ? n - at : 1 << 30;
        t->crypto->ERR_clear_error();
        int w = t->ssl->SSL_write(t->s, p + at, (int)part);
        if (w <= 0)
            return refused(t, e);
        at += (size_t)w;
    }
    return 0;
}

static int shake_hands(struct tls_stream *t, struct err *e)
{
    int rc = verdict(t, t->ssl->SSL_do_handshake(t->s), e);
    if (rc <= 0)
        return rc;
    t->ready = true;
    rc = seal(t, t->pending.data, t->pending.len, e);
    buf_free(&t->pending);
    return rc < 0 ? rc : 1;
}

static int open_records(struct tls_stream *t, struct buf *plain, struct err *e)
{
    char part[16 * 1024];
    int n;
    while ((n = t->ssl->SSL_read(t->s, part, sizeof part)) > 0)
        TRY(buf_add(plain, part, (size_t)n));
    if (t->ssl->SSL_get_error(t->s, n) == SSL_ERROR_ZERO_RETURN)
        return 1;
    return verdict(t, n, e);
}

int tls_stream_feed(struct tls_stream *t, const void *data, size_t n, struct buf *plain, struct buf *cipher,
                    struct err *e)
{
    if (n > 0 && t->crypto->BIO_write(t->in, data, (int)n) != (int)n)
        return err_set(e, -ENOMEM, "no memory for TLS records");
    t->crypto->ERR_clear_error();
    int rc = t->ready ? 1 : shake_hands(t, e);
    if (rc > 0)
        rc = open_records(t, plain, e);
    int sent = drain(t, cipher);
    return sent < 0 ? err_set(e, sent, "no room for TLS records") : rc;
}

int tls_stream_write(struct tls_stream *t, const void *data, size_t n, struct buf *cipher, struct err *e)
{
    if (!t->ready)
        return buf_add(&t->pending, data, n) < 0 ? err_set(e, -ENOMEM, "no memory for %zu bytes before TLS is ready", n)
                                                 : 0;
    TRY(seal(t, data, n, e));
    int rc = drain(t, cipher);
    return rc < 0 ? err_set(e, rc, "no room for TLS records") : 0;
}

void tls_stream_end(struct tls_stream *t, struct buf *cipher)
{
    if (!t->ready)
        return;
    t->ssl->SSL_shutdown(t->s);
    drain(t, cipher);
    t->crypto->ERR_clear_error();
}

bool tls_stream_ready(const struct tls_stream *t)
{
    return t->ready;
}
