/* Jobs: their life, the machine's steps, and time. See jobs.h. */
#include "rendezvousd/jobs/jobs.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include "rendezvousd/jobs/persist.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <utlist.h>

#define MODULE "jobs"
#define PAUSE_MS 500 /* we are that late: we did not run */

static void fill_defaults(struct jobs_options *o)
{
    o->now = o->now ? o->now : clock_ms;
    o->epoch = o->epoch ? o->epoch : 1;
    o->max_jobs = o->max_jobs ? o->max_jobs : 1000;
    o->max_jobs_per_principal = o->max_jobs_per_principal ? o->max_jobs_per_principal : 100;
    o->max_nodes = o->max_nodes ? o->max_nodes : 20000;
    o->max_job_bytes = o->max_job_bytes ? o->max_job_bytes : (size_t)256 << 20;
    o->max_joins = o->max_joins ? o->max_joins : 100;
}

int jobs_create(struct jobs **ret, const struct jobs_options *o, struct err *e)
{
    struct jobs *j = calloc(1, sizeof *j);
    if (!j)
        return err_set(e, -ENOMEM, "no memory for jobs");
    j->o = *o;
    fill_defaults(&j->o);
    j->armed = INT64_MAX;
    if (o->loop) {
        j->timer = calloc(1, sizeof *j->timer);
        if (!j->timer) {
            free(j);
            return err_set(e, -ENOMEM, "no memory for jobs");
        }
        uv_timer_init(o->loop, j->timer);
        j->timer->data = j;
    }
    *ret = j;
    return 0;
}

static void on_timer_closed(uv_handle_t *h)
{
    free(h);
}

static void job_free(struct job *job)
{
    struct member *m, *next;
    HASH_ITER (hh, job->members, m, next)
        member_drop_(m);
    DL_DELETE(job->jobs->all, job);
    job->jobs->count--;
    rdzv_destroy(job->machine);
    free(job->principal);
    free(job);
}

void jobs_destroy(struct jobs *j)
{
    if (!j)
        return;
    while (j->all) {
        job_log_age_(j->all);
        persist_log_close(j->all->log);
        job_free(j->all);
    }
    if (j->timer)
        uv_close((uv_handle_t *)j->timer, on_timer_closed);
    rdzv_effects_free(&j->fx);
    free(j);
}

void jobs_on_forgotten(struct jobs *j, void (*forgotten)(void *arg, const char *run), void *arg)
{
    j->forgotten = forgotten;
    j->forgotten_arg = arg;
}

/* --- jobs */

struct job *job_find_(const struct jobs *j, const char *run)
{
    struct job *job, *over = NULL;
    DL_FOREACH (j->all, job) {
        if (strcmp(job->run, run) != 0)
            continue;
        if (!job->over)
            return job;
        over = over ? over : job;
    }
    return over;
}

static int check_limits(const struct jobs *j, const char *run, const char *principal, struct err *e)
{
    size_t theirs = 0;
    const struct job *job;
    DL_FOREACH (j->all, job)
        theirs += strcmp(job->principal, principal) == 0;
    if (j->count >= j->o.max_jobs)
        return err_set(e, -EDQUOT, "run '%s' is one job too many: there are %zu, the most there can be", run, j->count);
    if (theirs >= j->o.max_jobs_per_principal)
        return err_set(e, -EDQUOT, "run '%s' is one job too many: this principal has %zu, the most it may have", run,
                       theirs);
    return 0;
}

static int make_instance(char *ret, struct err *e)
{
    unsigned long long id;
    if (getrandom(&id, sizeof id, 0) != sizeof id)
        return err_errno(e, errno, "cannot draw an instance id");
    snprintf(ret, JOBS_INSTANCE_LEN + 1, "%016llx", id);
    return 0;
}

