/* A host of a list: its one job, and the seats that it hears (common/rdzv/leader/seats.h). Its knowledge becomes
 * void as soon as it hears fewer than MIN seats, or a node has heard of a higher round: another host may lead then. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "rendezvousd/jobs/jobs_impl.h"

#define MODULE "jobs"

int jobs_open_seats_(struct jobs *j, struct err *e)
{
    if (!j->o.listed)
        return 0;
    j->seats = calloc(1, sizeof *j->seats);
    if (!j->seats)
        return err_set(e, -ENOMEM, "no memory for seats");
    snprintf(j->listed_run, sizeof j->listed_run, "%s", j->o.listed_run);
    TRY(seats_init(j->seats, j->o.listed, e));
    j->seated = calloc((size_t)j->seats->max, sizeof *j->seated);
    return j->seated ? 0 : err_set(e, -ENOMEM, "no memory for seats");
}

void jobs_close_seats_(struct jobs *j)
{
    if (j->seats)
        seats_finish(j->seats);
    free(j->seats);
    free(j->seated);
    j->seats = NULL;
    j->seated = NULL;
}

static bool has_round(const struct job *job)
{
    return leader_machine(job->reign.leader) && rdzv_round(leader_machine(job->reign.leader)) > 0;
}

/* --- what this host knows is void */

static void lose(struct job *job, const char *why)
{
    struct jobs *j = job->jobs;
    struct jobs_party *p, *next;
    log_warn(MODULE, "run=%s round %llu is given up: %s", leader_run(job->reign.leader),
             (unsigned long long)rdzv_round(leader_machine(job->reign.leader)), why);
    seats_forget(j->seats);
    HASH_ITER (hh, job->parties, p, next) {
        party_unbind_(p);
        if (!p->asks)
            continue;
        p->asks = false;
        party_answered_(p);
        p->o.told(p->o.arg, NULL, NULL, 0);
    }
    job_forget_(job);
}

void jobs_look_at_seats_(struct jobs *j)
{
    struct job *job, *next;
    if (!j->seats || seats_may_answer(j->seats, j->o.now()))
        return;
    DL_FOREACH_SAFE(j->all, job, next)
    if (has_round(job) && !leader_is_over(job->reign.leader))
        lose(job, "fewer seats are heard here than a round needs, and the others may go on under another host");
}

bool jobs_hear_enough_(const struct jobs *j)
{
    return !j->seats || seats_may_answer(j->seats, j->o.now());
}

/* A node of this round that comes from another instance of the job: a host that has all MAX seats begins a round at
 * once, so that host may have begun one, while the confirmations here still count. It must not begin to work here. */
static bool has_been_elsewhere(const struct job *job, const struct rdzv_event *join)
{
    const struct leader_member *m = leader_find(job->reign.leader, join->node);
    return m && m->known && join->instance[0] && strcmp(join->instance, leader_instance(job->reign.leader)) != 0;
}

/* Forget what we know if this node has heard of a higher round than ours: it was at a host that led after us. Likewise
 * if it is of our round, and has joined another host since. */
static void heed_others(struct jobs *j, const char *run, const struct rdzv_event *join)
{
    struct job *job = job_find_(j, "", run);
    if (!job || !has_round(job) || leader_is_over(job->reign.leader))
        return;
    if (join->round > rdzv_round(leader_machine(job->reign.leader)))
        lose(job, "a node has heard of a higher round");
    else if (has_been_elsewhere(job, join))
        lose(job, "a node of it has joined another host since");
}

/* --- seats */

void job_hold_first_(struct job *job)
{
    const struct jobs *j = job->jobs;
    if (j->seats && !has_round(job))
        leader_hold_first(job->reign.leader, seats_begin_at(j->seats, j->o.now()));
}

/* Refuse a newcomer for now if its seat belongs to a node that is heard. (The leader would turn it away for good,
 * but it may be the successor of a dead node.) */
static int check_place(const struct jobs *j, int seat, const char *node, struct err *e)
{
    const struct job *job = job_find_(j, "", j->listed_run);
    const char *before = seat >= 0 && seat < j->seats->max ? j->seats->v[seat].node : "";
    const struct leader_member *m = job && before[0] ? leader_find(job->reign.leader, before) : NULL;
    if (!m || !m->known || m->list == LEADER_LIST_SILENT || strcmp(before, node) == 0)
        return 0;
    return err_set(e, -EAGAIN, "node rank %d is taken by node '%s', which is heard of", seat, before);
}

/* The node's seat is taken, and it will ask again. If the job succeeds meanwhile, the node is turned away, and
 * begins no job. */
static void put_off(struct jobs_party *p, struct job *job, const struct rdzv_event *join)
{
    const struct leader *l = job ? job->reign.leader : NULL;
    const struct leader_member *m = l ? leader_find(l, join->node) : NULL;
    if (l && leader_machine(l) && !leader_is_over(l) && !(m && m->known) &&
        leader_member_count(l) < p->jobs->o.max_nodes)
        leader_put_off(job->reign.leader, join->node, p->jobs->o.now());
}

