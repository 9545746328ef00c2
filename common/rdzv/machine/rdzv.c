/* The rendezvous machine: see rdzv.h for the life of a job.
 *
 * One table says which function handles an event in a state; each changes nodes, may break the round or end the job,
 * and afterwards settle() asks once whether the next round can begin. All memory is taken before anything changes.
 * Counts are kept, not taken: only a round's start, its stop and the end of the job walk all nodes. */
#include "common/rdzv/machine/rdzv.h"
#include "common/base/array.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/rdzv/machine/rdzv_impl.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_final(enum rdzv_state s)
{
    return s == RDZV_SUCCEEDED || s == RDZV_FAILED || s == RDZV_DRAINED;
}

/* --- news */

static int reserve_effects(struct rdzv_effects *fx, size_t need)
{
    fx->n = 0;
    return ARRAY_RESERVE(fx->v, fx->cap, need);
}

void rdzv_effects_free(struct rdzv_effects *fx)
{
    free(fx->v);
    *fx = (struct rdzv_effects){0};
}

/* --- between two rounds */

/* All live members are back: begin the next round without a last call, unless fewer than MIN are here, or a backoff
 * must be waited for. */
static void next_round(struct step *s)
{
    struct rdzv *r = s->r;
    if (rdzv_tally_(r).ready < r->config.min_nodes)
        rdzv_set_state_(r, RDZV_JOINING, s->now + r->config.join_timeout_ms);
    else if (r->m.not_before > s->now)
        rdzv_set_state_(r, RDZV_BACKOFF, r->m.not_before);
    else
        rdzv_start_round_(s);
}

static int64_t latest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* MAX nodes are here: the first round begins without waiting for more. If it is held, it waits until the workers of
 * earlier rounds are dead. */
static void full_house(struct step *s)
{
    if (s->r->m.not_before <= s->now) {
        rdzv_start_round_(s);
        return;
    }
    s->r->m.last_call = s->now;
    rdzv_set_state_(s->r, RDZV_LAST_CALL, s->r->m.not_before);
}

/* Start the last call. A job that continues a round of its predecessor needs none: the nodes of that round come
 * while the first round is held. */
static void call_last(struct step *s)
{
    const int64_t call_ms = s->r->m.round_floor > 0 ? 0 : s->r->config.last_call_ms;
    s->r->m.last_call = latest(s->now + call_ms, s->r->blank_until);
    rdzv_set_state_(s->r, RDZV_LAST_CALL, latest(s->r->m.last_call, s->r->m.not_before));
}

/* After every event: can the next round begin? Are MIN nodes here now, or no longer? */
static void settle(struct step *s)
{
    struct rdzv *r = s->r;
    const struct rdzv_config *c = &r->config;
    struct tally t = rdzv_tally_(r);

    if (r->m.state == RDZV_STOPPING) {
        if (t.stopping > 0)
            return;
        if (r->m.why == RDZV_WHY_DRAIN)
            rdzv_finish_(s, RDZV_DRAINED, EXIT_REQUEUE, NULL);
        else
            next_round(s);
    } else if (r->m.state == RDZV_BACKOFF) {
        if (t.ready < c->min_nodes || r->m.not_before <= s->now)
            next_round(s);
    } else if (r->m.state == RDZV_JOINING && t.ready >= c->min_nodes) {
        if (r->m.round > 0)
            next_round(s);
        else if (t.ready >= c->max_nodes)
            full_house(s);
        else
            call_last(s);
    } else if (r->m.state == RDZV_LAST_CALL) {
        if (t.ready < c->min_nodes)
            rdzv_set_state_(r, RDZV_JOINING, s->now + c->join_timeout_ms);
        else if (t.ready >= c->max_nodes)
            full_house(s);
    }
}

/* --- handlers: what an event does in a state */

static bool has_silent_member(const struct rdzv *r)
{
    for (const struct node *n = r->silent; n; n = n->silent_next)
        if (n->is.member)
            return true;
    return false;
}

/* A node that could take part appears while a round runs: resize. Not once a member is done, because the job is
 * about to end. If all places are taken and a member is silent, the node waits: it may be that member's successor,
 * which the fence decides. */
