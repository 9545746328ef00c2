/* Chooses the client of the job's home and hosts the rendezvous where this crun may. See rendezvous.h. */
#include "launcher/rendezvous/rendezvous.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/net/port_mark.h"
#include "launcher/config/home.h"
#include "launcher/rendezvous/addresses.h"
#include "launcher/rendezvous/hosting.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/net/server.h"

#define GOODBYE_MS 2000 /* for nodes that know the end to close their connections */

struct rendezvous {
    struct rendezvous_options o;
    uv_loop_t *loop;
    struct rdzv_client *client;
    struct hosting *hosted; /* NULL: somebody else hosts */
    bool may_host, told_whose;
    bool port_taken;        /* when this crun tried last to host, in the place of whoever does not answer */
    struct own_host *asked; /* whether the host is this machine; NULL: that is not being asked */
    char addr[RDZV_ADDR_MAX + 1], addrs[RDZV_ADDRS_MAX + 1];
    uv_timer_t late; /* bounds rendezvous_see_off() */
    bool is_late;
};

/* --- hosting */

/* -EADDRINUSE: somebody else does. */
static int host(struct rendezvous *z, struct err *e)
{
    const struct home *home = z->o.home;
    TRY(hosting_open(&z->hosted, z->loop,
                     &(struct hosting_options){.token_file = z->o.client.token_file,
                                               .insecure = z->o.client.insecure,
                                               .one_node = z->o.one_node,
                                               .has_store = home->kind == HOME_STATIC,
                                               .host = home->host,
                                               .stranger = z->o.client.stranger,
                                               .arg = z->o.client.arg,
                                               .port = home->port,
                                               .page = z->o.client.page},
                     e));
    log_info("rendezvous", "hosting at %s", home->endpoint);
    return 0;
}

bool rendezvous_hosts(const struct rendezvous *z)
{
    return z->hosted;
}

bool rendezvous_port_is_taken(const struct rendezvous *z)
{
    return z->port_taken;
}

struct server *rendezvous_server(const struct rendezvous *z)
{
    return z->hosted ? z->hosted->server : NULL;
}

/* --- the client */

static int open_client(struct rendezvous *z, const struct rdzv_client_ops *ops, struct err *e)
{
    z->o.client.jobs = z->hosted ? z->hosted->jobs : NULL;
    return ops->open(&z->client, z->loop, &z->o.client, e);
}

/* One static node meets nobody: whoever has its port is no part of this job. */
static bool meets_nobody(const struct rendezvous_options *o)
{
    return o->home->kind == HOME_STATIC && o->one_node;
}

static void on_own(void *arg, bool own)
{
    struct rendezvous *z = arg;
    z->asked = NULL;
    z->may_host = own;
    if (own && z->o.may_host)
        z->o.may_host(z->o.client.arg);
}

static void ask_whether_own(struct rendezvous *z)
{
    const struct home *h = z->o.home;
    const bool is_asked =
        h->kind != HOME_LISTED && h->hosting == HOME_HOSTS_IF_OWN && !z->o.client.tls && !z->may_host && !z->asked;
    if (is_asked && !port_is_marked(h->port) && own_host_ask(&z->asked, z->loop, h->host, on_own, z) == OWN_HOST_YES)
        z->may_host = true;
}

static int open_tcp(struct rendezvous *z, struct err *e)
{
    const struct home *h = z->o.home;
    z->may_host = !z->o.client.tls && h->hosting == HOME_HOSTS;
    ask_whether_own(z);
    if (!z->may_host)
        return open_client(z, &rdzv_client_tcp_ops, e);
    struct err why = {0};
    const int rc = host(z, &why);
    if (rc == 0)
        return open_client(z, &rdzv_client_local_ops, e);
    if (rc == -EADDRINUSE && meets_nobody(&z->o) && h->hosting == HOME_HOSTS)
        return err_set(e, rc, "%s: another program has that port; leave --master-port out, or choose another one",
                       why.text);
    if (rc != -EADDRINUSE)
        return err_set(e, rc, "%s", why.text);
    if (h->hosting == HOME_HOSTS)
        log_warn("rendezvous", "%s; dialling whoever has it, to host once it is free", why.text);
    return open_client(z, &rdzv_client_tcp_ops, e);
}

