/* Advice to a user whose nodes do not find each other: why, and the commands that help. */
#include "launcher/agent/member_internal.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/auth/auth.h"
#include "common/base/container_of.h"
#include "common/net/addr.h"
#include "launcher/agent/round.h"
#include "launcher/agent/run.h"
#include "launcher/base/program.h"
#include "launcher/config/config.h"
#include "launcher/output/logmux.h"

#define ALONE_MS 5000 /* ms after which another node is late, and this one prints where it may have gone */
#define STORE_DIAL_MS 5000

/* --- another secret */

#define HOME_TOKEN "~/.config/crun/token"
#define EVERY_NODE                                                                                                     \
    "\nor start every node with the same secret, such as openssl rand -hex 16 makes:\n  export " AUTH_VARIABLE "=SECRET"

static bool has_variable(void)
{
    const char *token = getenv(AUTH_VARIABLE);
    return token && *token;
}

const char *member_secret_help(void *arg, const char *host, bool take)
{
    struct run *r = arg;
    const char *option = r->config->token_file ? "--token-file" : has_variable() ? AUTH_VARIABLE : NULL;
    const bool may_be_daemon = take && r->config->home.kind == HOME_TCP;
    char *out = r->member->secret_help[take];
    const size_t cap = sizeof r->member->secret_help[take];
    size_t n = 0;
    if (option)
        n = (size_t)snprintf(out, cap, "\nStart all nodes with the same %s.", option);
    else if (take)
        n = (size_t)snprintf(
            out, cap,
            "\nIf that is a node of this job, give this one its secret, then start this one again (if that node "
            "has a " AUTH_VARIABLE ", which counts more than files, type the same one here):\n"
            "  scp -p %.250s:.config/crun/token " HOME_TOKEN EVERY_NODE,
            host);
    else
        n = (size_t)snprintf(
            out, cap,
            "\nIf that is a node of this job, give it ours, then start it again, without a " AUTH_VARIABLE
            ", which would count more:\n"
            "  scp -p " HOME_TOKEN " %.250s:.config/crun/token" EVERY_NODE,
            host);
    if (may_be_daemon)
        snprintf(out + n, cap - n, "\nA rendezvousd needs our secret in its --token-file.");
    return out;
}

/* Once for each host. */
void member_note_stranger(void *arg, const char *host)
{
    struct run *r = arg;
    struct member *m = r->member;
    const size_t told = m ? strlen(m->strangers) : 0;
    char name[80];
    snprintf(name, sizeof name, " %.70s ", host);
    if (!m || !*host || strstr(m->strangers, name) || told + strlen(name) >= sizeof m->strangers)
        return;
    strcpy(m->strangers + told, name);
    logmux_print(r->mux, "a node at %s was turned away, for it holds another secret than this one.%s", host,
                 member_secret_help(r, host, false));
}

/* --- nodes that meet elsewhere, or nowhere */

#define DROPPED ". Otherwise packets to TCP port %d there may be dropped on their way"

static void on_own(void *arg, bool own)
{
    struct run *r = arg;
    const struct home *h = &r->config->home;
    r->member->asked = NULL;
    if (own)
        logmux_print(r->mux,
                     "no other node has come to %s: each needs --master-addr %s, --master-port %d and a --node-rank of "
                     "its own" DROPPED,
                     h->endpoint, h->host, h->port, h->port);
    else
        logmux_print(r->mux,
                     "--master-addr %s is no address of this machine, and the node of --node-rank 0 hosts the "
                     "rendezvous: is this one of another rank?",
                     h->host);
}

static void hint_static(struct run *r)
{
    const enum own_host_answer a = own_host_ask(&r->member->asked, &r->loop, r->config->home.host, on_own, r);
    if (a != OWN_HOST_ASKED)
        on_own(r, a == OWN_HOST_YES);
}

