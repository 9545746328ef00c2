/* Writes the decisions of a job to its home (common/rdzv/leader/rdzv_reign.h): in memory, or in the state directory. */
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include "rendezvousd/state/state_dir.h"
#include "rendezvousd/state/state_shared.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MODULE "jobs"

/* --- deciding */

/* Send news that waited and are stored now. */
static void release(struct job *job)
{
    struct jobs_party *p;
    while ((p = job->undurable)) {
        const struct leader_member *m = party_member_(p);
        if (m && !rdzv_reign_stands(&job->reign, m->stamp))
            break;
        DL_DELETE2(job->undurable, p, disk_prev, disk_next);
        p->waits_disk = false;
        party_queue_(p);
    }
}

static void on_landed(void *arg)
{
    struct job *job = arg;
    release(job);
    jobs_tell_(job->jobs); /* the job may be gone afterwards */
}

/* The home asks for a whole decision. If memory is short now, it asks again. */
static void on_rewrite(void *arg)
{
    struct job *job = arg;
    rdzv_reign_decide(&job->reign, true, job->jobs->o.now(), NULL);
}

void job_live_in_(struct job *job, struct rdzv_home *home)
{
    const struct term *t = &job->jobs->term;
    job->reign.home = home;
    home->landed = on_landed;
    home->rewrite = on_rewrite;
    home->arg = job;
    snprintf(job->reign.epoch, sizeof job->reign.epoch, "%llu", (unsigned long long)job->jobs->o.epoch);
    if (t->home) {
        memcpy(job->reign.epoch, t->epoch, sizeof t->epoch);
        memcpy(job->reign.identity, t->identity, sizeof t->identity);
        job->reign.holder = t->node;
    } else {
        home->ops->identity(home, job->reign.identity, NULL); /* of one owner: it cannot fail */
    }
}

static void live_in_memory(struct job *job)
{
    rdzv_memory_init(&job->memory);
    job_live_in_(job, &job->memory);
}

static int open_log(struct job *job, struct err *e)
{
    struct rdzv_home *home, *before = job->reign.home;
    const struct jobs_options *o = &job->jobs->o;
    const char *id = leader_instance(job->reign.leader);
    TRY(o->shared ? state_shared_home(o->shared, id, &home, e) : state_dir_home(o->dir, id, &home, e));
    home->asked = home->stands = before ? before->asked : 0; /* numbers continue */
    job_live_in_(job, home);
    return 0;
}

/* Open the job's home. If memory for its log is short, the job lives in this process's memory, and has a log from a
 * later decision on. True: the next decision must be a whole one. */
static bool open_home(struct job *job)
{
    struct err e;
    const bool first = !job->reign.home;
    if (job->jobs->term.home) {
        job_live_in_(job, job->jobs->term.home);
        return true;
    }
    const int rc = jobs_keeps_(job->jobs) ? open_log(job, &e) : 0;
    if (rc < 0 && first)
        log_error(MODULE, "run=%s %s: it will not outlive this daemon", leader_run(job->reign.leader), e.text);
    if (!job->reign.home)
        live_in_memory(job);
    return !first;
}

/* A bug of ours broke the job's state: decisions are not written any more, because whoever loads them would have the
 * same broken state, and the log is kept for inspection. True: the log was set aside. */
static bool set_aside(struct job *job)
{
    const struct leader *l = job->reign.leader;
    struct rdzv_home *home = job->reign.home;
    if (!leader_machine(l) || !rdzv_broken(leader_machine(l))[0])
        return false;
    const bool logged = home && home != &job->memory && job->jobs->o.dir;
    if (!job->broken)
        log_error(
            MODULE,
            "run=%s: a fault of this program, which is to be reported: %s; the job is ended with %d, and no other "
            "one%s%s%s",
            leader_run(l), rdzv_broken(leader_machine(l)), EXIT_INTERNAL, logged ? "; its log is set aside as '" : "",
            logged ? leader_instance(l) : "", logged ? ".log.damaged'" : "");
    if (logged && !job->broken)
        state_home_set_aside(home);
    job->jobs->stats.damaged += logged && !job->broken;
    job->broken = true;
    return true;
}

void job_decide_(struct job *job)
{
    struct rdzv_reign *r = &job->reign;
    if (set_aside(job))
        return;
    if (job->jobs->o.now() < leader_held_until(r->leader))
        return; /* a decision records that the wait for lost decisions is over */
    const bool unlogged = !r->home || (r->home == &job->memory && jobs_keeps_(job->jobs));
    const bool whole = unlogged && open_home(job);
    const int rc = rdzv_reign_decide(r, whole, job->jobs->o.now(), NULL);
    if (rc < 0 && r->home != &job->memory && job->jobs->o.dir)
        state_home_lose(r->home, rc);
}

