#include "launcher/agent/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "launcher/config/config.h"
#include "launcher/rendezvous/addresses.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/net/front.h"
#include "rendezvousd/net/gate.h"
#include "rendezvousd/net/server.h"

#define RESOLVE_MS 5000
#define GOODBYE_MS 2000 /* for nodes that know the end to close their connections */

/* --- hosting */

struct hosted {
    struct gate *gate;
    struct server *server;
    struct jobs *jobs;
};

static void on_server_gone(void *arg)
{
    struct hosted *h = arg;
    jobs_destroy(h->jobs);
    gate_destroy(h->gate);
    free(h);
}

static void stop_hosting(struct hosted *h)
{
    if (h && h->server)
        server_close(h->server, on_server_gone, h);
    else if (h)
        on_server_gone(h);
}

/* A name may mean another address here than on other nodes (127.0.1.1 in many an /etc/hosts): all interfaces, IPv4 and
 * IPv6, then. */
static int listen_on(struct server *s, const char *host, int port, struct err *e)
{
    if (strcasecmp(host, "localhost") == 0) {
        TRY(server_listen(s, "127.0.0.1", port, NULL, e));
        int rc = server_listen(s, "::1", port, NULL, e);
        return rc == -EADDRINUSE ? rc : 0; /* there may be no IPv6 */
    }
    int rc = server_listen(s, host, port, NULL, e);
    if (rc != -EINVAL && rc != -EADDRNOTAVAIL)
        return rc;
    rc = server_listen(s, "::", port, NULL, e);
    return rc == 0 || rc == -EADDRINUSE ? rc : server_listen(s, "0.0.0.0", port, NULL, e);
}

static int open_hosted(struct hosted *h, const struct config *c, uv_loop_t *loop, struct err *e)
{
    const struct gate_options gate = {.token_file = c->token_file,
                                      .own_token = !c->insecure,
                                      .own_uid_only = true,
                                      .trust_local = true,
                                      .insecure = c->insecure};
    TRY(gate_create(&h->gate, &gate, e));
    if (c->nnodes.max > 1 && gate_token_was_drawn(h->gate))
        return err_set(e, ERR_USAGE,
                       "there is no place for a secret that the other nodes could share (~/.config/crun/token cannot "
                       "be made): copy one "
                       "to all nodes and name it with --token-file, or take --insecure");
    const bool has_store = c->home.kind == HOME_STATIC; /* on the same port */
    const struct server_options server = {.gate = h->gate, .binary = has_store ? &front_tcpstore : NULL};
    TRY(server_create(&h->server, loop, &server, e));
    TRY(jobs_create(&h->jobs, &(struct jobs_options){.loop = loop, .embedded = true}, e));
    TRY(server_set_jobs(h->server, h->jobs, e));
    return listen_on(h->server, c->home.host, c->home.port, e);
}

/* -EADDRINUSE: somebody else does. */
static int host(struct rendezvous *z, struct err *e)
{
    struct hosted *h = calloc(1, sizeof *h);
    if (!h)
        return err_errno(e, ENOMEM, "rendezvous");
    int rc = open_hosted(h, z->config, z->loop, e);
    if (rc < 0) {
        stop_hosting(h);
        return rc;
    }
    z->hosted = h;
    log_info("rendezvous", "hosting at %s", z->config->home.endpoint);
    return 0;
}

struct server *rendezvous_server(const struct rendezvous *z)
{
    return z->hosted ? z->hosted->server : NULL;
}

/* --- the client */

static int open_client(struct rendezvous *z, const struct rdzv_client_ops *ops, struct err *e)
{
    z->options.jobs = z->hosted ? z->hosted->jobs : NULL;
    return ops->open(&z->client, z->loop, &z->options, e);
}

/* One static node meets nobody: whoever has its port is no part of this job. */
static bool meets_nobody(const struct config *c)
{
    return c->home.kind == HOME_STATIC && c->nnodes.max == 1;
}

static int open_tcp(struct rendezvous *z, struct err *e)
{
    const struct config *c = z->config;
    const struct home *h = &c->home;
    z->may_host = !c->rdzv_tls &&
                  (h->hosting == HOME_HOSTS || (h->hosting == HOME_HOSTS_IF_OWN && addresses_own(h->host, RESOLVE_MS)));
    if (!z->may_host)
        return open_client(z, &rdzv_client_tcp_ops, e);
    struct err why = {0};
    const int rc = host(z, &why);
    if (rc == 0)
        return open_client(z, &rdzv_client_local_ops, e);
    if (rc != -EADDRINUSE || (meets_nobody(c) && h->hosting == HOME_HOSTS))
        return err_set(e, rc, "%s", why.text);
    if (h->hosting == HOME_HOSTS)
        log_warn("rendezvous", "%s; dialling whoever has it, to host once it is free", why.text);
    return open_client(z, &rdzv_client_tcp_ops, e);
}

