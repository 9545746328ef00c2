/* Writes jobs as JSON, and one job as a record. The format is in reference/protocol.md, section "Status". */
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/json/json_write.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "rendezvousd/jobs/job_metrics.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* Limits of one answer, so that it takes a few milliseconds: nothing else is served meanwhile. */
#define NODES_MAX 2000
#define LINES_MAX 2000 /* events and restarts */

struct status {
    struct json_write w;
    size_t nodes, lines; /* room for so many more */
    size_t skip;         /* nodes before the first one asked for */
};

/* --- nodes */

struct node_list {
    const struct job *job;
    struct status *s;
    long long ranks; /* ranks of the round, including nodes that are not listed */
};

static void add_report(struct json_write *w, const char *report)
{
    static const char *const fields[] = {"step", "images_per_s", "loss"};
    char text[32];
    json_begin(w, "report", '{');
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (rdzv_field_find(report, strlen(report), fields[i], text, sizeof text) == 1)
            json_number(w, fields[i], strtod(text, NULL));
    if (rdzv_field_find(report, strlen(report), "ras", text, sizeof text) == 1)
        json_text(w, "ras", text);
    struct job_metric metrics[JOB_METRICS_MAX];
    job_metrics_write(metrics, job_metrics_read(report, strlen(report), metrics), w);
    json_end(w, '}');
}

/* The state of a node. In a job that is over it does not change any more; its connection shows whether its agent is
 * still stopping workers. */
static const char *condition(const struct job *job, const struct rdzv_member *m)
{
    if (leader_is_over(job->reign.leader) && !m->done)
        return party_find_(job, m->node) ? "stopping" : "ended";
    return m->silent ? "silent" : m->done ? "done" : m->leaving ? "leaving" : m->ready ? "ready" : "running";
}

static void add_host(struct json_write *w, const struct job *job, const struct leader_member *host)
{
    const struct jobs_party *p = party_find_(job, host->node);
    bool here = p && !p->o.addr;
    json_bool(w, "connected", p != NULL);
    json_int(w, "heard_ms_ago", here ? 0 : job->jobs->o.now() - host->heard_ms);
    if (host->report)
        add_report(w, host->report);
}

static int add_node(void *arg, const struct rdzv_member *m)
{
    struct node_list *l = arg;
    struct json_write *w = &l->s->w;
    const struct leader_member *host;
    l->ranks += m->member ? m->slots : 0;
    if (l->s->skip > 0) {
        l->s->skip--;
        return 0;
    }
    if (l->s->nodes == 0)
        return 0;
    l->s->nodes--;
    json_begin(w, NULL, '{');
    json_text(w, "id", m->node);
    json_text(w, "addr", m->addr);
    json_int(w, "slots", m->slots);
    json_int(w, "failures", m->failures);
    json_text(w, "role", m->role);
    json_int(w, "node_rank", m->node_rank);
    json_bool(w, "member", m->member);
    json_int(w, "group_rank", m->group_rank);
    json_int(w, "rank_base", m->rank_base);
    json_text(w, "state", condition(l->job, m));
    if ((host = leader_find(l->job->reign.leader, m->node)))
        add_host(w, l->job, host);
    json_end(w, '}');
    return w->rc;
}

/* --- jobs */

/* Number of the first line to write: of `count` lines, those still in a ring of `size`, and not more than fit. */
static uint64_t first_line(struct status *s, uint64_t count, uint64_t size)
{
    uint64_t n = count < size ? count : size;
    n = n < s->lines ? n : s->lines;
    s->lines -= n;
    return count - n;
}

static void add_restarts(struct status *s, const struct leader_history *h)
{
    struct json_write *w = &s->w;
    json_begin(w, "restarts", '[');
    for (uint64_t i = first_line(s, h->restart_count, LEADER_RESTARTS); i < h->restart_count; i++) {
        const struct leader_restart *r = &h->restarts[i % LEADER_RESTARTS];
        json_begin(w, NULL, '{');
        json_int(w, "at_ms", r->at_ms);
        json_int(w, "round", (long long)r->round);
        json_int(w, "exit_code", r->cause.exit_code);
        json_int(w, "rank", r->cause.rank);
        json_text(w, "cause", r->cause.text);
        json_end(w, '}');
    }
    json_end(w, ']');
}

static void add_events(struct status *s, const struct leader_history *h)
{
    struct json_write *w = &s->w;
    json_begin(w, "events", '[');
    for (uint64_t i = first_line(s, h->event_count, LEADER_EVENTS); i < h->event_count; i++) {
        const struct leader_happening *at = &h->events[i % LEADER_EVENTS];
        json_begin(w, NULL, '{');
        json_int(w, "at_ms", at->at_ms);
        json_int(w, "round", (long long)at->round);
        json_text(w, "text", at->text);
        json_end(w, '}');
    }
    json_end(w, ']');
}

