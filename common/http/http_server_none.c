/* Stands in for http_server.c in builds without libmicrohttpd: opening a server fails. */
#include "common/base/err.h"
#include "common/http/http_auth.h"
#include "common/http/http_server.h"
#include <errno.h>

int http_server_open(struct http_server **ret, uv_loop_t *loop, const struct http_server_options *o, int *ret_port,
                     struct err *e)
{
    (void)ret;
    (void)loop;
    (void)o;
    (void)ret_port;
    return err_set(e, -ENOENT, "this build has no HTTP (libmicrohttpd-dev was missing)");
}

int http_server_reload(struct http_server *h, struct err *e)
{
    (void)h;
    (void)e;
    return 0;
}

void http_server_close(struct http_server *h)
{
    (void)h;
}

const char *http_argument(const struct http_answer *a, const char *name)
{
    (void)a;
    (void)name;
    return NULL;
}

void http_credentials(const struct http_answer *a, struct http_credentials *ret)
{
    (void)a;
    *ret = (struct http_credentials){0};
}

bool http_shows_token(const struct http_answer *a)
{
    (void)a;
    return false;
}

bool http_has_tokens(const struct http_answer *a)
{
    (void)a;
    return false;
}

int http_peer_fd(const struct http_answer *a)
{
    (void)a;
    return -1;
}

int http_refuse(struct http_answer *a, unsigned status, const char *why)
{
    (void)status;
    return buf_addstr(&a->body, why);
}
