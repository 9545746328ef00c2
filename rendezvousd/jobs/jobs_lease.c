/* Until when the workers beside a hosting crun may run: as long as enough nodes of its job answer it. This is needed
 * because that crun's own agent never loses its connection. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "rendezvousd/jobs/jobs_impl.h"

static int newest_first(const void *pa, const void *pb)
{
    const int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return (a < b) - (a > b);
}

/* Collect when the answers that the other nodes certainly got were sent, the newest first. */
static size_t collect(const struct jobs_party *own, int64_t *ret)
{
    size_t n = 0;
    for (const struct leader_member *m = leader_members(own->job->reign.leader); m; m = m->hh.next)
        if (m->confirmed_ms > 0 && m != party_member_(own))
            ret[n++] = m->confirmed_ms;
    qsort(ret, n, sizeof *ret, newest_first);
    return n;
}

int64_t jobs_lease(const struct jobs_party *p)
{
    const struct job *job = p->job;
    if (!job || !leader_machine(job->reign.leader))
        return INT64_MAX;
    const struct rdzv_config *c = leader_config(job->reign.leader);
    const int others = c->min_nodes - 1 - job->departed;
    int64_t *times = others > 0 ? malloc(leader_member_count(job->reign.leader) * sizeof *times) : NULL;
    if (others <= 0)
        return INT64_MAX;
    const size_t n = times ? collect(p, times) : 0;
    const int64_t until = n >= (size_t)others ? times[others - 1] + c->silence_ms : 0;
    free(times);
    return until;
}

void job_confirmed_(struct job *job, struct leader_member *m, int64_t sent_ms)
{
    if (sent_ms <= m->confirmed_ms)
        return;
    m->confirmed_ms = sent_ms;
    if (job->here && job->here->o.confirmed)
        job->here->o.confirmed(job->here->o.arg);
}

void job_note_departed_(struct job *job, const struct leader_member *m)
{
    job->departed += !m->known && m->member_round == job->round;
}

/* --- whom it reaches */

static bool knows_the_end(const struct leader_member *m)
{
    return m->told && m->news.kind == RDZV_NEWS_END;
}

static void add_host(char *list, size_t cap, const char *node)
{
    const size_t n = strlen(list), host = strcspn(node, "+");
    const bool fits = n + host + sizeof ",..." < cap;
    if (n < sizeof "..." || strcmp(list + n - 3, "...") != 0)
        snprintf(list + n, cap - n, "%s%.*s", n ? "," : "", fits ? (int)host : 3, fits ? node : "...");
}

/* Is it a member of this round, though it may not have heard of it yet? */
static bool is_of_round(const struct leader_member *m, uint64_t round)
{
    return m->member_round == round || (m->news.round == round && !m->news.spare);
}

void jobs_reach(const struct jobs *j, const char *run, const char *node, struct jobs_reach *ret)
{
    const struct job *job = job_find_(j, "", run);
    *ret = (struct jobs_reach){0};
    if (!job || !leader_machine(job->reign.leader))
        return;
    const struct rdzv_config *c = leader_config(job->reign.leader);
    const int64_t now = j->o.now();
    const bool over = leader_is_over(job->reign.leader);
    for (const struct leader_member *m = leader_members(job->reign.leader); m; m = m->hh.next) {
        if (strcmp(m->node, node) == 0 || !is_of_round(m, job->round))
            continue;
        const bool heard = m->connected && !m->gone && now - m->confirmed_ms < c->silence_ms;
        const int64_t until = m->confirmed_ms + c->silence_ms + c->kill_ms;
        ret->reached += heard || knows_the_end(m);
        if (m->gone || knows_the_end(m))
            continue;
        if (!heard)
            add_host(ret->lost, sizeof ret->lost, m->node);
        ret->until_ms = until > ret->until_ms ? until : ret->until_ms;
    }
    if (!over)
        ret->until_ms = INT64_MAX;
}