int rendezvous_take_over(struct rendezvous *z, uint64_t last_round, struct err *e)
{
    if (!z->may_host || z->hosted || host(z, e) < 0)
        return 0;
    z->client->ops->close(z->client);
    z->client = NULL;
    z->options.job.first_round = last_round + 1;
    z->options.job.hold_ms = z->options.job.silence_ms + z->options.job.kill_ms; /* others may still run the last one */
    TRY(open_client(z, &rdzv_client_local_ops, e));
    return 1;
}

/* --- what is told about this node */

static int choose_addresses(struct rendezvous *z, struct err *e)
{
    const struct config *c = z->config;
    if (c->home.kind == HOME_LOCAL) {
        strcpy(z->addr, "127.0.0.1");
        return 0;
    }
    TRY(addresses_all(z->addrs, sizeof z->addrs, e));
    if (c->iface)
        return addresses_of_interface(c->iface, z->addr, sizeof z->addr, e);
    if (c->local_addr && strlen(c->local_addr) >= sizeof z->addr)
        return err_set(e, ERR_USAGE, "--local-addr '%s': expected at most %zu characters", c->local_addr,
                       sizeof z->addr - 1);
    snprintf(z->addr, sizeof z->addr, "%s", c->local_addr ? c->local_addr : "");
    return 0;
}

int rendezvous_open(struct rendezvous *z, const struct config *c, uv_loop_t *loop,
                    const struct rdzv_client_options *callbacks, struct err *e)
{
    z->config = c;
    z->loop = loop;
    z->options = *callbacks;
    TRY(choose_addresses(z, e));
    config_job(c, &z->options.job);
    z->options.heartbeat_ms = c->conf.keep_alive_interval_ms;
    z->options.connect_ms = config_join_timeout_ms(c);
    z->options.daemon_grace_ms = c->conf.daemon_grace_ms;
    z->options.run_id = c->run_id;
    z->options.endpoint = c->home.endpoint;
    z->options.token_file = c->token_file;
    z->options.insecure = c->insecure;
    z->options.tls = c->rdzv_tls;
    z->options.tls_ca = c->rdzv_ca;
    z->options.addr = z->addr[0] ? z->addr : NULL;
    z->options.addrs = z->addrs;
    z->options.role = c->role;
    z->options.node_rank = c->home.node_rank;
    switch (c->home.kind) {
    case HOME_LOCAL:
        return open_client(z, &rdzv_client_local_ops, e);
    case HOME_TCP:
    case HOME_STATIC:
        return open_tcp(z, e);
    default:
        return open_client(z, &rdzv_client_log_ops, e);
    }
}

/* --- the end */

int rendezvous_leave(struct rendezvous *z, const struct rdzv_cause *why, struct err *e)
{
    if (z->hosted)
        TRY(jobs_drain(z->hosted->jobs, NULL, z->config->run_id, e));
    return z->client->ops->leave(z->client, why, e);
}

static void on_late(uv_timer_t *t)
{
    struct rendezvous *z = container_of(t, struct rendezvous, late);
    z->is_late = true;
}

static bool alone(const struct rendezvous *z)
{
    struct server_stats st;
    server_stats(z->hosted->server, &st);
    return st.clients == 0;
}

void rendezvous_see_off(struct rendezvous *z, int64_t bound_ms, const bool *hurry)
{
    bool all_told = false;
    if (!z->hosted)
        return;
    uv_timer_init(z->loop, &z->late);
    uv_timer_start(&z->late, on_late, (uint64_t)bound_ms, 0);
    while (!(all_told && alone(z)) && !z->is_late && !*hurry) {
        if (!all_told &&
            (all_told = jobs_all_told(
                 z->hosted->jobs))) /* what they are told may still be on its way: they go when it is there */
            uv_timer_start(&z->late, on_late, GOODBYE_MS, 0);
        else
            uv_run(z->loop, UV_RUN_ONCE);
    }
    uv_close((uv_handle_t *)&z->late, NULL);
}

void rendezvous_close(struct rendezvous *z)
{
    if (z->client)
        z->client->ops->close(z->client);
    z->client = NULL;
    stop_hosting(z->hosted);
    z->hosted = NULL;
}
