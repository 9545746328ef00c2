/* Members and their news: from the machine's effects to news that are kept until they are seen. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/net/addr.h"
#include "common/rdzv/leader/leader_impl.h"

struct leader_member *leader_find(const struct leader *l, const char *node)
{
    struct leader_member *m;
    HASH_FIND_STR(l->members, node, m);
    return m;
}

struct leader_member *leader_members(const struct leader *l)
{
    return l->members;
}

size_t leader_member_count(const struct leader *l)
{
    return HASH_COUNT(l->members);
}

int leader_add_(struct leader *l, const char *node, struct leader_member **ret, struct err *e)
{
    struct leader_member *m = strlen(node) <= RDZV_ID_MAX ? calloc(1, sizeof *m) : NULL;
    if (m) {
        snprintf(m->node, sizeof m->node, "%s", node);
        HASH_ADD_STR(l->members, node, m);
    }
    if (!m || !m->hh.tbl) {
        free(m);
        return err_set(e, -ENOMEM, "no memory for node '%s'", node);
    }
    *ret = m;
    return 0;
}

struct leader_member *leader_member_of(struct leader *l, const char *node)
{
    struct leader_member *m = leader_find(l, node);
    return m || leader_add_(l, node, &m, NULL) == 0 ? m : NULL;
}

void leader_drop_(struct leader *l, struct leader_member *m)
{
    leader_list_(l, m, LEADER_LIST_NONE);
    leader_elder_(l, m, false);
    if (m->fresh)
        DL_DELETE2(l->fresh, m, fresh_prev, fresh_next);
    if (m->unsaid)
        DL_DELETE2(l->unsaid, m, unsaid_prev, unsaid_next);
    if (m->known)
        l->known--;
    HASH_DEL(l->members, m);
    free(m->report);
    free(m);
}

void leader_list_(struct leader *l, struct leader_member *m, enum leader_list list)
{
    if (m->list != LEADER_LIST_NONE)
        DL_DELETE(l->lists[m->list], m);
    m->list = list;
    if (list != LEADER_LIST_NONE)
        DL_APPEND(l->lists[list], m);
}

/* The machine has learnt of the node, or forgotten it. A forgotten node must not act on its news, so they are
 * dropped. */
void leader_set_known_(struct leader *l, struct leader_member *m, bool known, int64_t now)
{
    if (m->known == known)
        return;
    m->known = known;
    l->known += known ? 1 : (size_t)-1;
    if (known)
        return;
    if (m->has_news && m->news.kind != RDZV_NEWS_END)
        m->has_news = false;
    if (!m->elder)
        m->heard_ms = now;
    leader_list_(l, m, LEADER_LIST_ENDED);
}

void leader_touch_(struct leader *l, struct leader_member *m)
{
    if (!m->fresh)
        DL_APPEND2(l->fresh, m, fresh_prev, fresh_next);
    if (!m->unsaid)
        DL_APPEND2(l->unsaid, m, unsaid_prev, unsaid_next);
    m->fresh = m->unsaid = true;
}

struct leader_member *leader_next_fresh(struct leader *l)
{
    struct leader_member *m = l->fresh;
    if (!m)
        return NULL;
    DL_DELETE2(l->fresh, m, fresh_prev, fresh_next);
    m->fresh = false;
    return m;
}

void leader_tell_(struct leader *l, struct leader_member *m, const struct rdzv_news *news)
{
    m->news = *news;
    if (m->news.seq <= m->seq)
        m->news.seq = m->seq + 1;
    m->seq = m->news.seq;
    l->numbered = m->seq > l->numbered ? m->seq : l->numbered;
    m->has_news = true;
    m->told = false;
    memcpy(m->instance, l->instance, sizeof m->instance);
    leader_touch_(l, m);
}

/* --- a group rank 0 whose only known address is a loopback one */

struct view {
    bool remote; /* some node is on another host */
    const char *addrs;
};

static int look(void *arg, const struct rdzv_member *m)
{
    struct view *v = arg;
    v->remote |= !addr_host_is_loopback(m->addr);
    if (m->group_rank == 0 && m->member)
        v->addrs = m->addrs;
    return 0;
}

/* Members on other hosts need an address of group rank 0 that they can reach: the one under which they see this
 * host, or another address of that node. */
