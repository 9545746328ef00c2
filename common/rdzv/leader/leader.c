/* The leader: its events, its steps of the machine, and time. See leader.h. */
#include "common/rdzv/leader/leader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/rdzv/leader/leader_impl.h"

int leader_create(struct leader **ret, const struct leader_options *o, struct err *e)
{
    struct leader *l = calloc(1, sizeof *l);
    if (!l || !(l->run = strdup(o->run ? o->run : "")) || !(l->principal = strdup(o->principal ? o->principal : ""))) {
        leader_destroy(l);
        return err_set(e, -ENOMEM, "no memory for a rendezvous");
    }
    l->o = *o;
    l->numbered = o->number_after;
    *ret = l;
    return 0;
}

uint64_t leader_numbered(const struct leader *l)
{
    return l->numbered;
}

void leader_destroy(struct leader *l)
{
    struct leader_member *m, *next;
    if (!l)
        return;
    HASH_ITER (hh, l->members, m, next)
        leader_drop_(l, m);
    rdzv_effects_free(&l->fx);
    rdzv_destroy(l->machine);
    free(l->run);
    free(l->principal);
    free(l);
}

/* --- steps */

bool leader_is_final_(const struct leader *l)
{
    enum rdzv_state s = l->machine ? rdzv_state(l->machine) : RDZV_JOINING;
    return s == RDZV_SUCCEEDED || s == RDZV_FAILED || s == RDZV_DRAINED;
}

/* Update which nodes the machine has forgotten: perhaps the event's node; other nodes only if their time was over. */
static void notice_forgotten(struct leader *l, const struct rdzv_event *ev, int64_t now)
{
    struct leader_member *m = ev->node[0] ? leader_find(l, ev->node) : NULL;
    if (m)
        leader_set_known_(l, m, rdzv_knows(l->machine, m->node), now);
    if (l->known == (size_t)rdzv_nodes(l->machine))
        return;
    for (m = l->members; m; m = m->hh.next)
        leader_set_known_(l, m, rdzv_knows(l->machine, m->node), now);
}

static void take_effects(struct leader *l, int64_t now)
{
    leader_take_effects_(l);
    if (!l->over && leader_is_final_(l)) {
        l->over = true;
        l->over_ms = now;
    }
}

int leader_machine_step_(struct leader *l, const struct rdzv_event *ev, int64_t now, struct err *e)
{
    const struct leader_before before = leader_before_(l);
    int rc = rdzv_step(l->machine, ev, now, &l->fx, e);
    if (rc == 0) {
        l->changed = true;
        leader_note_(l, &before, ev, now);
        notice_forgotten(l, ev, now);
    }
    if (l->o.stepped)
        l->o.stepped(l->o.arg, ev, before.state, before.round, &l->fx, rc);
    if (rc < 0)
        return rc;
    take_effects(l, now);
    return 0;
}

static int step_node(struct leader *l, enum rdzv_event_kind kind, const char *node, int64_t now)
{
    struct rdzv_event ev = {.kind = kind, .cause = {.exit_code = EXIT_UNAVAILABLE, .rank = -1}};
    snprintf(ev.node, sizeof ev.node, "%s", node);
    if (kind == RDZV_GONE)
        snprintf(ev.cause.text, sizeof ev.cause.text, "node '%s' is gone: its agent and all its processes ended", node);
    return leader_machine_step_(l, &ev, now, NULL);
}

/* --- elders: what is left of the instance before */

void leader_elder_(struct leader *l, struct leader_member *m, bool is)
{
    l->elders += is && !m->elder;
    l->elders -= !is && m->elder;
    m->elder = is;
}

/* Until when an elder's workers may live. A connected elder proves by the end of its connection that they are dead. */
static int64_t elder_fence(const struct leader *l, const struct leader_member *m, int64_t now)
{
    int64_t bound = l->config.silence_ms + l->config.kill_ms;
    if (m->gone)
        return 0;
    if (m->connected && now - l->history.counted_ms < LEADER_LINGER_MS)
        return now + bound;
    return m->heard_ms + bound;
}

void leader_hold_for_elders_(struct leader *l, int64_t now)
{
    int64_t until = now > l->first_until ? now : l->first_until;
    if (l->elders == 0 || !l->machine)
        return;
    for (struct leader_member *m = l->members; m; m = m->hh.next) {
        int64_t fence = m->elder ? elder_fence(l, m, now) : 0;
        if (fence <= now)
            leader_elder_(l, m, false);
        until = fence > until ? fence : until;
    }
    rdzv_hold(l->machine, until);
    l->changed = true;
}

