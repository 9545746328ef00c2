/* What an agent tells about itself over HTTP (--http-port), read-only, right in every state:
 *
 *     /healthz   200 "ok" as long as the agent's loop turns, also while it joins, stops, restarts and waits for other
 *                nodes
 *     /readyz    200 "ready" while all workers of this node run; else 503 and a line that says what is waited for
 *     /metrics   Prometheus' text format
 *
 * Who may read: common/http/http_server.h. */
#ifndef CRUN_LAUNCHER_AGENT_HTTP_H
#define CRUN_LAUNCHER_AGENT_HTTP_H

#include <stdbool.h>
#include <stddef.h>

struct buf;
struct err;
struct run;

int agent_http_open(struct run *r, struct err *e); /* sets r->http; NULL where --http-port was not typed */
void agent_http_close(struct run *r);              /* before the loop's last turns */

/* "joining: 1 of 2 nodes"; true if ready. Pure but for the clock. */
bool agent_readiness(const struct run *r, char *out, size_t cap);

/* agent_metrics.c: append all figures. -ENOMEM, -E2BIG. */
int agent_metrics(const struct run *r, struct buf *out);

#endif
