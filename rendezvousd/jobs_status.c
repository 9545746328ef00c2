/* Jobs as JSON and as one record. The format is docs/protocol.md's, section "Status". */
#include "common/buf.h"
#include "common/err.h"
#include "common/rdzv_wire.h"
#include "rendezvousd/jobs_impl.h"
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

struct node_list {
    const struct job *job;
    cJSON *nodes;
};

static void add_report(cJSON *o, const char *report)
{
    static const char *const fields[] = {"step", "images_per_s", "loss"};
    char text[32];
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (rdzv_field_find(report, strlen(report), fields[i], text, sizeof text) == 1)
            cJSON_AddNumberToObject(o, fields[i], strtod(text, NULL));
}

static const char *condition(const struct rdzv_member *m)
{
    return m->silent ? "silent" : m->done ? "done" : m->leaving ? "leaving" : m->ready ? "ready" : "running";
}

static int add_node(void *arg, const struct rdzv_member *m)
{
    struct node_list *l = arg;
    const struct member *host = member_find_(l->job, m->node);
    cJSON *o = cJSON_CreateObject();
    if (!o || !cJSON_AddItemToArray(l->nodes, o)) {
        cJSON_Delete(o);
        return -ENOMEM;
    }
    cJSON_AddStringToObject(o, "id", m->node);
    cJSON_AddStringToObject(o, "addr", m->addr);
    cJSON_AddNumberToObject(o, "slots", m->slots);
    cJSON_AddStringToObject(o, "role", m->role);
    cJSON_AddNumberToObject(o, "node_rank", m->node_rank);
    cJSON_AddBoolToObject(o, "member", m->member);
    cJSON_AddNumberToObject(o, "group_rank", m->group_rank);
    cJSON_AddNumberToObject(o, "rank_base", m->rank_base);
    cJSON_AddStringToObject(o, "state", condition(m));
    if (!host)
        return 0;
    cJSON_AddBoolToObject(o, "connected", host->party != NULL);
    cJSON_AddNumberToObject(o, "heard_ms_ago",
                            host->party && !host->party->o.addr ? 0 : (double)(l->job->jobs->o.now() - host->heard_ms));
    if (host->report)
        add_report(cJSON_AddObjectToObject(o, "report"), host->report);
    return 0;
}

/* ---- jobs ------------------------------------------------------------------------------------------------------- */

static void add_restarts(cJSON *o, const struct job *job)
{
    cJSON *list = cJSON_AddArrayToObject(o, "restarts");
    uint64_t first = job->restart_count > JOBS_RESTARTS ? job->restart_count - JOBS_RESTARTS : 0;
    for (uint64_t i = first; i < job->restart_count; i++) {
        const struct job_restart *r = &job->restarts[i % JOBS_RESTARTS];
        cJSON *one = cJSON_CreateObject();
        cJSON_AddItemToArray(list, one);
        cJSON_AddNumberToObject(one, "at_ms", (double)r->at_ms);
        cJSON_AddNumberToObject(one, "round", (double)r->round);
        cJSON_AddNumberToObject(one, "exit_code", r->cause.exit_code);
        cJSON_AddNumberToObject(one, "rank", r->cause.rank);
        cJSON_AddStringToObject(one, "cause", r->cause.text);
    }
}

static void add_events(cJSON *o, const struct job *job)
{
    cJSON *list = cJSON_AddArrayToObject(o, "events");
    uint64_t first = job->event_count > JOBS_EVENTS ? job->event_count - JOBS_EVENTS : 0;
    for (uint64_t i = first; i < job->event_count; i++) {
        const struct happening *h = &job->events[i % JOBS_EVENTS];
        cJSON *one = cJSON_CreateObject();
        cJSON_AddItemToArray(list, one);
        cJSON_AddNumberToObject(one, "at_ms", (double)h->at_ms);
        cJSON_AddNumberToObject(one, "round", (double)h->round);
        cJSON_AddStringToObject(one, "text", h->text);
    }
}

static cJSON *job_json(const struct job *job)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "run", job->run);
    cJSON_AddStringToObject(o, "instance", job->instance);
    cJSON_AddStringToObject(o, "principal", job->principal);
    cJSON_AddStringToObject(o, "state", rdzv_state_name(rdzv_state(job->machine)));
    cJSON_AddNumberToObject(o, "round", (double)rdzv_round(job->machine));
    cJSON_AddNumberToObject(o, "now_ms", (double)job->jobs->o.now());
    cJSON_AddNumberToObject(o, "age_ms", (double)(job->jobs->o.now() - job->started_ms));
    cJSON_AddNumberToObject(o, "min_nodes", job->config.min_nodes);
    cJSON_AddNumberToObject(o, "max_nodes", job->config.max_nodes);
    cJSON_AddNumberToObject(o, "restart_count", rdzv_restarts(job->machine));
    cJSON_AddNumberToObject(o, "max_restarts", job->config.max_restarts);
    struct node_list l = {job, cJSON_AddArrayToObject(o, "nodes")};
    bool ok = l.nodes && rdzv_members(job->machine, add_node, &l) == 0;
    add_restarts(o, job);
    add_events(o, job);
    if (ok)
        return o;
    cJSON_Delete(o);
    return NULL;
}