/* --- life and silence */

int64_t leader_last_heard_(const struct leader *l, const struct leader_member *m)
{
    return m->heard_ms > l->awake_ms ? m->heard_ms : l->awake_ms;
}

void leader_heard_(struct leader *l, struct leader_member *m, bool here, int64_t now)
{
    bool was_silent = m->list == LEADER_LIST_SILENT;
    m->connected = true;
    m->gone = false;
    if (now < l->hold_until) { /* nothing is decided yet */
        m->heard_ms = now;
        leader_list_(l, m, m->list);
        return;
    }
    if (m->elder && !m->known) {
        m->heard_ms = now;
        leader_list_(l, m, LEADER_LIST_ENDED);
    }
    if (m->elder)
        leader_hold_for_elders_(l, now);
    if (!m->known)
        return;
    m->heard_ms = now;
    leader_list_(l, m, here ? LEADER_LIST_NONE : LEADER_LIST_HEARD);
    if (was_silent)
        step_node(l, RDZV_RESUME, m->node, now);
}

static void fall_silent(struct leader *l, struct leader_member *m)
{
    int64_t heard = leader_last_heard_(l, m);
    leader_list_(l, m, LEADER_LIST_SILENT);
    step_node(l, RDZV_SILENT, m->node, heard);
}

/* Drop a member that is not needed any more: the machine has forgotten it, it is no elder, and its news, if there are
 * any, were sent. */
static void drop_if_done(struct leader *l, struct leader_member *m)
{
    if (!m->known && !m->elder && (m->told || !m->has_news))
        leader_drop_(l, m);
}

static void take_gone(struct leader *l, struct leader_member *m, int64_t now)
{
    bool elder = m->elder;
    m->connected = false;
    m->gone = true;
    if (elder)
        leader_hold_for_elders_(l, now);
    if (m->known && !l->over) {
        step_node(l, RDZV_GONE, m->node, now);
        if (m->has_news)
            return; /* keeps its END, which the node may still ask for */
    }
    drop_if_done(l, m);
}

static void take_lost(struct leader *l, struct leader_member *m, int64_t now)
{
    m->connected = false;
    if (l->over || m->elder) /* its workers may be in their grace */
        m->heard_ms = now;
    if (!m->known)
        drop_if_done(l, m);
    else if (!l->over && m->list != LEADER_LIST_SILENT)
        fall_silent(l, m);
}

/* --- what it has seen */

static void take_seen(struct leader_member *m, uint64_t seq)
{
    if (!m->has_news || m->news.seq > seq)
        return;
    m->acked = m->news.seq;
    m->has_news = false;
}

/* --- time */

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t leader_deadline(const struct leader *l)
{
    const struct leader_member *heard = l->lists[LEADER_LIST_HEARD], *ended = l->lists[LEADER_LIST_ENDED];
    int64_t d = l->machine ? rdzv_deadline(l->machine) : INT64_MAX;
    /* the end of a hold is recorded at once: if this leader is lost, the next one need not hold again */
    if (l->held)
        return l->hold_until;
    if (l->over)
        d = l->over_ms + LEADER_LINGER_MS;
    else {
        d = heard ? earlier(d, leader_last_heard_(l, heard) + l->config.silence_ms) : d;
        d = ended ? earlier(d, ended->heard_ms + LEADER_LINGER_MS) : d;
    }
    return d;
}

static void take_tick(struct leader *l, int64_t now)
{
    struct leader_member *m;
    bool held = now < l->hold_until;
    l->changed |= l->held && !held; /* a decision, so that the next leader need not wait again */
    l->held = held;
    if (held || !l->machine)
        return;
    while (!l->over && (m = l->lists[LEADER_LIST_HEARD]) && leader_last_heard_(l, m) + l->config.silence_ms <= now)
        fall_silent(l, m);
    while (!l->over && (m = l->lists[LEADER_LIST_ENDED]) && m->heard_ms + LEADER_LINGER_MS <= now)
        leader_drop_(l, m);
    if (rdzv_deadline(l->machine) <= now)
        leader_hold_for_elders_(l, now);
    if (rdzv_deadline(l->machine) <= now)
        leader_machine_step_(l, &(struct rdzv_event){.kind = RDZV_TICK}, now, NULL);
}

