/* See http_client.h. One multi handle of libcurl; an easy handle for the requests, a second one for the stream. */
#define CURL_DISABLE_TYPECHECK /* its macros name the functions, which are pointers here */
#include "common/http/http_client.h"

#include <curl/curl.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/base/shared_lib.h"

#undef curl_easy_setopt
#undef curl_easy_getinfo

enum { BODY_MAX = 64 << 20, LINES_MAX = 4 << 20 };

#define CURL_LIB_FUNCTIONS(X)                                                                                          \
    X(curl_global_init)                                                                                                \
    X(curl_easy_init)                                                                                                  \
    X(curl_easy_setopt)                                                                                                \
    X(curl_easy_getinfo)                                                                                               \
    X(curl_easy_strerror)                                                                                              \
    X(curl_easy_cleanup)                                                                                               \
    X(curl_slist_append)                                                                                               \
    X(curl_slist_free_all)                                                                                             \
    X(curl_multi_init)                                                                                                 \
    X(curl_multi_cleanup)                                                                                              \
    X(curl_multi_add_handle)                                                                                           \
    X(curl_multi_remove_handle)                                                                                        \
    X(curl_multi_perform)                                                                                              \
    X(curl_multi_poll)                                                                                                 \
    X(curl_multi_info_read)

struct curl_lib {
#define X(name) __typeof__(name) *name;
    CURL_LIB_FUNCTIONS(X)
#undef X
};

static const struct lib_symbol symbols[] = {
#define X(name) {#name, offsetof(struct curl_lib, name)},
    CURL_LIB_FUNCTIONS(X)
#undef X
};

struct transfer {
    CURL *easy; /* NULL: not made */
    struct curl_slist *headers;
    struct buf got;
    char *body;
    bool under_way; /* part of the multi handle */
    CURLcode result;
    char why[CURL_ERROR_SIZE];
};

struct http_client {
    const struct curl_lib *lib;
    CURLM *multi;
    int cancel_fd;
    char *ca, *cert, *key;
    struct transfer ask, stream;
};

/* --- the handle */

static const struct curl_lib *open_lib(struct err *e)
{
    static struct curl_lib functions;
    static struct shared_lib lib =
        SHARED_LIB("libcurl.so.4", " (Debian 12: libcurl4; Debian 13, Ubuntu 24.04: libcurl4t64)",
                   "libcurl 7.68 or later", symbols, &functions);
    return shared_lib_open(&lib, e);
}

static void finish_transfer(struct http_client *c, struct transfer *t)
{
    if (t->under_way)
        c->lib->curl_multi_remove_handle(c->multi, t->easy);
    if (t->easy)
        c->lib->curl_easy_cleanup(t->easy);
    c->lib->curl_slist_free_all(t->headers);
    buf_free(&t->got);
    free(t->body);
}

void http_client_close(struct http_client *c)
{
    if (!c)
        return;
    finish_transfer(c, &c->ask);
    finish_transfer(c, &c->stream);
    if (c->multi)
        c->lib->curl_multi_cleanup(c->multi);
    free(c->ca);
    free(c->cert);
    free(c->key);
    free(c);
}

static bool copy(char **ret, const char *text)
{
    *ret = text ? strdup(text) : NULL;
    return !text || *ret;
}

int http_client_open(struct http_client **ret, const struct http_client_options *o, struct err *e)
{
    const struct curl_lib *lib = open_lib(e);
    struct http_client *c = lib ? calloc(1, sizeof *c) : NULL;
    if (!lib)
        return -ENOENT;
    if (!c || lib->curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        free(c);
        return err_set(e, -ENOMEM, "no memory for HTTP");
    }
    *c = (struct http_client){.lib = lib, .cancel_fd = o->cancel_fd, .multi = lib->curl_multi_init()};
    file_keep_fds(); /* libcurl leaves the sockets by which it is woken to every program that is executed */
    if (!c->multi || !copy(&c->ca, o->ca) || !copy(&c->cert, o->cert) || !copy(&c->key, o->key)) {
        http_client_close(c);
        return err_set(e, -ENOMEM, "no memory for HTTP");
    }
    *ret = c;
    return 0;
}

/* --- a transfer */

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct transfer *t = arg;
    return buf_add(&t->got, p, size * n) < 0 ? 0 : n;
}

/* No worker inherits a connection. */
static curl_socket_t on_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *a)
{
    (void)arg, (void)purpose;
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static int set_up(struct http_client *c, struct transfer *t, struct err *e)
{
    if (t->easy)
        return 0;
    t->easy = c->lib->curl_easy_init();
    if (!t->easy)
        return err_set(e, -ENOMEM, "no memory for HTTP");
#define SET(option, value) c->lib->curl_easy_setopt(t->easy, (option), (value))
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_PROXY, ""); /* a home is near: what http_proxy names is for the world outside */
    SET(CURLOPT_TCP_NODELAY, 1L);
    SET(CURLOPT_OPENSOCKETFUNCTION, on_socket);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, t);
    SET(CURLOPT_ERRORBUFFER, t->why);
    if (c->ca)
        SET(CURLOPT_CAINFO, c->ca);
    if (c->cert) {
        SET(CURLOPT_SSLCERT, c->cert);
        SET(CURLOPT_SSLKEY, c->key ? c->key : c->cert);
    }
    return 0;
}

