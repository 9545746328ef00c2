/* The life of jobs, the steps of their leaders, and time. See jobs.h. */
#include "rendezvousd/jobs/jobs.h"
#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MODULE "jobs"
#define PAUSE_MS 500    /* ms late: then this process was stopped */
#define TOGETHER_MS 100 /* ms: deadlines this close are handled together, because most have moved on */

static void fill_defaults(struct jobs_options *o)
{
    o->now = o->now ? o->now : clock_ms;
    o->wall_ms = o->wall_ms ? o->wall_ms : clock_wall_ms;
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
    j->born_ms = j->o.now();
    j->ended = calloc(ENDED_MAX, sizeof *j->ended);
    j->timer = o->loop && j->ended ? calloc(1, sizeof *j->timer) : NULL;
    int rc = !j->ended || (o->loop && !j->timer) ? err_set(e, -ENOMEM, "no memory for jobs") : 0;
    rc = rc ? rc : jobs_open_seats_(j, e);
    if (rc < 0) {
        jobs_close_seats_(j);
        free(j->timer);
        free(j->ended);
        free(j);
        return rc;
    }
    if (o->elected)
        jobs_no_term_(j);
    if (o->loop) {
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

/* --- names */

/* Combine principal and run id into a key; returns its length. No principal is longer than LEADER_NAME_MAX. */
static size_t make_key(const struct jobs *j, const char *principal, const char *run,
                       char ret[LEADER_NAME_MAX + JOBS_RUN_MAX + 2])
{
    const size_t n = j->o.embedded ? 0 : strnlen(principal, LEADER_NAME_MAX), m = strnlen(run, JOBS_RUN_MAX);
    memcpy(ret, principal, n);
    ret[n] = 0;
    memcpy(ret + n + 1, run, m);
    return n + 1 + m;
}

static struct owner *find_owner(const struct jobs *j, const char *principal)
{
    struct owner *o;
    HASH_FIND_STR(j->owners, principal, o);
    return o;
}

static struct owner *owner_of(struct jobs *j, const char *principal)
{
    struct owner *o = find_owner(j, principal);
    if (o || !(o = calloc(1, sizeof *o + strlen(principal) + 1)))
        return o;
    strcpy(o->name, principal);
    HASH_ADD_STR(j->owners, name, o);
    if (o->hh.tbl)
        return o;
    free(o);
    return NULL;
}

static void release_owner(struct jobs *j, struct owner *o)
{
    if (o->jobs > 0)
        return;
    HASH_DEL(j->owners, o);
    free(o);
}

int job_name_(struct job *job, struct err *e)
{
    struct jobs *j = job->jobs;
    const char *run = leader_run(job->reign.leader), *principal = leader_principal(job->reign.leader);
    struct owner *o = owner_of(j, principal);
    job->key_len = make_key(j, principal, run, job->key);
    HASH_ADD_KEYPTR(hh, j->named, job->key, job->key_len, job);
    if (o && job->hh.tbl) {
        job->owner = o;
        o->jobs++;
        return 0;
    }
    if (job->hh.tbl)
        HASH_DEL(j->named, job);
    if (o)
        release_owner(j, o);
    return err_set(e, -ENOMEM, "no memory for run '%s'", run);
}

struct job *job_find_(const struct jobs *j, const char *principal, const char *run)
{
    struct job *job;
    char key[sizeof job->key];
    const size_t n = make_key(j, principal, run, key);
    HASH_FIND(hh, j->named, key, n, job);
    return job;
}

int job_look_up_(const struct jobs *j, const char *principal, const char *run, struct job **ret, struct err *e)
{
    struct job *job = principal || j->o.embedded ? job_find_(j, principal ? principal : "", run) : NULL, *other;
    if (!principal && !j->o.embedded)
        DL_FOREACH (j->all, other) {
            if (strcmp(leader_run(other->reign.leader), run) != 0)
                continue;
            if (job)
                return err_set(e, -EINVAL,
                               "several principals have a run '%s', '%s' and '%s' among them: name one (crun admin "
                               "--principal; principal= over HTTP)",
                               run, leader_principal(job->reign.leader), leader_principal(other->reign.leader));
            job = other;
        }
    if (!job)
        return err_set(e, -ENOENT, "run '%s' is unknown here: nobody has joined it, or it was forgotten", run);
    *ret = job;
    return 0;
}

/* --- life */

static void job_free(struct job *job)
{
    struct jobs_party *p, *next;
    job_drop_asking_(job);
    HASH_ITER (hh, job->parties, p, next)
        party_unbind_(p);
    if (job->owner) {
        HASH_DEL(job->jobs->named, job);
        job->owner->jobs--;
        release_owner(job->jobs, job->owner);
    }
    expiry_remove(&job->jobs->ticks, &job->tick);
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
    expiry_free(&j->ticks);
    jobs_close_seats_(j);
    free(j->ended);
    free(j);
}

void jobs_on_forgotten(struct jobs *j, void (*forgotten)(void *arg, const char *principal, const char *run), void *arg)
{
    j->forgotten = forgotten;
    j->forgotten_arg = arg;
}

int job_check_limits_(const struct jobs *j, const char *run, const char *principal, struct err *e)
{
    const struct owner *o = find_owner(j, principal);
    const size_t theirs = o ? o->jobs : 0;
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
    if (!job || expiry_reserve(&j->ticks) < 0) {
        free(job);
        return err_set(e, -ENOMEM, "no memory for run '%s'", run);
    }
    const struct leader_options o = {.run = run,
                                     .principal = principal,
                                     .number_after = j->numbered,
                                     .wall_ms = j->o.wall_ms,
                                     .stepped = on_step,
                                     .traced = on_transition,
                                     .arg = job};
    int rc = leader_create(&job->reign.leader, &o, e);
    if (rc < 0) {
        free(job);
        return rc;
    }
    job->jobs = j;
    job->reign.holder = "rendezvousd";
    expiry_set(&j->ticks, &job->tick, INT64_MAX);
    DL_PREPEND(j->all, job);
    j->count++;
    *ret = job;
    return 0;
}

void job_forget_(struct job *job)
{
    struct jobs *j = job->jobs;
    char run[JOBS_RUN_MAX + 1], principal[LEADER_NAME_MAX + 1];
    snprintf(run, sizeof run, "%s", leader_run(job->reign.leader));
    snprintf(principal, sizeof principal, "%s", leader_principal(job->reign.leader));
    if (j->seats && leader_numbered(job->reign.leader) > j->numbered) /* NEXTs of its nodes may still come */
        j->numbered = leader_numbered(job->reign.leader);
    job_close_home_(job, true);
    job_free(job);
    if (j->forgotten)
        j->forgotten(j->forgotten_arg, principal, run);
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

/* Remember an instance that is over: nodes of it may come after its end was forgotten, and must not begin it again. */
static void note_end(struct jobs *j, const char *instance)
{
    memcpy(j->ended[j->ended_count++ % ENDED_MAX], instance, sizeof *j->ended);
}

bool jobs_has_ended_(const struct jobs *j, const char *instance)
{
    for (size_t i = 0; i < ENDED_MAX && i < j->ended_count; i++)
        if (strcmp(j->ended[i], instance) == 0)
            return true;
    return false;
}

static void report(struct job *job)
{
    const struct leader *l = job->reign.leader;
    struct rdzv *machine = leader_machine(l);
    if (!machine)
        return;
    if (rdzv_round(machine) != job->round) {
        job->round = rdzv_round(machine);
        job->departed = 0;
        if (job->round > 0)
            log_info(MODULE, "run=%s round %llu begins nodes=%d", leader_run(l), (unsigned long long)job->round,
                     rdzv_nodes(machine));
    }
    uint64_t restarts = (uint64_t)rdzv_restarts(machine);
    job->jobs->stats.restarts += restarts > job->restarts ? restarts - job->restarts : 0;
    job->restarts = restarts;
    if (leader_is_over(l) && !job->over) {
        note_end(job->jobs, leader_instance(l));
        log_info(MODULE, "run=%s is over: %s", leader_run(l), rdzv_state_name(rdzv_state(machine)));
    }
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
    job_hold_first_(job);
    int rc = leader_step(job->reign.leader, ev, job->jobs->o.now(), e);
    job_hold_first_(job); /* a first JOIN has made it */
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

/* Set the timer. If it fires early, it is set again. */
static void arm(struct jobs *j)
{
    const int64_t deadline = j->ticks.n ? expiry_first(&j->ticks)->at : INT64_MAX;
    if (deadline >= j->armed)
        return;
    j->armed = deadline;
    int64_t now = j->o.now();
    if (j->timer)
        uv_timer_start(j->timer, on_timer, deadline > now ? (uint64_t)(deadline - now) : 0, 0);
}

static void set_tick(struct job *job)
{
    expiry_set(&job->jobs->ticks, &job->tick, leader_deadline(job->reign.leader));
}

/* The job's deadline may be earlier now. (One that has become later is noticed when the old one comes.) */
void job_arm_(struct job *job)
{
    if (leader_deadline(job->reign.leader) < job->tick.at)
        set_tick(job);
    arm(job->jobs);
}

/* For the one job of a hosting crun: each sign of life moves its deadline, so that the timer does not fire while all
 * is well. */
void job_heard_(struct job *job)
{
    struct jobs *j = job->jobs;
    if (j->count == 1 && leader_deadline(job->reign.leader) > j->armed) {
        jobs_notice_pause_(j); /* which the date tells */
        j->armed = INT64_MAX;
        set_tick(job);
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
    const int64_t now = j->o.now();
    jobs_notice_pause_(j);
    jobs_look_at_seats_(j);
    for (size_t left = j->count; left > 0 && j->ticks.n && expiry_first(&j->ticks)->at <= now + TOGETHER_MS; left--) {
        struct job *job = container_of(expiry_first(&j->ticks), struct job, tick);
        const int64_t at = leader_deadline(job->reign.leader);
        if (at > now && at <= job->tick.at)
            break;
        expiry_set(&j->ticks, &job->tick, at <= now ? INT64_MAX : at);
        if (at <= now)
            job_tick(job, now); /* which arms it, or ends it */
    }
    jobs_tell_(j);
    j->armed = INT64_MAX;
    arm(j);
}

bool jobs_is_embedded(const struct jobs *j)
{
    return j->o.embedded;
}

int64_t jobs_deadline(const struct jobs *j)
{
    return j->armed;
}

void jobs_stats(const struct jobs *j, struct jobs_stats *ret)
{
    const struct job *job;
    *ret = j->stats;
    ret->jobs = ret->nodes = ret->running = ret->unlogged = 0;
    DL_FOREACH (j->all, job) {
        struct rdzv *machine = leader_machine(job->reign.leader);
        if (leader_is_over(job->reign.leader) || !machine)
            continue;
        ret->jobs++;
        ret->nodes += (size_t)rdzv_nodes(machine);
        ret->running += rdzv_state(machine) == RDZV_RUNNING;
        ret->unlogged += jobs_keeps_(j) && !job_is_durable_(job);
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

const char *jobs_owner(const struct jobs *j, const char *principal, const char *run)
{
    const struct job *job = job_find_(j, principal, run);
    return job ? leader_principal(job->reign.leader) : NULL;
}
