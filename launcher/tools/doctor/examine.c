/* Examines the hosts. All are asked at once, and judged when all have answered. Connections are tried in rounds: in
 * round r host i dials host i + r, so that each listener has one conversation at a time. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/json/json.h"
#include "common/net/addr.h"
#include "launcher/rendezvous/addresses.h"
#include "launcher/tools/doctor/doctor.h"
#include "launcher/tools/doctor/doctor_agent.h"
#include "launcher/tools/doctor/judge.h"

#define CLOCK_ROUNDS 5
#define ANSWER_MS 10000
#define DEAF_AFTER 2 /* after so many hosts could not connect to one, the others do not try */

static void ask_all(struct doctor *d, cJSON *request, int64_t timeout_ms)
{
    for (int i = 0; i < d->hosts.n; i++)
        doctor_host_ask(&d->at[i], cJSON_Duplicate(request, true));
    cJSON_Delete(request);
    doctor_hosts_wait(d->at, d->hosts.n, timeout_ms);
}

/* --- each by itself */

static int look_at_each(struct doctor *d, struct err *e)
{
    char nonce[AUTH_HEX + 1], folder[4096];
    TRY(auth_random_hex(nonce, AUTH_HEX / 2, e));
    cJSON *o = doctor_request("facts");
    cJSON_AddStringToObject(o, "nonce", nonce);
    if (d->config.token_file)
        cJSON_AddStringToObject(o, "token_file", d->config.token_file);
    if (d->named && getcwd(folder, sizeof folder))
        cJSON_AddStringToObject(o, "folder", folder);
    ask_all(d, o, (int64_t)(d->config.timeout_s * 1000));
    for (int i = 0; i < d->hosts.n; i++) {
        facts_from_json(d->at[i].answer, &d->facts[i]);
        if (d->hosts.n == 1 && addr_host_is_loopback(d->labels[i]) && d->facts[i].name[0])
            d->labels[i] = d->facts[i].name;
    }
    return 0;
}

/* Compare clocks: the exchange that took least time gives the best estimate. */
static void look_at_clocks(struct doctor *d)
{
    for (int i = 0; i < d->hosts.n; i++)
        d->within_us[i] = -1;
    for (int round = 0; round < CLOCK_ROUNDS; round++) {
        ask_all(d, doctor_request("clock"), ANSWER_MS);
        for (int i = 0; i < d->hosts.n; i++) {
            const struct doctor_host *h = &d->at[i];
            const int64_t us = (int64_t)json_f64_or(h->answer, "us", -1),
                          within = (h->answered_us - h->asked_us + 1) / 2;
            if (us < 0 || (d->within_us[i] >= 0 && within >= d->within_us[i]))
                continue;
            d->within_us[i] = within;
            d->ahead_us[i] = us - (h->asked_us + within);
        }
    }
}

/* --- between them */

struct links {
    char nonce[AUTH_HEX + 1];
    int *ports;      /* of each host's listener, -1: none */
    int *deaf;       /* number of hosts that could not connect to it */
    bool *reached;   /* somebody could */
    struct probe *v; /* connection from host i to host k at i * n + k */
    bool *tried;     /* likewise */
};

static struct probe read_probe(const cJSON *answer)
{
    struct probe p = {.state = probe_state_of(json_str_or(answer, "state", "")),
                      .mtu = (int)(int64_t)json_f64_or(answer, "mtu", -1),
                      .passes = (int)(int64_t)json_f64_or(answer, "passes", -1)};
    const char *why = json_str_or(answer, "text", "");
    snprintf(p.text, sizeof p.text, "%s", *why ? why : json_str_or(answer, "error", ""));
    snprintf(p.iface, sizeof p.iface, "%s", json_str_or(answer, "iface", ""));
    return p;
}

static cJSON *dial_request(const char *host, int port, const char *nonce)
{
    cJSON *o = doctor_request("dial");
    cJSON_AddStringToObject(o, "host", host);
    cJSON_AddNumberToObject(o, "port", port);
    if (nonce)
        cJSON_AddStringToObject(o, "nonce", nonce);
    return o;
}

static void listen_all(struct doctor *d, struct links *l)
{
    cJSON *o = doctor_request("listen");
    cJSON_AddStringToObject(o, "nonce", l->nonce);
    ask_all(d, o, ANSWER_MS);
    for (int i = 0; i < d->hosts.n; i++)
        l->ports[i] = (int)(int64_t)json_f64_or(d->at[i].answer, "port", -1);
}

