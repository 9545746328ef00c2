/* A party represents one node of a job: which one, how it ends, and how its node gets news. */
#include "common/base/err.h"
#include "common/base/log.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MODULE "jobs"

struct jobs_party *party_find_(const struct job *job, const char *node)
{
    struct jobs_party *p;
    HASH_FIND_STR(job->parties, node, p);
    return p;
}

struct leader_member *party_member_(const struct jobs_party *p)
{
    return p->job ? leader_find(p->job->reign.leader, p->node) : NULL;
}

int jobs_party_open(struct jobs_party **ret, struct jobs *j, const struct jobs_party_options *o, struct err *e)
{
    struct jobs_party *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, -ENOMEM, "no memory for a member");
    p->jobs = j;
    p->o = *o;
    p->seat = -1;
    *ret = p;
    return 0;
}

void party_unbind_(struct jobs_party *p)
{
    party_loose_(p, false);
    if (p->to_tell)
        DL_DELETE2(p->jobs->tell, p, tell_prev, tell_next);
    if (p->waits_disk)
        DL_DELETE2(p->job->undurable, p, disk_prev, disk_next);
    if (p->job && p->job->here == p)
        p->job->here = NULL;
    if (p->job)
        HASH_DEL(p->job->parties, p);
    p->to_tell = p->waits_disk = false;
    p->job = NULL;
}

static void make_void(struct jobs_party *p)
{
    party_unbind_(p);
    p->is_void = true;
    if (!p->asks)
        return;
    p->asks = false;
    p->o.told(p->o.arg, NULL, NULL, 0);
}

bool jobs_party_is_void(const struct jobs_party *p)
{
    return p->is_void;
}

int party_bind_(struct jobs_party *p, struct job *job, const char *node, struct err *e)
{
    struct leader_member *before = party_member_(p);
    if (p->job == job && strcmp(p->node, node) == 0)
        return 0;
    if (before && before->known && !leader_is_over(p->job->reign.leader))
        return err_set(e, ERR_REFUSED, "this connection stands for node '%s' of run '%s' and cannot be node '%s' too",
                       p->node, leader_run(p->job->reign.leader), node);
    party_unbind_(p);
    struct jobs_party *older = party_find_(job, node);
    if (older)
        party_unbind_(older);
    snprintf(p->node, sizeof p->node, "%s", node);
    HASH_ADD_STR(job->parties, node, p);
    if (!p->hh.tbl)
        return err_set(e, -ENOMEM, "no memory for node '%s'", node);
    p->job = job;
    p->answered_ms = 0;
    if (!p->o.addr)
        job->here = p;
    if (older) {
        log_info(MODULE, "run=%s node=%s comes by a new connection", leader_run(job->reign.leader), node);
        make_void(older);
    }
    return 0;
}

void jobs_party_close(struct jobs_party *p, enum jobs_end how)
{
    if (!p)
        return;
    struct jobs *j = p->jobs;
    p->asks = false; /* it is not told any more */
    jobs_look_at_seats_(j);
    party_leave_seat_(p, how);
    struct job *job = p->job;
    char node[RDZV_ID_MAX + 1];
    memcpy(node, p->node, sizeof node);
    party_loose_(p, how == JOBS_GONE);
    party_unbind_(p);
    free(p);
    if (!job)
        return;
    jobs_notice_pause_(j);
    struct leader_member *m = leader_find(job->reign.leader, node);
    if (how == JOBS_GONE && m)
        job_note_departed_(job, m);
    job_step_(job, &(struct leader_event){.kind = how == JOBS_GONE ? LEADER_GONE : LEADER_LOST, .node = node}, NULL);
    job_forget_if_empty_(job);
    jobs_tell_(j);
}

/* --- telling */

static struct leader_member *can_tell(const struct jobs_party *p)
{
    struct leader_member *m = p->asks ? party_member_(p) : NULL;
    return m && m->has_news ? m : NULL;
}

void party_queue_(struct jobs_party *p)
{
    struct leader_member *m = can_tell(p);
    if (!m || p->to_tell)
        return;
    if (rdzv_reign_stands(&p->job->reign, m->stamp)) {
        p->to_tell = true;
        DL_APPEND2(p->jobs->tell, p, tell_prev, tell_next);
        return;
    }
    if (p->waits_disk) /* it waits for an older record; now for a newer one */
        DL_DELETE2(p->job->undurable, p, disk_prev, disk_next);
    p->waits_disk = true;
    DL_APPEND2(p->job->undurable, p, disk_prev, disk_next);
}

/* Send a member its news. If their addresses come in pages, they count as told with the last page. */
static void tell(struct jobs_party *p, struct leader_member *m)
{
    const struct rdzv_news news = m->news;
    struct buf addrs = {0};
    const char *text = NULL;
    const int from = p->from < 0 ? 0 : p->from, to = p->from < 0 ? INT_MAX : p->from + JOBS_PAGE;
    int more = 0;
    if (rdzv_news_is_for_leader(&news)) {
        text = leader_addresses(p->job->reign.leader, from, to, &addrs) == 0 && addrs.len ? addrs.data : "";
        more = to < news.group_world ? to : 0;
    }
    if (!more)
        leader_step(p->job->reign.leader, &(struct leader_event){.kind = LEADER_TOLD, .node = p->node}, 0, NULL);
    if (!more && news.kind == RDZV_NEWS_ROUND && !news.spare)
        m->member_round = news.round;
    p->asks = false;
    p->answered_ms = p->jobs->o.now();
    party_answered_(p);
    p->o.told(p->o.arg, &news, text, more); /* p may be gone afterwards */
    buf_free(&addrs);
}

/* May a member be told? At a host of a list that hears too few seats, only of an END, after which nothing starts. */
static bool may_tell(const struct jobs *j, const struct leader_member *m)
{
    return m && jobs_leads_(j) && (jobs_hear_enough_(j) || m->news.kind == RDZV_NEWS_END);
}

void jobs_tell_(struct jobs *j)
{
    struct jobs_party *p;
    if (j->telling)
        return;
    j->telling = true;
    while ((p = j->tell)) {
        DL_DELETE2(j->tell, p, tell_prev, tell_next);
        p->to_tell = false;
        struct leader_member *m = can_tell(p);
        if (!may_tell(j, m))
            continue; /* it is queued again when it may be told */
        if (m && rdzv_reign_stands(&p->job->reign, m->stamp))
            tell(p, m);
        else if (m)
            party_queue_(p); /* newer news arrived meanwhile */
    }
    j->telling = false;
}