static void leave(struct http_client *c, struct transfer *t)
{
    if (t->under_way)
        c->lib->curl_multi_remove_handle(c->multi, t->easy);
    t->under_way = false;
}

static int begin(struct http_client *c, struct transfer *t, const struct http_ask *a, struct err *e)
{
    struct curl_slist *list = NULL;
    leave(c, t);
    TRY(set_up(c, t, e));
    for (const char *const *p = a->headers; *p; p++)
        list = c->lib->curl_slist_append(list, *p);
    list = c->lib->curl_slist_append(list, "Expect:"); /* no "100 Continue", which would cost a turn */
    c->lib->curl_slist_free_all(t->headers);
    t->headers = list;
    buf_clear(&t->got);
    free(t->body);
    t->body = a->body ? malloc(a->body_n + 1) : NULL;
    if (a->body && !t->body)
        return err_set(e, -ENOMEM, "no memory for HTTP");
    SET(CURLOPT_URL, a->url);
    SET(CURLOPT_HTTPHEADER, list);
    SET(CURLOPT_HTTPGET, 1L);
    if (a->body) {
        memcpy(t->body, a->body, a->body_n);
        SET(CURLOPT_POSTFIELDS, t->body);
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)a->body_n);
    }
    SET(CURLOPT_CUSTOMREQUEST, a->method);
#undef SET
    t->why[0] = 0;
    t->result = CURLE_OK;
    if (c->lib->curl_multi_add_handle(c->multi, t->easy) != CURLM_OK)
        return err_set(e, -ENOMEM, "no memory for HTTP");
    t->under_way = true;
    return 0;
}

/* Let all of them go on, and note who has ended. */
static void move_on(struct http_client *c)
{
    int n;
    const CURLMsg *m;
    c->lib->curl_multi_perform(c->multi, &n);
    while ((m = c->lib->curl_multi_info_read(c->multi, &n))) {
        if (m->msg != CURLMSG_DONE)
            continue;
        struct transfer *t = m->easy_handle == c->ask.easy ? &c->ask : &c->stream;
        t->result = m->data.result;
        leave(c, t);
    }
}

static int status_of(const struct http_client *c, const struct transfer *t)
{
    long status = 0;
    c->lib->curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    return (int)status;
}

static int failed(const struct http_client *c, const struct transfer *t, struct err *e)
{
    const char *why = t->why[0] ? t->why : c->lib->curl_easy_strerror(t->result);
    switch (t->result) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
        return err_set(e, ERR_REFUSED, "a certificate is refused: %.300s", why);
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
        return err_set(e, -ECONNREFUSED, "%.300s", why);
    case CURLE_OPERATION_TIMEDOUT:
        return err_set(e, -ETIMEDOUT, "%.300s", why);
    case CURLE_WRITE_ERROR:
        return err_set(e, -E2BIG, "an answer of more than %d MiB", BODY_MAX >> 20);
    default:
        return err_set(e, -EIO, "%.300s", why);
    }
}

int http_client_ask(struct http_client *c, const struct http_ask *a, int64_t deadline, struct buf *ret, struct err *e)
{
    struct transfer *t = &c->ask;
    struct curl_waitfd cancel = {.fd = c->cancel_fd, .events = CURL_WAIT_POLLIN};
    t->got.max = BODY_MAX;
    TRY(begin(c, t, a, e));
    for (move_on(c); t->under_way; move_on(c)) {
        const int left = clock_left(deadline);
        if (left == 0) {
            leave(c, t);
            return err_set(e, -ETIMEDOUT, "no answer in time");
        }
        c->lib->curl_multi_poll(c->multi, &cancel, 1, left, NULL);
        if (cancel.revents) {
            leave(c, t);
            return err_set(e, -ECANCELED, "cancelled");
        }
    }
    if (t->result != CURLE_OK)
        return failed(c, t, e);
    const struct buf got = t->got;
    t->got = *ret;
    *ret = got;
    return status_of(c, t);
}

int64_t http_client_retry_after(const struct http_client *c)
{
    curl_off_t s = 0;
    if (c->ask.easy)
        c->lib->curl_easy_getinfo(c->ask.easy, CURLINFO_RETRY_AFTER, &s);
    return s;
}

int http_client_pause(struct http_client *c, int64_t ms, struct err *e)
{
    struct pollfd cancel = {.fd = c->cancel_fd, .events = POLLIN};
    return poll(&cancel, 1, (int)ms) > 0 ? err_set(e, -ECANCELED, "cancelled") : 0;
}

/* --- the stream */

int http_client_stream(struct http_client *c, const struct http_ask *a, struct err *e)
{
    c->stream.got.max = LINES_MAX;
    return begin(c, &c->stream, a, e);
}

int http_client_line(struct http_client *c, struct buf *ret)
{
    struct transfer *t = &c->stream;
    if (!t->easy)
        return -EPIPE;
    move_on(c);
    const int status = status_of(c, t);
    const char *end = t->got.len ? memchr(t->got.data, '\n', t->got.len) : NULL;
    if (status >= 400)
        return -status;
    if (!end)
        return t->under_way ? 0 : -EPIPE;
    const size_t n = (size_t)(end - t->got.data);
    buf_clear(ret);
    const int rc = buf_add(ret, t->got.data, n);
    buf_consume(&t->got, n + 1);
    return rc < 0 ? rc : 1;
}

void http_client_stream_end(struct http_client *c)
{
    leave(c, &c->stream);
    buf_clear(&c->stream.got);
}