static void hint_hosting(struct run *r)
{
    const struct home *h = &r->config->home;
    if (addr_host_is_loopback(h->host))
        logmux_print(r->mux,
                     "no other node has come to %s, and none of another machine can: that name is each machine "
                     "itself. Give all nodes the name of one of them: --rdzv-endpoint %s:%d",
                     h->endpoint, r->host, h->port);
    else
        logmux_print(r->mux,
                     "no other node has come to %s, where this crun hosts job '%s': all nodes need this same "
                     "--rdzv-endpoint %s, not each its own name, and --rdzv-id %s" DROPPED,
                     h->endpoint, r->config->run_id, h->endpoint, r->config->run_id, h->port);
}

static void hint_elsewhere(struct run *r, const struct presence *now)
{
    const struct home *h = &r->config->home;
    char beside[256] = "";
    if (now->beside[0])
        snprintf(beside, sizeof beside,
                 ". Another job, '%s', waits there for nodes, too: is it this one, with another --rdzv-id?",
                 now->beside);
    logmux_print(r->mux,
                 "no other node of job '%s' has come to %s: all nodes need this same --rdzv-endpoint and --rdzv-id "
                 "%s%s",
                 r->config->run_id, h->endpoint, r->config->run_id, beside);
}

/* --- a node that was lost */

void member_note_broken(struct run *r, const char *why)
{
    struct member *m = r->member;
    const char *const ends[] = {" (--rdzv-conf", ": ", ";"};
    size_t n = strlen(why);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const char *end = strstr(why, ends[i]);
        n = end && (size_t)(end - why) < n ? (size_t)(end - why) : n;
    }
    m->loss_hinted = false;
    snprintf(m->broke, sizeof m->broke, "%.*s", (int)n, why);
}

static void hint_loss(struct run *r, const struct presence *now)
{
    struct member *m = r->member;
    if (m->loss_hinted || now->waiting_ms < 0 || now->joined >= now->min_nodes || r->config->control_fd >= 0)
        return; /* crun -H starts none again */
    m->loss_hinted = true;
    logmux_print(r->mux,
                 "job '%s' has lost a node%s%s%s and needs %d: start crun again there, or elsewhere, with the same "
                 "command; one that lost only its network comes back by itself. Given up in %lld s",
                 r->config->run_id, m->broke[0] ? " (" : "", m->broke, m->broke[0] ? ")" : "", now->min_nodes,
                 (long long)(now->left_ms + 999) / 1000);
}

void member_hint_alone(struct run *r, const struct presence *now)
{
    const struct home *h = &r->config->home;
    struct member *m = r->member;
    m->company = m->company || now->joined > 1;
    if (r->agent.had_seat) {
        hint_loss(r, now);
        return;
    }
    if (member_hosts(r) && now->beside[0]) /* the node of another id was named when it came */
        return;
    if (m->hinted || m->company || m->strangers[0] || now->joined != 1 || now->min_nodes < 2 ||
        now->waiting_ms < ALONE_MS || r->config->control_fd >= 0)
        return;
    m->hinted = true;
    if (!member_hosts(r))
        hint_elsewhere(r, now);
    else if (h->kind == HOME_STATIC)
        hint_static(r);
    else
        hint_hosting(r);
}

void member_hint_taken(struct run *r, int64_t for_ms)
{
    const struct home *h = &r->config->home;
    struct member *m = r->member;
    if (m->hinted || for_ms < ALONE_MS || !rendezvous_port_is_taken(m->rendezvous))
        return;
    m->hinted = true;
    logmux_print(
        r->mux,
        "another program of this machine has port %d, and no rendezvous answers there: end it, or give all nodes "
        "another port",
        h->port);
}

