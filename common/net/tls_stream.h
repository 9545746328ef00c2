/* TLS without sockets: it turns bytes of the network into plain text and back. Servers, event-driven and blocking
 * clients use it alike. TLS 1.2 and 1.3; OpenSSL is opened on first use. Not thread-safe. */
#ifndef CRUN_COMMON_TLS_STREAM_H
#define CRUN_COMMON_TLS_STREAM_H

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct err;
struct tls_context;
struct tls_stream;

/* A server's certificate and key, in PEM files. client_ca: NULL, or clients must show a certificate of this
 * authority. A context may be replaced while streams made from it live on. ERR_USAGE names the file. */
int tls_context_server(struct tls_context **ret, const char *cert, const char *key, const char *client_ca,
                       struct err *e);

/* Which authorities a client trusts. ca: a file of them, NULL: the system's. cert and key: shown if the server asks,
 * or NULL. */
int tls_context_client(struct tls_context **ret, const char *ca, const char *cert, const char *key, struct err *e);

void tls_context_free(struct tls_context *c); /* NULL allowed */

/* server_name: NULL for the server's end; for the client's the host name or address that the server's certificate must
 * be for. */
int tls_stream_create(struct tls_stream **ret, struct tls_context *c, const char *server_name, struct err *e);
void tls_stream_free(struct tls_stream *t); /* NULL allowed */

/* Take n bytes from the network (n may be 0: a client's first hello). The plain text is appended to plain; what must
 * be sent now, to cipher (also on failure: an alert). 0; 1: the peer ended the stream in good order; -ECONNABORTED
 * with a sentence: handshake or record refused, the caller closes; -E2BIG, -ENOMEM: a buffer is full. */
int tls_stream_feed(struct tls_stream *t, const void *data, size_t n, struct buf *plain, struct buf *cipher,
                    struct err *e);

/* Encrypt n bytes: append them to cipher, or keep them until the handshake is over. */
int tls_stream_write(struct tls_stream *t, const void *data, size_t n, struct buf *cipher, struct err *e);

/* End the stream, so that the peer knows that nothing was cut off. Write nothing afterwards. Does nothing before the
 * handshake is over. */
void tls_stream_end(struct tls_stream *t, struct buf *cipher);

/* the handshake is over, and the peer is the one that it should be */
bool tls_stream_ready(const struct tls_stream *t);

#endif
