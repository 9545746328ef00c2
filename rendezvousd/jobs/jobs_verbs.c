/* What a party may ask: see jobs.h. */
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/net/addr.h"
#include "common/rdzv/wire/rdzv_wire.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define JOINS_MS 10000

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

int job_check_owner_(const struct job *job, const char *principal, struct err *e)
{
    if (!principal || job->jobs->o.embedded || strcmp(job->principal, principal) == 0)
        return 0;
    return err_set(e, -EACCES, "run '%s' belongs to another principal", job->run);
}

static int check_party(const struct jobs_party *p, const char *run, const char *node, struct err *e)
{
    TRY(check_names(p->jobs, run, node, e));
    if (p->is_void)
        return err_set(e, ERR_FENCED, "a newer connection stands for node '%s' of run '%s'", node, run);
    return 0;
}

static int no_job(const char *run, struct err *e)
{
    return err_set(e, -ENOENT, "run '%s' is unknown here: nobody has joined it, or it was forgotten", run);
}

/* The member a request speaks of, in the newest instance that has it. */
static int look_up(struct jobs_party *p, const char *run, const char *node, struct member **ret, struct err *e)
{
    struct member *m = p->member;
    struct job *job, *first = NULL;
    if (m && strcmp(m->node, node) == 0 && strcmp(m->job->run, run) == 0) {
        *ret = m;
        return 0;
    }
    DL_FOREACH (p->jobs->all, job) {
        if (strcmp(job->run, run) != 0)
            continue;
        TRY(job_check_owner_(job, p->o.principal, e));
        first = first ? first : job;
        if ((*ret = member_find_(job, node)))
            return 0;
    }
    if (!first)
        return no_job(run, e);
    return err_set(e, ERR_REFUSED, "node '%s' of run '%s' is unknown: it has not joined, or was given up", node, run);
}

/* --- join */

