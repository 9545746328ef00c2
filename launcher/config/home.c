/* Decides from the command line and the scheduler where the nodes of a job meet. See home.h. */
#include "launcher/config/home.h"

#include <assert.h>
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/args/args.h"
#include "common/base/choice.h"
#include "common/base/err.h"
#include "common/job/slurm.h"
#include "common/net/addr.h"
#include "launcher/config/home_scheduler.h"

const char *home_kind_name(enum home_kind k)
{
    static const char *const names[] = {HOME_KINDS(CHOICE_NAME)};
    return names[k];
}

char *home_join(const char *host, int port, char *out, size_t cap)
{
    snprintf(out, cap, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
    return out;
}

/* --- endpoints */

static bool host_ok(const char *host, size_t n, bool bracketed)
{
    if (n > HOME_HOST_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)host[i]) && !strchr(bracketed ? ":.%-_" : ".-_", host[i]))
            return false;
    return true;
}

static bool is_ipv6(const char *host, size_t n)
{
    char text[HOME_HOST_MAX + 1];
    uint8_t ip[ADDR_BYTES];
    snprintf(text, sizeof text, "%.*s", (int)n, host);
    return addr_read(text, ip);
}

int home_parse_endpoint(const char *text, int default_port, char host[HOME_HOST_MAX + 1], int *port, struct err *e)
{
    struct host_port to;
    int64_t p = default_port;

    if (text[0] == '[' && !strchr(text, ']'))
        return err_set(e, ERR_USAGE, "'%s': expected a closing bracket", text);
    if (!addr_split(text, strlen(text), &to) || !host_ok(to.host, to.host_len, text[0] == '[' || to.bare_v6))
        return err_set(e, ERR_USAGE, "'%s': expected HOST, HOST:PORT or [IPV6]:PORT", text);
    if (memchr(to.host, ':', to.host_len) && !is_ipv6(to.host, to.host_len))
        return err_set(e, ERR_USAGE, "'%s': expected HOST, HOST:PORT or [IPV6]:PORT, '%.*s' is no IPv6 address", text,
                       (int)to.host_len, to.host);
    if (to.port && parse_i64(to.port, "port", 0, 65535, &p, e) < 0)
        return err_wrap(e, "'%s'", text);
    snprintf(host, HOME_HOST_MAX + 1, "%.*s", (int)to.host_len, to.host);
    *port = (int)p;
    return 0;
}

/* --- what was typed */

struct choice {
    const struct home_typed *t;
    const struct home_look *look;
    struct home *home;
};

static bool backend_is(const struct choice *c, const char *names)
{
    const char *b = c->t->backend;
    const size_t n = b ? strlen(b) : 0;
    for (const char *p = names; n && (p = strstr(p, b)); p++)
        if ((p == names || p[-1] == ' ') && (p[n] == ' ' || !p[n]))
            return true;
    return false;
}

static bool has_scheme(const char *endpoint, const char *scheme)
{
    return endpoint && strncmp(endpoint, scheme, strlen(scheme)) == 0;
}

#define ETCD "etcd etcd-v2 etcd-v3" /* torchrun has the first two */

static enum home_kind kind_of_url(const char *endpoint)
{
    if (has_scheme(endpoint, "file://"))
        return HOME_FILE;
    if (has_scheme(endpoint, "redis://") || has_scheme(endpoint, "rediss://") ||
        has_scheme(endpoint, "redis+sentinel://") || has_scheme(endpoint, "rediss+sentinel://"))
        return HOME_REDIS;
    if (has_scheme(endpoint, "etcd://") || has_scheme(endpoint, "etcds://"))
        return HOME_ETCD;
    if (has_scheme(endpoint, "k8s://"))
        return HOME_K8S;
    return HOME_TCP;
}

static int too_long(const char *endpoint, int max, struct err *e)
{
    return err_set(e, ERR_USAGE, "--rdzv-endpoint '%.60s...': expected at most %d characters, got %zu", endpoint, max,
                   strlen(endpoint));
}

static int take_url(struct choice *c, enum home_kind kind, const char *url, struct err *e)
{
    if (strlen(url) > HOME_ENDPOINT_MAX)
        return too_long(url, HOME_ENDPOINT_MAX, e);
    c->home->kind = kind;
    snprintf(c->home->endpoint, sizeof c->home->endpoint, "%s", url);
    return 0;
}