static void offer_while_running(struct step *s, struct node *n)
{
    const struct rdzv_cause grows = {.rank = -1, .text = RDZV_GROWS};
    struct tally t = rdzv_tally_(s->r);
    if (t.members < s->r->config.max_nodes && s->r->m.done_count == 0)
        rdzv_stop_round_(s, RDZV_WHY_RESIZE, &grows);
    else if (rdzv_may_wait_(s->r, n))
        rdzv_tell_round_(s, n);
    else if (!has_silent_member(s->r))
        rdzv_turn_away_(s, n, NULL);
}

/* All members are heard again: turn away nodes that waited to succeed a silent member. */
static void offer_to_successors(struct step *s)
{
    struct node *n, *next;
    if (s->r->heirs == 0 || s->r->config.max_nodes > s->r->config.min_nodes || has_silent_member(s->r))
        return;
    HASH_ITER (hh, s->r->nodes, n, next)
        if (!n->is.member && !n->is.silent && !rdzv_may_wait_(s->r, n))
            rdzv_turn_away_(s, n, NULL);
}

/* The node that has the place which this JOIN names, if it is heard; NULL: none. */
static const struct node *holder_of_place(const struct step *s)
{
    if (!s->ev->numbered || s->ev->node_rank < 0)
        return NULL;
    for (const struct node *n = s->r->nodes; n; n = n->hh.next)
        if (n != s->n && n->node_rank == s->ev->node_rank && !n->is.silent && !n->is.leaving)
            return n;
    return NULL;
}

/* Turn away a new node whose JOIN names a place that another node has. True: done. */
static bool is_turned_away(struct step *s)
{
    struct rdzv_cause why = {.exit_code = EXIT_UNAVAILABLE, .rank = -1};
    const struct node *holder = s->n->is.joined || s->n->is.member ? NULL : holder_of_place(s);
    if (!holder)
        return false;
    snprintf(why.text, sizeof why.text, "node rank %d is taken by node '%s'", s->ev->node_rank, holder->id);
    rdzv_turn_away_(s, s->n, &why);
    return true;
}

/* A machine that has had no round learns of one that a predecessor began and that may still run: hold the first
 * round. */
static void hold_for_predecessor(struct step *s)
{
    const struct rdzv_config *c = &s->r->config;
    const int64_t until = s->now + c->silence_ms + c->kill_ms;
    if (s->ev->round == 0 || s->r->m.round > 0)
        return;
    if (c->hold_ms == 0) {
        rdzv_hold(s->r, until);
        s->r->blank_until = latest(s->r->blank_until, until);
    }
    if (s->r->m.state == RDZV_LAST_CALL)
        call_last(s);
}

static void take_join(struct step *s)
{
    struct node *n = s->n;
    const struct rdzv_event *ev = s->ev;
    struct standing to = n->is;
    n->slots = ev->slots;
    n->node_rank = ev->node_rank;
    n->port = ev->port;
    memcpy(n->addr, ev->addr, sizeof n->addr);
    memcpy(n->addrs, ev->addrs, sizeof n->addrs);
    memcpy(n->role, ev->role, sizeof n->role);
    if (ev->round > s->r->m.round_floor)
        s->r->m.round_floor = ev->round;
    if (!to.joined) /* a repeated one has held already */
        hold_for_predecessor(s);
    to.joined = true;
    to.silent = false;
    to.waits |= ev->waits;
    rdzv_stand_(s->r, n, to);
}

/* A JOIN between two rounds. Only if a member names the stopped round are its workers of that round gone: an older
 * JOIN was delayed on its way. */
static int join_waiting(struct step *s)
{
    struct node *n = s->n;
    if (n->is.member && !n->is.joined && s->ev->round < s->r->m.round)
        return err_set(s->e, ERR_FENCED, "JOIN of node '%s' names round %llu, but it is a member of round %llu", n->id,
                       (unsigned long long)s->ev->round, (unsigned long long)s->r->m.round);
    if (n->is.leaving) {
        rdzv_tell_end_(s, n, EXIT_REQUEUE, NULL);
        rdzv_forget_(s->r, n);
        return 0;
    }
    if (!is_turned_away(s))
        take_join(s);
    return 0;
}

