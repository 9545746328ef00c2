/* Requests of nodes. A JOIN finds its instance, or begins one; FAIL, DONE and LEAVE go to the machine. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/net/addr.h"
#include "common/rdzv/leader/leader_impl.h"
#include "common/rdzv/wire/rdzv_wire.h"

/* --- a new instance */

/* A member of the last round that is neither done nor back may still have workers. */
static int mark_elder(void *arg, const struct rdzv_member *n)
{
    struct leader *l = arg;
    struct leader_member *m = leader_find(l, n->node);
    if (m && n->member && !n->ready && !n->done && !m->gone)
        leader_elder_(l, m, true);
    return 0;
}

/* A member's news numbers never go back: those of a new instance start above this one, also in the log. */
static uint64_t highest_seq(const struct leader *l)
{
    uint64_t seq = l->numbered;
    for (const struct leader_member *m = l->members; m; m = m->hh.next)
        seq = m->seq > seq ? m->seq : seq;
    return seq;
}

/* End the instance: its nodes belong to none any more. News that they must still get are kept. */
static void end_instance(struct leader *l, int64_t now)
{
    struct leader_member *m, *next;
    if (!l->machine)
        return;
    rdzv_members(l->machine, mark_elder, l);
    HASH_ITER (hh, l->members, m, next) {
        leader_set_known_(l, m, false, now);
        m->refused_ms = 0;
        if (!m->connected && !m->elder && (m->told || !m->has_news))
            leader_drop_(l, m);
    }
    rdzv_destroy(l->machine);
    l->machine = NULL;
    l->hold_until = now < l->hold_until ? l->hold_until : 0;
}

int leader_begin_(struct leader *l, const struct rdzv_config *c, const char *instance, int64_t now, struct err *e)
{
    struct rdzv *machine;
    TRY(rdzv_create(&machine, c, e));
    rdzv_trace(machine, l->o.traced, l->o.arg);
    rdzv_number_after(machine, highest_seq(l));
    end_instance(l, now);
    l->machine = machine;
    l->config = *c;
    l->over = l->ended = false;
    l->begun = l->changed = true;
    l->known = 0;
    l->history = (struct leader_history){.started_ms = now, .counted_ms = now};
    l->restarts_logged = 0;
    l->former[0] = 0;
    snprintf(l->instance, sizeof l->instance, "%s", instance);
    leader_hold_for_elders_(l, now);
    return 0;
}

/* --- join */

static bool has_heard_of(const struct leader *l, const char *instance)
{
    return instance && instance[0] && (strcmp(instance, l->instance) == 0 || strcmp(instance, l->former) == 0);
}

bool leader_is_foreign(const struct leader *l, const struct leader_event *ev)
{
    return ev->ask->round > 0 && ev->instance && ev->instance[0] && !has_heard_of(l, ev->instance);
}

/* Does this node want a job of its own? It has no part in this one, or brings other settings. */
static bool is_stranger(const struct leader *l, const struct leader_event *ev)
{
    if (rdzv_round(l->machine) == 0)
        return rdzv_config_differs(&l->config, ev->settings, NULL) < 0;
    return !has_heard_of(l, ev->instance) && !rdzv_knows(l->machine, ev->ask->node);
}

static bool is_anybody_heard(const struct leader *l)
{
    for (const struct leader_member *m = l->members; m; m = m->hh.next)
        if (m->known && m->connected && m->list != LEADER_LIST_SILENT)
            return true;
    return false;
}

/* No node is left of this job, and a stranger asks: the next job is the stranger's. */
static bool is_abandoned(const struct leader *l, const struct leader_event *ev)
{
    return !l->over && rdzv_nodes(l->machine) == 0 && is_stranger(l, ev);
}

bool leader_may_begin(const struct leader *l)
{
    return !l->machine || l->over || rdzv_nodes(l->machine) == 0;
}