static void replace_address(const struct leader *l, const struct view *v, struct rdzv_news *news)
{
    char one[RDZV_ADDR_MAX + 1];
    if (l->outside[0]) {
        memcpy(news->leader_addr, l->outside, sizeof news->leader_addr);
        return;
    }
    for (const char *p = v->addrs ? v->addrs : ""; *p; p += strcspn(p, ","), p += *p == ',') {
        size_t n = strcspn(p, ",");
        if (n == 0 || n >= sizeof one)
            continue;
        memcpy(one, p, n);
        one[n] = 0;
        if (!addr_host_is_loopback(one)) {
            memcpy(news->leader_addr, one, sizeof one);
            return;
        }
    }
}

static void replace_leader(struct leader *l)
{
    struct view v = {0};
    bool looked = false;
    for (size_t i = 0; i < l->fx.n; i++) {
        struct rdzv_news *news = &l->fx.v[i].news;
        if (!news->leader_addr[0] || !addr_host_is_loopback(news->leader_addr))
            continue;
        if (!looked)
            rdzv_members(l->machine, look, &v);
        looked = true;
        if (v.remote)
            replace_address(l, &v, news);
    }
}

/* --- keeping */

void leader_keep_end_(struct leader *l, const struct rdzv_news *news)
{
    l->ended = true;
    l->end = *news;
    l->end.group_rank = -1;
    l->end.group_world = 0;
    l->end.leader_addr[0] = 0;
    l->end.leader_port = 0;
}

void leader_take_effects_(struct leader *l)
{
    replace_leader(l);
    for (size_t i = 0; i < l->fx.n; i++) {
        const struct rdzv_news *news = &l->fx.v[i].news;
        struct leader_member *m = leader_find(l, l->fx.v[i].node);
        if (news->kind == RDZV_NEWS_END && leader_is_final_(l))
            leader_keep_end_(l, news);
        if (m && (m->known || news->kind == RDZV_NEWS_END)) /* not announced and forgotten in one step */
            leader_tell_(l, m, news);
    }
}

void leader_remind_end(struct leader *l, struct leader_member *m, uint64_t round)
{
    const struct rdzv_news left = {.kind = RDZV_NEWS_END, .round = round, .exit_code = EXIT_REQUEUE, .cause.rank = -1};
    if (m->has_news && m->news.kind == RDZV_NEWS_END)
        leader_touch_(l, m); /* announced already */
    else
        leader_tell_(l, m, l->over && l->ended ? &l->end : &left);
}

void leader_turn_away_(struct leader *l, struct leader_member *m)
{
    struct rdzv_news news = {.kind = RDZV_NEWS_END,
                             .round = rdzv_round(l->machine),
                             .spare = true,
                             .group_rank = -1,
                             .exit_code = EXIT_UNAVAILABLE,
                             .cause = {.exit_code = EXIT_UNAVAILABLE, .rank = -1}};
    snprintf(news.cause.text, sizeof news.cause.text, "it had all its nodes (%d), and has succeeded without this one",
             l->config.max_nodes);
    leader_tell_(l, m, &news);
}

bool leader_lists_address(const char *addrs, const char *addr)
{
    const size_t n = strlen(addr);
    for (const char *word = addrs; *word; word += *word == ',') {
        const size_t len = strcspn(word, ",");
        if (len == n && n > 0 && memcmp(word, addr, n) == 0)
            return true;
        word += len;
    }
    return false;
}

struct range {
    int from, to; /* group ranks */
    struct buf *out;
};

static int add_addresses(void *arg, const struct rdzv_member *m)
{
    const struct range *r = arg;
    struct buf *out = r->out;
    if (!m->member || m->group_rank < r->from || m->group_rank >= r->to)
        return 0;
    if (m->addr[0] && !leader_lists_address(m->addrs, m->addr))
        TRY(buf_printf(out, "%s%s", out->len ? "," : "", m->addr));
    return m->addrs[0] ? buf_printf(out, "%s%s", out->len ? "," : "", m->addrs) : 0;
}

int leader_addresses(const struct leader *l, int from, int to, struct buf *out)
{
    struct range r = {from, to, out};
    return l->machine ? rdzv_members(l->machine, add_addresses, &r) : 0;
}