static int refuse_folder(const char *typed, struct err *e)
{
    return err_set(e, ERR_USAGE, "'%.200s': expected file:///DIR, an absolute path that all nodes see", typed);
}

/* torchrun's rdzv_conf store_type=file takes a bare path as its endpoint. */
static int take_path(struct choice *c, const char *path, struct err *e)
{
    char url[HOME_ENDPOINT_MAX + 1];
    if (path[0] != '/')
        return refuse_folder(path, e);
    if (snprintf(url, sizeof url, "file://%s", path) >= (int)sizeof url)
        return too_long(path, HOME_ENDPOINT_MAX - (int)strlen("file://"), e);
    return take_url(c, HOME_FILE, url, e);
}

static int take_address(struct choice *c, const char *host, int port)
{
    struct home *h = c->home;
    if (host != h->host)
        snprintf(h->host, sizeof h->host, "%s", host);
    h->port = port;
    home_join(h->host, port, h->endpoint, sizeof h->endpoint);
    return 0;
}

/* An address that others look after: what the administrator wrote into crun.conf, or what is declared to be a
 * rendezvousd's. A crun that took its port while it restarts would keep it out. */
static bool is_of_a_daemon(const struct choice *c)
{
    return backend_is(c, "rendezvousd") || c->home->is_configured;
}

static int choose_hosting(struct choice *c, const char *endpoint, struct err *e)
{
    const int is_host = c->t->is_host;
    if (!is_of_a_daemon(c)) {
        c->home->hosting = is_host < 0 ? HOME_HOSTS_IF_OWN : is_host ? HOME_HOSTS : HOME_DIALS;
        return 0;
    }
    if (is_host > 0)
        return err_set(e, ERR_USAGE,
                       "--rdzv-conf is_host=1: '%s' is the address of a rendezvousd (%s), where no crun hosts: leave "
                       "is_host out, or give the address with --rdzv-endpoint and --rdzv-backend c10d",
                       endpoint, c->home->is_configured ? "crun.conf" : "--rdzv-backend rendezvousd");
    c->home->hosting = HOME_DIALS;
    return 0;
}

static int take_tcp(struct choice *c, const char *endpoint, struct err *e)
{
    struct home *h = c->home;
    TRY(home_parse_endpoint(endpoint, RDZV_PORT, h->host, &h->port, e));
    if (h->port == 0 && c->t->max_nodes > 1)
        return err_set(e, ERR_USAGE, "'%s': expected a port from 1 to 65535 that the other nodes can dial", endpoint);
    if (h->port == 0) { /* torchrun's spelling of --standalone */
        *h = (struct home){.kind = HOME_LOCAL, .node_rank = h->node_rank, .from = h->from};
        return 0;
    }
    h->kind = HOME_TCP;
    TRY(choose_hosting(c, endpoint, e));
    return take_address(c, h->host, h->port);
}

/* --- a list of hosts */

int home_parse_list(const char *list, struct home_host ret[HOME_LIST_MAX], int *ret_n, struct err *e)
{
    char one[HOME_ENDPOINT_MAX + 1];
    *ret_n = 0;
    if (strlen(list) > HOME_ENDPOINT_MAX)
        return too_long(list, HOME_ENDPOINT_MAX, e);
    for (const char *p = list;; p++) {
        const size_t n = strcspn(p, ",");
        struct home_host *to = &ret[*ret_n];
        if (*ret_n == HOME_LIST_MAX)
            return err_set(e, ERR_USAGE, "'%.100s...': expected at most %d hosts", list, HOME_LIST_MAX);
        snprintf(one, sizeof one, "%.*s", (int)n, p);
        TRY(home_parse_endpoint(one, RDZV_PORT, to->host, &to->port, e));
        if (to->port == 0)
            return err_set(e, ERR_USAGE, "'%s': expected a port from 1 to 65535 that the other nodes can dial", one);
        for (const struct home_host *o = ret; o < to; o++)
            if (strcasecmp(o->host, to->host) == 0 && o->port == to->port)
                return err_set(e, ERR_USAGE, "'%s' is in the list twice: expected each host once", one);
        ++*ret_n;
        p += n;
        if (!*p)
            return 0;
    }
}

