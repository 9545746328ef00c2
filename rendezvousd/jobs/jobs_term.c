/* The term of an elected leader: its one job, loaded from its home, and until when it may acknowledge nodes. The
 * election itself is in common/rdzv/client/election.h. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <utlist.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "rendezvousd/jobs/jobs_impl.h"

#define MODULE "jobs"

/* --- taking over */

static void note_loaded(struct job *job)
{
    struct leader *l = job->reign.leader;
    job->over = leader_is_over(l);
    job->round = rdzv_round(leader_machine(l));
    job->restarts = (uint64_t)rdzv_restarts(leader_machine(l));
    while (leader_next_fresh(l)) /* no party asks yet */
        ;
    log_info(MODULE, "run=%s taken over: %s, round %llu, %d nodes", leader_run(l),
             rdzv_state_name(rdzv_state(leader_machine(l))), (unsigned long long)job->round,
             rdzv_nodes(leader_machine(l)));
}

int jobs_lead(struct jobs *j, const struct jobs_lead *lead, struct jobs_led *ret, struct err *e)
{
    struct term *t = &j->term;
    struct job *job;
    *t = (struct term){.home = lead->home,
                       .valid_ms = lead->valid_ms,
                       .lately_ms = lead->lately_ms,
                       .full_until = lead->full_until,
                       .higher = lead->higher,
                       .arg = lead->arg};
    snprintf(t->run, sizeof t->run, "%s", lead->run);
    snprintf(t->node, sizeof t->node, "%s", lead->node);
    snprintf(t->epoch, sizeof t->epoch, "%s", lead->epoch);
    snprintf(t->identity, sizeof t->identity, "%s", lead->identity);
    TRY(job_create_(j, lead->run, "", &job, e));
    job_live_in_(job, lead->home);
    int rc = rdzv_reign_take_over(&job->reign, job_clock_, lead->grace_ms, e);
    *ret = (struct jobs_led){.is_empty = !leader_machine(job->reign.leader), .lost = rdzv_reign_has_loss(&job->reign)};
    if (rc == 0 && !ret->is_empty)
        rc = job_name_(job, e);
    if (rc < 0 || ret->is_empty) { /* the first JOIN makes it */
        job_close_home_(job, true);
        job_forget_(job);
        return rc;
    }
    note_loaded(job);
    job_arm_(job);
    job_watch_(job);
    return 0;
}

/* --- until when */

void jobs_lead_until(struct jobs *j, int64_t until_ms)
{
    const bool lapsed = !jobs_leads_(j);
    struct job *job;
    j->term.until = j->term.away_until = until_ms;
    if (!lapsed)
        return;
    DL_FOREACH (j->all, job) /* news that had to wait */
        for (struct jobs_party *p = job->parties; p; p = p->hh.next)
            party_queue_(p);
    jobs_tell_(j);
}

/* --- without the home */

void jobs_lead_away(struct jobs *j, int64_t sent_ms, int64_t away_ms)
{
    if (sent_ms >= j->term.loose_until)
        j->term.away_until = sent_ms + away_ms;
}

void party_bound_(struct jobs_party *p, int64_t when)
{
    p->bound_ms = when > p->bound_ms ? when : p->bound_ms;
}

/* A node that is dead has asked nothing of the home since it followed us, if it did so lately. */
void party_loose_(struct jobs_party *p, bool dead)
{
    struct term *t = &p->jobs->term;
    const int64_t now = p->jobs->o.now();
    const bool counts = p->bound_ms > 0 && !(dead && now - p->bound_ms < t->valid_ms);
    p->bound_ms = 0;
    if (!t->home || !counts)
        return;
    t->loose_until = now + t->lately_ms + (t->lately_ms + 99) / 100;
    t->away_until = t->until;
}

static bool are_all_bound(const struct jobs *j, int64_t now)
{
    const struct job *job;
    DL_FOREACH (j->all, job)
        for (const struct jobs_party *p = job->parties; p; p = p->hh.next)
            if (p->bound_ms > 0 && now - p->bound_ms >= j->term.valid_ms)
                return false;
    return true;
}

void jobs_hold(struct jobs *j, int64_t until_ms)
{
    struct job *job;
    j->term.hold_until = until_ms;
    DL_FOREACH (j->all, job) {
        leader_hold(job->reign.leader, until_ms, j->o.now());
        job_arm_(job);
    }
}

void jobs_no_term_(struct jobs *j)
{
    j->term.until = j->term.away_until = 0;
    rdzv_memory_init(&j->term.nowhere);
    j->term.home = &j->term.nowhere;
}

void jobs_yield(struct jobs *j)
{
    struct job *job;
    if (!j->term.home)
        return;
    j->term.until = j->term.away_until = 0;
    DL_FOREACH (j->all, job)
        job_close_home_(job, false);
    jobs_no_term_(j);
}

