/* Executes what a party asks for: JOIN, NEXT, FAIL, DONE, LEAVE and the like (jobs.h). */
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "common/net/addr.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "rendezvousd/jobs/job_metrics.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <utlist.h>

#define MODULE "jobs"
#define JOINS_MS 10000
/* bytes that a node takes in the machine, besides the member itself */
#define NODE_BYTES 1500

/* --- checks */

static int check_names(const struct jobs *j, const char *run, const char *node, struct err *e)
{
    if (strlen(run) > JOBS_RUN_MAX)
        return err_set(e, -EINVAL, "run id of %zu bytes: expected at most %d", strlen(run), JOBS_RUN_MAX);
    if (!node[0] || strlen(node) > RDZV_ID_MAX)
        return err_set(e, -EINVAL, "node id of %zu bytes: expected 1 to %d", strlen(node), RDZV_ID_MAX);
    if (!j->o.embedded && (!run[0] || strcmp(run, "none") == 0 || strcmp(run, "default") == 0))
        return err_set(e, ERR_REFUSED, "run id '%s': jobs of a shared rendezvous need an id of their own (--rdzv_id)",
                       run);
    return 0;
}

static int check_party(const struct jobs_party *p, const char *run, const char *node, struct err *e)
{
    TRY(check_names(p->jobs, run, node, e));
    if (p->is_void)
        return err_set(e, ERR_FENCED, "a newer connection stands for node '%s' of run '%s'", node, run);
    return party_check_term_(p, e);
}

/* The member a request speaks of. */
static int look_up(struct jobs_party *p, const char *run, const char *node, struct job **ret,
                   struct leader_member **ret_member, struct err *e)
{
    struct job *job = NULL;
    TRY(job_look_up_(p->jobs, p->o.principal, run, &job, e));
    if (!(*ret_member = leader_find(job->reign.leader, node)))
        return err_set(e, ERR_REFUSED, "node '%s' of run '%s' is unknown: it has not joined, or was given up", node,
                       run);
    *ret = job;
    return 0;
}

static int heard(struct jobs_party *p, struct err *e)
{
    struct job *job = p->job;
    int rc = leader_step(job->reign.leader,
                         &(struct leader_event){.kind = LEADER_HEARD, .node = p->node, .here = !p->o.addr},
                         job->jobs->o.now(), e);
    if (rc == 0 && leader_undecided(job->reign.leader))
        job_after_(job); /* it is heard again */
    else
        job_heard_(job);
    return rc;
}

/* --- join */

/* Was this JOIN expected? A member's first one after each round is, and does not count as flooding. */
static bool is_awaited(struct jobs_party *p, const char *run, const struct rdzv_event *join)
{
    struct job *job = job_find_(p->jobs, p->o.principal, run);
    if (!job || p->job != job || !party_member_(p) || join->round <= p->round || !leader_machine(job->reign.leader) ||
        join->round != rdzv_round(leader_machine(job->reign.leader)))
        return false;
    p->round = join->round;
    return true;
}

static int check_rate(struct jobs_party *p, const char *run, const struct rdzv_event *join, struct err *e)
{
    const int64_t now = p->jobs->o.now();
    if (is_awaited(p, run, join))
        return 0;
    if (now - p->joins_since >= JOINS_MS) {
        p->joins_since = now;
        p->joins = 0;
    }
    if (p->joins >= p->jobs->o.max_joins)
        return err_set(e, -EDQUOT, "more than %d JOINs within %d s on one connection", p->jobs->o.max_joins,
                       JOINS_MS / 1000);
    p->joins++;
    return 0;
}

static const char *beside(const struct job *job)
{
    const struct job *other;
    if (job->jobs->o.embedded)
        DL_FOREACH (job->jobs->all, other)
            if (other != job && !leader_is_over(other->reign.leader))
                return leader_run(other->reign.leader);
    return NULL;
}

static int find_or_create(struct jobs_party *p, const char *run, struct job **ret, struct err *e)
{
    if ((*ret = job_find_(p->jobs, p->o.principal, run)))
        return 0;
    TRY(job_check_limits_(p->jobs, run, p->o.principal, e));
    TRY(job_create_(p->jobs, run, p->o.principal, ret, e));
    const int rc = job_name_(*ret, e);
    const char *first = rc == 0 ? beside(*ret) : NULL;
    if (rc < 0)
        job_forget_(*ret);
    if (first) /* the node is told as well */
        log_warn(MODULE, "a node waits here for nodes of job '%s', not of job '%s': is one of the two ids wrong?", run,
                 first);
    return rc;
}

