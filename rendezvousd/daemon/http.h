/* What a rendezvous server shows over HTTP, read-only:
 *
 *     /healthz      200 "ok" as long as the loop turns
 *     /readyz       200 "ready"; 503 "standing by" while another daemon leads, "closing" once the server ends
 *     /metrics      Prometheus' text format (metrics.h)
 *     /, /api/...   the status page and what it reads (page/page.h, which says who may see what) */
#ifndef CRUN_RENDEZVOUSD_HTTP_H
#define CRUN_RENDEZVOUSD_HTTP_H

#include <stdbool.h>
#include <uv.h>

struct err;
struct gate;
struct http;
struct history;
struct jobs;
struct server;

struct http_options {
    const char *bind;       /* an IPv4 or IPv6 address */
    int port;               /* 0: the kernel picks */
    const char *token_file; /* common/auth/auth.h; NULL: anybody who reaches the port may read */
    bool any_host;          /* without tokens: accept any host name in requests */
    struct server *server;
    struct gate *gate;
    struct jobs *jobs;
    struct history *history;
    bool standing_by; /* until http_leads() */
};

/* Listens at once. ERR_USAGE: token file or address; -ENOENT: libmicrohttpd; -EADDRINUSE and the like. */
int http_open(struct http **ret, uv_loop_t *loop, const struct http_options *o, int *ret_port, struct err *e);
int http_reload(struct http *h, struct err *e); /* read the token file again; on failure the old tokens stay */
void http_leads(struct http *h);                /* this daemon stood by, and leads now */
void http_not_ready(struct http *h);            /* from now on /readyz says 503 */
/* After this returns, server, gate, jobs and history are not used any more. NULL allowed. */
void http_close(struct http *h);

#endif
