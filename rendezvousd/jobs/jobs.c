/* Jobs: their life, the steps of their leaders, and time. See jobs.h. */
#include "rendezvousd/jobs/jobs.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    struct jobs_party *p, *next;
    HASH_ITER (hh, job->parties, p, next)
        party_unbind_(p);
    DL_DELETE(job->jobs->all, job);
    job->jobs->count--;
    leader_destroy(job->reign.leader);
    free(job);
}

void jobs_destroy(struct jobs *j)
{
    if (!j)
        return;
    while (j->all) {
        job_close_home_(j->all, false);
        job_free(j->all);
    }
    if (j->timer)
        uv_close((uv_handle_t *)j->timer, on_timer_closed);
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
    struct job *job;
    DL_FOREACH (j->all, job)
        if (strcmp(leader_run(job->reign.leader), run) == 0)
            return job;
    return NULL;
}

int job_check_limits_(const struct jobs *j, const char *run, const char *principal, struct err *e)
{
    size_t theirs = 0;
    const struct job *job;
    DL_FOREACH (j->all, job)
        theirs += strcmp(leader_principal(job->reign.leader), principal) == 0;
    if (j->count >= j->o.max_jobs)
        return err_set(e, -EDQUOT, "run '%s' is one job too many: there are %zu, the most there can be", run, j->count);
    if (theirs >= j->o.max_jobs_per_principal)
        return err_set(e, -EDQUOT, "run '%s' is one job too many: this principal has %zu, the most it may have", run,
                       theirs);
    return 0;
}

static void on_step(void *arg, const struct rdzv_event *ev, enum rdzv_state before, uint64_t round_before,
                    const struct rdzv_effects *fx, int rc)
{
    struct jobs_stats *st = &((struct job *)arg)->jobs->stats;
    (void)before;
    (void)round_before;
    (void)fx;
    st->fences += rc == ERR_FENCED;
    st->joins += rc == 0 && ev->kind == RDZV_JOIN;
}

static void on_transition(void *arg, enum rdzv_state from, enum rdzv_state to, uint64_t round)
{
    const struct job *job = arg;
    struct jobs_stats *st = &job->jobs->stats;
    st->rounds += to == RDZV_RUNNING;
    st->finished += to == RDZV_SUCCEEDED || to == RDZV_FAILED || to == RDZV_DRAINED;
    st->failed += to == RDZV_FAILED;
    log_debug(MODULE, "run=%s %s -> %s round=%llu", leader_run(job->reign.leader), rdzv_state_name(from),
              rdzv_state_name(to), (unsigned long long)round);
}

int job_create_(struct jobs *j, const char *run, const char *principal, struct job **ret, struct err *e)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return err_set(e, -ENOMEM, "no memory for run '%s'", run);
    const struct leader_options o = {
        .run = run, .principal = principal, .stepped = on_step, .traced = on_transition, .arg = job};
    int rc = leader_create(&job->reign.leader, &o, e);
    if (rc < 0) {
        free(job);
        return rc;
    }
    job->jobs = j;
    job->reign.holder = "rendezvousd";
    DL_PREPEND(j->all, job);
    j->count++;
    *ret = job;
    return 0;
}

void job_forget_(struct job *job)
{
    struct jobs *j = job->jobs;
    char run[JOBS_RUN_MAX + 1];
    snprintf(run, sizeof run, "%s", leader_run(job->reign.leader));
    job_close_home_(job, true);
    job_free(job);
    if (j->forgotten)
        j->forgotten(j->forgotten_arg, run);
}

void job_forget_if_empty_(struct job *job)
{
    if (job->parties || !leader_is_empty(job->reign.leader))
        return;
    if (leader_machine(job->reign.leader))
        log_info(MODULE, "run=%s all nodes left before the first round", leader_run(job->reign.leader));
    job_forget_(job);
}

/* --- steps */

