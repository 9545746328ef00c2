/* What a rendezvous server tells about itself over HTTP, read-only:
 *
 *     /healthz      200 "ok" as long as the loop turns
 *     /readyz       200 "ready"; 503 "closing" once the server ends
 *     /metrics      Prometheus' text format (metrics.h)
 *     /api/jobs     {"version":"...", "reader":{...}, "jobs":[...], ...}: jobs_status_from(), history_add_figures()
 *     /api/history  finished jobs: history_list()
 *     /api/job      all of one: history_job()
 *     /api/stacks   what all ranks of one do: jobs_ask(); not for those who may see the queue alone
 *     /             the status page: one file, nothing from elsewhere
 *
 * Who asks may see (history_reader):
 *     a token of the rendezvous (--token-file), on this host   all of that principal's jobs
 *     another HTTP token (--http-token-file)                   all of all jobs
 *     no token, where the rendezvous would want none either    all of all jobs
 *     no token, elsewhere                                      nothing; with any_host the queue: that jobs are there,
 *                                                              their states and figures */
#ifndef CRUN_RENDEZVOUSD_HTTP_H
#define CRUN_RENDEZVOUSD_HTTP_H

#include <stdbool.h>
#include <uv.h>

struct err;
struct gate;
struct http;
struct history;
struct jobs;
struct server;

struct http_options {
    const char *bind;       /* an IPv4 or IPv6 address */
    int port;               /* 0: the kernel picks */
    const char *token_file; /* common/auth/auth.h; NULL: whoever reaches the port may read */
    bool any_host;          /* without tokens: answer whatever name the request is addressed to */
    struct server *server;
    struct gate *gate;
    struct jobs *jobs;
    struct history *history;
};

/* Listens at once. ERR_USAGE: token file or address; -ENOENT: libmicrohttpd; -EADDRINUSE and the like. */
int http_open(struct http **ret, uv_loop_t *loop, const struct http_options *o, int *ret_port, struct err *e);
int http_reload(struct http *h, struct err *e); /* read the token file again; on failure the old tokens stay */
void http_not_ready(struct http *h);            /* from now on /readyz says 503 */
/* server, gate, jobs and history are not touched any more when this returns. NULL allowed. */
void http_close(struct http *h);

#endif