/* The node is heard: not silent any more. */
static void hear(struct step *s)
{
    struct standing to = s->n->is;
    to.silent = false;
    if (s->n->is.silent)
        rdzv_stand_(s->r, s->n, to);
}

/* The event's node does, and stays. */
static void break_round(struct step *s, const struct rdzv_cause *cause)
{
    s->n->failures++;
    rdzv_touch_(s->r, s->n);
    rdzv_fail_round_(s, cause);
}

static int join_running(struct step *s)
{
    struct node *n = s->n;
    if (!n->is.member) {
        bool known = n->is.joined && !n->is.silent;
        if (is_turned_away(s))
            return 0;
        take_join(s);
        if (!known)
            offer_while_running(s, n);
        return 0;
    }
    const bool repeated = s->ev->round < s->r->m.round; /* it has its place already */
    if (n->is.done && !repeated)
        return err_set(s->e, ERR_REFUSED, "node '%s' is done with round %llu and cannot join", n->id,
                       (unsigned long long)s->r->m.round);
    hear(s);
    if (repeated) {
        offer_to_successors(s);
        return 0;
    }
    struct rdzv_cause cause = {.exit_code = EXIT_UNAVAILABLE, .rank = -1};
    snprintf(cause.text, sizeof cause.text, "node '%s' lost touch and stopped its workers", n->id);
    break_round(s, &cause);
    if (s->r->m.state == RDZV_STOPPING)
        take_join(s);
    return 0;
}

static int leave_waiting(struct step *s)
{
    rdzv_tell_end_(s, s->n, s->n->is.done && !s->n->is.joined ? EXIT_OK : EXIT_REQUEUE, NULL);
    rdzv_forget_(s->r, s->n);
    return 0;
}

/* Does the node leave because it cannot start its workers? Then the job fails: if it were started again, it would
 * fail again. */
static bool leaves_a_failure(struct step *s)
{
    const struct rdzv_cause *c = &s->ev->cause;
    const bool drains = s->r->m.state == RDZV_STOPPING && s->r->m.why == RDZV_WHY_DRAIN;
    if (c->exit_code == EXIT_OK || drains)
        return false;
    s->r->m.why = RDZV_WHY_FAILURE;
    rdzv_finish_(s, RDZV_FAILED, c->exit_code, c);
    return true;
}

/* A node leaves before a round. A job that needs all its nodes ends if one of them cannot start anything. */
static int leave_gathering(struct step *s)
{
    leave_waiting(s);
    if (s->r->config.min_nodes == s->r->config.max_nodes)
        leaves_a_failure(s);
    return 0;
}

/* The cause of a stop, from the event. Its text begins with the name of the signal for the workers, if there is one. */
static struct rdzv_cause stopped_by(const struct step *s)
{
    struct rdzv_cause told = {.rank = -1};
    const char *signal = s->ev->cause.text;
    snprintf(told.text, sizeof told.text, "%.100s%snode '%s'", signal, signal[0] ? " on " : "", s->n->id);
    return told;
}

/* A node without workers leaves between two rounds. If fewer than MIN are left, the job drains. */
static int leave_between(struct step *s)
{
    struct rdzv *r = s->r;
    const struct rdzv_cause told = stopped_by(s);
    bool enough = rdzv_tally_(r).staying >= r->config.min_nodes;
    leave_waiting(s);
    if (!enough || rdzv_tally_(r).staying >= r->config.min_nodes || leaves_a_failure(s))
        return 0;
    if (r->m.state == RDZV_STOPPING)
        r->m.why = RDZV_WHY_DRAIN;
    else
        rdzv_finish_(s, RDZV_DRAINED, EXIT_REQUEUE, &told);
    return 0;
}