static int print(cJSON *o, struct buf *out)
{
    char *text = o ? cJSON_PrintUnformatted(o) : NULL;
    cJSON_Delete(o);
    if (!text)
        return -ENOMEM;
    int rc = buf_addstr(out, text);
    cJSON_free(text);
    return rc;
}

static int all_json(const struct jobs *j, const char *principal, struct buf *out)
{
    cJSON *o = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(o, "jobs");
    const struct job *job;
    cJSON_AddNumberToObject(o, "now_ms", (double)j->o.now());
    cJSON_AddNumberToObject(o, "epoch", (double)j->o.epoch);
    DL_FOREACH (j->all, job) {
        cJSON *one = NULL;
        if (job_check_owner_(job, principal, NULL) < 0)
            continue;
        if (!list || !(one = job_json(job))) {
            cJSON_Delete(o);
            return -ENOMEM;
        }
        cJSON_AddItemToArray(list, one);
    }
    return print(o, out);
}

static int find(const struct jobs *j, const char *principal, const char *run, struct job **ret, struct err *e)
{
    struct job *job = job_find_(j, run);
    if (!job)
        return err_set(e, -ENOENT, "run '%s' is unknown here: nobody has joined it, or it was forgotten", run);
    TRY(job_check_owner_(job, principal, e));
    *ret = job;
    return 0;
}

int jobs_status_json(const struct jobs *j, const char *principal, const char *run, struct buf *out, struct err *e)
{
    struct job *job = NULL;
    if (run)
        TRY(find(j, principal, run, &job, e));
    int rc = run ? print(job_json(job), out) : all_json(j, principal, out);
    return rc < 0 ? err_set(e, rc, "no memory for the status of jobs") : 0;
}

/* ---- the progress line ---------------------------------------------------------------------------------------------- */

struct presence {
    struct jobs_progress *p;
    bool numbered;
    bool *there; /* by node rank, min_nodes of them; NULL: no memory */
};

static int look(void *arg, const struct rdzv_member *m)
{
    struct presence *s = arg;
    s->p->joined += m->ready && !m->silent;
    if (m->node_rank < 0)
        return 0;
    s->numbered = true;
    if (s->there && m->node_rank < s->p->min_nodes && !m->silent)
        s->there[m->node_rank] = true;
    return 0;
}

/* As many as there is room for. */
static void name_missing(struct presence *s)
{
    size_t n = 0;
    for (int i = 0; s->numbered && s->there && i < s->p->min_nodes; i++) {
        if (s->there[i])
            continue;
        if (n + 16 > sizeof s->p->missing)
            return;
        n += (size_t)snprintf(s->p->missing + n, 16, "%s%d", n ? "," : "", i);
    }
}

int jobs_progress(const struct jobs *j, const char *principal, const char *run, struct jobs_progress *ret,
                  struct err *e)
{
    struct job *job = NULL;
    TRY(find(j, principal, run, &job, e));
    *ret = (struct jobs_progress){.state = rdzv_state(job->machine),
                                  .min_nodes = job->config.min_nodes,
                                  .max_nodes = job->config.max_nodes,
                                  .restarts = rdzv_restarts(job->machine),
                                  .round = rdzv_round(job->machine)};
    struct presence s = {.p = ret, .there = calloc((size_t)ret->min_nodes, sizeof(bool))};
    rdzv_members(job->machine, look, &s);
    name_missing(&s);
    free(s.there);
    return 0;
}

static int progress_record(const struct jobs_progress *p, struct buf *out)
{
    TRY(rdzv_field_text(out, "state", rdzv_state_name(p->state)));
    TRY(rdzv_field_int(out, "joined", p->joined));
    TRY(rdzv_field_int(out, "min_nodes", p->min_nodes));
    TRY(rdzv_field_int(out, "max_nodes", p->max_nodes));
    TRY(rdzv_field_int(out, "round", (long long)p->round));
    TRY(rdzv_field_int(out, "restarts", p->restarts));
    return rdzv_field_text(out, "missing", p->missing);
}

int jobs_status_brief(const struct jobs *j, const char *principal, const char *run, struct buf *out, struct err *e)
{
    struct jobs_progress p;
    TRY(jobs_progress(j, principal, run, &p, e));
    int rc = progress_record(&p, out);
    return rc < 0 ? err_set(e, rc, "no memory for the status of run '%s'", run) : 0;
}