/* Describe for which nodes a job waits. */
static void add_waiting(struct json_write *w, const struct job *job, int64_t now)
{
    struct presence p;
    presence_look(leader_machine(job->reign.leader), leader_config(job->reign.leader), now, &p);
    if (p.waiting_ms < 0)
        return;
    json_int(w, "waiting_ms", p.waiting_ms);
    json_int(w, "gives_up_ms", p.left_ms);
    json_int(w, "here", p.joined);
    json_text(w, "missing", p.missing);
    json_text(w, "silent", p.silent);
}

static void add_job(struct status *s, const struct job *job)
{
    struct json_write *w = &s->w;
    const int64_t now = job->jobs->o.now();
    const struct leader *leader = job->reign.leader;
    const struct rdzv_config *c = leader_config(leader);
    struct rdzv *machine = leader_machine(leader);
    struct node_list l = {job, s, 0};
    json_begin(w, NULL, '{');
    json_text(w, "run", leader_run(leader));
    json_text(w, "instance", leader_instance(leader));
    json_text(w, "principal", leader_principal(leader));
    json_text(w, "state", rdzv_state_name(rdzv_state(machine)));
    json_int(w, "round", (long long)rdzv_round(machine));
    json_int(w, "now_ms", now);
    json_int(w, "age_ms", now - leader_history(leader)->started_ms);
    json_int(w, "min_nodes", c->min_nodes);
    json_int(w, "max_nodes", c->max_nodes);
    json_int(w, "restart_count", rdzv_restarts(machine));
    json_int(w, "max_restarts", c->max_restarts);
    if (jobs_keeps_(job->jobs))
        json_bool(w, "durable", job_is_durable_(job));
    json_int(w, "node_count", rdzv_nodes(machine));
    json_begin(w, "nodes", '[');
    if (w->rc == 0)
        rdzv_members(machine, add_node, &l);
    json_end(w, ']');
    json_int(w, "world_size", l.ranks);
    add_waiting(w, job, now);
    add_restarts(s, leader_history(leader));
    add_events(s, leader_history(leader));
    json_end(w, '}');
}

static void add_all(struct status *s, const struct jobs *j, const char *principal)
{
    struct json_write *w = &s->w;
    const struct job *job;
    json_begin(w, NULL, '{');
    json_begin(w, "jobs", '[');
    DL_FOREACH (j->all, job)
        if (!principal || j->o.embedded || strcmp(leader_principal(job->reign.leader), principal) == 0)
            add_job(s, job);
    json_end(w, ']');
    json_int(w, "now_ms", j->o.now());
    json_int(w, "epoch", (long long)j->o.epoch);
    json_end(w, '}');
}

int jobs_status_from(const struct jobs *j, const char *principal, const char *run, size_t first, struct buf *out,
                     struct err *e)
{
    struct status s = {.w = {.out = out}, .nodes = NODES_MAX, .lines = LINES_MAX, .skip = first};
    struct job *job = NULL;
    if (run)
        TRY(job_look_up_(j, principal, run, &job, e));
    if (job)
        add_job(&s, job);
    else
        add_all(&s, j, principal);
    return s.w.rc < 0 ? err_set(e, s.w.rc, "no memory for the status of jobs") : 0;
}

/* --- the progress line */

/* Find another job of the same owner that waits for its first round. */
static const struct job *beside(const struct job *job)
{
    const struct job *other;
    int64_t since, until;
    DL_FOREACH (job->jobs->all, other) {
        const struct rdzv *machine = leader_machine(other->reign.leader);
        const bool ours = job->jobs->o.embedded || other->owner == job->owner; /* a host compares no principals */
        if (other != job && ours && machine && rdzv_round(machine) == 0 && rdzv_nodes(machine) > 0 &&
            rdzv_waits(machine, &since, &until))
            return other;
    }
    return NULL;
}

int jobs_progress(const struct jobs *j, const char *principal, const char *run, struct presence *ret, struct err *e)
{
    struct job *job = NULL;
    TRY(job_look_up_(j, principal, run, &job, e));
    presence_look(leader_machine(job->reign.leader), leader_config(job->reign.leader), j->o.now(), ret);
    const bool alone = ret->joined == 1 && ret->round == 0 && ret->waiting_ms >= 0;
    const struct job *other = alone ? beside(job) : NULL;
    if (other)
        snprintf(ret->beside, sizeof ret->beside, "%.128s", leader_run(other->reign.leader));
    return 0;
}

int jobs_status_brief(const struct jobs *j, const char *principal, const char *run, struct buf *out, struct err *e)
{
    struct presence p;
    TRY(jobs_progress(j, principal, run, &p, e));
    int rc = presence_record(&p, out);
    return rc < 0 ? err_set(e, rc, "no memory for the status of run '%s'", run) : 0;
}
