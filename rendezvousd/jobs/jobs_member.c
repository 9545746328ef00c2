/* Members of a job, and the parties that stand for them. */
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/job/exitcode.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define MODULE "jobs"
/* What a node costs in the machine, beside the member itself. */
#define NODE_BYTES 1500

struct member *member_find_(const struct job *job, const char *node)
{
    struct member *m;
    HASH_FIND_STR(job->members, node, m);
    return m;
}

int member_add_(struct job *job, const char *node, struct member **ret, struct err *e)
{
    const struct jobs_options *o = &job->jobs->o;
    const size_t cost = sizeof(struct member) + NODE_BYTES;
    if (HASH_COUNT(job->members) >= o->max_nodes)
        return err_set(e, -EDQUOT, "node '%s' is one too many for run '%s': it has %zu, the most it may have", node,
                       job->run, o->max_nodes);
    if (job->bytes + cost > o->max_job_bytes)
        return err_set(e, -EDQUOT, "node '%s' does not fit into run '%s': it takes %zu bytes of %zu", node, job->run,
                       job->bytes, o->max_job_bytes);
    struct member *m = calloc(1, sizeof *m);
    if (m) {
        m->job = job;
        snprintf(m->node, sizeof m->node, "%s", node);
        HASH_ADD_STR(job->members, node, m);
    }
    if (!m || !m->hh.tbl) {
        free(m);
        return err_set(e, -ENOMEM, "no memory for node '%s'", node);
    }
    job->bytes += cost;
    *ret = m;
    return 0;
}

static void unbind(struct jobs_party *p)
{
    if (p->member)
        p->member->party = NULL;
    p->member = NULL;
}

static void make_void(struct jobs_party *p)
{
    unbind(p);
    p->is_void = true;
    if (!p->asks)
        return;
    p->asks = false;
    p->o.told(p->o.arg, NULL, NULL);
}

void member_drop_(struct member *m)
{
    struct job *job = m->job;
    struct jobs_party *p = m->party;
    member_list_(m, LIST_NONE);
    if (m->to_tell)
        DL_DELETE2(job->jobs->tell, m, tell_prev, tell_next);
    if (m->waits_disk)
        DL_DELETE2(job->undurable, m, disk_prev, disk_next);
    if (m->known)
        job->known--;
    HASH_DEL(job->members, m);
    job->bytes -= sizeof *m + NODE_BYTES;
    free(m->report);
    if (p)
        unbind(p);
    free(m);
}

void member_list_(struct member *m, enum member_list list)
{
    if (m->list != LIST_NONE)
        DL_DELETE(m->job->lists[m->list], m);
    m->list = list;
    if (list != LIST_NONE)
        DL_APPEND(m->job->lists[list], m);
}

void member_set_known_(struct member *m, bool known)
{
    if (m->known == known)
        return;
    m->known = known;
    m->job->known += known ? 1 : (size_t)-1;
    if (known)
        return;
    if (m->has_news && m->news.kind != RDZV_NEWS_END)
        m->has_news = false; /* a forgotten node must not act on it */
    m->heard_ms = m->job->jobs->o.now();
    member_list_(m, LIST_ENDED);
}

int member_heard_(struct member *m, struct err *e)
{
    bool was_silent = m->list == LIST_SILENT;
    if (!m->known)
        return 0;
    m->heard_ms = m->job->jobs->o.now();
    if (m->party && m->party->o.addr)
        member_list_(m, LIST_HEARD);
    else
        member_list_(m, LIST_NONE);
    if (!was_silent) {
        job_heard_(m->job);
        return 0;
    }
    struct rdzv_event ev = {.kind = RDZV_RESUME};
    memcpy(ev.node, m->node, sizeof ev.node);
    return job_step_(m->job, &ev, e);
}

/* --- parties */

int jobs_party_open(struct jobs_party **ret, struct jobs *j, const struct jobs_party_options *o, struct err *e)
{
    struct jobs_party *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(e, -ENOMEM, "no memory for a member");
    p->jobs = j;
    p->o = *o;
    *ret = p;
    return 0;
}

static void tell_machine(struct member *m, enum rdzv_event_kind kind)
{
    struct rdzv_event ev = {.kind = kind, .cause = {.exit_code = EXIT_UNAVAILABLE, .rank = -1}};
    if (kind == RDZV_SILENT) {
        job_silent_(m);
        return;
    }
    memcpy(ev.node, m->node, sizeof ev.node);
    snprintf(ev.cause.text, sizeof ev.cause.text, "node '%s' is gone: its agent and all its processes ended", m->node);
    job_step_(m->job, &ev, NULL);
}

void jobs_party_close(struct jobs_party *p, enum jobs_end how)
{
    if (!p)
        return;
    struct jobs *j = p->jobs;
    struct member *m = p->member;
    unbind(p);
    free(p);
    if (!m)
        return;
    struct job *job = m->job;
    if (!m->known) {
        if (m->told || !m->has_news)
            member_drop_(m);
    } else if (job->over) {
        ; /* what is left of it is kept for those that come late */
    } else if (how == JOBS_GONE) {
        tell_machine(m, RDZV_GONE);
        if (!m->known && !m->has_news)
            member_drop_(m);
    } else if (m->list != LIST_SILENT) {
        member_list_(m, LIST_SILENT);
        tell_machine(m, RDZV_SILENT);
    }
    job_forget_if_empty_(job);
    jobs_tell_(j);
}

int member_bind_(struct member *m, struct jobs_party *p, struct err *e)
{
    struct member *before = p->member;
    if (before == m)
        return 0;
    if (before && before->known && !before->job->over)
        return err_set(e, ERR_REFUSED, "this connection stands for node '%s' of run '%s' and cannot be node '%s' too",
                       before->node, before->job->run, m->node);
    unbind(p);
    struct jobs_party *older = m->party;
    m->party = p;
    p->member = m;
    if (older) {
        older->member = NULL;
        log_info(MODULE, "run=%s node=%s comes by a new connection", m->job->run, m->node);
        make_void(older);
    }
    return 0;
}