void member_hint_unhosted(struct run *r, const struct rdzv_progress *p)
{
    const struct home *h = &r->config->home;
    struct member *m = r->member;
    char dropped[96] = "";
    if (m->hinted || p->for_ms < ALONE_MS || r->config->control_fd >= 0 || !p->error || r->agent.heard_round)
        return;
    if (h->host[0] && (p->error == -ENOENT || p->error == -EAGAIN)) {
        m->hinted = true;
        logmux_print(r->mux,
                     "the name '%s' has no address on this machine: type it as this machine knows it, name an address, "
                     "or add a line 'ADDRESS %s' to /etc/hosts",
                     h->host, h->host);
        return;
    }
    if (p->error != -ECONNREFUSED)
        snprintf(dropped, sizeof dropped, DROPPED, h->port);
    if (h->kind == HOME_STATIC && h->node_rank > 0)
        logmux_print(r->mux,
                     "nobody listens at %s: the node of --node-rank 0 hosts the rendezvous there, and this one has "
                     "--node-rank %d. Has that node begun, or has none of them rank 0?%s",
                     h->endpoint, h->node_rank, dropped);
    else if (h->kind == HOME_TCP && h->hosting == HOME_HOSTS_IF_OWN)
        logmux_print(r->mux,
                     "nobody listens at %s: the node that has %s for an address of its own hosts there. Has it begun? "
                     "If no machine has it for its own, start the one that it leads to with --rdzv-conf is_host=1%s",
                     h->endpoint, h->host, dropped);
    else
        return;
    m->hinted = true;
}

void member_hint_gloo(struct run *r, const struct rdzv_news *news)
{
    struct member *m = r->member;
    const char *iface = getenv("GLOO_SOCKET_IFNAME");
    char name[256], addr[INET6_ADDRSTRLEN];
    if (m->gloo_hinted || news->group_world < 2 || !r->program->python_from || addr_host_is_loopback(news->leader_addr))
        return;
    m->gloo_hinted = true;
    if (!(iface && *iface) && addresses_own_name_is_loopback(OWN_HOST_MS, name, addr))
        logmux_print(r->mux,
                     "PyTorch's Gloo would wait at %s, where no other node reaches it, for that is the address of this "
                     "machine's own name, %s: set GLOO_SOCKET_IFNAME to the interface between the nodes (eth0 or the "
                     "like), or give the name its own address in /etc/hosts",
                     addr, name);
}

/* As far as this node knows: another one may know of more. */
static bool restart_is_left(const struct run *r)
{
    const struct config *c = r->config;
    return round_restarts(r) < c->max_restarts || (c->restart_window > 0 && c->max_restarts > 0);
}

bool member_hint_lost_host(struct run *r, const struct rdzv_progress *p, char *why, size_t cap)
{
    const struct home *h = &r->config->home;
    struct member *m = r->member;
    const bool one_place = h->kind == HOME_TCP || h->kind == HOME_STATIC;
    struct rdzv_config job;
    if (!one_place || member_hosts(r) || !p->error || !m->fenced || r->agent.state != AGENT_JOINING || r->agent.done)
        return false;
    if (!restart_is_left(r)) {
        config_job(r->config, &job);
        snprintf(why, cap,
                 "job '%s' is lost: the rendezvous at %s is gone or out of reach, the workers here were ended, and no "
                 "restart is left (--max-restarts %lld)",
                 r->config->run_id, h->endpoint, (long long)r->config->max_restarts);
        return p->error == -ECONNREFUSED || p->for_ms >= job.silence_ms;
    }
    if (m->loss_hinted || h->hosting == HOME_DIALS || r->config->control_fd >= 0)
        return false;
    m->loss_hinted = true;
    logmux_print(
        r->mux,
        "the crun or rendezvousd that hosted job '%s' at %s is gone or out of reach: if it has ended, start it again on "
        "%s with the same command within %lld s, and the job goes on",
        r->config->run_id, h->endpoint, h->host, (long long)(p->left_ms + 999) / 1000);
    return false;
}

/* --- a store that workers cannot reach */

static void on_store_dialled(void *arg, int fd, const char *text)
{
    struct run *r = arg;
    r->member->store_dial = NULL;
    if (fd >= 0)
        close(fd);
    else if (r->agent.state == AGENT_RUNNING)
        logmux_print(
            r->mux,
            "cannot reach %s: the workers of all nodes meet there, at group rank 0. Allow that port between the nodes, or "
            "name one that is allowed with --master-port",
            text);
}

void member_try_store(struct run *r, const struct endpoint *leader)
{
    struct member *m = r->member;
    member_drop_store_dial(r);
    dial_start(&m->store_dial, &r->loop, leader, STORE_DIAL_MS, on_store_dialled, r, NULL);
}

void member_drop_store_dial(struct run *r)
{
    dial_cancel(r->member->store_dial);
    r->member->store_dial = NULL;
}