/* A node leaves and MIN are left: resize. The others learn why it does not go on. */
static void resize_without(struct step *s)
{
    const struct rdzv_cause *why = &s->ev->cause;
    struct rdzv_cause told = {.rank = -1};
    int n = snprintf(told.text, sizeof told.text, "node '%s' leaves", s->n->id);
    if (why->exit_code)
        n += snprintf(told.text + n, sizeof told.text - (size_t)n, " (exit code %d): ", why->exit_code);
    else if (why->text[0])
        n += snprintf(told.text + n, sizeof told.text - (size_t)n, " after ");
    snprintf(told.text + n, sizeof told.text - (size_t)n, "%.*s", (int)sizeof told.text - 1 - n, why->text);
    rdzv_stop_round_(s, RDZV_WHY_RESIZE, &told);
}

/* A member leaves: its workers must stop first. If fewer than MIN nodes are left, all workers stop. */
static int leave_with_workers(struct step *s)
{
    struct node *n = s->n;
    struct rdzv *r = s->r;
    if (!n->is.member || n->is.joined || n->is.done)
        return r->m.state == RDZV_STOPPING ? leave_between(s) : leave_waiting(s);
    if (n->is.leaving)
        return 0; /* repeated LEAVE: it is not blamed for nodes that have gone since */
    struct standing to = n->is;
    to.leaving = true;
    rdzv_stand_(r, n, to);
    const struct rdzv_cause told = stopped_by(s);
    bool enough = rdzv_tally_(r).staying >= r->config.min_nodes;
    if (!enough && leaves_a_failure(s))
        return 0;
    if (r->m.state == RDZV_RUNNING && enough)
        resize_without(s);
    else if (r->m.state == RDZV_RUNNING)
        rdzv_stop_round_(s, RDZV_WHY_DRAIN, &told);
    else if (!enough)
        r->m.why = RDZV_WHY_DRAIN;
    return 0;
}

static int fail_running(struct step *s)
{
    break_round(s, &s->ev->cause);
    return 0;
}

static int done_now(struct step *s)
{
    struct standing to = s->n->is;
    if (to.done)
        return 0;
    to.done = true;
    rdzv_stand_(s->r, s->n, to);
    if (++s->r->m.done_count >= s->r->m.group_world)
        rdzv_finish_(s, RDZV_SUCCEEDED, EXIT_OK, NULL);
    return 0;
}

static int gone_waiting(struct step *s)
{
    rdzv_forget_(s->r, s->n);
    return 0;
}

static int gone_running(struct step *s)
{
    bool breaks = s->n->is.member && !s->n->is.done;
    rdzv_forget_(s->r, s->n);
    if (breaks)
        rdzv_fail_round_(s, &s->ev->cause);
    else
        offer_to_successors(s);
    return 0;
}

static int fall_silent(struct step *s)
{
    struct standing to = s->n->is;
    int64_t fence = s->now + s->ev->grace_ms + s->r->config.silence_ms + s->r->config.kill_ms;
    if (to.silent && fence <= s->n->fence)
        return 0;
    if (to.silent) { /* reported again by a new leader that has not heard it either: the full time starts anew */
        to.silent = false;
        rdzv_stand_(s->r, s->n, to);
    }
    to.silent = true;
    s->n->fence = fence;
    rdzv_stand_(s->r, s->n, to);
    return 0;
}

static int resume(struct step *s)
{
    bool was = s->n->is.silent;
    hear(s);
    if (was && s->r->m.state == RDZV_RUNNING && !s->n->is.member)
        offer_while_running(s, s->n);
    else if (was && s->r->m.state == RDZV_RUNNING)
        offer_to_successors(s);
    return 0;
}

/* Does an operator end the job with an exit code? Then this ends it, and returns true. False: the event is a drain
 * in good order. */
static bool is_evicted(struct step *s)
{
    const struct rdzv_cause *c = &s->ev->cause;
    if (c->exit_code == EXIT_OK)
        return false;
    s->r->m.why = RDZV_WHY_FAILURE;
    rdzv_finish_(s, RDZV_FAILED, c->exit_code, c);
    return true;
}

static int drain_waiting(struct step *s)
{
    if (!is_evicted(s))
        rdzv_finish_(s, RDZV_DRAINED, EXIT_REQUEUE, &s->ev->cause);
    return 0;
}