/* A member's first JOIN after each round is the round's doing: a job that restarts as quickly as it can is no flood. */
static bool is_awaited(struct jobs_party *p, const char *run, const struct rdzv_event *join)
{
    struct job *job = job_find_(p->jobs, run);
    if (!job || !p->member || p->member->job != job || join->round <= p->round ||
        join->round != rdzv_round(job->machine))
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

/* A JOIN for a job that is over: of a member that does not know it yet, or the first of a new instance? */
static struct member *late_member(const struct job *job, const struct rdzv_event *ev)
{
    struct member *m = member_find_(job, ev->node);
    bool late = m && m->has_news && m->news.kind == RDZV_NEWS_END && (!m->told || ev->round > 0);
    return late ? m : NULL;
}

/* Agents that nobody is left to disagree with. */
static bool abandoned(const struct job *job)
{
    return rdzv_nodes(job->machine) == 0 && !job->over;
}

/* The job this JOIN is for: *ret_late is set where it is over and this member must still hear of it. */
static int job_to_join(struct jobs_party *p, const char *run, const struct rdzv_event *ev, const struct rdzv_config *c,
                       struct job **ret, struct member **ret_late, struct err *e)
{
    struct job *job = job_find_(p->jobs, run), *older;
    struct err differs = {0};
    *ret_late = NULL;
    DL_FOREACH (p->jobs->all, older) {
        if (strcmp(older->run, run) != 0)
            continue;
        TRY(job_check_owner_(older, p->o.principal, e));
        if (older->over && !*ret_late)
            *ret_late = late_member(older, ev);
    }
    if (job && !job->over && member_find_(job, ev->node))
        *ret_late = NULL;
    if (*ret_late)
        return 0;
    if (job && !job->over) {
        *ret = job;
        if (rdzv_config_differs(&job->config, c, &differs) == 0)
            return 0;
        if (!abandoned(job))
            return err_set(e, ERR_MISMATCH, "%s", differs.text);
        job_forget_(job);
    }
    return job_create_(p->jobs, run, p->o.principal, c, ret, e);
}

static const char *beside(const struct job *job)
{
    const struct job *other;
    if (job->jobs->o.embedded)
        DL_FOREACH (job->jobs->all, other)
            if (!other->over && strcmp(other->run, job->run) != 0)
                return other->run;
    return NULL;
}

static void describe(const struct job *job, const struct member *m, struct jobs_joined *ret)
{
    memcpy(ret->instance, job->instance, sizeof ret->instance);
    ret->epoch = job->jobs->o.epoch;
    ret->seq = m->has_news ? m->news.seq - 1 : m->acked;
    ret->first_round = job->config.first_round;
    ret->beside = beside(job);
}

/* "a,b,c" has this address. An empty one is in no list. */
static bool lists(const char *addrs, const char *addr)
{
    const size_t n = strlen(addr);
    for (const char *word = addrs; *word; word += *word == ',') {
        const size_t len = strcspn(word, ",");
        if (len == n && n > 0 && memcmp(word, addr, n) == 0)
            return true;
        word += len;
    }
    return false;
}

/* Where the node is, as far as this host can tell. Its workers may come from the address of its connection, too; that
 * one is empty where the peer had gone before it was accepted. */
static void fill_addresses(struct rdzv_event *ev, const struct jobs_party *p)
{
    const char *own = p->o.addr ? p->o.addr : "127.0.0.1";
    if (!ev->addr[0])
        snprintf(ev->addr, sizeof ev->addr, "%s", own);
    for (const char *const *a = (const char *const[]){ev->addr, own, NULL}; *a; a++) {
        size_t n = strlen(ev->addrs);
        if (**a && !lists(ev->addrs, *a) && n + strlen(*a) + 1 < sizeof ev->addrs)
            snprintf(ev->addrs + n, sizeof ev->addrs - n, "%s%s", n ? "," : "", *a);
    }
}

static void note_addresses(struct member *m, const struct jobs_party *p, const struct rdzv_event *ev)
{
    m->loopback = addr_host_is_loopback(ev->addr);
    if (p->o.addr && p->o.addr[0] && !addr_host_is_loopback(p->o.addr) && p->o.local)
        snprintf(m->job->outside, sizeof m->job->outside, "%s", p->o.local);
}

/* What a node's JOIN answers it need not be told any more. */
static void drop_answered(struct member *m, const struct rdzv_event *ev)
{
    if (!m->has_news || m->news.kind != RDZV_NEWS_STOP || ev->round < m->news.round)
        return;
    m->acked = m->news.seq;
    m->has_news = false;
}

static int join_job(struct jobs_party *p, struct job *job, struct rdzv_event *ev, struct jobs_joined *ret,
                    struct err *e)
{
    struct member *m = member_find_(job, ev->node);
    const bool is_new = !m;
    if (is_new)
        TRY(member_add_(job, ev->node, &m, e));
    fill_addresses(ev, p);
    int rc = member_bind_(m, p, e);
    if (rc == 0) {
        note_addresses(m, p, ev);
        drop_answered(m, ev);
        describe(job, m, ret);
        rc = job_step_(job, ev, e);
    }
    if (rc < 0 && is_new)
        member_drop_(m);
    if (rc < 0)
        return rc;
    if (m->known && m->list != LIST_HEARD)
        member_list_(m, LIST_NONE); /* JOIN has resumed it */
    return member_heard_(m, e);
}

int jobs_join(struct jobs_party *p, const char *run, const struct rdzv_event *join, const struct rdzv_config *settings,
              struct jobs_joined *ret, struct err *e)
{
    struct job *job;
    struct member *late;
    struct rdzv_event ev = *join;
    TRY(check_party(p, run, ev.node, e));
    TRY(check_rate(p, run, &ev, e));
    TRY(job_to_join(p, run, &ev, settings, &job, &late, e));
    if (late) {
        TRY(member_bind_(late, p, e));
        describe(late->job, late, ret);
        return 0;
    }
    int rc = join_job(p, job, &ev, ret, e);
    if (rc < 0)
        job_forget_if_empty_(job);
    jobs_tell_(p->jobs);
    return rc;
}

/* --- the others */

int jobs_next(struct jobs_party *p, const char *run, const char *node, uint64_t seq, struct err *e)
{
    struct member *m;
    TRY(check_party(p, run, node, e));
    TRY(look_up(p, run, node, &m, e));
    TRY(member_bind_(m, p, e));
    TRY(member_heard_(m, e));
    if (m->has_news && m->news.seq <= seq) {
        m->acked = m->news.seq;
        m->has_news = false;
    }
    if ((!m->known || m->job->over) && !m->has_news)
        return err_set(e, ERR_REFUSED, "node '%s' of run '%s' has no part in it any more (%s)", node, run,
                       rdzv_state_name(rdzv_state(m->job->machine)));
    p->asks = true;
    jobs_queue_(m);
    jobs_tell_(p->jobs);
    return 0;
}

void jobs_next_cancel(struct jobs_party *p)
{
    p->asks = false;
}

int jobs_claim(struct jobs_party *p, const char *run, const struct rdzv_event *ev, struct err *e)
{
    struct member *m;
    TRY(check_party(p, run, ev->node, e));
    TRY(look_up(p, run, ev->node, &m, e));
    struct job *job = m->job;
    if (job->over)
        return 0; /* its END says so */
    if (m->party == p)
        TRY(member_heard_(m, e));
    int rc = job_step_(job, ev, e);
    jobs_tell_(p->jobs);
    return rc;
}

int jobs_drain(struct jobs *j, const char *principal, const char *run, const char *signal, struct err *e)
{
    struct job *job = job_find_(j, run);
    if (!job)
        return no_job(run, e);
    TRY(job_check_owner_(job, principal, e));
    struct rdzv_event ev = {.kind = RDZV_DRAIN, .cause.rank = -1};
    snprintf(ev.cause.text, sizeof ev.cause.text, "%s", signal);
    int rc = job->over ? 0 : job_step_(job, &ev, e);
    jobs_tell_(j);
    return rc;
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
    double v = strtod(text, &end);
    if (!text[0] || *end)
        return err_set(e, -EINVAL, "%s '%s': expected a number", key, text);
    (void)v;
    return rdzv_field_text(out, key, text);
}

int jobs_report(struct jobs_party *p, const char *run, const char *node, const char *fields, size_t n, struct err *e)
{
    struct member *m;
    struct buf out;
    int rc = 0;
    TRY(check_party(p, run, node, e));
    TRY(look_up(p, run, node, &m, e));
    buf_init(&out, JOBS_REPORT_MAX);
    for (size_t i = 0; i < sizeof report_fields / sizeof *report_fields && rc == 0; i++)
        rc = keep_field(&out, report_fields[i], fields, n, e);
    if (rc == 0 && out.len) {
        free(m->report);
        m->report = out.data;
        return m->party == p ? member_heard_(m, e) : 0;
    }
    buf_free(&out);
    return rc;
}
