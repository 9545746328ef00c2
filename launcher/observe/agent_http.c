/* Serves an agent's health and metrics over HTTP (agent_http.h). */
#include "launcher/observe/agent_http.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/http/http_auth.h"
#include "common/http/http_server.h"
#include "launcher/observe/agent_view.h"
#include "launcher/output/logmux.h"
#include "rendezvousd/page/page.h"

struct agent_http {
    struct agent_http_options o;
    struct http_server *server;
};

static int answer_health(void *arg, struct http_answer *a)
{
    return buf_addstr(&a->body, "ok\n");
}

static int answer_readiness(void *arg, struct http_answer *a)
{
    const struct agent_http *h = arg;
    struct agent_view v;
    h->o.look(h->o.arg, &v);
    a->status = v.ready ? 200 : 503;
    return v.ready ? buf_addstr(&a->body, "ready\n") : buf_printf(&a->body, "%s: %s\n", v.states[v.state], v.waits_for);
}

static int answer_metrics(void *arg, struct http_answer *a)
{
    const struct agent_http *h = arg;
    struct agent_view v;
    h->o.look(h->o.arg, &v);
    a->type = HTTP_PROMETHEUS;
    return agent_metrics(&v, &a->body);
}

static int answer_elsewhere(const struct agent_http *h, struct http_answer *a)
{
    char text[640];
    snprintf(text, sizeof text,
             "the status page of job '%s' is served by the node that hosts its rendezvous (--http-port there), or by "
             "its rendezvousd; this node does not host it now\n",
             h->o.run_id);
    return http_refuse(a, 404, text);
}

#define ANSWER(url, name)                                                                                              \
    static int answer_page_##name(void *arg, struct http_answer *a)                                                    \
    {                                                                                                                  \
        const struct agent_http *h = arg;                                                                              \
        struct page *p = h->o.page(h->o.arg);                                                                          \
        return p ? page_##name(p, a) : answer_elsewhere(h, a);                                                         \
    }
PAGE_URLS(ANSWER)

#define PAGE(url, name) {url, answer_page_##name, HTTP_DECIDES},
static const struct http_page pages[] = {
    PAGE_URLS(PAGE){"/healthz", answer_health, HTTP_FOR_PROBES},
    {"/readyz", answer_readiness, HTTP_FOR_PROBES},
    {"/metrics", answer_metrics, HTTP_FOR_TOKENS},
};

static int open_server(struct agent_http *h, struct err *e)
{
    const struct http_server_options o = {.name = "crun",
                                          .bind = h->o.bind,
                                          .port = h->o.port,
                                          .token_file = h->o.token_file,
                                          .any_host = h->o.any_host,
                                          .pages = pages,
                                          .n_pages = sizeof pages / sizeof *pages,
                                          .arg = h};
    char url[96];
    int port;
    int rc = http_server_open(&h->server, h->o.loop, &o, &port, e);
    if (rc == -EADDRINUSE)
        return err_set(e, rc, "--http-port %d: another process listens there; --http-port 0 takes a free port",
                       h->o.port);
    if (rc < 0)
        return err_wrap(e, "--http-port");
    if (h->o.port == 0)
        logmux_print(h->o.mux, "health and metrics on %s", http_auth_url(h->o.bind, port, url, sizeof url));
    return 0;
}

int agent_http_open(struct agent_http **ret, const struct agent_http_options *o, struct err *e)
{
    struct agent_http *h = calloc(1, sizeof *h);
    if (!h)
        return err_errno(e, ENOMEM, "--http-port");
    h->o = *o;
    const int rc = open_server(h, e);
    if (rc < 0) {
        free(h);
        return rc;
    }
    *ret = h;
    return 0;
}

void agent_http_close(struct agent_http *h)
{
    if (h)
        http_server_close(h->server);
    free(h);
}