static int drain_running(struct step *s)
{
    if (!is_evicted(s))
        rdzv_stop_round_(s, RDZV_WHY_DRAIN, &s->ev->cause);
    return 0;
}

static int drain_stopping(struct step *s)
{
    if (!is_evicted(s))
        s->r->m.why = RDZV_WHY_DRAIN;
    return 0;
}

/* Forget silent nodes whose fence has passed. The first of them that still had workers breaks the running round. */
static void expire_fences(struct step *s)
{
    struct rdzv *r = s->r;
    for (struct node *n = r->silent; n && n->fence <= s->now && !is_final(r->m.state); n = r->silent) {
        bool breaks = r->m.state == RDZV_RUNNING && n->is.member && !n->is.done;
        struct rdzv_cause cause = {.exit_code = EXIT_UNAVAILABLE, .rank = -1};
        snprintf(cause.text, sizeof cause.text,
                 "node '%s' was not heard of for %g s (--rdzv-conf keep_alive_interval, keep_alive_max_attempt)", n->id,
                 (double)(r->config.silence_ms + r->config.kill_ms) / 1000);
        rdzv_forget_(r, n);
        if (breaks)
            rdzv_fail_round_(s, &cause);
    }
}

static int tick(struct step *s)
{
    struct rdzv *r = s->r;
    expire_fences(s);
    if (r->m.state == RDZV_RUNNING)
        offer_to_successors(s);
    settle(s);
    if (r->m.deadline > s->now)
        return 0;
    struct tally t = rdzv_tally_(r);
    struct rdzv_cause cause = {.exit_code = EXIT_UNAVAILABLE, .rank = -1};
    if (r->m.state == RDZV_LAST_CALL) {
        rdzv_start_round_(s);
        return 0;
    }
    if (r->m.state == RDZV_STOPPING)
        snprintf(cause.text, sizeof cause.text,
                 "%d nodes did not stop their workers within %g s (--rdzv-conf join_timeout)", t.stopping,
                 (double)r->config.join_timeout_ms / 1000);
    else
        snprintf(cause.text, sizeof cause.text,
                 "%d of at least %d nodes were there within %g s (--rdzv-conf join_timeout)", t.ready,
                 r->config.min_nodes, (double)r->config.join_timeout_ms / 1000);
    r->m.why = RDZV_WHY_FAILURE;
    rdzv_finish_(s, RDZV_FAILED, cause.exit_code, &cause);
    return 0;
}

static int nothing(struct step *s)
{
    (void)s;
    return 0;
}

static int refuse(struct step *s)
{
    return err_set(s->e, ERR_REFUSED, "the job is over (%s): %s of node '%s' comes too late",
                   rdzv_state_name(s->r->m.state), rdzv_event_name(s->ev->kind), s->ev->node);
}

typedef int handler(struct step *s);

/* clang-format off */
#define FINAL {[RDZV_JOIN] = refuse, [RDZV_LEAVE] = nothing, [RDZV_FAIL] = nothing, [RDZV_DONE] = nothing, [RDZV_GONE] = nothing, \
               [RDZV_SILENT] = nothing, [RDZV_RESUME] = nothing, [RDZV_DRAIN] = nothing, [RDZV_TICK] = nothing}
#define GATHERING(leave) {[RDZV_JOIN] = join_waiting, [RDZV_LEAVE] = leave, [RDZV_FAIL] = nothing, [RDZV_DONE] = nothing, \
                   [RDZV_GONE] = gone_waiting, [RDZV_SILENT] = fall_silent, [RDZV_RESUME] = resume, \
                   [RDZV_DRAIN] = drain_waiting, [RDZV_TICK] = tick}
