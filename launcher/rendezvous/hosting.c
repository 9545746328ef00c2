/* Gate, server, jobs and status page of a crun that hosts, opened and closed together. See hosting.h. */
#include "launcher/rendezvous/hosting.h"

#include <errno.h>
#include <stdlib.h>
#include <strings.h>

#include "common/base/err.h"
#include "rendezvousd/history/history.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/jobs/jobs_watch.h"
#include "rendezvousd/net/front.h"
#include "rendezvousd/net/gate.h"
#include "rendezvousd/net/server.h"
#include "rendezvousd/page/page.h"

#define FINISHED_MAX 100 /* that the page shows */

static void on_server_gone(void *arg)
{
    struct hosting *h = arg;
    jobs_destroy(h->jobs);
    history_close(h->history);
    gate_destroy(h->gate);
    free(h);
}

void hosting_close(struct hosting *h)
{
    if (h) {
        page_close(h->page);
        h->page = NULL;
    }
    if (h && h->server)
        server_close(h->server, on_server_gone, h);
    else if (h)
        on_server_gone(h);
}

static int listen_everywhere(struct hosting *h, int port, struct err *e)
{
    const int rc = server_listen(h->server, "::", port, &h->port, e);
    return rc == 0 || rc == -EADDRINUSE ? rc : server_listen(h->server, "0.0.0.0", port, &h->port, e);
}

/* A name may mean another address here than on other nodes (127.0.1.1 in many an /etc/hosts): all interfaces, IPv4 and
 * IPv6, then. */
static int listen_on(struct hosting *h, const char *host, int port, struct err *e)
{
    if (!host)
        return listen_everywhere(h, port, e);
    if (strcasecmp(host, "localhost") == 0) {
        TRY(server_listen(h->server, "127.0.0.1", port, &h->port, e));
        int rc = server_listen(h->server, "::1", port, NULL, e);
        return rc == -EADDRINUSE ? rc : 0; /* there may be no IPv6 */
    }
    int rc = server_listen(h->server, host, port, &h->port, e);
    return rc == -EINVAL || rc == -EADDRNOTAVAIL ? listen_everywhere(h, port, e) : rc;
}

static void on_forgotten(void *arg, const char *principal, const char *run)
{
    const struct hosting *h = arg;
    history_forget_run(h->history, principal, run);
}

static int open_page(struct hosting *h, uv_loop_t *loop, const struct hosting_page *o, struct err *e)
{
    struct jobs_watcher watcher;
    TRY(history_open(&h->history, &(struct history_options){.loop = loop, .max_jobs = FINISHED_MAX}, e));
    history_watcher(h->history, &watcher);
    jobs_watch(h->jobs, &watcher);
    jobs_on_forgotten(h->jobs, on_forgotten, h);
    const struct page_options page = {
        .has_tokens = o->has_tokens, .any_host = o->any_host, .gate = h->gate, .jobs = h->jobs, .history = h->history};
    return page_open(&h->page, loop, &page, e);
}

static int open_all(struct hosting *h, uv_loop_t *loop, const struct hosting_options *o, struct err *e)
{
    const struct gate_options gate = {.token_file = o->token_file,
                                      .own_token = !o->insecure,
                                      .own_uid_only = true,
                                      .trust_local = true,
                                      .stranger = o->stranger,
                                      .arg = o->arg,
                                      .insecure = o->insecure};
    TRY(gate_create(&h->gate, &gate, e));
    if (!o->one_node && gate_token_was_drawn(h->gate))
        return err_set(e, ERR_USAGE,
                       "there is no place for a secret that the other nodes could share (~/.config/crun/token cannot "
                       "be made): set CRUN_TOKEN to the same one on every node (openssl rand -hex 16 makes one), or "
                       "name a file that has it with --token-file");
    const struct server_options server = {.gate = h->gate, .binary = o->has_store ? &front_tcpstore : NULL};
    TRY(server_create(&h->server, loop, &server, e));
    const struct jobs_options jobs = {
        .loop = loop, .embedded = true, .listed = o->listed, .listed_run = o->listed_run, .elected = o->elected};
    TRY(jobs_create(&h->jobs, &jobs, e));
    if (o->page)
        TRY(open_page(h, loop, o->page, e));
    TRY(server_set_jobs(h->server, h->jobs, e));
    return listen_on(h, o->host, o->port, e);
}

int hosting_open(struct hosting **ret, uv_loop_t *loop, const struct hosting_options *o, struct err *e)
{
    struct hosting *h = calloc(1, sizeof *h);
    if (!h)
        return err_errno(e, ENOMEM, "rendezvous");
    const int rc = open_all(h, loop, o, e);
    if (rc < 0)
        hosting_close(h);
    else
        *ret = h;
    return rc;
}