/* After a dial that was refused. */
static void tell_whose_port(struct rendezvous *z)
{
    const struct home *h = z->o.home;
    if (h->kind == HOME_LISTED || h->hosting != HOME_HOSTS_IF_OWN || z->told_whose || !port_is_marked(h->port))
        return;
    z->told_whose = true;
    log_warn("rendezvous",
             "a rendezvousd of this machine had port %d in the last minute: this crun does not host there meanwhile "
             "(--rdzv-conf is_host=1 does)",
             h->port);
}

int rendezvous_take_over(struct rendezvous *z, struct err *e)
{
    tell_whose_port(z);
    ask_whether_own(z); /* again: the first answer may have been an error, the port may have been a daemon's */
    if (!z->may_host || z->hosted)
        return 0;
    const int rc = host(z, e);
    z->port_taken = rc == -EADDRINUSE;
    if (rc < 0)
        return 0;
    z->o.client.past = z->client->past;
    z->client->ops->close(z->client);
    z->client = NULL;
    /* Others may still run the last round. Without one, too: this crun may have dialled a host that hung and then died,
     * and that host's workers may not have ended yet. */
    z->o.client.job.hold_ms = z->o.client.job.silence_ms + z->o.client.job.kill_ms;
    TRY(open_client(z, &rdzv_client_local_ops, e));
    return 1;
}

/* --- what is announced about this node */

static int choose_addresses(struct rendezvous *z, struct err *e)
{
    const struct rendezvous_options *o = &z->o;
    if (o->home->kind == HOME_LOCAL) {
        strcpy(z->addr, "127.0.0.1");
        return 0;
    }
    TRY(addresses_all(z->addrs, sizeof z->addrs, e));
    if (o->iface)
        return addresses_of_interface(o->iface, z->addr, sizeof z->addr, e);
    if (o->local_addr && strlen(o->local_addr) >= sizeof z->addr)
        return err_set(e, ERR_USAGE, "--local-addr '%s': expected at most %zu characters", o->local_addr,
                       sizeof z->addr - 1);
    snprintf(z->addr, sizeof z->addr, "%s", o->local_addr ? o->local_addr : "");
    return 0;
}

int rendezvous_open(struct rendezvous **ret, uv_loop_t *loop, const struct rendezvous_options *o, struct err *e)
{
    struct rendezvous *z = calloc(1, sizeof *z);
    if (!z)
        return err_errno(e, ENOMEM, "rendezvous");
    z->o = *o;
    z->loop = loop;
    uv_timer_init(loop, &z->late);
    *ret = z;
    TRY(choose_addresses(z, e));
    z->o.client.endpoint = o->home->endpoint;
    z->o.client.node_rank = o->home->node_rank;
    z->o.client.addr = z->addr[0] ? z->addr : NULL;
    z->o.client.addrs = z->addrs;
    switch (o->home->kind) {
    case HOME_LOCAL:
        return open_client(z, &rdzv_client_local_ops, e);
    case HOME_TCP:
    case HOME_STATIC:
        return open_tcp(z, e);
    case HOME_LISTED:
        z->o.client.list = o->home->list;
        z->o.client.list_count = o->home->listed;
        z->o.client.list_is_daemons = o->home->daemons;
        z->o.client.list_unfit = o->home->unfit;
        z->o.client.hosts_own_seat = o->home->hosting == HOME_HOSTS;
        z->o.client.never_leads = o->home->hosting == HOME_DIALS;
        return open_client(z, &rdzv_client_listed_ops, e);
    default:
        return open_client(z, &rdzv_client_elected_ops, e);
    }
}

/* --- requests */

int rendezvous_join(struct rendezvous *z, struct err *e)
{
    return z->client->ops->join(z->client, e);
}

int rendezvous_fail(struct rendezvous *z, const struct rdzv_cause *cause, struct err *e)
{
    return z->client->ops->fail(z->client, cause, e);
}

int rendezvous_done(struct rendezvous *z, struct err *e)
{
    return z->client->ops->done(z->client, e);
}

int rendezvous_leave(struct rendezvous *z, const struct rdzv_cause *why, struct err *e)
{
    struct rdzv_cause told = why ? *why : (struct rdzv_cause){.rank = -1};
    if (told.fatal && !z->hosted)
        return 0;
    if (z->hosted && (told.exit_code == 0 || told.fatal)) {
        snprintf(told.text, sizeof told.text, "%.100s%snode '%s'", why ? why->text : "",
                 why && why->text[0] ? " on " : "", z->o.client.node);
        TRY(jobs_drain_for(z->hosted->jobs, NULL, z->o.client.run_id, &told, e));
    }
    return z->client->ops->leave(z->client, why, e);
}

bool rendezvous_takes_reports(const struct rendezvous *z)
{
    return z->client && z->client->ops->report;
}