/* May nodes of this job host it? Why a host that hears MIN nodes knows that no other one does: decision 0039. */
static int check_list(const struct choice *c, const char *list, struct err *e)
{
    const struct home_typed *t = c->t;
    const struct home *h = c->home;
    if (t->max_nodes == 1)
        return err_set(e, ERR_USAGE, "'%s' is a list of hosts, and a job of one node meets nobody: leave it out", list);
    if (2 * t->min_nodes <= t->max_nodes)
        return err_set(e, ERR_USAGE,
                       "'%s' with --nnodes %d:%d: two hosts of a list could gather %d nodes each and both run the job; "
                       "expected MIN to be more than half of MAX, as %d:%d, or a rendezvousd, a Redis or a folder",
                       list, t->min_nodes, t->max_nodes, t->min_nodes, t->max_nodes / 2 + 1, t->max_nodes);
    if (t->spare)
        return err_set(
            e, ERR_USAGE,
            "--spare does not go with a list of hosts ('%s'): there a node has a seat, or no part in the job", list);
    if (h->node_rank < 0)
        return err_set(e, ERR_USAGE,
                       "'%s' is a list of hosts, where each node has a seat of its own: give --node-rank, 0 to %d, on "
                       "each node another one, or start crun under Slurm, PBS, mpirun or as a Kubernetes Indexed Job",
                       list, t->max_nodes - 1);
    if (h->node_rank >= t->max_nodes)
        return err_set(e, ERR_USAGE, "--node-rank %d: expected 0 to %d, as --nnodes allows %d nodes", h->node_rank,
                       t->max_nodes - 1, t->max_nodes);
    return 0;
}

static int take_list(struct choice *c, const char *list, const struct scheduler *s, struct err *e)
{
    struct home *h = c->home;
    size_t n = 0;
    if (h->node_rank < 0)
        h->node_rank = s->node_rank;
    struct err unfit;
    TRY(home_parse_list(list, h->list, &h->listed, e));
    if (c->t->backend && !backend_is(c, "c10d tcp rendezvousd"))
        return err_set(
            e, ERR_USAGE,
            "'%s': a list names nodes of the job that host its rendezvous, or daemons that share their state, "
            "and goes with no other backend than c10d and rendezvousd",
            list);
    h->kind = HOME_LISTED;
    TRY(choose_hosting(c, list, e));
    h->daemons = is_of_a_daemon(c);
    if (!h->daemons && check_list(c, list, &unfit) < 0)
        snprintf(h->unfit, sizeof h->unfit, "%s", unfit.text);
    h->numbered = !h->daemons && !h->unfit[0];
    for (int i = 0; i < h->listed && n < sizeof h->endpoint; i++) {
        char one[HOME_HOST_MAX + 16];
        n += (size_t)snprintf(h->endpoint + n, sizeof h->endpoint - n, "%s%s", i ? "," : "",
                              home_join(h->list[i].host, h->list[i].port, one, sizeof one));
    }
    return n < sizeof h->endpoint ? 0 : too_long(list, HOME_ENDPOINT_MAX, e);
}

static bool is_list(const struct choice *c, const char *endpoint)
{
    return strchr(endpoint, ',') && !strstr(endpoint, "://") && !c->t->store_type_file && !backend_is(c, "file redis");
}

/* --- one place */

static int take_endpoint(struct choice *c, const struct scheduler *s, const char *endpoint, struct err *e)
{
    const enum home_kind kind = kind_of_url(endpoint);
    if (kind == HOME_FILE && endpoint[strlen("file://")] != '/')
        return refuse_folder(endpoint, e);
    if (kind != HOME_TCP)
        return take_url(c, kind, endpoint, e);
    if (strstr(endpoint, "://"))
        return err_set(
            e, ERR_USAGE,
            "'%s': expected HOST[:PORT], redis://, rediss://, redis+sentinel://, rediss+sentinel://, etcd://, etcds://, k8s:// "
            "or file:///DIR",
            endpoint);
    if (c->t->store_type_file || backend_is(c, "file"))
        return take_path(c, endpoint, e);
    if (backend_is(c, "redis " ETCD)) {
        char url[HOME_ENDPOINT_MAX + 8];
        const bool redis = backend_is(c, "redis");
        snprintf(url, sizeof url, "%s://%s", redis ? "redis" : "etcd", endpoint);
        return take_url(c, redis ? HOME_REDIS : HOME_ETCD, url, e);
    }
    if (is_list(c, endpoint))
        return take_list(c, endpoint, s, e);
    return take_tcp(c, endpoint, e);
}

