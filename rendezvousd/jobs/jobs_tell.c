/* News: from the machine's effects to the members that ask for them. */
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/net/addr.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <utlist.h>

/* --- a leader on loopback */

/* Members on other hosts must be told the address that they have of this one. */
static bool seen_from_outside(const struct job *job)
{
    if (!job->outside[0])
        return false;
    for (const struct member *m = job->members; m; m = m->hh.next)
        if (m->known && !m->loopback)
            return true;
    return false;
}

static void replace_leader(const struct job *job, struct rdzv_effects *fx)
{
    int outside = -1; /* not looked yet: the same for all of one step */
    for (size_t i = 0; i < fx->n; i++) {
        struct rdzv_news *news = &fx->v[i].news;
        if (!addr_host_is_loopback(news->leader_addr))
            continue;
        if (outside < 0)
            outside = seen_from_outside(job);
        if (outside)
            snprintf(news->leader_addr, sizeof news->leader_addr, "%s", job->outside);
    }
}

/* --- keeping */

void job_take_effects_(struct job *job, struct rdzv_effects *fx)
{
    replace_leader(job, fx);
    const uint64_t record = job_log_(job, fx);
    for (size_t i = 0; i < fx->n; i++) {
        struct member *m = member_find_(job, fx->v[i].node);
        if (!m)
            continue; /* forgotten by this host too: its END is not for anybody */
        m->news = fx->v[i].news;
        m->has_news = true;
        m->told = false;
        m->record = record;
        jobs_queue_(m);
    }
}

static bool can_tell(const struct member *m)
{
    return m->has_news && m->party && m->party->asks;
}

void jobs_queue_(struct member *m)
{
    struct job *job = m->job;
    if (m->to_tell || !can_tell(m))
        return;
    if (!job_durable_(job, m->record)) {
        if (m->waits_disk) /* for an older record: now for a newer one */
            DL_DELETE2(job->undurable, m, disk_prev, disk_next);
        m->waits_disk = true;
        DL_APPEND2(job->undurable, m, disk_prev, disk_next);
        return;
    }
    m->to_tell = true;
    DL_APPEND2(job->jobs->tell, m, tell_prev, tell_next);
}

/* --- telling */

static int add_addrs(void *arg, const struct rdzv_member *m)
{
    struct buf *out = arg;
    if (!m->member || !m->addrs[0])
        return 0;
    if (out->len)
        TRY(buf_addstr(out, ","));
    return buf_addstr(out, m->addrs);
}

static void tell(struct member *m)
{
    struct jobs_party *p = m->party;
    const struct rdzv_news news = m->news;
    struct buf addrs = {0};
    const char *text = NULL;
    if (rdzv_news_is_for_leader(&news))
        text = rdzv_members(m->job->machine, add_addrs, &addrs) == 0 && addrs.len ? addrs.data : "";
    m->told = true;
    p->asks = false;
    p->o.told(p->o.arg, &news, text); /* m may be gone afterwards */
    buf_free(&addrs);
}

void jobs_tell_(struct jobs *j)
{
    struct member *m;
    if (j->telling)
        return;
    j->telling = true;
    while ((m = j->tell)) {
        DL_DELETE2(j->tell, m, tell_prev, tell_next);
        m->to_tell = false;
        if (!can_tell(m))
            continue;
        if (job_durable_(m->job, m->record))
            tell(m);
        else
            jobs_queue_(m); /* newer news have come in between */
    }
    j->telling = false;
}
