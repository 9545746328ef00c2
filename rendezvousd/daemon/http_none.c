/* http.h where libmicrohttpd was not there at build time. */
#include "common/base/err.h"
#include "rendezvousd/daemon/http.h"
#include <errno.h>

int http_open(struct http **ret, uv_loop_t *loop, const struct http_options *o, int *ret_port, struct err *e)
{
    (void)ret;
    (void)loop;
    (void)o;
    (void)ret_port;
    return err_set(e, -ENOENT, "this build has no HTTP (libmicrohttpd-dev was missing)");
}

int http_reload(struct http *h, struct err *e)
{
    (void)h;
    (void)e;
    return 0;
}

void http_not_ready(struct http *h)
{
    (void)h;
}

void http_close(struct http *h)
{
    (void)h;
}