void jobs_stand_down(struct jobs *j)
{
    struct job *job;
    j->term.until = 0;
    DL_FOREACH (j->all, job) {
        if (job->reign.home)
            rdzv_reign_note_age(&job->reign, j->o.now());
        for (struct jobs_party *p = job->parties; p; p = p->hh.next)
            if (p->asks && p->o.again)
                p->o.again(p->o.arg);
    }
}

static bool all_know(const struct leader *l)
{
    if (!leader_is_over(l))
        return false;
    for (const struct leader_member *m = leader_members(l); m; m = m->hh.next)
        if (m->elder || (m->has_news && !m->told))
            return false;
    return true;
}

bool jobs_all_know(const struct jobs *j)
{
    const struct job *job;
    DL_FOREACH (j->all, job)
        if (!all_know(job->reign.leader))
            return false;
    return j->all != NULL;
}

bool jobs_leads_(const struct jobs *j)
{
    const struct term *t = &j->term;
    const int64_t now = j->o.now();
    return (!t->home && !j->o.shared) || now < t->until || (now < t->away_until && are_all_bound(j, now));
}

int jobs_may_answer(struct jobs *j, struct err *e)
{
    jobs_look_at_seats_(j);
    if (j->o.shared && !jobs_leads_(j))
        return err_set(e, -EREMOTE, "this rendezvousd stands by");
    if (!jobs_leads_(j))
        return err_set(e, -ESTALE, "this node does not lead the job now: its claim is not confirmed");
    if (!jobs_hear_enough_(j))
        return err_set(e, -EBUSY, "%d of the %d seats that a round needs are heard here",
                       seats_heard(j->seats, NULL, j->o.now()), j->seats->min);
    return 0;
}

int party_check_term_(const struct jobs_party *p, struct err *e)
{
    if (!p->jobs->term.home && !p->jobs->o.shared)
        return 0;
    if (!p->in_term && !p->jobs->o.shared)
        return err_set(e, -ESTALE, "the leader of this job was elected: expected the epoch first (RDZV.TERM)");
    return jobs_may_answer(p->jobs, e);
}

/* --- who dials */

static int check_round(const struct jobs *j, const char *run, uint64_t round, struct err *e)
{
    const struct job *job = job_find_(j, "", run);
    const struct rdzv *machine = job ? leader_machine(job->reign.leader) : NULL;
    if (round == 0 || (machine && rdzv_round(machine) >= round))
        return 0;
    return err_set(e, ERR_FENCED, "the rendezvous has lost round %llu of job '%s' (was its home emptied?)",
                   (unsigned long long)round, run);
}

int jobs_term(struct jobs_party *p, const char *run, const char *epoch, const char *seen, uint64_t round, struct err *e)
{
    struct jobs *j = p->jobs;
    struct term *t = &j->term;
    if (!t->home || strcmp(t->run, run) != 0)
        return err_set(e, -ESTALE, "nobody leads job '%s' here", run);
    if (rdzv_epoch_is_foreign(seen, t->epoch)) {
        t->until = t->away_until = 0;
        t->higher(t->arg, seen);
        return err_set(e, -ESTALE, "this node leads under epoch %s, and must claim anew above %s", t->epoch, seen);
    }
    if (strcmp(epoch, t->epoch) != 0)
        return err_set(e, -ESTALE, "this node leads under epoch %s, not %s", t->epoch, epoch);
    TRY(jobs_may_answer(j, e));
    TRY(check_round(j, run, round, e));
    p->in_term = true;
    return 0;
}

const char *jobs_term_instance(const struct jobs_party *p)
{
    const struct job *job = job_find_(p->jobs, "", p->jobs->term.run);
    return job ? leader_instance(job->reign.leader) : "";
}

/* A JOIN names rounds that this home has never had: their workers may run under a leader that it does not know of. */
void job_note_past_(struct job *job, const struct rdzv_event *join)
{
    struct leader *l = job->reign.leader;
    const struct term *t = &job->jobs->term;
    const int64_t now = job->jobs->o.now();
    if (!t->home)
        return;
    leader_hold(l, t->hold_until, now);
    if (join->round > 0 && (!leader_machine(l) || rdzv_round(leader_machine(l)) == 0))
        leader_hold(l, t->full_until, now);
}

int jobs_heard(const struct jobs *j)
{
    const struct job *job;
    int n = 0;
    bool over = j->all != NULL;
    DL_FOREACH (j->all, job) {
        over = over && leader_is_over(job->reign.leader);
        for (const struct leader_member *m = leader_members(job->reign.leader); m; m = m->hh.next)
            n += m->known && m->connected && m->list != LEADER_LIST_SILENT;
    }
    return over ? INT_MAX : n;
}