static int take_static(struct choice *c, struct err *e)
{
    const struct home_typed *t = c->t;
    struct home *h = c->home;
    char host[HOME_HOST_MAX + 1];
    int port = HOME_MASTER_PORT;
    const bool endpoint = t->endpoint && *t->endpoint;

    if (endpoint && t->store_type_file)
        return err_set(e, ERR_USAGE, "--rdzv-conf: store_type=file does not go with --rdzv-backend static");
    if (endpoint)
        TRY(home_parse_endpoint(t->endpoint, t->master_port >= 0 ? t->master_port : HOME_MASTER_PORT, host, &port, e));
    else
        TRY(home_parse_endpoint(t->master_addr ? t->master_addr : "127.0.0.1",
                                t->master_port >= 0 ? t->master_port : port, host, &port, e));
    if (port == 0)
        return err_set(e, ERR_USAGE, "'%s': a static rendezvous needs a port from 1 to 65535",
                       endpoint ? t->endpoint : t->master_addr);
    h->kind = HOME_STATIC;
    h->node_rank = t->node_rank < 0 ? 0 : t->node_rank; /* torchrun's default */
    if (h->node_rank >= t->max_nodes)
        return err_set(e, ERR_USAGE, "--node-rank %d: expected 0 to %d, as --nnodes allows %d node%s", h->node_rank,
                       t->max_nodes - 1, t->max_nodes, t->max_nodes > 1 ? "s" : "");
    h->numbered = true;
    h->hosting = t->is_host == 0 || (t->is_host < 0 && h->node_rank != 0) ? HOME_DIALS : HOME_HOSTS;
    h->from = endpoint ? "--rdzv-backend static" : "--master-addr";
    return take_address(c, host, port);
}

/* --- nothing was typed */

/* All nodes of the job are those that the scheduler has started crun on. */
static int check_scheduler(const struct choice *c, const struct scheduler *s, struct err *e)
{
    const struct home_typed *t = c->t;
    if (s->nodes > 0 && t->min_nodes > s->nodes)
        return err_set(e, ERR_USAGE,
                       "--nnodes asks for %d nodes, but %s has started crun on %d: expected --nnodes %d, or %d nodes "
                       "(--rdzv-endpoint if others are to come from elsewhere)",
                       t->min_nodes, s->name, s->nodes, s->nodes, t->min_nodes);
    if (s->node_rank >= t->max_nodes && t->min_nodes == t->max_nodes && !t->spare)
        return err_set(
            e, ERR_USAGE,
            "this is node %d of %s, counted from 0, but --nnodes allows %d: expected --nnodes %d, or --spare",
            s->node_rank, s->name, t->max_nodes, s->node_rank + 1);
    return 0;
}

static int take_scheduler(struct choice *c, const struct scheduler *s, struct err *e)
{
    struct home *h = c->home;
    TRY(check_scheduler(c, s, e));
    h->from = s->name;
    h->numbered = h->node_rank < 0;
    if (h->node_rank < 0)
        h->node_rank = s->node_rank;
    h->kind = HOME_TCP;
    h->hosting = c->t->is_host == 0  ? HOME_DIALS
                 : c->t->is_host > 0 ? HOME_HOSTS
                 : s->node_rank == 0 ? HOME_HOSTS
                 : s->node_rank > 0  ? HOME_DIALS
                                     : HOME_HOSTS_IF_OWN;
    return take_address(c, s->host, s->port);
}

static int look_around(struct choice *c, const struct scheduler *s, struct err *e)
{
    if (s->host[0])
        return take_scheduler(c, s, e);
    const char *configured = c->look->configured(c->look->arg);
    if (configured) {
        c->home->from = "crun.conf";
        c->home->is_configured = true;
        return take_endpoint(c, s, configured, e);
    }
    if (s->unread[0])
        return err_set(
            e, ERR_USAGE,
            "the first node of %s's list '%s' cannot be told: expected names and NAME[NUMBERS], each bracket "
            "closed and nothing behind it; give --rdzv-endpoint HOST:PORT, with the name of one of the nodes",
            s->name, s->unread);
    return err_set(
        e, ERR_USAGE,
        "--nnodes with %d nodes needs a place to meet: give --rdzv-endpoint HOST:PORT (the address of one of the "
        "nodes, or of a rendezvousd), redis://HOST, etcd://HOST or file:///SHARED/DIR, or --node-rank with --master-addr; or start "
        "crun under Slurm, PBS, mpirun or as a Kubernetes Indexed Job; or write rdzv_endpoint = HOST:PORT into "
        "/etc/crun.conf",
        c->t->max_nodes);
}

