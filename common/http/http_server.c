/* Serves a table of pages with libmicrohttpd on the caller's loop (http_server.h). */
#include "common/http/http_server.h"
#include "common/auth/auth.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/http/http_auth.h"
#include "common/http/http_lib.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#define MODULE "http"
#define MAX_CONNECTIONS 128 /* beyond that the oldest is closed, so that a probe can always connect */
#define BEING_CLOSED 16     /* at once, beside them */
#define TIMEOUT_S 10
#define MEMORY_PER_CONNECTION (32 * 1024)
#define URLS_MAX 256

struct client {
    int fd;
    bool leaves; /* shut down; libmicrohttpd closes it in its next run */
    struct client *prev, *next;
};

struct http_server {
    struct http_server_options o;
    const struct http_lib *lib;
    struct MHD_Daemon *mhd;
    struct auth_tokens tokens;
    uv_poll_t poll;
    uv_timer_t timer;
    struct client *clients; /* the oldest first */
    int staying;            /* of them, those that do not leave */
    unsigned closed;        /* ever */
    int open_handles;
};

struct http_request {
    struct http_server *h;
    struct MHD_Connection *c;
};

/* --- answers */

const char *http_argument(const struct http_answer *a, const char *name)
{
    return a->request->h->lib->MHD_lookup_connection_value(a->request->c, MHD_GET_ARGUMENT_KIND, name);
}

static const char *authorization(const struct http_answer *a)
{
    return a->request->h->lib->MHD_lookup_connection_value(a->request->c, MHD_HEADER_KIND, "Authorization");
}

void http_credentials(const struct http_answer *a, struct http_credentials *ret)
{
    http_auth_read(authorization(a), ret);
}

bool http_shows_token(const struct http_answer *a)
{
    return http_auth_token(&a->request->h->tokens, authorization(a));
}

bool http_has_tokens(const struct http_answer *a)
{
    return a->request->h->tokens.n > 0;
}

int http_peer_fd(const struct http_answer *a)
{
    return a->request->h->lib->MHD_get_connection_info(a->request->c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

int http_refuse(struct http_answer *a, unsigned status, const char *why)
{
    a->status = status;
    a->type = "text/plain; charset=utf-8";
    return buf_printf(&a->body, "%s\n", why);
}

static const struct http_page *look_up(const struct http_server *h, const char *url)
{
    for (size_t i = 0; i < h->o.n_pages; i++)
        if (strcmp(h->o.pages[i].url, url) == 0)
            return &h->o.pages[i];
    return NULL;
}

static int no_such_page(const struct http_server *h, struct http_answer *a)
{
    char text[URLS_MAX];
    size_t n = (size_t)snprintf(text, sizeof text, "no such page:");
    for (size_t i = 0; i < h->o.n_pages && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s %s", i ? "," : "", h->o.pages[i].url);
    return http_refuse(a, MHD_HTTP_NOT_FOUND, text);
}

static enum MHD_Result send_answer(struct http_server *h, struct MHD_Connection *c, struct http_answer *a)
{
    static const char *const headers[][2] = {
        {"Cache-Control", "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
         "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
    };
    struct MHD_Response *r = h->lib->MHD_create_response_from_buffer(a->body.len, a->body.data, MHD_RESPMEM_MUST_COPY);
    char realm[96];
    buf_free(&a->body);
    snprintf(realm, sizeof realm, "Basic realm=\"%s\", charset=\"UTF-8\"", h->o.name);
    if (!r)
        return MHD_NO;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        h->lib->MHD_add_response_header(r, headers[i][0], headers[i][1]);
    h->lib->MHD_add_response_header(r, "Content-Type", a->type);
    if (a->status == MHD_HTTP_UNAUTHORIZED && !a->no_prompt)
        h->lib->MHD_add_response_header(r, "WWW-Authenticate", realm);
    if (a->status == MHD_HTTP_METHOD_NOT_ALLOWED)
        h->lib->MHD_add_response_header(r, "Allow", "GET, HEAD");
    enum MHD_Result rc = h->lib->MHD_queue_response(c, a->status, r);
    h->lib->MHD_destroy_response(r);
    return rc;
}

/* Which page to serve, or the refusal: a client without access gets an answer with the reason. */
static int decide(struct http_server *h, const char *url, const char *method, struct http_answer *a)
{
    struct MHD_Connection *c = a->request->c;
    const struct http_page *p = look_up(h, url);
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return http_refuse(a, MHD_HTTP_METHOD_NOT_ALLOWED, "this server is read-only: GET or HEAD");
    if (!p)
        return no_such_page(h, a);
    if (p->access == HTTP_FOR_PROBES)
        return p->answer(h->o.arg, a);
    if (h->tokens.n > 0) {
        if (p->access == HTTP_FOR_TOKENS && !http_shows_token(a))
            return http_refuse(a, MHD_HTTP_UNAUTHORIZED,
                               "a token of this server's HTTP token file is needed: Bearer SECRET, or Basic "
                               "with a principal and its secret");
    } else if (!h->o.any_host && !http_auth_host(h->lib->MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host"))) {
        return http_refuse(a, 421, "without tokens this server answers requests to an IP address or localhost only");
    }
    return p->answer(h->o.arg, a);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *data, size_t *data_len, void **request)
{
    struct http_server *h = arg;
    static int begun; /* libmicrohttpd calls first with the headers alone */
    (void)version;
    (void)data;
    if (!*request) {
        *request = &begun;
        return MHD_YES;
    }
    if (*data_len > 0) {
        *data_len = 0; /* a body is ignored */
        return MHD_YES;
    }
    const struct http_request request_of = {h, c};
    struct http_answer a = {.request = &request_of, .status = MHD_HTTP_OK, .type = "text/plain; charset=utf-8"};
    if (decide(h, url, method, &a) < 0) {
        buf_free(&a.body);
        return MHD_NO;
    }
    return send_answer(h, c, &a);
}

/* --- clients */

static void let_oldest_leave(struct http_server *h)
{
    struct client *c = h->clients;
    while (c && c->leaves)
        c = c->next;
    if (!c)
        return;
    c->leaves = true;
    h->staying--;
    shutdown(c->fd, SHUT_RDWR);
}

static void on_connection(void *arg, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct http_server *h = arg;
    struct client *c = *context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED && (c = calloc(1, sizeof *c))) {
        *context = c;
        c->fd = h->lib->MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        DL_APPEND(h->clients, c);
        if (++h->staying > MAX_CONNECTIONS)
            let_oldest_leave(h);
    } else if (what == MHD_CONNECTION_NOTIFY_CLOSED && c) {
        h->closed++;
        h->staying -= !c->leaves;
        DL_DELETE(h->clients, c);
        free(c);
    }
}

/* --- the loop */

static void on_timer(uv_timer_t *t);

/* Run libmicrohttpd, again as long as connections end in a run. At its limit it stops listening, and begins again
 * only in a run that starts below the limit. */
static void turn(struct http_server *h)
{
    MHD_UNSIGNED_LONG_LONG ms;
    unsigned before;
    do {
        before = h->closed;
        h->lib->MHD_run(h->mhd);
    } while (h->closed != before);
    if (h->lib->MHD_get_timeout(h->mhd, &ms) == MHD_YES)
        uv_timer_start(&h->timer, on_timer, ms < 1000 ? ms : 1000, 0);
    else
        uv_timer_stop(&h->timer);
}

static void on_timer(uv_timer_t *t)
{
    turn(t->data);
}

static void on_poll(uv_poll_t *p, int status, int events)
{
    (void)status;
    (void)events;
    turn(p->data);
}

/* --- life */

static void on_log(void *arg, const char *fmt, va_list ap)
{
    char line[512];
    (void)arg;
    vsnprintf(line, sizeof line, fmt, ap);
    line[strcspn(line, "\n")] = 0;
    log_info(MODULE, "%s", line);
}

static int listen_on(const struct http_server_options *o, int *ret_port, struct err *e)
{
    struct sockaddr_storage sa = {0};
    socklen_t n = sizeof sa;
    int one = 1;
    if (uv_ip4_addr(o->bind, o->port, (struct sockaddr_in *)&sa) != 0 &&
        uv_ip6_addr(o->bind, o->port, (struct sockaddr_in6 *)&sa) != 0)
        return err_set(e, ERR_USAGE, "address '%s' for HTTP: expected an IPv4 or IPv6 address such as 127.0.0.1",
                       o->bind);
    int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_errno(e, errno, "no socket for HTTP");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&sa,
             sa.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)) < 0 ||
        listen(fd, MAX_CONNECTIONS) < 0 || getsockname(fd, (struct sockaddr *)&sa, &n) < 0) {
        int rc = err_errno(e, errno, "cannot listen on %s port %d for HTTP", o->bind, o->port);
        close(fd);
        return rc;
    }
    *ret_port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                               : ((struct sockaddr_in *)&sa)->sin_port);
    return fd;
}