int job_create_(struct jobs *j, const char *run, const char *principal, const struct rdzv_config *c, struct job **ret,
                struct err *e)
{
    if (!j->loading) /* what was taken once is kept */
        TRY(check_limits(j, run, principal, e));
    struct job *job = calloc(1, sizeof *job);
    if (!job || !(job->principal = strdup(principal))) {
        free(job);
        return err_set(e, -ENOMEM, "no memory for run '%s'", run);
    }
    job->jobs = j;
    job->config = *c;
    job->started_ms = j->o.now();
    job->bytes = sizeof *job;
    snprintf(job->run, sizeof job->run, "%s", run);
    int rc = make_instance(job->instance, e);
    if (rc == 0)
        rc = rdzv_create(&job->machine, c, e);
    if (rc < 0) {
        free(job->principal);
        free(job);
        return rc;
    }
    DL_PREPEND(j->all, job);
    j->count++;
    *ret = job;
    return 0;
}

void job_forget_(struct job *job)
{
    struct jobs *j = job->jobs;
    char run[JOBS_RUN_MAX + 1];
    memcpy(run, job->run, sizeof run);
    persist_log_remove(job->log);
    job_free(job);
    if (j->forgotten && !job_find_(j, run))
        j->forgotten(j->forgotten_arg, run);
}

void job_forget_if_empty_(struct job *job)
{
    struct member *m;
    if (rdzv_nodes(job->machine) > 0 || rdzv_round(job->machine) > 0 || job->over)
        return;
    for (m = job->members; m; m = m->hh.next)
        if (m->party || (m->has_news && !m->told))
            return;
    log_info(MODULE, "run=%s all nodes left before the first round", job->run);
    job_forget_(job);
}

/* --- steps */

static bool is_final(enum rdzv_state s)
{
    return s == RDZV_SUCCEEDED || s == RDZV_FAILED || s == RDZV_DRAINED;
}

bool job_is_final_(const struct job *job)
{
    return is_final(rdzv_state(job->machine));
}

/* Whom does the machine know, whom has it forgotten? The event's node perhaps; others only when their time was over. */
static void notice_forgotten(struct job *job, const struct rdzv_event *ev)
{
    struct member *m = ev->node[0] ? member_find_(job, ev->node) : NULL;
    if (m)
        member_set_known_(m, rdzv_knows(job->machine, m->node));
    if (job->known == (size_t)rdzv_nodes(job->machine))
        return;
    struct member *next;
    HASH_ITER (hh, job->members, m, next)
        member_set_known_(m, rdzv_knows(job->machine, m->node));
}

static void count(struct jobs *j, const struct job *job, const struct job_before *b, const struct rdzv_event *ev)
{
    j->stats.joins += ev->kind == RDZV_JOIN;
    j->stats.rounds += rdzv_round(job->machine) > b->round;
    j->stats.restarts += (uint64_t)(rdzv_restarts(job->machine) - b->restarts);
    j->stats.finished += is_final(rdzv_state(job->machine)) && !is_final(b->state);
}

/* When a node was heard last; a time in which we ourselves did not run counts for nobody's silence. */
static int64_t last_heard(const struct member *m)
{
    const int64_t awake = m->job->jobs->awake_ms;
    return m->heard_ms > awake ? m->heard_ms : awake;
}

static int step_at(struct job *job, const struct rdzv_event *ev, int64_t now, struct err *e)
{
    struct jobs *j = job->jobs;
    const struct job_before before = job_before_(job);
    int rc = rdzv_step(job->machine, ev, now, &j->fx, e);
    if (rc < 0) {
        j->stats.fences += rc == ERR_FENCED;
        return rc;
    }
    count(j, job, &before, ev);
    job_note_(job, &before, ev);
    notice_forgotten(job, ev);
    job_take_effects_(job, &j->fx);
    job_compact_(job);
    if (!job->over && is_final(rdzv_state(job->machine))) {
        job->over = true;
        job->over_ms = now;
        log_info(MODULE, "run=%s is over: %s", job->run, rdzv_state_name(rdzv_state(job->machine)));
    }
    job_arm_(job);
    return 0;
}

int job_step_(struct job *job, const struct rdzv_event *ev, struct err *e)
{
    return step_at(job, ev, job->jobs->o.now(), e);
}

static void notice_pause(struct jobs *j, int64_t now)
{
    if (j->armed < now - PAUSE_MS)
        j->awake_ms = now;
}