/* Does the node of this seat still use this connection? */
static bool is_seated(const struct jobs_party *p)
{
    return p->seat >= 0 && p->jobs->seated[p->seat] == p->seated;
}

static int sit_down(struct jobs_party *p, int seat, const char *node, struct err *e)
{
    struct jobs *j = p->jobs;
    if (is_seated(p) && p->seat == seat && strcmp(j->seats->v[seat].node, node) == 0)
        return 0;
    TRY(check_place(j, seat, node, e));
    TRY(seats_connect(j->seats, seat, node, j->o.now(), e));
    p->seat = seat;
    p->seated = ++j->seatings;
    j->seated[seat] = p->seated;
    return 0;
}

/* Have the other nodes, which wait for the newest JOIN, show that they are still here. */
static void ask_all_again(struct job *job)
{
    struct jobs_party *p, *next;
    for (int i = 0; i < job->jobs->seats->max; i++)
        if (job->jobs->seats->v[i].joined.order == 0)
            return;
    HASH_ITER (hh, job->parties, p, next)
        if (p->asks && p->o.again)
            p->o.again(p->o.arg);
}

int party_join_seat_(struct jobs_party *p, const char *run, const struct rdzv_event *join, struct err *e)
{
    struct jobs *j = p->jobs;
    if (!j->seats)
        return 0;
    if (strcmp(run, j->listed_run) != 0)
        return err_set(e, ERR_REFUSED, "this crun hosts job '%s' alone, for the nodes of a list", j->listed_run);
    struct job *job = job_find_(j, "", run);
    if (job && leader_came_in_vain(job->reign.leader, leader_find(job->reign.leader, join->node)))
        return err_set(e, ERR_REFUSED, "job '%s' has succeeded without it: another node had node rank %d", run,
                       join->node_rank);
    const int rc = sit_down(p, join->node_rank, join->node, e);
    if (rc == -EAGAIN)
        put_off(p, job, join);
    TRY(rc);
    heed_others(j, run, join);
    if (j->seats->v[p->seat].joined.order > 0)
        return 0;
    seats_join(j->seats, p->seat, j->o.now());
    job = job_find_(j, "", run); /* a job of a lower round is dropped */
    if (job && !has_round(job))
        ask_all_again(job);
    return 0;
}

/* A node asks on a connection on which it has not joined: it has workers, perhaps of another host's round. */
int party_resume_seat_(struct jobs_party *p, const struct job *job, const char *node, struct err *e)
{
    struct jobs *j = p->jobs;
    const int seat = j->seats ? seats_of(j->seats, node) : -1;
    if (!j->seats)
        return 0;
    if (seat < 0 || (!has_round(job) && (!is_seated(p) || j->seats->v[seat].joined.order == 0)))
        return err_set(e, -ENOENT, "this host knows no round of run '%s'", j->listed_run);
    return is_seated(p) ? 0 : sit_down(p, seat, node, e);
}

bool jobs_next_hurries(const struct jobs_party *p)
{
    const struct jobs *j = p->jobs;
    return j->seats && p->job && p->asks && !has_round(p->job) && is_seated(p) && seats_awaits(j->seats, p->seat);
}

void party_leave_seat_(struct jobs_party *p, enum jobs_end how)
{
    if (p->jobs->seats && is_seated(p) && how == JOBS_GONE)
        seats_leave(p->jobs->seats, p->seat);
}

/* --- answers, and who has got them */

void party_answered_(struct jobs_party *p)
{
    if (!p->jobs->seats)
        return;
    p->answers++;
    p->sent = seats_answer(p->jobs->seats, p->jobs->o.now());
}

void jobs_got(struct jobs_party *p, uint64_t answers)
{
    struct jobs *j = p->jobs;
    struct job *job;
    jobs_look_at_seats_(j);
    if (!j->seats || !is_seated(p) || answers == 0 || answers != p->answers)
        return;
    const bool few = !jobs_hear_enough_(j);
    seats_confirm(j->seats, p->seat, p->sent);
    DL_FOREACH (j->all, job) {
        job_hold_first_(job);
        job_arm_(job);
        for (struct jobs_party *q = few && jobs_hear_enough_(j) ? job->parties : NULL; q; q = q->hh.next)
            party_queue_(q); /* news that had to wait */
    }
}

int jobs_seats(struct jobs *j, const char *run, const char *node, struct jobs_seats *ret, struct err *e)
{
    jobs_look_at_seats_(j);
    if (!j->seats || strcmp(run, j->listed_run) != 0)
        return err_set(e, -ENOENT, "this is no host of a list for job '%s'", run);
    const struct job *job = job_find_(j, "", run);
    *ret = (struct jobs_seats){.heard = seats_heard(j->seats, node, j->o.now()),
                               .round = job && has_round(job) ? rdzv_round(leader_machine(job->reign.leader)) : 0,
                               .over = job && leader_is_over(job->reign.leader)};
    return 0;
}