static bool worth_a_try(const struct doctor *d, const struct links *l, int from, int to)
{
    return !d->at[from].gone && !d->at[to].gone && l->ports[to] > 0 && (l->reached[to] || l->deaf[to] < DEAF_AFTER);
}

static void dial_round(struct doctor *d, struct links *l, int round)
{
    const int n = d->hosts.n;
    for (int i = 0; i < n; i++) {
        const int to = (i + round) % n;
        l->tried[i * n + to] = worth_a_try(d, l, i, to);
        if (l->tried[i * n + to])
            doctor_host_ask(&d->at[i], dial_request(d->at[to].address, l->ports[to], l->nonce));
    }
    doctor_hosts_wait(d->at, n, PROBE_LONGEST_MS + ANSWER_MS);
    for (int i = 0; i < n; i++) {
        const int to = (i + round) % n, at = i * n + to;
        l->tried[at] = l->tried[at] && !d->at[i].gone;
        if (!l->tried[at])
            continue;
        l->v[at] = read_probe(d->at[i].answer);
        l->deaf[to] += l->v[at].state == PROBE_CLOSED;
        l->reached[to] = l->reached[to] || l->v[at].state == PROBE_OK;
    }
}

static void judge_links(struct doctor *d, const struct links *l)
{
    const int n = d->hosts.n;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            if (l->tried[i * n + k])
                judge_link(d->labels[i], d->labels[k], &l->v[i * n + k], l->tried[k * n + i] ? &l->v[k * n + i] : NULL,
                           &d->found);
}

/* Choose the address by which others reach each host: "localhost" means another machine to every other host. */
static void choose_addresses(struct doctor *d, char *own, size_t cap)
{
    bool all_here = true;
    struct err e;
    for (int i = 0; i < d->hosts.n; i++)
        all_here = all_here && addr_host_is_loopback(d->at[i].address);
    if (all_here || addresses_all(own, cap, &e) < 0)
        return;
    own[strcspn(own, ",")] = '\0';
    for (int i = 0; i < d->hosts.n; i++)
        if (addr_host_is_loopback(d->at[i].address))
            d->at[i].address = own;
}

static int look_between(struct doctor *d, struct err *e)
{
    const size_t n = (size_t)d->hosts.n;
    char own[1024];
    struct links l = {.ports = calloc(n, sizeof *l.ports),
                      .deaf = calloc(n, sizeof *l.deaf),
                      .reached = calloc(n, sizeof *l.reached),
                      .v = calloc(n * n, sizeof *l.v),
                      .tried = calloc(n * n, sizeof *l.tried)};
    int rc = l.ports && l.deaf && l.reached && l.v && l.tried ? auth_random_hex(l.nonce, AUTH_HEX / 2, e)
                                                              : err_errno(e, ENOMEM, "hosts");
    if (rc == 0) {
        choose_addresses(d, own, sizeof own);
        listen_all(d, &l);
        for (int round = 1; round < d->hosts.n; round++)
            dial_round(d, &l, round);
        judge_links(d, &l);
    }
    free(l.ports);
    free(l.deaf);
    free(l.reached);
    free(l.v);
    free(l.tried);
    return rc;
}

/* --- to the rendezvous and the shared folder */

/* Is a host of the list the one whose crun would host the rendezvous? */
static bool hosts_it(const struct doctor *d)
{
    for (int i = 0; i < d->hosts.n; i++)
        if (strcmp(host_address(&d->hosts.v[i]), d->place_host) == 0)
            return true;
    return addresses_own(d->place_host, ANSWER_MS);
}

static void look_at_place(struct doctor *d)
{
    const bool may_be_closed = hosts_it(d);
    ask_all(d, dial_request(d->place_host, d->place_port, NULL), PROBE_LONGEST_MS + ANSWER_MS);
    for (int i = 0; i < d->hosts.n; i++) {
        const struct probe p = read_probe(d->at[i].answer);
        const bool refused = strstr(p.text, strerror(ECONNREFUSED)) != NULL;
        if (!d->at[i].answer || p.state == PROBE_OK || (refused && may_be_closed))
            continue;
        if (p.state == PROBE_UNRESOLVED)
            findings_add(&d->found, FINDING_NAME, d->labels[i], "it does not know the name of the rendezvous %s: %s",
                         d->config.endpoint, p.text);
        else
            findings_add(&d->found, FINDING_RENDEZVOUS, d->labels[i], "it cannot connect to the rendezvous at %s: %s",
                         d->config.endpoint, p.text);
    }
}