void leader_awake(struct leader *l, int64_t now_ms)
{
    l->awake_ms = now_ms;
}

/* Decide nothing until until_ms. Members that are not heard get silence_ms + kill_ms beyond that: they can resume
 * only when decisions are allowed again, and may be acknowledged by another leader until then. */
void leader_hold(struct leader *l, int64_t until_ms, int64_t now_ms)
{
    struct rdzv_event ev = {.kind = RDZV_SILENT, .grace_ms = until_ms - now_ms};
    if (until_ms <= l->hold_until || until_ms <= now_ms)
        return;
    l->hold_until = until_ms;
    l->held = true;
    for (struct leader_member *m = l->members, *next; m && l->machine; m = next) {
        next = m->hh.next;
        memcpy(ev.node, m->node, sizeof ev.node);
        if (m->list == LEADER_LIST_SILENT)
            leader_machine_step_(l, &ev, now_ms, NULL);
    }
}

int64_t leader_held_until(const struct leader *l)
{
    return l->hold_until;
}

/* Hold the first round. Elders may hold it longer: they are checked whenever the round would begin. */
void leader_hold_first(struct leader *l, int64_t until_ms)
{
    l->first_until = until_ms;
    if (l->machine)
        rdzv_hold(l->machine, until_ms);
}

/* --- events */

static void step_member(struct leader *l, const struct leader_event *ev, struct leader_member *m, int64_t now)
{
    switch (ev->kind) {
    case LEADER_HEARD:
        leader_heard_(l, m, ev->here, now);
        break;
    case LEADER_SEEN:
        take_seen(m, ev->seq);
        break;
    case LEADER_TOLD:
        m->told = true;
        break;
    case LEADER_GONE:
        take_gone(l, m, now);
        break;
    case LEADER_LOST:
        take_lost(l, m, now);
        break;
    default:
        break;
    }
}

static int apply(struct leader *l, const struct leader_event *ev, int64_t now_ms, struct err *e)
{
    struct leader_member *m = ev->node ? leader_find(l, ev->node) : NULL;
    switch (ev->kind) {
    case LEADER_ASK:
        return leader_ask_(l, ev, now_ms, e);
    case LEADER_DRAIN:
        return l->machine && !l->over ? leader_machine_step_(l, ev->ask, now_ms, e) : 0;
    case LEADER_TICK:
        take_tick(l, now_ms);
        return 0;
    default:
        if (m)
            step_member(l, ev, m, now_ms);
        return 0;
    }
}

/* What follows from broken books cannot be trusted: the job ends. */
static void look_for_a_fault(struct leader *l, int64_t now)
{
    struct err why;
    if (!l->machine || l->over || leader_check(l, &why) == 0 || rdzv_break(l->machine, why.text, now, &l->fx) < 0)
        return;
    l->changed = true;
    take_effects(l, now);
}

int leader_step(struct leader *l, const struct leader_event *ev, int64_t now_ms, struct err *e)
{
    const struct leader_before before = leader_before_(l);
    const int rc = apply(l, ev, now_ms, e);
    const struct leader_before after = leader_before_(l);
    if (after.state != before.state || after.round != before.round)
        look_for_a_fault(l, now_ms);
    return rc;
}

/* --- what it is */

struct rdzv *leader_machine(const struct leader *l)
{
    return l->machine;
}

const struct rdzv_config *leader_config(const struct leader *l)
{
    return &l->config;
}

const char *leader_instance(const struct leader *l)
{
    return l->instance;
}

const struct leader_history *leader_history(const struct leader *l)
{
    return &l->history;
}

bool leader_is_over(const struct leader *l)
{
    return l->over;
}

int64_t leader_over_since(const struct leader *l)
{
    return l->over ? l->over_ms : 0;
}

bool leader_is_empty(const struct leader *l)
{
    if (l->over || (l->machine && (rdzv_nodes(l->machine) > 0 || rdzv_round(l->machine) > 0)))
        return false;
    for (const struct leader_member *m = l->members; m; m = m->hh.next)
        if (m->has_news && !m->told)
            return false;
    return true;
}

const char *leader_run(const struct leader *l)
{
    return l->run;
}

const char *leader_principal(const struct leader *l)
{
    return l->principal;
}