static handler *const table[STATE_COUNT][EVENT_COUNT] = {
    [RDZV_JOINING] = GATHERING(leave_gathering),
    [RDZV_LAST_CALL] = GATHERING(leave_gathering),
    [RDZV_BACKOFF] = GATHERING(leave_between),
    [RDZV_RUNNING] = {[RDZV_JOIN] = join_running, [RDZV_LEAVE] = leave_with_workers, [RDZV_FAIL] = fail_running,
                      [RDZV_DONE] = done_now, [RDZV_GONE] = gone_running, [RDZV_SILENT] = fall_silent,
                      [RDZV_RESUME] = resume, [RDZV_DRAIN] = drain_running, [RDZV_TICK] = tick},
    /* A round breaks once: further failures while it stops cost nothing. */
    [RDZV_STOPPING] = {[RDZV_JOIN] = join_waiting, [RDZV_LEAVE] = leave_with_workers, [RDZV_FAIL] = nothing,
                       [RDZV_DONE] = done_now, [RDZV_GONE] = gone_waiting, [RDZV_SILENT] = fall_silent,
                       [RDZV_RESUME] = resume, [RDZV_DRAIN] = drain_stopping, [RDZV_TICK] = tick},
    [RDZV_SUCCEEDED] = FINAL,
    [RDZV_FAILED] = FINAL,
    [RDZV_DRAINED] = FINAL,
};
/* clang-format on */

/* --- the step */

/* FAIL and DONE are claims about a round: only a member may make them, and only about the current one. */
static int check_claim(const struct rdzv *r, const struct node *n, const struct rdzv_event *ev, struct err *e)
{
    const char *what = rdzv_event_name(ev->kind);
    unsigned long long named = ev->round, current = r->m.round;
    if (named < current)
        return err_set(e, ERR_FENCED, "%s of node '%s' names round %llu, but the current one is %llu", what, ev->node,
                       named, current);
    if (named > current)
        return err_set(e, ERR_REFUSED, "%s of node '%s' names round %llu, which has not begun", what, ev->node, named);
    if (!n || !n->is.member)
        return err_set(e, ERR_REFUSED, "%s of node '%s': it is not a member of round %llu", what, ev->node, current);
    return 0;
}

static bool ends(const char *text, size_t cap)
{
    return memchr(text, 0, cap) != NULL;
}

static int check_join(const struct rdzv_event *ev, struct err *e)
{
    if (ev->slots < 1 || ev->slots > RDZV_SLOTS_MAX)
        return err_set(e, ERR_REFUSED, "JOIN of node '%s' offers %d slots, expected 1 to %d", ev->node, ev->slots,
                       RDZV_SLOTS_MAX);
    if (ev->round > INT64_MAX)
        return err_set(e, ERR_REFUSED, "JOIN of node '%s' names the impossible round %llu", ev->node,
                       (unsigned long long)ev->round);
    if (ev->port < 0 || ev->port > 65535)
        return err_set(e, ERR_REFUSED, "JOIN of node '%s' names port %d, expected 0 to 65535", ev->node, ev->port);
    if (!ends(ev->addr, sizeof ev->addr) || !ends(ev->addrs, sizeof ev->addrs) || !ends(ev->role, sizeof ev->role))
        return err_set(e, ERR_REFUSED,
                       "JOIN of node '%s': expected at most %d bytes of address, %d of all addresses, "
                       "%d of role",
                       ev->node, RDZV_ADDR_MAX, RDZV_ADDRS_MAX, RDZV_ROLE_MAX);
    return 0;
}

/* All checks that can refuse an event, before it changes the machine. */
static int admit(struct step *s)
{
    const struct rdzv_event *ev = s->ev;
    if ((size_t)ev->kind >= EVENT_COUNT)
        return err_set(s->e, ERR_REFUSED, "event %d is unknown", (int)ev->kind);
    if (ev->kind == RDZV_TICK || ev->kind == RDZV_DRAIN)
        return 0;
    if (!ev->node[0] || !ends(ev->node, sizeof ev->node))
        return err_set(s->e, ERR_REFUSED, "a node id has 1 to %d bytes", RDZV_ID_MAX);
    if (!ends(ev->cause.text, sizeof ev->cause.text))
        return err_set(s->e, ERR_REFUSED, "a cause has at most %d bytes", RDZV_TEXT_MAX);
    s->n = rdzv_find_(s->r, ev->node);
    if (ev->kind == RDZV_JOIN)
        return check_join(ev, s->e);
    if (ev->kind == RDZV_FAIL || ev->kind == RDZV_DONE)
        return check_claim(s->r, s->n, ev, s->e);
    if (!s->n)
        return err_set(s->e, ERR_REFUSED, "%s of node '%s', which is unknown", rdzv_event_name(ev->kind), ev->node);
    return 0;
}