bool job_is_durable_(const struct job *job)
{
    const struct rdzv_home *home = job->reign.home;
    return home && home != &job->memory && !home->unlogged;
}

static void decide_all(struct job *job)
{
    const int64_t now = job->jobs->o.now();
    if (job->broken)
        return;
    if (now >= leader_held_until(job->reign.leader) && leader_machine(job->reign.leader))
        rdzv_reign_decide(&job->reign, true, now, NULL);
}

void job_close_home_(struct job *job, bool forget)
{
    struct rdzv_home *home = job->reign.home;
    if (!home)
        return;
    if (job->jobs->term.home) { /* the next leader begins with the present durations; the home does not belong to us */
        if (!forget)
            decide_all(job);
        home->landed = home->rewrite = NULL;
        job->reign.home = NULL;
        return;
    }
    if (forget)
        home->ops->forget(home);
    else if (home->unlogged)
        on_rewrite(job); /* there may be room now */
    else
        rdzv_reign_note_age(&job->reign, job->jobs->o.now());
    home->ops->close(home);
    job->reign.home = NULL;
}

/* --- loading */

int64_t job_clock_(const struct rdzv_reign *r)
{
    return container_of(r, struct job, reign)->jobs->o.now();
}

/* If its home may have lost something, workers may run of which it does not know. */
static bool holds(struct job *job)
{
    const struct jobs *j = job->jobs;
    const struct rdzv_config *c = leader_config(job->reign.leader);
    const int64_t ms = j->taken.valid_ms + c->silence_ms + c->kill_ms;
    if (!j->o.shared || !rdzv_reign_has_loss(&job->reign))
        return false;
    leader_hold(job->reign.leader, j->o.now() + ms + ms / 100 + 1, j->o.now());
    return true;
}

/* Take over a job with all its decisions; our first decision is a whole one. */
static int take_over(struct job *job, struct rdzv_home *home, struct err *e)
{
    struct leader *l = job->reign.leader;
    job_live_in_(job, home);
    TRY(rdzv_reign_take_over(&job->reign, job_clock_, job->jobs->taken.grace_ms, e));
    if (!leader_machine(l))
        return 0;
    job->over = leader_is_over(l);
    job->round = rdzv_round(leader_machine(l));
    job->restarts = (uint64_t)rdzv_restarts(leader_machine(l));
    while (leader_next_fresh(l)) /* no party asks yet */
        ;
    return holds(job) ? 0 : rdzv_reign_decide(&job->reign, true, job_clock_(&job->reign), e);
}

static int load(void *arg, struct rdzv_home *home, struct err *e)
{
    struct jobs *j = arg;
    struct job *job;
    TRY(job_create_(j, "", "", &job, e));
    int rc = take_over(job, home, e);
    if (rc >= 0)
        rc = job_name_(job, e);
    const struct leader *l = job->reign.leader;
    if (rc < 0)
        job->reign.home = NULL;         /* its file stays */
    if (rc < 0 || !leader_machine(l)) { /* else the daemon died before the first record was complete */
        job_forget_(job);
        return rc < 0 ? rc : 0;
    }
    log_info(MODULE, "run=%s loaded: %s, round %llu, %d nodes", leader_run(l),
             rdzv_state_name(rdzv_state(leader_machine(l))), (unsigned long long)rdzv_round(leader_machine(l)),
             rdzv_nodes(leader_machine(l)));
    job_arm_(job);
    job_watch_(job);
    return 0;
}

int jobs_load(struct jobs *j, struct err *e)
{
    void (*const forgotten)(void *arg, const char *principal, const char *run) = j->forgotten;
    if (!j->o.dir)
        return 0;
    j->forgotten = NULL; /* what cannot be loaded nobody has known */
    const int rc = state_dir_each(j->o.dir, load, j, e);
    j->forgotten = forgotten;
    j->stats.damaged = state_dir_damaged(j->o.dir);
    return rc;
}

int jobs_take_over(struct jobs *j, const struct jobs_taken *t, struct err *e)
{
    j->taken = *t;
    j->o.epoch = t->epoch;
    return state_shared_take_over(j->o.shared, t->identity, t->text, t->n, load, j, e);
}