/* --- all together */

static int check_backend(const struct choice *c, struct err *e)
{
    const char *b = c->t->backend;
    if (b && !backend_is(c, "c10d rendezvousd tcp static redis file " ETCD))
        return err_set(e, ERR_USAGE,
                       "--rdzv-backend '%s': expected c10d, rendezvousd, tcp, static, redis, etcd or file", b);
    const enum home_kind kind = kind_of_url(c->t->endpoint);
    const char *names = kind == HOME_REDIS ? "redis" : kind == HOME_ETCD ? ETCD : kind == HOME_K8S ? "" : "file c10d";
    if (b && kind != HOME_TCP && !backend_is(c, names))
        return err_set(e, ERR_USAGE,
                       "--rdzv-backend '%s' does not go with --rdzv-endpoint %s://: leave the backend out", b,
                       home_kind_name(kind));
    return 0;
}

static bool static_meant(const struct choice *c)
{
    const struct home_typed *t = c->t;
    if (t->max_nodes == 1 && t->master_port == 0) /* any port will do */
        return false;
    if (backend_is(c, "static")) /* torchrun's default backend, which with one node means nothing */
        return t->max_nodes > 1 || t->master_port >= 0 || t->master_addr || t->endpoint;
    return !t->backend && !t->endpoint && (t->master_port >= 0 || t->master_addr);
}

/* --master-addr with c10d: torchrun passes it over, and waits for an endpoint that nobody typed. */
static bool is_master_meant(const struct choice *c)
{
    return c->t->max_nodes > 1 && !c->t->endpoint && c->t->master_addr && backend_is(c, "c10d tcp rendezvousd");
}

/* The rendezvous is there; the workers' store has a port of its own. */
static int take_master(struct choice *c, struct err *e)
{
    const int port = c->t->master_port > 0 ? c->t->master_port : RDZV_PORT;
    struct home *h = c->home;
    TRY(home_parse_endpoint(c->t->master_addr, port, h->host, &h->port, e));
    h->from = "--master-addr";
    h->kind = HOME_TCP;
    TRY(choose_hosting(c, c->t->master_addr, e));
    return take_address(c, h->host, h->port);
}

/* The rendezvous is at that port, perhaps on this machine. */
static bool is_port_of_endpoint(const struct choice *c)
{
    return c->home->kind == HOME_TCP && c->t->master_port == c->home->port && !is_master_meant(c);
}

/* Elsewhere the store of each round has a fresh port: a firewall wants to know it. */
static void choose_store_port(struct choice *c)
{
    struct home *h = c->home;
    const bool is_fixed =
        h->kind != HOME_LOCAL && h->kind != HOME_STATIC && !is_master_meant(c) && !is_port_of_endpoint(c);
    h->store_port = is_fixed && c->t->master_port > 0 ? c->t->master_port : 0;
}

static int choose(struct choice *c, const struct scheduler *s, struct err *e)
{
    const struct home_typed *t = c->t;
    if (t->standalone) {
        c->home->from = "--standalone";
        return 0;
    }
    if (static_meant(c))
        return take_static(c, e);
    if (t->endpoint) {
        c->home->from = "--rdzv-endpoint";
        return take_endpoint(c, s, t->endpoint, e) < 0 ? err_wrap(e, "--rdzv-endpoint") : 0;
    }
    if (is_master_meant(c))
        return take_master(c, e) < 0 ? err_wrap(e, "--master-addr") : 0;
    if (backend_is(c, "redis file " ETCD))
        return err_set(e, ERR_USAGE, "--rdzv-backend %s needs --rdzv-endpoint", t->backend);
    if (t->max_nodes == 1) {
        c->home->from = "one node";
        return 0;
    }
    return look_around(c, s, e);
}

