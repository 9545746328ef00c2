/* Looks at the rendezvous from here: does it answer, does it accept our token, and for which nodes does the job
 * there wait? */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/json/json.h"
#include "launcher/rendezvous/rdzv_ask.h"
#include "launcher/tools/doctor/doctor.h"

#define PLACE_MS 5000
#define HERE "this host"

/* Add the nodes that are there to the hosts; nodes that are missing become findings. */
static int take_job(struct doctor *d, const cJSON *job, struct err *e)
{
    const double least = json_f64_or(job, "min_nodes", NAN), waits = json_f64_or(job, "waiting_ms", NAN),
                 left = json_f64_or(job, "gives_up_ms", NAN), here = json_f64_or(job, "here", NAN);
    const char *missing = json_str_or(job, "missing", "");
    const cJSON *node;
    cJSON_ArrayForEach(node, cJSON_GetObjectItemCaseSensitive(job, "nodes"))
    {
        const char *addr = json_str_or(node, "addr", "");
        char item[HOSTS_NAME_MAX + 32];
        const double slots = json_f64_or(node, "slots", NAN);
        snprintf(item, sizeof item, strchr(addr, ':') ? "[%.255s]:%d" : "%.255s:%d", addr,
                 slots >= 1 && slots <= 4096 ? (int)slots : 1);
        if (*addr)
            TRY(hosts_add_list(&d->hosts, item, "the job's nodes", e));
    }
    if (isfinite(waits))
        findings_add(&d->found, FINDING_MISSING, d->run,
                     "the job waits since %.0f s for %.0f more of its %.0f nodes%s%s, and gives up in %.0f s",
                     waits / 1000, least - here, least, *missing ? ", node ranks " : "", missing, left / 1000);
    return 0;
}

static int ask_of_run(struct doctor *d, struct rdzv_ask *ask, struct err *e)
{
    redisReply *r;
    int rc = rdzv_ask(ask, 2, (const char *const[]){"RDZV.STATUS", d->run}, &r, e);
    if (rc < 0)
        return rc;
    cJSON *job = r->type == REDIS_REPLY_STRING ? cJSON_ParseWithLength(r->str, r->len) : NULL;
    freeReplyObject(r);
    rc = job ? take_job(d, job, e) : err_set(e, ERR_CORRUPT, "the answer to RDZV.STATUS is none");
    cJSON_Delete(job);
    return rc;
}

/* Ask the server. If the user named hosts, they check the connection themselves (examine.c), and this reports only
 * about the secret. */
static int look_at_server(struct doctor *d, struct rdzv_ask *ask, struct err *e)
{
    struct err why = {0};
    const char *where = d->config.endpoint;
    const int rc = rdzv_ask_open(ask, &why);
    if (rc == ERR_REFUSED)
        findings_add(&d->found, FINDING_REFUSED, HERE, "the rendezvous at %s refuses it: %s", where, why.text);
    else if (rc == -ENOENT || rc == -EAGAIN)
        findings_add(&d->found, FINDING_NAME, HERE, "the rendezvous at %s: %s", where, why.text);
    else if (rc < 0 && !d->named)
        findings_add(&d->found, FINDING_RENDEZVOUS, HERE, "the rendezvous at %s does not answer: %s", where, why.text);
    return rc == 0 && d->run ? ask_of_run(d, ask, e) : 0;
}

int doctor_look_at_place(struct doctor *d, struct err *e)
{
    struct rdzv_ask ask = {
        .token_file = d->config.token_file, .ca = d->config.ca, .tls = d->config.tls, .timeout_ms = PLACE_MS};
    const char *at = d->config.endpoint;
    if (strncmp(at, "file:///", 8) == 0) {
        d->shared_dir = d->shared_dir ? d->shared_dir : at + 7;
        return 0;
    }
    if (strstr(at, "://"))
        return err_set(e, ERR_USAGE,
                       "--rdzv-endpoint '%s': expected HOST[:PORT] or file:///DIR; crun doctor does not look "
                       "at a Redis",
                       at);
    TRY(rdzv_ask_init(&ask, at, e));
    snprintf(d->place_host, sizeof d->place_host, "%s", ask.host);
    d->place_port = atoi(ask.port);
    const int rc = look_at_server(d, &ask, e);
    rdzv_ask_finish(&ask);
    return rc;
}
