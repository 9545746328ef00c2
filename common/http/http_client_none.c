/* http_client.h where libcurl's header was not there at build time. */
#include <errno.h>

#include "common/base/err.h"
#include "common/http/http_client.h"

int http_client_open(struct http_client **ret, const struct http_client_options *o, struct err *e)
{
    (void)ret, (void)o;
    return err_set(e, -ENOENT, "this build cannot ask an HTTP API (libcurl's headers were missing)");
}

void http_client_close(struct http_client *c)
{
    (void)c;
}

int http_client_ask(struct http_client *c, const struct http_ask *a, int64_t deadline, struct buf *ret, struct err *e)
{
    (void)c, (void)a, (void)deadline, (void)ret, (void)e;
    return -ENOENT;
}

int64_t http_client_retry_after(const struct http_client *c)
{
    (void)c;
    return 0;
}

int http_client_pause(struct http_client *c, int64_t ms, struct err *e)
{
    (void)c, (void)ms, (void)e;
    return -ENOENT;
}

int http_client_stream(struct http_client *c, const struct http_ask *a, struct err *e)
{
    (void)c, (void)a, (void)e;
    return -ENOENT;
}

int http_client_line(struct http_client *c, struct buf *ret)
{
    (void)c, (void)ret;
    return -ENOENT;
}

void http_client_stream_end(struct http_client *c)
{
    (void)c;
}