/* Two strangers' jobs must never merge under a default name. */
static int choose_run_id(struct choice *c, const struct scheduler *s, struct err *e)
{
    struct home *h = c->home;
    const bool shared = h->kind == HOME_REDIS || h->kind == HOME_ETCD || h->kind == HOME_K8S || h->kind == HOME_FILE ||
                        ((h->kind == HOME_TCP || h->kind == HOME_LISTED) && is_of_a_daemon(c));
    const char *id = c->t->run_id ? c->t->run_id : h->kind == HOME_LOCAL ? "" : s->job;
    if (!*id && h->kind == HOME_K8S) /* its last word is a name of this job's own */
        id = strrchr(h->endpoint, '/') + 1;
    if (!*id && shared)
        return err_set(e, ERR_USAGE,
                       "no --rdzv-id is given: a rendezvous that jobs share needs a name of this job's own, expected "
                       "--rdzv-id ID, the same on all its nodes");
    if (shared && (strcmp(id, HOME_RUN_ID) == 0 || strcmp(id, "default") == 0))
        return err_set(e, ERR_USAGE,
                       "--rdzv-id '%s' is no name of one job alone, and jobs share this rendezvous: expected another "
                       "one, the same on all nodes",
                       id);
    if (!*id && h->kind != HOME_LOCAL)
        id = HOME_RUN_ID;
    assert(strlen(id) <= HOME_ID_MAX);
    snprintf(h->run_id, sizeof h->run_id, "%s", id);
    return 0;
}

/* A worker of a job that joins this job would wait for a place that it holds itself, or end itself by the resize. The
 * default name says nothing where another place was typed. */
static int refuse_own_job(const struct choice *c, struct err *e)
{
    const struct home *h = c->home;
    const char *around = c->look->env(c->look->arg, "TORCHELASTIC_RUN_ID");
    const bool elsewhere = !c->t->run_id && c->t->endpoint_is_near && strcmp(h->run_id, HOME_RUN_ID) == 0;
    if (h->kind == HOME_LOCAL || !around || strcmp(around, h->run_id) != 0 || elsewhere)
        return 0;
    return err_set(
        e, ERR_USAGE,
        "this crun was started by a worker of job '%s' (TORCHELASTIC_RUN_ID), which it would join: give it a "
        "name of its own with --rdzv-id, or --standalone for a job of one node",
        h->run_id);
}

static bool is_within_a_job(const struct choice *c)
{
    return c->look->env(c->look->arg, "TORCHELASTIC_RUN_ID") != NULL;
}

static void note_unused(struct choice *c)
{
    const struct home_typed *t = c->t;
    struct home *h = c->home;
    const struct {
        bool is;
        const char *option;
    } typed[] = {{h->kind == HOME_LOCAL && t->master_port > 0, "--master-port"},
                 {is_port_of_endpoint(c), "--master-port, which is the port of the rendezvous itself,"},
                 {h->kind != HOME_STATIC && t->master_addr && !is_master_meant(c), "--master-addr"},
                 {t->standalone && t->endpoint, "--rdzv-endpoint"},
                 {t->standalone && t->backend, "--rdzv-backend"}};
    static_assert(sizeof typed / sizeof *typed < sizeof h->unused / sizeof *h->unused, "a NULL ends them");
    for (size_t i = 0, n = 0; i < sizeof typed / sizeof *typed; i++)
        if (typed[i].is)
            h->unused[n++] = typed[i].option;
}

int home_decide(const struct home_typed *t, const struct home_look *look, struct home *ret, struct err *e)
{
    struct home_typed typed = *t;
    if (typed.endpoint && !*typed.endpoint)
        typed.endpoint = NULL;
    if (typed.backend && !*typed.backend)
        typed.backend = NULL;
    *ret = (struct home){.kind = HOME_LOCAL, .node_rank = t->node_rank};
    struct choice c = {&typed, look, ret};
    struct scheduler s = {.node_rank = -1};

    if (t->standalone && t->max_nodes > 1)
        return err_set(e, ERR_USAGE, "--standalone runs one node, --nnodes says up to %d: leave one of them out",
                       t->max_nodes);
    TRY(check_backend(&c, e));
    if (!t->standalone && !is_within_a_job(&c))
        TRY(scheduler_check_tasks(look, t->max_nodes, e));
    if (t->max_nodes > 1)
        scheduler_look(look, t->max_nodes, &s);
    TRY(choose(&c, &s, e));
    TRY(choose_run_id(&c, &s, e));
    TRY(refuse_own_job(&c, e));
    choose_store_port(&c);
    note_unused(&c);
    return 0;
}
