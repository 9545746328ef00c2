#include "launcher/agent/machine/agent_internal.h"

#include <assert.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/choice.h"
#include "common/include/crun.h"
#include "common/job/exitcode.h"
#include "launcher/config/stops.h"

static const char *const state_names[] = {AGENT_STATES(CHOICE_NAME)};
static const char *const event_names[] = {AGENT_EVENTS(CHOICE_NAME)};
static const char *const effect_names[] = {AGENT_EFFECTS(CHOICE_NAME)};

const char *agent_state_name(enum agent_state s)
{
    return state_names[s];
}

const char *agent_event_name(enum agent_event_kind k)
{
    return event_names[k];
}

const char *agent_effect_name(enum agent_effect_kind k)
{
    return effect_names[k];
}

void agent_init(struct agent *a, int slots, int spare_code)
{
    memset(a, 0, sizeof *a);
    a->slots = slots;
    a->spare_code = spare_code;
}

struct agent_effect *agent_add_effect(struct agent_effects *fx, enum agent_effect_kind kind)
{
    assert(fx->n < AGENT_EFFECTS_MAX);
    struct agent_effect *f = &fx->v[fx->n++];
    f->kind = kind;
    return f;
}

void agent_join(struct agent *a, struct agent_effects *fx)
{
    a->state = AGENT_JOINING;
    a->done = false;
    agent_add_effect(fx, AGENT_DO_JOIN);
}

void agent_leave_for_good(struct agent *a, int code, struct agent_effects *fx)
{
    a->state = AGENT_OVER;
    agent_add_effect(fx, AGENT_DO_EXIT)->code = code;
}

bool agent_runs(const struct agent *a)
{
    return a->state == AGENT_RUNNING || a->state == AGENT_HOLDING || (a->state == AGENT_JOINING && a->live > 0);
}

void agent_clear(struct agent *a, struct agent_effects *fx)
{
    if (!a->clearing || a->keeping)
        agent_add_effect(fx, AGENT_DO_CLEAR);
    a->clearing = true;
    a->keeping = false;
}

/* signo 0: SIGTERM. */
void agent_stop_by(struct agent *a, int reason, int signo, bool typed, struct agent_effects *fx)
{
    struct agent_effect *f = agent_add_effect(fx, AGENT_DO_STOP);
    a->state = AGENT_STOPPING;
    a->clearing = a->clearing && !a->keeping;
    a->keeping = false;
    a->sent = signo ? signo : SIGTERM;
    f->reason = reason;
    f->signo = a->sent;
    f->typed = typed;
    if (a->live == 0)
        agent_clear(a, fx);
}

void agent_stop(struct agent *a, int reason, struct agent_effects *fx)
{
    agent_stop_by(a, reason, 0, false, fx);
}

/* The other nodes learn of the signal, for their workers and their users. */
void agent_leave_by_signal(struct agent *a, struct agent_effects *fx)
{
    struct agent_effect *f = agent_add_effect(fx, AGENT_DO_LEAVE);
    f->cause.rank = -1;
    snprintf(f->cause.text, sizeof f->cause.text, "%s", stops_signal_name(a->signo));
}

void agent_end_with(struct agent *a, int code)
{
    a->ended = true;
    a->code = code;
}

/* --- the workers */

void agent_requeue(struct agent *a, struct agent_effects *fx)
{
    agent_end_with(a, EXIT_REQUEUE);
    agent_add_effect(fx, AGENT_DO_LEAVE);
    agent_stop(a, CRUN_STOP_DRAIN, fx);
}

bool agent_obeyed(const struct agent *a, int code)
{
    return code == EXIT_OK || code == EXIT_REQUEUE || code == 128 + SIGTERM || code == 128 + a->sent;
}