/* Is there room for one more node? */
static int check_room(const struct job *job, const char *node, struct err *e)
{
    const struct jobs_options *o = &job->jobs->o;
    const size_t cost = sizeof(struct leader_member) + NODE_BYTES, n = leader_member_count(job->reign.leader);
    if (leader_find(job->reign.leader, node))
        return 0;
    if (n >= o->max_nodes)
        return err_set(e, -EDQUOT, "node '%s' is one too many for run '%s': it has %zu, the most it may have", node,
                       leader_run(job->reign.leader), o->max_nodes);
    if (sizeof *job + (n + 1) * cost > o->max_job_bytes)
        return err_set(e, -EDQUOT, "node '%s' does not fit into run '%s': it takes %zu bytes of %zu", node,
                       leader_run(job->reign.leader), sizeof *job + n * cost, o->max_job_bytes);
    return 0;
}

static void describe(const struct job *job, const struct leader_member *m, struct jobs_joined *ret)
{
    snprintf(ret->instance, sizeof ret->instance, "%s", m->instance);
    ret->epoch = job->jobs->o.epoch;
    ret->seq = m->joined_seq;
    const struct rdzv *machine = leader_machine(job->reign.leader);
    ret->first_round =
        rdzv_round(machine) == 0 ? rdzv_next_round(machine) : leader_config(job->reign.leader)->first_round;
    ret->few = !jobs_hear_enough_(job->jobs);
    ret->beside = beside(job);
}

/* Fill in a node's addresses, as far as this host knows them. Its workers may come from the address of its
 * connection, too, which is empty if the peer had gone before it was accepted. */
static void fill_addresses(struct rdzv_event *ev, const struct jobs_party *p)
{
    const char *own = p->o.addr ? p->o.addr : "127.0.0.1";
    if (!ev->addr[0])
        snprintf(ev->addr, sizeof ev->addr, "%s", own);
    for (const char *const *a = (const char *const[]){ev->addr, own, NULL}; *a; a++) {
        size_t n = strlen(ev->addrs);
        if (**a && !leader_lists_address(ev->addrs, *a) && n + strlen(*a) + 1 < sizeof ev->addrs)
            snprintf(ev->addrs + n, sizeof ev->addrs - n, "%s%s", n ? "," : "", *a);
    }
}

/* The address under which this node, if it is on another host, reaches us. */
static const char *reached_at(const struct jobs_party *p)
{
    const bool far = p->o.addr && p->o.addr[0] && !addr_host_is_loopback(p->o.addr);
    return far ? p->o.local : NULL;
}

/* How long the first round must be held: a hosting crun begins without memory. When it began, no other one hosted
 * here any more, so after this time no worker of an earlier round is left. */
static int64_t blank_ms(const struct jobs *j, const struct rdzv_config *c)
{
    const int64_t until = j->born_ms + c->silence_ms + c->kill_ms, now = j->o.now();
    return j->o.embedded && until > now ? until - now : 0;
}

/* Log that a node comes from an instance that is not known here. At a host of a list that is normal, hence less
 * prominent. */
static void tell_foreign(const struct job *job, const struct rdzv_event *ev)
{
    log_line(job->jobs->o.listed ? LOG_INFO : LOG_WARN, MODULE,
             "run=%s node=%s comes from instance %s, round %llu, restarts %d, which its rendezvous has lost",
             leader_run(job->reign.leader), ev->node, ev->instance, (unsigned long long)ev->round, ev->restarts);
}