/* A broken invariant is a bug of ours: nothing that follows from the state can be trusted, so the job ends. The
 * process does not: it serves other jobs, too. */
static void end_by_a_fault(struct step *s, const char *why)
{
    struct rdzv_cause cause = {.rank = -1, .exit_code = EXIT_INTERNAL};
    snprintf(s->r->broken, sizeof s->r->broken, "%.*s", RDZV_TEXT_MAX, why);
    snprintf(cause.text, sizeof cause.text, "the rendezvous has a fault in itself and ended the job: %.*s",
             RDZV_TEXT_MAX - 60, why);
    s->fx->n = 0;
    rdzv_finish_(s, RDZV_FAILED, EXIT_INTERNAL, &cause);
}

static void look_for_a_fault(struct step *s)
{
    struct err why;
    if (!is_final(s->r->m.state) && rdzv_check(s->r, &why) < 0)
        end_by_a_fault(s, why.text);
}

int rdzv_break(struct rdzv *r, const char *why, int64_t now_ms, struct rdzv_effects *fx)
{
    const struct rdzv_event ev = {.kind = RDZV_TICK};
    struct step s = {.r = r, .ev = &ev, .now = now_ms, .fx = fx};
    TRY(reserve_effects(fx, 2 * (HASH_COUNT(r->nodes) + 2)));
    end_by_a_fault(&s, why);
    return 0;
}

int rdzv_step(struct rdzv *r, const struct rdzv_event *ev, int64_t now_ms, struct rdzv_effects *fx, struct err *e)
{
    struct step s = {.r = r, .ev = ev, .now = now_ms, .fx = fx, .e = e};
    fx->n = 0;
    TRY(admit(&s));
    /* No node gets more than two news in one step. */
    if (reserve_effects(fx, 2 * (HASH_COUNT(r->nodes) + 2)) < 0)
        return err_set(e, -ENOMEM, "no memory for the news of %u nodes", HASH_COUNT(r->nodes));
    if (r->config.restart_window_ms > 0 && rdzv_reserve_restart_(r) < 0)
        return err_set(e, -ENOMEM, "no memory for the times of restarts");
    if (ev->kind == RDZV_JOIN && !s.n && !is_final(r->m.state))
        TRY(rdzv_add_node_(r, ev->node, &s.n, e));
    if (!r->m.begun) {
        r->m.begun = true;
        if (r->config.hold_ms > 0)
            r->m.not_before = now_ms + r->config.hold_ms;
        r->blank_until = now_ms + r->config.blank_ms;
        rdzv_set_state_(r, RDZV_JOINING, now_ms + r->config.join_timeout_ms);
    }
    const enum rdzv_state state = r->m.state;
    const uint64_t round = r->m.round;
    TRY(table[state][ev->kind](&s));
    settle(&s);
    if (r->broken[0] || r->m.state != state || r->m.round != round)
        look_for_a_fault(&s);
    return 0;
}

bool rdzv_begins(const struct rdzv *r, int64_t *ret_at)
{
    if (r->m.state == RDZV_LAST_CALL)
        *ret_at = r->m.deadline;
    return r->m.state == RDZV_LAST_CALL;
}

bool rdzv_waits(const struct rdzv *r, int64_t *ret_since, int64_t *ret_until)
{
    if (!r->m.begun || r->m.state != RDZV_JOINING)
        return false;
    *ret_since = r->m.deadline - r->config.join_timeout_ms;
    *ret_until = r->m.deadline;
    return true;
}

int64_t rdzv_deadline(const struct rdzv *r)
{
    if (is_final(r->m.state))
        return INT64_MAX;
    return r->silent && r->silent->fence < r->m.deadline ? r->silent->fence : r->m.deadline;
}