static void on_worker_ended(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
{
    const int code = ev->cause.exit_code;
    if ((!agent_runs(a) && a->state != AGENT_STOPPING) || a->live == 0)
        return;
    a->live--;
    a->held -= ev->was_held && a->held > 0;
    if (a->state == AGENT_HOLDING) {
        agent_check_held(a, fx);
    } else if (a->state == AGENT_JOINING) { /* the next round starts another in its place */
    } else if (a->state == AGENT_STOPPING) {
        a->unclean = a->unclean || (code != 0 && code != EXIT_REQUEUE);
        if (!a->bad_code && !agent_obeyed(a, code))
            a->bad_code = code;
        if (a->live == 0)
            agent_clear(a, fx);
    } else if (code == EXIT_REQUEUE) {
        agent_requeue(a, fx);
    } else if (ev->signo) {
        a->signo = ev->signo;
        a->unclean = true;
        agent_leave_by_signal(a, fx);
        agent_stop_by(a, CRUN_STOP_DRAIN, a->signo, true, fx);
    } else if (code != 0) {
        a->unclean = true;
        agent_add_effect(fx, AGENT_DO_FAIL)->cause = ev->cause;
        agent_break_round(a, ev, fx);
        agent_check_held(a, fx);
    } else if (a->live == 0) {
        a->state = AGENT_CLEARING;
        agent_add_effect(fx, AGENT_DO_DISMISS);
    }
}

/* It may still be alive and is stopped like the others; what it then exits with says nothing. */
static void on_hung(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
{
    if (a->state != AGENT_RUNNING)
        return;
    a->unclean = true;
    agent_add_effect(fx, AGENT_DO_FAIL)->cause = ev->cause;
    agent_break_round(a, ev, fx);
}

static void on_spawn_failed(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
{
    if (a->state == AGENT_JOINING && !a->had_seat) {
        agent_add_effect(fx, AGENT_DO_LEAVE)->cause = ev->cause;
        agent_part(a, ev->cause.exit_code, fx);
        return;
    }
    if (a->state != AGENT_RUNNING && a->state != AGENT_STOPPING && a->state != AGENT_HOLDING)
        return;
    if (ev->cause.fatal && !a->ended && !a->signo) {
        if (a->state == AGENT_RUNNING) /* else the round is over already, and the next one, if there is one, tells */
            agent_add_effect(fx, AGENT_DO_FAIL)->cause = ev->cause;
    } else if (!a->released) {
        agent_end_with(a, ev->cause.exit_code);
        a->signo = 0;
        agent_add_effect(fx, AGENT_DO_LEAVE)->cause = ev->cause;
    }
    a->state = AGENT_STOPPING;
    agent_clear(a, fx);
}

/* Leave with this code as soon as the rendezvous agrees, or does not answer. */
void agent_part(struct agent *a, int code, struct agent_effects *fx)
{
    if (a->released) {
        agent_leave_for_good(a, code, fx);
        return;
    }
    a->state = AGENT_PARTING;
    a->part_code = code;
    agent_add_effect(fx, AGENT_DO_AWAIT);
}

static int code_of_end(const struct agent *a)
{
    if (a->signo)
        return a->unclean ? 128 + a->signo : EXIT_REQUEUE;
    return a->code == EXIT_REQUEUE && a->bad_code ? a->bad_code : a->code;
}

static void report_done(struct agent *a, struct agent_effects *fx)
{
    a->done = true;
    agent_add_effect(fx, AGENT_DO_DONE);
    if (a->signo || a->preempted) {
        agent_add_effect(fx, AGENT_DO_LEAVE);
        agent_part(a, EXIT_REQUEUE, fx);
    } else {
        a->state = AGENT_FINISHING;
    }
}

static void on_gone(struct agent *a, struct agent_effects *fx)
{
    if (a->state == AGENT_HOLDING) {
        a->unclean = false;
        agent_join(a, fx);
        return;
    }
    a->live = 0; /* some may never have been started */
    if (a->state == AGENT_CLEARING && !a->ended) {
        report_done(a, fx);
    } else if (a->state == AGENT_CLEARING || a->state == AGENT_STOPPING) {
        if (!a->released || !(a->signo || a->ended))
            agent_join(a, fx);
        if (a->signo || a->ended)
            agent_part(a, code_of_end(a), fx);
        a->unclean = false;
    }
}

static void on_unkillable(struct agent *a, struct agent_effects *fx)
{
    if (a->state == AGENT_HOLDING || a->state == AGENT_STOPPING || a->state == AGENT_CLEARING)
        agent_leave_for_good(a, EXIT_UNKILLABLE, fx);
}

void agent_step(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
{
    memset(fx, 0, sizeof *fx);
    switch (ev->kind) {
    case AGENT_START:
        if (a->state == AGENT_IDLE)
            agent_join(a, fx);
        break;
    case AGENT_NEWS:
        agent_on_news(a, ev, fx);
        break;
    case AGENT_WORKER_ENDED:
        on_worker_ended(a, ev, fx);
        break;
    case AGENT_HUNG:
        on_hung(a, ev, fx);
        break;
    case AGENT_HELD:
        agent_on_held(a, fx);
        break;
    case AGENT_SPAWN_FAILED:
        on_spawn_failed(a, ev, fx);
        break;
    case AGENT_GONE:
        on_gone(a, fx);
        break;
    case AGENT_UNKILLABLE:
        on_unkillable(a, fx);
        break;
    case AGENT_PREEMPTED:
        agent_on_preempted(a, fx);
        break;
    case AGENT_SIGNAL:
        agent_on_signal(a, ev, fx);
        break;
    case AGENT_GRACE_OVER:
        if (a->state == AGENT_STOPPING)
            agent_clear(a, fx);
        else if (a->state == AGENT_HOLDING)
            agent_clear_rest(a, fx);
        else if (a->state == AGENT_PARTING)
            agent_leave_for_good(a, a->part_code, fx);
        break;
    case AGENT_FENCED:
        agent_on_fenced(a, fx);
        break;
    case AGENT_FAILED:
        agent_on_failed(a, ev, fx);
        break;
    }
}