static void report(struct job *job)
{
    const struct leader *l = job->reign.leader;
    struct rdzv *machine = leader_machine(l);
    if (!machine)
        return;
    if (rdzv_round(machine) != job->round) {
        job->round = rdzv_round(machine);
        if (job->round > 0)
            log_info(MODULE, "run=%s round %llu begins nodes=%d", leader_run(l), (unsigned long long)job->round,
                     rdzv_nodes(machine));
    }
    uint64_t restarts = (uint64_t)rdzv_restarts(machine);
    job->jobs->stats.restarts += restarts > job->restarts ? restarts - job->restarts : 0;
    job->restarts = restarts;
    if (leader_is_over(l) && !job->over)
        log_info(MODULE, "run=%s is over: %s", leader_run(l), rdzv_state_name(rdzv_state(machine)));
    job->over = leader_is_over(l);
    job_watch_(job);
}

void job_after_(struct job *job)
{
    struct leader_member *m;
    if (leader_undecided(job->reign.leader))
        job_decide_(job);
    report(job);
    while ((m = leader_next_fresh(job->reign.leader))) {
        struct jobs_party *p = party_find_(job, m->node);
        m->stamp = job->reign.home ? rdzv_reign_newest(&job->reign) : 0;
        if (p)
            party_queue_(p);
    }
    job_arm_(job);
}

int job_step_(struct job *job, const struct leader_event *ev, struct err *e)
{
    int rc = leader_step(job->reign.leader, ev, job->jobs->o.now(), e);
    if (rc == 0)
        job_after_(job);
    return rc;
}

/* --- time */

void jobs_notice_pause_(struct jobs *j)
{
    const int64_t now = j->o.now();
    struct job *job;
    if (j->armed >= now - PAUSE_MS)
        return;
    DL_FOREACH (j->all, job)
        leader_awake(job->reign.leader, now);
}

static void on_timer(uv_timer_t *t)
{
    jobs_tick(t->data);
}

/* The timer may fire too early: then it is set anew. */
static void arm(struct jobs *j, int64_t deadline)
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
    arm(job->jobs, leader_deadline(job->reign.leader));
}

/* The one job of a crun: its date moves with every sign of life, and wakes nobody as long as all is well. */
void job_heard_(struct job *job)
{
    struct jobs *j = job->jobs;
    if (j->all == job && !job->next && leader_deadline(job->reign.leader) > j->armed) {
        jobs_notice_pause_(j); /* which the date tells */
        j->armed = INT64_MAX;
    }
    job_arm_(job);
}

static void job_tick(struct job *job, int64_t now)
{
    if (leader_is_over(job->reign.leader) && leader_over_since(job->reign.leader) + LEADER_LINGER_MS <= now) {
        job_forget_(job);
        return;
    }
    job_step_(job, &(struct leader_event){.kind = LEADER_TICK}, NULL);
    job_forget_if_empty_(job);
}

void jobs_tick(struct jobs *j)
{
    struct job *job, *next;
    const int64_t now = j->o.now();
    jobs_notice_pause_(j);
    DL_FOREACH_SAFE(j->all, job, next)
    {
        if (leader_deadline(job->reign.leader) <= now)
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
        struct rdzv *machine = leader_machine(job->reign.leader);
        if (leader_is_over(job->reign.leader) || !machine)
            continue;
        ret->jobs++;
        ret->nodes += (size_t)rdzv_nodes(machine);
        ret->running += rdzv_state(machine) == RDZV_RUNNING;
    }
}

bool jobs_all_told(const struct jobs *j)
{
    const struct job *job;
    DL_FOREACH (j->all, job) {
        if (!leader_is_over(job->reign.leader))
            return false;
        for (const struct jobs_party *p = job->parties; p; p = p->hh.next) {
            const struct leader_member *m = party_member_(p);
            if (m && m->has_news && !m->told)
                return false;
        }
    }
    return true;
}

const char *jobs_owner(const struct jobs *j, const char *run)
{
    const struct job *job = job_find_(j, run);
    return job ? leader_principal(job->reign.leader) : NULL;
}