/* A stranger asks while all nodes of this job may be dead: only time shows whose job this is. */
static bool is_too_early(const struct leader *l, const struct leader_event *ev)
{
    return l->machine && !l->over && rdzv_nodes(l->machine) > 0 && !is_anybody_heard(l) && is_stranger(l, ev);
}

struct places {
    const struct leader *l;
    int taken;     /* places taken by nodes that are not silent */
    bool is_heard; /* each of these was heard since the JOIN */
    int64_t since;
};

static int count_place(void *arg, const struct rdzv_member *n)
{
    struct places *p = arg;
    const struct leader_member *m = leader_find(p->l, n->node);
    if (n->silent)
        return 0;
    p->taken++;
    p->is_heard = p->is_heard && (!m || m->list == LEADER_LIST_NONE || m->heard_ms > p->since);
    return 0;
}

/* Kept for a while: it asks again. */
struct leader_member *leader_put_off(struct leader *l, const char *node, int64_t now)
{
    struct leader_member *m = leader_member_of(l, node);
    if (m && !m->known && !m->elder) {
        m->heard_ms = now;
        leader_list_(l, m, LEADER_LIST_ENDED);
    }
    if (m && m->refused_ms == 0)
        m->refused_ms = now;
    return m;
}

bool leader_came_in_vain(const struct leader *l, const struct leader_member *m)
{
    return l->over && m && m->refused_ms > 0 && rdzv_state(l->machine) == RDZV_SUCCEEDED;
}

/* May this node succeed a member that seems alive, but may be dead already? */
static bool may_succeed(struct leader *l, const struct leader_event *ev, int64_t now)
{
    struct places p = {.l = l, .is_heard = true};
    struct leader_member *m;
    /* checked first: the loop below visits all nodes for each JOIN */
    if (l->machine && rdzv_nodes(l->machine) < l->config.max_nodes)
        return false;
    if (!l->machine || l->over || ev->here || ev->ask->waits || l->config.max_nodes > l->config.min_nodes ||
        rdzv_knows(l->machine, ev->ask->node) || !(m = leader_put_off(l, ev->ask->node, now)))
        return false;
    p.since = m->refused_ms;
    rdzv_members(l->machine, count_place, &p);
    return p.taken >= l->config.max_nodes && !p.is_heard;
}

/* A JOIN of a member that must still get an END: of this instance, or of the one before. */
static bool is_late(const struct leader *l, const struct leader_member *m, const struct leader_event *ev)
{
    return m && m->has_news && m->news.kind == RDZV_NEWS_END && (l->over || strcmp(m->instance, l->instance) != 0) &&
           (!m->told || ev->ask->round > 0);
}

/* A JOIN answers STOP, so STOP is not sent again. The start of a round that the node has heard of is dropped, too:
 * the leader before announced it, and decisions after that may be lost. */
static void drop_answered(struct leader_member *m, const struct rdzv_event *ev)
{
    if (!m->has_news || m->news.kind == RDZV_NEWS_END || ev->round < m->news.round)
        return;
    m->acked = m->news.seq;
    m->has_news = false;
}

/* --- what a node knows of a leader before us */

/* Does the node know rounds of another instance? (Of this instance we know more than its members.) */
static bool brings_past(const struct leader *l, const struct leader_event *ev)
{
    return ev->ask->round > 0 && ev->instance && ev->instance[0] && strcmp(ev->instance, l->instance) != 0;
}

/* The node's round broke when its rendezvous was lost. Refuse if that was one restart too many. */
static int check_budget(const struct leader *l, const struct leader_event *ev, struct err *e)
{
    const struct rdzv_config *c = ev->settings;
    if (!brings_past(l, ev) || c->restart_window_ms > 0 || ev->ask->restarts <= c->max_restarts)
        return 0;
    return err_set(e, ERR_REFUSED,
                   "node '%s' had a running round when its rendezvous was lost, and no restart is left "
                   "(--max-restarts %d)",
                   ev->ask->node, c->max_restarts);
}

