/* See http.h. The server itself: common/http/http_server.h. */
#include "rendezvousd/daemon/http.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/http/http_server.h"
#include "rendezvousd/daemon/metrics.h"
#include "rendezvousd/daemon/status_page.h"
#include "rendezvousd/jobs/jobs.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

struct http {
    struct http_options o;
    struct http_server *server;
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
    a->status = h->ready ? 200 : 503;
    return buf_addstr(&a->body, h->ready ? "ready\n" : "closing\n");
}

static int metrics(void *arg, struct http_answer *a)
{
    struct http *h = arg;
    a->type = HTTP_PROMETHEUS;
    return metrics_write(&a->body, h->o.server, h->o.gate, h->o.jobs);
}

/* /api/jobs?run=ID&from=N: that job alone, its nodes from the one after the first N on. */
static int jobs(void *arg, struct http_answer *a)
{
    struct http *h = arg;
    const char *run = http_argument(a, "run"), *from = http_argument(a, "from");
    struct buf list = {0};
    struct err e;
    char *end = NULL;
    unsigned long first = from && isdigit((unsigned char)*from) ? strtoul(from, &end, 10) : 0;
    if (from && (!run || !end || *end))
        return http_refuse(a, 400, "from=: expected a number, and a run=");
    if (run && !h->o.jobs)
        return http_refuse(a, 404, "there are no jobs here");
    a->type = "application/json";
    int rc = h->o.jobs ? jobs_status_from(h->o.jobs, NULL, run, first, &list, &e) : buf_addstr(&list, "{\"jobs\":[]}");
    if (rc == -ENOENT)
        return http_refuse(a, 404, e.text);
    if (rc == 0)
        rc = buf_addstr(&a->body, "{\"version\":\"" CRUN_VERSION "\",");
    if (rc == 0)
        rc = buf_add(&a->body, list.data + 1, list.len - 1);
    buf_free(&list);
    return rc;
}

static int page(void *arg, struct http_answer *a)
{
    (void)arg;
    a->type = "text/html; charset=utf-8";
    return buf_add(&a->body, status_page, status_page_len);
}

static const struct http_page pages[] = {
    {"/", page, false},         {"/api/jobs", jobs, false},   {"/metrics", metrics, false},
    {"/healthz", health, true}, {"/readyz", readiness, true},
};

int http_open(struct http **ret, uv_loop_t *loop, const struct http_options *o, int *ret_port, struct err *e)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return err_set(e, -ENOMEM, "no memory for HTTP");
    h->o = *o;
    h->ready = true;
    const struct http_server_options server = {.name = "rendezvousd",
                                               .bind = o->bind,
                                               .port = o->port,
                                               .token_file = o->token_file,
                                               .any_host = o->any_host,
                                               .pages = pages,
                                               .n_pages = sizeof pages / sizeof *pages,
                                               .arg = h};
    int rc = http_server_open(&h->server, loop, &server, ret_port, e);
    if (rc < 0) {
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

void http_not_ready(struct http *h)
{
    h->ready = false;
}

void http_close(struct http *h)
{
    if (!h)
        return;
    http_server_close(h->server);
    free(h);
}
