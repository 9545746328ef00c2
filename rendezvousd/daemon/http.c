/* The HTTP pages of the daemon (http.h). common/http/http_server.h is the server itself. */
#include "rendezvousd/daemon/http.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/http/http_auth.h"
#include "common/http/http_server.h"
#include "rendezvousd/daemon/metrics.h"
#include "rendezvousd/history/history.h"
#include "rendezvousd/page/page.h"
#include <errno.h>
#include <stdlib.h>

struct http {
    struct http_options o;
    struct http_server *server;
    struct page *page;
    bool ready;
};

static int health(void *arg, struct http_answer *a)
{
    (void)arg;
    return buf_addstr(&a->body, "ok\n");
}

static int readiness(void *arg, struct http_answer *a)
{
    struct http *h = arg;
    a->status = h->ready && !h->o.standing_by ? 200 : 503;
    return buf_addstr(&a->body, !h->ready ? "closing\n" : h->o.standing_by ? "standing by\n" : "ready\n");
}

/* --- pages */

static int metrics(void *arg, struct http_answer *a)
{
    struct http *h = arg;
    struct history_reader who;
    if (!page_look_who(h->page, a, &who) || (http_has_tokens(a) && !who.all && !who.principal))
        return page_ask_for_token(a);
    a->type = HTTP_PROMETHEUS;
    return metrics_write(&a->body, h->o.server, h->o.gate, h->o.jobs, h->o.history, &who);
}

#define ANSWER(url, name)                                                                                              \
    static int answer_##name(void *arg, struct http_answer *a)                                                         \
    {                                                                                                                  \
        return page_##name(((struct http *)arg)->page, a);                                                             \
    }
PAGE_URLS(ANSWER)

#define PAGE(url, name) {url, answer_##name, HTTP_DECIDES},
static const struct http_page pages[] = {
    PAGE_URLS(PAGE){"/metrics", metrics, HTTP_DECIDES},
    {"/healthz", health, HTTP_FOR_PROBES},
    {"/readyz", readiness, HTTP_FOR_PROBES},
};

int http_open(struct http **ret, uv_loop_t *loop, const struct http_options *o, int *ret_port, struct err *e)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for HTTP");
    h->o = *o;
    h->ready = true;
    const struct page_options page = {
        .has_tokens = o->token_file, .any_host = o->any_host, .gate = o->gate, .jobs = o->jobs, .history = o->history};
    const struct http_server_options server = {.name = "rendezvousd",
                                               .bind = o->bind,
                                               .port = o->port,
                                               .token_file = o->token_file,
                                               .any_host = o->any_host,
                                               .pages = pages,
                                               .n_pages = sizeof pages / sizeof *pages,
                                               .arg = h};
    int rc = page_open(&h->page, loop, &page, e);
    rc = rc < 0 ? rc : http_server_open(&h->server, loop, &server, ret_port, e);
    if (rc < 0) {
        page_close(h->page);
        free(h);
        return rc;
    }
    *ret = h;
    return 0;
}

int http_reload(struct http *h, struct err *e)
{
    return http_server_reload(h->server, e);
}

void http_leads(struct http *h)
{
    h->o.standing_by = false;
}

void http_not_ready(struct http *h)
{
    h->ready = false;
}

void http_close(struct http *h)
{
    if (!h)
        return;
    http_server_close(h->server);
    page_close(h->page);
    free(h);
}