static int start(struct http_server *h, int fd, struct err *e)
{
    h->mhd = h->lib->MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)(MAX_CONNECTIONS + BEING_CLOSED), MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_PER_CONNECTION, MHD_OPTION_END);
    if (h->mhd)
        return 0;
    close(fd);
    return err_set(e, -EIO, "libmicrohttpd does not start");
}

static void poll_it(struct http_server *h, uv_loop_t *loop)
{
    const union MHD_DaemonInfo *info = h->lib->MHD_get_daemon_info(h->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    uv_poll_init(loop, &h->poll, info->epoll_fd);
    uv_timer_init(loop, &h->timer);
    h->poll.data = h->timer.data = h;
    h->open_handles = 2;
    uv_poll_start(&h->poll, UV_READABLE, on_poll);
    turn(h);
}

int http_server_open(struct http_server **ret, uv_loop_t *loop, const struct http_server_options *o, int *ret_port,
                     struct err *e)
{
    struct http_server *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for HTTP");
    h->o = *o;
    h->lib = http_lib(e);
    int rc = h->lib ? 0 : -ENOENT;
    if (rc == 0 && o->token_file)
        rc = auth_tokens_read(&h->tokens, o->token_file, e);
    int fd = rc < 0 ? rc : listen_on(o, ret_port, e);
    rc = fd < 0 ? fd : start(h, fd, e);
    if (rc < 0) {
        auth_tokens_free(&h->tokens);
        free(h);
        return rc;
    }
    poll_it(h, loop);
    *ret = h;
    return 0;
}

int http_server_reload(struct http_server *h, struct err *e)
{
    return h->o.token_file ? auth_tokens_reread(&h->tokens, h->o.token_file, e) : 0;
}

static void on_closed(uv_handle_t *handle)
{
    struct http_server *h = handle->data;
    if (--h->open_handles > 0)
        return;
    auth_tokens_free(&h->tokens);
    free(h);
}

void http_server_close(struct http_server *h)
{
    if (!h)
        return;
    uv_close((uv_handle_t *)&h->poll, on_closed);
    uv_close((uv_handle_t *)&h->timer, on_closed);
    h->lib->MHD_stop_daemon(h->mhd);
}
