/* The invariants of a leader beside those of its machine (rdzv_check.c): the books about members, their lists and their
 * news. A broken one is a mistake of ours: it ends the job, and no other one. */
#include <string.h>
#include <utlist.h>

#include "common/base/err.h"
#include "common/rdzv/leader/leader_impl.h"

#define MUST(cond, ...)                                                                                                \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            return err_set(e, ERR_CORRUPT, __VA_ARGS__);                                                               \
    } while (0)

static int check_news(const struct leader *l, const struct leader_member *m, struct err *e)
{
    MUST(!m->has_news || m->news.seq <= m->seq, "the news of '%s' have number %llu, above its newest, %llu", m->node,
         (unsigned long long)m->news.seq, (unsigned long long)m->seq);
    MUST(!m->has_news || m->known || m->news.kind == RDZV_NEWS_END, "'%s', which is forgotten, has news of a round",
         m->node);
    MUST(!m->has_news || m->news.kind == RDZV_NEWS_END || strcmp(m->instance, l->instance) == 0,
         "'%s' has news of instance '%s' in instance '%s'", m->node, m->instance, l->instance);
    return 0;
}

static int check_member(const struct leader *l, const struct leader_member *m, struct err *e)
{
    MUST(m->known == (l->machine && rdzv_knows(l->machine, m->node)), "'%s' is %s", m->node,
         m->known ? "unknown to the machine" : "known to the machine alone");
    MUST(!m->known || !m->elder, "'%s' has joined, and counts as a node of the instance before", m->node);
    MUST(m->known || (m->list != LEADER_LIST_HEARD && m->list != LEADER_LIST_SILENT), "'%s', which is forgotten, is %s",
         m->node, m->list == LEADER_LIST_HEARD ? "heard" : "waited for");
    MUST(!m->known || m->list != LEADER_LIST_ENDED, "'%s', which is known, is to be dropped", m->node);
    return check_news(l, m, e);
}

/* Each member stands in the lists that its fields name, and nobody else does. */
static int check_lists(const struct leader *l, struct err *e)
{
    size_t listed = 0, fresh = 0, unsaid = 0;
    const struct leader_member *m;
    for (int i = LEADER_LIST_HEARD; i < LEADER_LIST_COUNT; i++)
        for (m = l->lists[i]; m; m = m->next, listed++) {
            MUST((int)m->list == i, "'%s' stands in list %d instead of %d", m->node, i, (int)m->list);
            MUST(i != LEADER_LIST_HEARD || l->over || !m->next || m->heard_ms <= m->next->heard_ms,
                 "'%s' is heard out of order", m->node);
        }
    for (m = l->fresh; m; m = m->fresh_next)
        fresh += m->fresh;
    for (m = l->unsaid; m; m = m->unsaid_next)
        unsaid += m->unsaid;
    for (m = l->members; m; m = m->hh.next) {
        listed -= m->list != LEADER_LIST_NONE;
        fresh -= m->fresh;
        unsaid -= m->unsaid;
    }
    MUST(listed == 0 && fresh == 0 && unsaid == 0, "a member stands in no list of its own");
    return 0;
}

int leader_check(const struct leader *l, struct err *e)
{
    size_t known = 0, elders = 0;
    if (l->machine && rdzv_broken(l->machine)[0])
        return 0; /* that is told already, and the job is over */
    MUST(l->over == leader_is_final_(l), "the job is %sover, and its machine is %s", l->over ? "" : "not ",
         l->over ? "not" : "over");
    MUST(!l->ended || l->over, "an end is kept of a job that goes on");
    for (const struct leader_member *m = l->members; m; m = m->hh.next) {
        known += m->known;
        elders += m->elder;
        TRY(check_member(l, m, e));
    }
    MUST(l->known == known && l->elders == elders, "counted are %zu known and %zu elders; there are %zu and %zu",
         l->known, l->elders, known, elders);
    MUST(!l->machine || known == (size_t)rdzv_nodes(l->machine), "%zu members are known, and the machine has %d nodes",
         known, rdzv_nodes(l->machine));
    return check_lists(l, e);
}