int job_silent_(struct member *m)
{
    struct rdzv_event ev = {.kind = RDZV_SILENT};
    notice_pause(m->job->jobs, m->job->jobs->o.now());
    memcpy(ev.node, m->node, sizeof ev.node);
    return step_at(m->job, &ev, last_heard(m), NULL);
}

/* --- time */

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t job_deadline(const struct job *job)
{
    const struct member *heard = job->lists[LIST_HEARD], *ended = job->lists[LIST_ENDED];
    if (job->over)
        return job->over_ms + JOBS_LINGER_MS;
    int64_t d = rdzv_deadline(job->machine);
    if (heard)
        d = earlier(d, last_heard(heard) + job->config.silence_ms);
    if (ended)
        d = earlier(d, ended->heard_ms + JOBS_LINGER_MS);
    return d;
}

static void on_timer(uv_timer_t *t)
{
    jobs_tick(t->data);
}

/* The timer may fire too early: then it is set anew. */
void jobs_arm_(struct jobs *j, int64_t deadline)
{
    if (deadline >= j->armed)
        return;
    j->armed = deadline;
    int64_t now = j->o.now();
    if (j->timer)
        uv_timer_start(j->timer, on_timer, deadline > now ? (uint64_t)(deadline - now) : 0, 0);
}

void job_arm_(struct job *job)
{
    jobs_arm_(job->jobs, job_deadline(job));
}

/* The one job of a crun: its date moves with every sign of life, and wakes nobody as long as all is well. */
void job_heard_(struct job *job)
{
    struct jobs *j = job->jobs;
    if (j->all == job && !job->next && job_deadline(job) > j->armed) {
        notice_pause(j, j->o.now()); /* which the date tells */
        j->armed = INT64_MAX;
    }
    job_arm_(job);
}

static void fall_silent(struct member *m)
{
    member_list_(m, LIST_SILENT);
    job_silent_(m); /* refused only where the node is unknown: then it does not matter */
}

static void job_tick(struct job *job, int64_t now)
{
    struct member *m;
    if (job->over) {
        if (job->over_ms + JOBS_LINGER_MS <= now)
            job_forget_(job);
        return;
    }
    while (!job->over && (m = job->lists[LIST_HEARD]) && last_heard(m) + job->config.silence_ms <= now)
        fall_silent(m);
    while ((m = job->lists[LIST_ENDED]) && m->heard_ms + JOBS_LINGER_MS <= now)
        member_drop_(m);
    if (rdzv_deadline(job->machine) <= now)
        job_step_(job, &(struct rdzv_event){.kind = RDZV_TICK}, NULL);
    job_forget_if_empty_(job);
}

void jobs_tick(struct jobs *j)
{
    struct job *job, *next;
    const int64_t now = j->o.now();
    notice_pause(j, now);
    DL_FOREACH_SAFE(j->all, job, next)
    {
        if (job_deadline(job) <= now)
            job_tick(job, now);
    }
    jobs_tell_(j);
    j->armed = INT64_MAX;
    DL_FOREACH (j->all, job)
        job_arm_(job);
}

int64_t jobs_deadline(const struct jobs *j)
{
    return j->armed;
}

void jobs_stats(const struct jobs *j, struct jobs_stats *ret)
{
    const struct job *job;
    *ret = j->stats;
    ret->jobs = ret->nodes = ret->running = 0;
    DL_FOREACH (j->all, job) {
        if (job->over)
            continue;
        ret->jobs++;
        ret->nodes += (size_t)rdzv_nodes(job->machine);
        ret->running += rdzv_state(job->machine) == RDZV_RUNNING;
    }
}

bool jobs_all_told(const struct jobs *j)
{
    const struct job *job;
    DL_FOREACH (j->all, job) {
        if (!job->over)
            return false;
        for (const struct member *m = job->members; m; m = m->hh.next)
            if (m->party && m->has_news && !m->told)
                return false;
    }
    return true;
}

const char *jobs_owner(const struct jobs *j, const char *run)
{
    const struct job *job = job_find_(j, run);
    return job ? job->principal : NULL;
}
