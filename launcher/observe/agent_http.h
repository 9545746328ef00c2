/* What an agent publishes about itself over HTTP (--http-port); read-only, available in every state:
 *
 *     /healthz   200 "ok" as long as the agent's loop turns, also while it joins, stops, restarts and waits for other
 *                nodes
 *     /readyz    200 "ready" while all workers of this node run; else 503 and a line that says what is waited for
 *     /metrics   Prometheus' text format
 *     /, /api/…  while this crun hosts its job's rendezvous, or leads it: the status page (rendezvousd/page/page.h);
 *                else 404, and a line that says where to look
 *
 * The room observe/ shows a job from outside. The agent calls events.h when something happens, which maintains figures
 * and writes the event log (event_log.h). For each HTTP request it fills a struct agent_view. Nothing flows back.
 *
 * Who may read: common/http/http_server.h. */
#ifndef CRUN_LAUNCHER_AGENT_HTTP_H
#define CRUN_LAUNCHER_AGENT_HTTP_H

#include <stdbool.h>
#include <uv.h>

struct agent_http;
struct agent_view;
struct buf;
struct err;
struct logmux;
struct page;

struct agent_http_options { /* pointers are borrowed */
    uv_loop_t *loop;
    struct logmux *mux; /* prints the address, if the kernel chose the port */
    int port;           /* 0: a free one */
    const char *bind, *token_file;
    bool any_host; /* --http-insecure */
    const char *run_id;
    void (*look)(void *arg, struct agent_view *ret);
    struct page *(*page)(void *arg); /* NULL: this crun does not host now */
    void *arg;
};

int agent_http_open(struct agent_http **ret, const struct agent_http_options *o, struct err *e);
void agent_http_close(struct agent_http *h); /* before the loop's last turns; NULL allowed */

/* agent_metrics.c: append all figures. -ENOMEM, -E2BIG. */
int agent_metrics(const struct agent_view *v, struct buf *out);

#endif
