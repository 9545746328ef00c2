/* A small read-only HTTP server for people and probes: GET and HEAD of a table of pages; each answer is complete in
 * memory. libmicrohttpd parses and answers; its epoll descriptor is polled by the caller's loop, so that there is no
 * further thread. It is loaded when the first server opens, not before.
 *
 * With a token file, pages require a token unless their access says otherwise: "Authorization: Bearer SECRET", or
 * Basic with a principal and its secret, which browsers ask their user for. Without one, a request must be addressed
 * to an IP address or localhost. Otherwise a foreign web page could read ours through a host name that resolves to
 * this machine (DNS rebinding). */
#ifndef CRUN_COMMON_HTTP_SERVER_H
#define CRUN_COMMON_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "common/base/buf.h"

struct err;
struct http_request;
struct http_server;

struct http_answer {
    const struct http_request *request;
    unsigned status;  /* 200 */
    const char *type; /* text/plain */
    bool no_prompt;   /* with 401: the browser must not show its password dialogue */
    struct buf body;
};

#define HTTP_PROMETHEUS "text/plain; version=0.0.4; charset=utf-8"

enum http_access {
    HTTP_FOR_TOKENS, /* needs a token, if there are any */
    HTTP_FOR_PROBES, /* anybody, under any host name: probes have no token */
    HTTP_DECIDES,    /* the page checks access itself */
};

struct http_page {
    const char *url;
    int (*answer)(void *arg, struct http_answer *a); /* < 0: the connection is dropped. Loop thread */
    enum http_access access;
};

struct http_server_options { /* strings and pages are borrowed */
    const char *name;        /* "rendezvousd"; browsers show it when they ask for a token */
    const char *bind;        /* an IPv4 or IPv6 address */
    int port;                /* 0: the kernel chooses */
    const char *token_file;  /* common/auth/auth.h; NULL: anybody who reaches the port may read */
    bool any_host;           /* without tokens: accept any host name in requests */
    const struct http_page *pages;
    size_t n_pages;
    void *arg; /* of the pages */
};

/* Listens at once. ERR_USAGE: token file or address; -ENOENT: libmicrohttpd; -EADDRINUSE and the like. */
int http_server_open(struct http_server **ret, uv_loop_t *loop, const struct http_server_options *o, int *ret_port,
                     struct err *e);
int http_server_reload(struct http_server *h,
                       struct err *e); /* read the token file again; on failure the old tokens stay */
/* After this returns no page function is called; h is freed in a later turn of the loop. NULL allowed. */
void http_server_close(struct http_server *h);

/* The value of ?name=; NULL: there is none. Valid during the answer. */
const char *http_argument(const struct http_answer *a, const char *name);
/* The credentials of the request; the caller wipes them. */
struct http_credentials;
void http_credentials(const struct http_answer *a, struct http_credentials *ret);
bool http_shows_token(const struct http_answer *a); /* one of the server's */
bool http_has_tokens(const struct http_answer *a);  /* the server has some */
int http_peer_fd(const struct http_answer *a);      /* our end of the connection */
int http_refuse(struct http_answer *a, unsigned status, const char *why);

#endif
