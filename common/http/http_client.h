/* HTTP/1.1 as a client: for the homes of a rendezvous that have an API (common/rdzv/homes: etcd, Kubernetes), and for
 * nothing else. libcurl speaks it, opened on first use: other runs load none of it.
 *
 * Calls block the calling thread until the answer, the deadline, or until cancel_fd is readable. Connections stay open
 * between them; one that broke meanwhile is dialled again, and the request with it: a request may arrive twice. Beside
 * the requests there is one stream: a GET or POST whose answer goes on, line by line. It moves on only within calls.
 * One thread per handle. */
#ifndef CRUN_COMMON_HTTP_CLIENT_H
#define CRUN_COMMON_HTTP_CLIENT_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct http_client;

struct http_client_options {
    const char *ca;         /* file of authorities, PEM; NULL: the system's */
    const char *cert, *key; /* files, PEM; NULL: no certificate of ours */
    int cancel_fd;
};

struct http_ask {
    const char *method; /* "GET" */
    const char *url;
    const char *headers[4]; /* "Name: value", up to a NULL */
    const char *body;       /* NULL: none */
    size_t body_n;
};

/* -ENOENT with a sentence that names the package: there is no libcurl. o: its texts are copied. */
int http_client_open(struct http_client **ret, const struct http_client_options *o, struct err *e);
void http_client_close(struct http_client *c); /* NULL allowed; waits for nobody */

/* The status, 100 to 599, with the answer's body in *ret, in place of what it held. -ETIMEDOUT: none by the deadline (a
 * clock_ms() time): what was asked may have happened, or happens later still; -ECANCELED; -ECONNREFUSED: there is
 * nobody to ask; ERR_REFUSED: the certificate of either side is; -EIO: another failure of the connection. */
int http_client_ask(struct http_client *c, const struct http_ask *a, int64_t deadline, struct buf *ret, struct err *e);
/* Seconds of the newest answer's Retry-After; 0: it has none. */
int64_t http_client_retry_after(const struct http_client *c);

/* Wait, for another try. 0, -ECANCELED. */
int http_client_pause(struct http_client *c, int64_t ms, struct err *e);

/* Begin the stream, in place of the one before. Sends no byte yet. */
int http_client_stream(struct http_client *c, const struct http_ask *a, struct err *e);
/* 1: the next line, into *ret; 0: none has come yet; negative: the stream has ended, or never began: -EPIPE, or minus
 * its status where that is 400 or more. Does not wait. */
int http_client_line(struct http_client *c, struct buf *ret);
void http_client_stream_end(struct http_client *c);

#endif