static int join_job(struct jobs_party *p, struct job *job, struct rdzv_event *ev, const struct rdzv_config *settings,
                    struct jobs_joined *ret, struct err *e)
{
    struct rdzv_config config = *settings;
    struct leader_event ask = {.kind = LEADER_ASK,
                               .ask = ev,
                               .settings = &config,
                               .instance = ev->round > 0 ? ev->instance : NULL,
                               .reached = reached_at(p),
                               .here = !p->o.addr};
    config.blank_ms = blank_ms(job->jobs, settings);
    config.hold_ms = job->jobs->seats ? 1 : config.hold_ms; /* the seats decide how long it waits */
    const bool foreign = leader_is_foreign(job->reign.leader, &ask);
    TRY(check_room(job, ev->node, e));
    if (leader_may_begin(job->reign.leader) && getrandom(&ask.draw, sizeof ask.draw, 0) != sizeof ask.draw)
        return err_errno(e, errno, "cannot draw an instance id");
    fill_addresses(ev, p);
    TRY(party_bind_(p, job, ev->node, e));
    int rc = job_step_(job, &ask, e);
    struct leader_member *m = party_member_(p);
    if (rc == 0 && foreign)
        tell_foreign(job, ev);
    if (!m)
        party_unbind_(p);
    else if (rc == 0)
        describe(job, m, ret);
    if (rc == 0 && m) {
        p->answered_ms = job->jobs->o.now();
        job_confirmed_(job, m, p->answered_ms);
        party_bound_(p, p->answered_ms);
    }
    return rc;
}

/* Refuse a node whose job has ended so long ago that its END is not kept any more. */
static int check_past(const struct jobs_party *p, const char *run, const struct rdzv_event *join, struct err *e)
{
    const struct job *job = join->instance[0] ? job_find_(p->jobs, p->o.principal, run) : NULL;
    if (!join->instance[0] || (job && strcmp(leader_instance(job->reign.leader), join->instance) == 0) ||
        !jobs_has_ended_(p->jobs, join->instance))
        return 0;
    return err_set(e, ERR_REFUSED, "the job '%s' that node '%s' was in is over", run, join->node);
}

/* A node with other settings came to a hosting crun that needs all its nodes: this job can never be complete, so end
 * it. Not if it continues an earlier round: then it waits for nodes that were there already. */
static void tell_differing(struct job *job, const struct rdzv_event *ev, const char *why)
{
    const struct jobs_options *o = &job->jobs->o;
    const struct rdzv_config *c = leader_config(job->reign.leader);
    const struct rdzv *machine = leader_machine(job->reign.leader);
    struct rdzv_event drain = {.kind = RDZV_DRAIN, .cause = {.rank = -1, .exit_code = EXIT_MISMATCH}};
    snprintf(drain.cause.text, sizeof drain.cause.text, "node '%.*s' left: %.180s", (int)strcspn(ev->node, "+"),
             ev->node, why);
    log_warn(MODULE, "run=%s: node '%.*s' left: %s", leader_run(job->reign.leader), (int)strcspn(ev->node, "+"),
             ev->node, why);
    if (o->embedded && machine && rdzv_next_round(machine) == c->first_round && c->min_nodes == c->max_nodes)
        job_step_(job, &(struct leader_event){.kind = LEADER_DRAIN, .ask = &drain}, NULL);
}

static int join_run(struct jobs_party *p, const char *run, const struct rdzv_event *join,
                    const struct rdzv_config *settings, struct jobs_joined *ret, struct err *e)
{
    struct job *job;
    struct rdzv_event ev = *join;
    TRY(check_party(p, run, ev.node, e));
    TRY(party_join_seat_(p, run, join, e));
    TRY(check_rate(p, run, &ev, e));
    TRY(check_past(p, run, &ev, e));
    TRY(find_or_create(p, run, &job, e));
    job_note_past_(job, &ev);
    int rc = join_job(p, job, &ev, settings, ret, e);
    if (rc == ERR_MISMATCH)
        tell_differing(job, &ev, e ? e->text : "its settings differ");
    if (rc < 0)
        job_forget_if_empty_(job);
    jobs_tell_(p->jobs);
    return rc;
}

int jobs_join(struct jobs_party *p, const char *run, const struct rdzv_event *join, const struct rdzv_config *settings,
              struct jobs_joined *ret, struct err *e)
{
    jobs_look_at_seats_(p->jobs);
    const int rc = join_run(p, run, join, settings, ret, e);
    party_answered_(p);
    return rc;
}

/* --- the others */

/* A host of a list keeps everything in memory, so a node can only have seen news that this host sent. A NEXT that
 * names other news was meant for an earlier job of that name, and is late: it acknowledges nothing. */
static int check_seen(const struct jobs_party *p, const struct leader_member *m, uint64_t seq, struct err *e)
{
    if (!p->jobs->seats || !m->has_news || m->told || seq < m->news.seq)
        return 0;
    return err_set(e, -ENOENT, "node '%s' speaks of news that this host has not sent it yet", m->node);
}

