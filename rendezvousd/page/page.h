/* The status page of a rendezvous server, read-only, for the HTTP server of a rendezvousd (daemon/http.h) or of a crun
 * that hosts (launcher/observe/agent_http.h):
 *
 *     /             the status page: one file, nothing from elsewhere
 *     /api/jobs     {"version":"...", "reader":{...}, "jobs":[...], ...}: jobs_status_from(), history_add_figures()
 *     /api/history  finished jobs: history_list()
 *     /api/job      all of one: history_job()
 *     /api/stacks   what all ranks of one do: jobs_ask(); not for those who may see the queue alone
 *
 * Who asks may see (history_reader):
 *     a token of the rendezvous (--token-file), on this host   all of that principal's jobs
 *     another HTTP token (--http-token-file)                   all of all jobs
 *     no token, where the rendezvous would want none either    all of all jobs
 *     no token, elsewhere                                      nothing; with any_host the queue: that jobs are there,
 *                                                              their states and figures
 * Loop thread only. */
#ifndef CRUN_RENDEZVOUSD_PAGE_H
#define CRUN_RENDEZVOUSD_PAGE_H

#include <stdbool.h>
#include <uv.h>

struct err;
struct gate;
struct history;
struct history_reader;
struct http_answer;
struct jobs;
struct page;

struct page_options {
    bool has_tokens; /* the HTTP server has a token file */
    bool any_host;   /* its option of that name */
    struct gate *gate;
    struct jobs *jobs;
    struct history *history;
};

int page_open(struct page **ret, uv_loop_t *loop, const struct page_options *o, struct err *e); /* -ENOMEM */
/* gate, jobs and history are not touched any more when this returns. NULL allowed. */
void page_close(struct page *p);

/* X(url, name): page_name() answers it, as struct http_page's answer. Each looks itself who asks (HTTP_DECIDES). */
#define PAGE_URLS(X)                                                                                                   \
    X("/", main)                                                                                                       \
    X("/api/jobs", jobs)                                                                                               \
    X("/api/history", history)                                                                                         \
    X("/api/job", job)                                                                                                 \
    X("/api/stacks", stacks)
#define PAGE_DECLARE(url, name) int page_##name(struct page *p, struct http_answer *a);
PAGE_URLS(PAGE_DECLARE)
#undef PAGE_DECLARE

/* For other pages beside these: who asks; false: what they show is nobody's. Then the answer to one who may see
 * nothing. */
bool page_look_who(const struct page *p, const struct http_answer *a, struct history_reader *ret);
int page_ask_for_token(struct http_answer *a);

#endif