static int adopt(struct leader *l, const struct leader_event *ev, int64_t now, struct err *e)
{
    if (!brings_past(l, ev))
        return 0;
    if (rdzv_round(l->machine) == 0 && !l->former[0]) {
        snprintf(l->former, sizeof l->former, "%s", ev->instance);
        l->begun = true; /* the log's first line says so */
    }
    l->changed = true;
    return rdzv_raise(l->machine, ev->ask->round, ev->ask->restarts, now, e);
}

static int join_member(struct leader *l, const struct leader_event *ev, int64_t now, struct err *e)
{
    struct leader_member *m = leader_find(l, ev->ask->node);
    const bool is_new = !m;
    if (is_new)
        TRY(leader_add_(l, ev->ask->node, &m, e));
    if (!m->known && m->has_news) { /* news of an earlier instance: no longer for this node */
        m->acked = m->news.seq;
        m->has_news = false;
    }
    drop_answered(m, ev->ask);
    if (ev->reached)
        snprintf(l->outside, sizeof l->outside, "%s", ev->reached);
    m->joined_seq = m->has_news ? m->news.seq - 1 : m->acked;
    m->refused_ms = 0;
    memcpy(m->instance, l->instance, sizeof m->instance);
    leader_elder_(l, m, false); /* its workers are gone, it says */
    leader_hold_for_elders_(l, now);
    int rc = leader_machine_step_(l, ev->ask, now, e);
    if (rc < 0 && is_new)
        leader_drop_(l, m);
    if (rc < 0)
        return rc;
    if (m->known && m->list != LEADER_LIST_HEARD)
        leader_list_(l, m, LEADER_LIST_NONE); /* JOIN has resumed it */
    leader_heard_(l, m, ev->here, now);
    return 0;
}

static int join(struct leader *l, const struct leader_event *ev, int64_t now, struct err *e)
{
    struct leader_member *m = leader_find(l, ev->ask->node);
    char instance[LEADER_INSTANCE_LEN + 1];
    if (is_late(l, m, ev)) {
        m->joined_seq = m->news.seq - 1;
        return 0;
    }
    if (leader_came_in_vain(l, m)) {
        leader_turn_away_(l, m);
        m->joined_seq = m->news.seq - 1;
        return 0;
    }
    if (l->over && has_heard_of(l, ev->instance)) {
        if ((m = leader_member_of(l, ev->ask->node))) {
            leader_remind_end(l, m, ev->ask->round);
            m->joined_seq = m->news.seq - 1;
        }
        return m ? 0 : err_set(e, -ENOMEM, "no memory for node '%s'", ev->ask->node);
    }
    TRY(check_budget(l, ev, e));
    if (is_too_early(l, ev))
        return err_set(e, -EAGAIN,
                       "nothing is heard of the %d nodes of the job before: it begins anew once they are dead",
                       rdzv_nodes(l->machine));
    if (!l->machine || l->over || is_abandoned(l, ev)) {
        TRY(rdzv_config_check_times(ev->settings, e));
        snprintf(instance, sizeof instance, "%016" PRIx64, ev->draw);
        TRY(leader_begin_(l, ev->settings, instance, now, e));
    }
    struct err differs;
    if (rdzv_config_differs(&l->config, ev->settings, &differs) < 0)
        return err_set(e, ERR_MISMATCH, "%s", differs.text);
    if (may_succeed(l, ev, now))
        return err_set(e, -EAGAIN, "all places are taken: it is not known yet whether all nodes there are alive");
    TRY(adopt(l, ev, now, e));
    return join_member(l, ev, now, e);
}

int leader_ask_(struct leader *l, const struct leader_event *ev, int64_t now, struct err *e)
{
    if (now < l->hold_until)
        return err_set(e, -EAGAIN, "what was decided before may be lost: it is waited for");
    if (ev->ask->kind == RDZV_JOIN)
        return join(l, ev, now, e);
    if (!l->machine)
        return err_set(e, ERR_REFUSED, "node '%s' has joined no job", ev->ask->node);
    return l->over ? 0 : leader_machine_step_(l, ev->ask, now, e); /* its END says so */
}