static int next_of(struct jobs_party *p, const char *run, const char *node, uint64_t seq, int from, struct err *e)
{
    struct leader_member *m;
    struct job *job = NULL;
    TRY(check_party(p, run, node, e));
    TRY(look_up(p, run, node, &job, &m, e));
    TRY(check_seen(p, m, seq, e));
    TRY(party_resume_seat_(p, job, node, e));
    TRY(party_bind_(p, job, node, e));
    TRY(heard(p, e));
    leader_step(job->reign.leader, &(struct leader_event){.kind = LEADER_SEEN, .node = p->node, .seq = seq}, 0, NULL);
    m = party_member_(p);
    if (!m || ((!m->known || leader_is_over(job->reign.leader)) && !m->has_news))
        return err_set(e, ERR_REFUSED, "node '%s' of run '%s' has no part in it any more (%s)", node, run,
                       rdzv_state_name(rdzv_state(leader_machine(job->reign.leader))));
    job_confirmed_(job, m, p->answered_ms);
    party_bound_(p, p->answered_ms ? p->answered_ms : job->jobs->o.now());
    p->asks = true;
    p->from = from;
    party_queue_(p);
    jobs_tell_(p->jobs);
    party_ask_(p);
    return 0;
}

int jobs_next(struct jobs_party *p, const char *run, const char *node, uint64_t seq, int from, struct err *e)
{
    jobs_look_at_seats_(p->jobs);
    const int rc = next_of(p, run, node, seq, from, e);
    if (rc < 0)
        party_answered_(p);
    return rc;
}

void jobs_next_cancel(struct jobs_party *p)
{
    if (p->asks)
        p->answered_ms = p->jobs->o.now();
    if (p->asks)
        party_answered_(p);
    p->asks = false;
}

int jobs_claim(struct jobs_party *p, const char *run, const struct rdzv_event *ev, struct err *e)
{
    struct leader_member *m;
    struct job *job = NULL;
    jobs_look_at_seats_(p->jobs);
    TRY(check_party(p, run, ev->node, e));
    TRY(look_up(p, run, ev->node, &job, &m, e));
    TRY(party_resume_seat_(p, job, ev->node, e));
    TRY(party_bind_(p, job, ev->node, e)); /* the answer extends the node's lease, so the node must count as heard */
    if (!leader_is_over(job->reign.leader))
        TRY(heard(p, e));
    int rc = job_step_(job, &(struct leader_event){.kind = LEADER_ASK, .ask = ev}, e);
    if (p->bound_ms == 0)
        party_bound_(p, p->jobs->o.now());
    jobs_tell_(p->jobs);
    return rc;
}

int jobs_drain_for(struct jobs *j, const char *principal, const char *run, const struct rdzv_cause *cause,
                   struct err *e)
{
    const struct rdzv_event drain = {.kind = RDZV_DRAIN, .cause = *cause};
    struct job *job = NULL;
    TRY(job_look_up_(j, principal, run, &job, e));
    int rc = job_step_(job, &(struct leader_event){.kind = LEADER_DRAIN, .ask = &drain}, e);
    jobs_tell_(j);
    return rc;
}

int jobs_drain(struct jobs *j, const char *principal, const char *run, struct err *e)
{
    return jobs_drain_for(j, principal, run, &(struct rdzv_cause){.rank = -1}, e);
}

int jobs_evict(struct jobs *j, const char *principal, const char *run, const char *who, struct err *e)
{
    struct rdzv_cause cause = {.rank = -1, .exit_code = EXIT_UNAVAILABLE};
    snprintf(cause.text, sizeof cause.text, "an operator of the rendezvous (%s) evicted the job", who);
    TRY(jobs_drain_for(j, principal, run, &cause, e));
    log_warn(MODULE, "run=%s is evicted by '%s'", run, who);
    return 0;
}

int jobs_stop(struct jobs *j, const char *principal, const char *run, const char *who, struct err *e)
{
    struct rdzv_cause cause = {.rank = -1, .exit_code = 128 + SIGTERM};
    snprintf(cause.text, sizeof cause.text, "%s%s%sstopped the job (crun stop)", who[0] ? "principal '" : "somebody ",
             who, who[0] ? "' " : "");
    TRY(jobs_drain_for(j, principal, run, &cause, e));
    log_info(MODULE, "run=%s: %s", run, cause.text);
    return 0;
}

