/* http_client.h, without a network. See api.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/http/http_client.h"
#include "tests/sim/api.h"

const struct api_carrier *api_carrier;
int api_streams;

struct http_client {
    char *stream; /* what it was begun with; NULL: there is none */
    uint64_t from;
};

int http_client_open(struct http_client **ret, const struct http_client_options *o, struct err *e)
{
    (void)o, (void)e;
    *ret = calloc(1, sizeof **ret);
    return *ret ? 0 : -ENOMEM;
}

void http_client_close(struct http_client *c)
{
    if (c)
        free(c->stream);
    free(c);
}

int http_client_ask(struct http_client *c, const struct http_ask *a, int64_t deadline, struct buf *ret, struct err *e)
{
    (void)c;
    buf_clear(ret);
    const int status = api_carrier->ask(a, deadline, ret);
    return status < 0 ? err_set(e, status, "no answer: %d", status) : status;
}

int64_t http_client_retry_after(const struct http_client *c)
{
    (void)c;
    return 0;
}

int http_client_pause(struct http_client *c, int64_t ms, struct err *e)
{
    (void)c, (void)e;
    return api_carrier->pause(ms);
}

int http_client_stream(struct http_client *c, const struct http_ask *a, struct err *e)
{
    (void)e;
    free(c->stream);
    api_streams++;
    c->stream = strdup(a->body ? a->body : a->url);
    c->from = 0;
    return c->stream ? 0 : -ENOMEM;
}

int http_client_line(struct http_client *c, struct buf *ret)
{
    const int64_t lag = api_carrier->lag();
    if (!c->stream)
        return -EPIPE;
    buf_clear(ret);
    if (lag < 0)
        return 0;
    return (api_carrier->kube ? api_kube_line : api_etcd_line)(c->stream, &c->from, api_carrier->clock() - lag, ret);
}

void http_client_stream_end(struct http_client *c)
{
    free(c->stream);
    c->stream = NULL;
}