void rendezvous_report(struct rendezvous *z, const char *fields)
{
    if (rendezvous_takes_reports(z))
        z->client->ops->report(z->client, fields, NULL); /* for people who look: the next one comes soon */
}

void rendezvous_answer(struct rendezvous *z, uint64_t id, const char *text)
{
    if (z->client)
        z->client->ops->answer(z->client, id, text, NULL);
}

/* --- the end */

static void on_late(uv_timer_t *t)
{
    struct rendezvous *z = container_of(t, struct rendezvous, late);
    z->is_late = true;
}

void rendezvous_publish_failure(struct rendezvous *z, const char *text, const bool *hurry)
{
    struct rdzv_client *c = z->client;
    if (!c || !c->ops->publish || c->ops->publish(c, text, NULL) < 0)
        return;
    z->is_late = false;
    uv_timer_start(&z->late, on_late, RENDEZVOUS_PUBLISH_MS, 0);
    while (!c->ops->is_answered(c) && !z->is_late && !*hurry)
        uv_run(z->loop, UV_RUN_ONCE);
    uv_timer_stop(&z->late);
    z->is_late = false;
}

/* Whoever hosts. One that was elected leads a job that may go on without it, and is a client of its own. */
static const struct hosting *host_of(const struct rendezvous *z)
{
    const struct rdzv_client *c = z->client;
    return z->hosted ? z->hosted : c && c->ops->hosting ? c->ops->hosting(c) : NULL;
}

struct page *rendezvous_page(const struct rendezvous *z)
{
    const struct hosting *h = host_of(z);
    struct jobs_stats st = {0};
    if (h)
        jobs_stats(h->jobs, &st);
    return st.jobs + st.finished > 0 ? h->page : NULL; /* a host of a list may have no job */
}

static bool alone(const struct rendezvous *z, const struct hosting *h)
{
    struct server_stats st;
    server_stats(h->server, &st);
    return st.clients <= (h != z->hosted); /* its own client */
}

/* Whoever is out of reach is waited for no longer than its workers can live; and that is said. */
static int64_t patience_ms(struct rendezvous *z, const struct hosting *h, int64_t bound, bool *told)
{
    const int64_t now = clock_ms();
    struct jobs_reach reach;
    char text[320];
    jobs_reach(h->jobs, z->o.client.run_id, z->o.client.node, &reach);
    if (reach.until_ms > 0 && reach.until_ms < bound)
        bound = reach.until_ms;
    if (reach.lost[0] && bound > now && !*told) {
        *told = true;
        snprintf(text, sizeof text,
                 "nothing is heard of %s: this crun waits up to %lld s more, to tell how the job ended", reach.lost,
                 (long long)(bound - now + 999) / 1000);
        z->o.client.tell(z->o.client.arg, text);
    }
    return bound > now ? bound - now : 0;
}

void rendezvous_see_off(struct rendezvous *z, int64_t bound_ms, const bool *hurry)
{
    const int64_t bound = clock_ms() + bound_ms;
    bool all_told = false, told_user = false;
    const struct hosting *h = host_of(z);
    if (!h || (h != z->hosted && jobs_heard(h->jobs) < INT_MAX))
        return;
    while ((h = host_of(z)) && !(all_told && alone(z, h)) && !z->is_late && !*hurry) {
        if (!all_told && (all_told = jobs_all_told(h->jobs))) {
            uv_timer_start(&z->late, on_late, GOODBYE_MS, 0); /* their news may still be on the way */
            continue;
        }
        if (!all_told) {
            uv_update_time(z->loop);
            uv_timer_start(&z->late, on_late, (uint64_t)patience_ms(z, h, bound, &told_user), 0);
        }
        uv_run(z->loop, UV_RUN_ONCE);
    }
    uv_timer_stop(&z->late);
}

int rendezvous_reached(const struct rendezvous *z)
{
    struct jobs_reach reach;
    if (!z->hosted)
        return -1;
    jobs_reach(z->hosted->jobs, z->o.client.run_id, z->o.client.node, &reach);
    return reach.reached;
}

static void on_closed(uv_handle_t *h)
{
    free((char *)h - offsetof(struct rendezvous, late));
}

void rendezvous_close(struct rendezvous *z)
{
    if (!z)
        return;
    if (z->client)
        z->client->ops->close(z->client);
    own_host_close(z->asked);
    hosting_close(z->hosted);
    uv_close((uv_handle_t *)&z->late, on_closed);
}