/* --- reports */

static const char *const report_fields[] = {"step", "images_per_s", "loss"};

static int keep_field(struct buf *out, const char *key, const char *fields, size_t n, struct err *e)
{
    char text[32], *end;
    int rc = rdzv_field_find(fields, n, key, text, sizeof text);
    if (rc < 0)
        return err_set(e, -EINVAL, "%s: expected a number of at most 31 characters", key);
    if (rc == 0)
        return 0;
    const double v = strtod(text, &end);
    if (!text[0] || *end || !isfinite(v) || text[strspn(text, "+-.0123456789eE")])
        return err_set(e, -EINVAL, "%s '%s': expected a number in decimal", key, text);
    return rdzv_field_text(out, key, text);
}

/* Of NCCL's RAS: "127.71.12.1-8:28028". It goes to terminals. */
static int keep_address(struct buf *out, const char *key, const char *fields, size_t n, struct err *e)
{
    char text[32];
    const int rc = rdzv_field_find(fields, n, key, text, sizeof text);
    if (rc < 0 || (rc == 1 && text[strspn(text, "0123456789.:-")]))
        return err_set(e, -EINVAL, "%s: expected addresses of IPv4, at most 31 characters", key);
    return rc == 0 ? 0 : rdzv_field_text(out, key, text);
}

static int keep_metrics(struct buf *out, const char *fields, size_t n, struct err *e)
{
    struct job_metric v[JOB_METRICS_MAX];
    char text[JOB_METRICS_TEXT_MAX];
    const int count = job_metrics_read(fields, n, v);
    if (count < 0)
        return err_set(e, -EINVAL, "metrics: expected at most %d of name:number:unit, with commas between",
                       JOB_METRICS_MAX);
    if (count == 0 || rdzv_field_find(fields, n, "metrics", text, sizeof text) != 1)
        return 0;
    return rdzv_field_text(out, "metrics", text);
}

int jobs_report(struct jobs_party *p, const char *run, const char *node, const char *fields, size_t n, struct err *e)
{
    struct leader_member *m;
    struct job *job = NULL;
    struct buf out;
    int rc = 0;
    TRY(check_party(p, run, node, e));
    TRY(look_up(p, run, node, &job, &m, e));
    if (n > RDZV_REPORT_MAX)
        return err_set(e, -EINVAL, "report of %zu bytes: expected at most %d", n, RDZV_REPORT_MAX);
    buf_init(&out, JOBS_REPORT_MAX);
    for (size_t i = 0; i < sizeof report_fields / sizeof *report_fields && rc == 0; i++)
        rc = keep_field(&out, report_fields[i], fields, n, e);
    rc = rc ? rc : keep_address(&out, "ras", fields, n, e);
    rc = rc ? rc : keep_metrics(&out, fields, n, e);
    if (rc == 0 && out.len) {
        free(m->report);
        m->report = out.data;
    } else {
        buf_free(&out);
    }
    if (rc == 0 && p->jobs->watcher.reported)
        p->jobs->watcher.reported(p->jobs->watcher.arg, leader_instance(job->reign.leader), node, fields, n);
    return rc == 0 && p->job == job && strcmp(p->node, node) == 0 ? heard(p, e) : rc;
}

int jobs_postmortem(struct jobs_party *p, const char *run, const char *node, const char *text, size_t n, struct err *e)
{
    struct leader_member *m;
    struct job *job = NULL;
    TRY(check_party(p, run, node, e));
    TRY(look_up(p, run, node, &job, &m, e));
    if (n > RDZV_FAILURE_MAX)
        return err_set(e, -EINVAL, "failure report of %zu bytes: expected at most %d", n, RDZV_FAILURE_MAX);
    const struct rdzv *machine = leader_machine(job->reign.leader);
    if (!leader_is_over(job->reign.leader) || (machine && rdzv_state(machine) == RDZV_SUCCEEDED))
        return err_set(e, ERR_REFUSED, "run '%s' has not failed", run);
    if (p->jobs->watcher.failed)
        p->jobs->watcher.failed(p->jobs->watcher.arg, leader_instance(job->reign.leader), text, n);
    return 0;
}