static cJSON *path_request(const char *word, const char *path)
{
    cJSON *o = doctor_request(word);
    cJSON_AddStringToObject(o, "path", path);
    return o;
}

static void look_at_shared(struct doctor *d)
{
    char path[4096], nonce[AUTH_HEX + 1] = "";
    struct err e;
    int writer = 0;
    while (writer < d->hosts.n && d->at[writer].gone)
        writer++;
    if (writer == d->hosts.n || auth_random_hex(nonce, AUTH_HEX / 2, &e) < 0)
        return;
    snprintf(path, sizeof path, "%.4000s/.crun-doctor-%.16s", d->shared_dir, nonce);
    cJSON *o = path_request("write", path);
    cJSON_AddStringToObject(o, "text", nonce);
    doctor_host_ask(&d->at[writer], o);
    doctor_hosts_wait(d->at, d->hosts.n, ANSWER_MS);
    const char *why = json_str_or(d->at[writer].answer, "error", "");
    if (!d->at[writer].answer || *why) {
        findings_add(&d->found, FINDING_SHARED, d->labels[writer], "it %s",
                     *why ? why : "does not answer when it writes there");
        return;
    }
    ask_all(d, path_request("read", path), ANSWER_MS);
    for (int i = 0; i < d->hosts.n; i++)
        if (d->at[i].answer && strcmp(json_str_or(d->at[i].answer, "text", ""), nonce) != 0)
            findings_add(&d->found, FINDING_SHARED, d->labels[i], "what %s writes to %s is not seen there",
                         d->labels[writer], d->shared_dir);
    doctor_host_ask(&d->at[writer], path_request("remove", path));
    doctor_hosts_wait(d->at, d->hosts.n, ANSWER_MS);
}

/* --- all of it */

static int judge_all(struct doctor *d, struct err *e)
{
    struct judged *v = calloc((size_t)d->hosts.n, sizeof *v);
    int n = 0;
    if (!v)
        return err_errno(e, ENOMEM, "hosts");
    for (int i = 0; i < d->hosts.n; i++) {
        if (!d->at[i].heard || !d->facts[i].kernel[0])
            continue;
        v[n] = (struct judged){d->labels[i], &d->facts[i],
                               d->hosts.v[i].slots > 0 ? d->hosts.v[i].slots : (int)d->config.workers, d->ahead_us[i],
                               d->within_us[i]};
        judge_host(&v[n++], d->config.iface, &d->found);
    }
    judge_hosts(v, n, &d->found);
    free(v);
    return 0;
}

static int make_room(struct doctor *d, struct err *e)
{
    const size_t n = (size_t)d->hosts.n;
    d->facts = calloc(n, sizeof *d->facts);
    d->ahead_us = calloc(n, sizeof *d->ahead_us);
    d->within_us = calloc(n, sizeof *d->within_us);
    d->labels = calloc(n, sizeof *d->labels);
    if (!d->facts || !d->ahead_us || !d->within_us || !d->labels)
        return err_errno(e, ENOMEM, "hosts");
    for (int i = 0; i < d->hosts.n; i++)
        d->labels[i] = d->hosts.v[i].name;
    return 0;
}

int doctor_examine(struct doctor *d, struct err *e)
{
    TRY(make_room(d, e));
    TRY(doctor_hosts_open(&d->at, &d->hosts, &d->shell, e));
    TRY(look_at_each(d, e));
    look_at_clocks(d);
    TRY(judge_all(d, e));
    if (d->hosts.n > 1)
        TRY(look_between(d, e));
    if (d->named && d->place_host[0])
        look_at_place(d);
    if (d->shared_dir)
        look_at_shared(d);
    for (int i = 0; i < d->hosts.n; i++)
        if (d->at[i].gone)
            findings_add(&d->found, FINDING_HOST, d->labels[i], "it cannot be looked at: %s", d->at[i].why);
    return 0;
}
