/* The machine of an agent: for each state and event, the next state and the effects (agent.h). */
#include "launcher/agent/machine/agent.h"

#include <assert.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/choice.h"
#include "common/include/crun.h"
#include "common/job/exitcode.h"
#include "launcher/config/stops.h"
#include "launcher/guard/patience.h"

static struct agent_effect *agent_add_effect(struct agent_effects *fx, enum agent_effect_kind kind);
static bool agent_runs(const struct agent *a);
static void agent_clear(struct agent *a, struct agent_effects *fx);
static void agent_stop_by(struct agent *a, int reason, int signo, bool typed, struct agent_effects *fx);
static void agent_stop(struct agent *a, int reason, struct agent_effects *fx);
static void agent_join(struct agent *a, struct agent_effects *fx);
static void agent_end_with(struct agent *a, int code);
static void agent_requeue(struct agent *a, struct agent_effects *fx);
static void agent_leave_by_signal(struct agent *a, struct agent_effects *fx);
static void agent_part(struct agent *a, int code, struct agent_effects *fx);
static void agent_leave_for_good(struct agent *a, int code, struct agent_effects *fx);

/* Kill all but held workers. */
static void agent_clear_rest(struct agent *a, struct agent_effects *fx)
{
    if (!a->clearing)
        agent_add_effect(fx, AGENT_DO_CLEAR)->keep = true;
    a->clearing = a->keeping = true;
}

/* Ask the workers that outlive the round to let go of it. */
static void agent_hold(struct agent *a, struct agent_effects *fx)
{
    a->state = AGENT_HOLDING;
    a->held = 0;
    a->sent = SIGTERM;
    agent_add_effect(fx, AGENT_DO_HOLD);
}

/* A failure broke the round: hold the workers that outlive it, or stop all. */
static void agent_break_round(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
{
    if (ev->holds)
        agent_hold(a, fx);
    else
        agent_stop_by(a, CRUN_STOP_FAILURE, 0, false, fx);
}

/* Have all workers let go, or died? */
static void agent_check_held(struct agent *a, struct agent_effects *fx)
{
    if (a->state == AGENT_HOLDING && a->held == a->live)
        agent_clear_rest(a, fx);
}

static void agent_on_held(struct agent *a, struct agent_effects *fx)
{
    if (a->state != AGENT_HOLDING || a->clearing)
        return;
    a->held++;
    agent_check_held(a, fx);
}

static void on_first_signal(struct agent *a, bool typed, struct agent_effects *fx)
{
    if (a->state == AGENT_CLEARING) /* all workers have exited with 0, so DONE comes before LEAVE */
        return;
    if (a->state == AGENT_IDLE) {
        agent_leave_for_good(a, 128 + a->signo, fx);
        return;
    }
    agent_leave_by_signal(a, fx);
    if (agent_runs(a)) {
        agent_stop_by(a, CRUN_STOP_DRAIN, a->signo, typed, fx);
        return;
    }
    switch (a->state) {
    case AGENT_STOPPING: /* stopping because of a failure goes on, but no further round follows */
        break;
    case AGENT_FINISHING:
        agent_part(a, EXIT_REQUEUE, fx);
        break;
    default:
        agent_part(a, a->heard_round ? EXIT_REQUEUE : 128 + a->signo, fx);
    }
}

static void agent_on_preempted(struct agent *a, struct agent_effects *fx)
{
    if (agent_runs(a)) {
        agent_requeue(a, fx);
        return;
    }
    switch (a->state) {
    case AGENT_IDLE:
        agent_leave_for_good(a, EXIT_REQUEUE, fx);
        break;
    case AGENT_STOPPING: /* stopping goes on, but no further round follows */
        if (a->ended || a->signo)
            break;
        agent_end_with(a, EXIT_REQUEUE);
        agent_add_effect(fx, AGENT_DO_LEAVE);
        break;
    case AGENT_CLEARING: /* all workers have exited with 0, so DONE comes before LEAVE */
        a->preempted = true;
        break;
    case AGENT_JOINING:
    case AGENT_FINISHING:
        agent_add_effect(fx, AGENT_DO_LEAVE);
        agent_part(a, EXIT_REQUEUE, fx);
        break;
    default:
        break;
    }
}

static void agent_on_signal(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
{
    if (a->state == AGENT_OVER)
        return;
    if (ev->shared && a->state == AGENT_RUNNING)
        return;
    const int64_t apart = ev->typed ? SIGINT_TYPED_APART_MS : SIGINT_APART_MS;
    const bool again = ev->signo == SIGINT && a->sigint_ms && ev->now_ms - a->sigint_ms >= apart;
    if (ev->signo == SIGINT && !a->sigint_ms)
        a->sigint_ms = ev->now_ms;
    if (!a->signo && a->state != AGENT_PARTING && !(a->ended && a->state == AGENT_STOPPING)) {
        a->signo = ev->signo;
        on_first_signal(a, ev->typed, fx);
    } else if (a->state == AGENT_PARTING) {
        if (again || !a->signo)
            agent_leave_for_good(a, a->part_code, fx);
    } else if (again && !a->clearing) {
        a->unclean = true;
        struct agent_effect *f = agent_add_effect(fx, AGENT_DO_STOP);
        f->reason = CRUN_STOP_ABORT;
        f->signo = SIGTERM;
        f = agent_add_effect(fx, AGENT_DO_LEAVE);
        f->cause = (struct rdzv_cause){
            .exit_code = 128 + SIGINT, .rank = -1, .fatal = true, .text = "a second SIGINT, which leaves no grace,"};
        agent_clear(a, fx);
    }
}

static void on_round(struct agent *a, const struct rdzv_news *news, struct agent_effects *fx)
{
    if (a->state != AGENT_JOINING)
        return;
    a->heard_round = true;
    if (news->spare)
        return;
    a->had_seat = true;
    a->state = AGENT_RUNNING;
    a->live = a->slots;
    a->held = 0;
    a->clearing = a->keeping = false;
    a->bad_code = 0;
    a->rough = false;
    agent_add_effect(fx, AGENT_DO_SPAWN)->news = *news;
}

static void on_stop(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
{
    const struct rdzv_news *news = &ev->news;
    const bool drains = news->why == RDZV_WHY_DRAIN;
    a->drains = drains && a->state == AGENT_RUNNING;
    if (a->state == AGENT_RUNNING && news->why == RDZV_WHY_FAILURE)
        agent_break_round(a, ev, fx);
    else if (a->state == AGENT_RUNNING && ev->grows && rdzv_news_grows(news))
        agent_hold(a, fx);
    else if (a->state == AGENT_RUNNING)
        agent_stop_by(a, (int)news->why, drains ? stops_signal_of(news->cause.text) : 0, false, fx);
    else if (a->state == AGENT_FINISHING)
        agent_join(a, fx);
}

bool agent_news_leave_no_grace(const struct agent *a, const struct rdzv_news *news)
{
    return a->state == AGENT_STOPPING && a->drains && news->kind == RDZV_NEWS_END && news->exit_code != EXIT_OK &&
           news->exit_code != EXIT_REQUEUE;
}

static void on_end(struct agent *a, const struct rdzv_news *news, struct agent_effects *fx)
{
    if (a->state == AGENT_IDLE)
        return;
    a->released = true;
    if (agent_runs(a)) {
        agent_end_with(a, news->exit_code);
        agent_stop(a, news->exit_code == EXIT_REQUEUE ? CRUN_STOP_DRAIN : CRUN_STOP_FAILURE, fx);
        return;
    }
    switch (a->state) {
    case AGENT_JOINING: /* the job succeeded without this node */
        agent_leave_for_good(a, news->exit_code == EXIT_OK && !a->had_seat ? a->spare_code : news->exit_code, fx);
        break;
    case AGENT_FINISHING:
        agent_leave_for_good(a, news->exit_code, fx);
        break;
    case AGENT_PARTING: /* a leaving node keeps its own exit code, unless its workers had exited with 0 */
        agent_leave_for_good(a, a->done ? news->exit_code : a->part_code, fx);
        break;
    case AGENT_STOPPING:
    case AGENT_CLEARING:
        if (!a->ended && !a->signo)
            agent_end_with(a, news->exit_code);
        if (agent_news_leave_no_grace(a, news))
            agent_clear(a, fx);
        break;
    default:
        break;
    }
}

static void agent_on_news(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
{
    switch (ev->news.kind) {
    case RDZV_NEWS_ROUND:
        on_round(a, &ev->news, fx);
        break;
    case RDZV_NEWS_STOP:
        on_stop(a, ev, fx);
        break;
    case RDZV_NEWS_END:
        on_end(a, &ev->news, fx);
        break;
    }
}

/* FENCED: another round may begin at any moment, or has begun: no worker gets a grace. */
static void agent_on_fenced(struct agent *a, struct agent_effects *fx)
{
    if (agent_runs(a) || a->state == AGENT_STOPPING || a->state == AGENT_CLEARING) {
        a->state = AGENT_STOPPING; /* earlier results do not count any more */
        agent_clear(a, fx);
        return;
    }
    switch (a->state) {
    case AGENT_JOINING:
    case AGENT_FINISHING:
        agent_join(a, fx);
        break;
    case AGENT_PARTING:
        agent_leave_for_good(a, a->part_code, fx);
        break;
    default:
        break;
    }
}

static void agent_on_failed(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
{
    a->released = true;
    if (agent_runs(a) || a->state == AGENT_STOPPING || a->state == AGENT_CLEARING) {
        if (!a->ended)
            agent_end_with(a, ev->cause.exit_code);
        a->state = AGENT_STOPPING;
        agent_clear(a, fx);
        return;
    }
    switch (a->state) {
    case AGENT_PARTING:
        agent_leave_for_good(a, a->part_code, fx);
        break;
    case AGENT_IDLE:
    case AGENT_JOINING:
    case AGENT_FINISHING:
        agent_leave_for_good(a, ev->cause.exit_code, fx);
        break;
    default:
        break;
    }
}

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

static struct agent_effect *agent_add_effect(struct agent_effects *fx, enum agent_effect_kind kind)
{
    assert(fx->n < AGENT_EFFECTS_MAX);
    struct agent_effect *f = &fx->v[fx->n++];
    f->kind = kind;
    return f;
}

static void agent_join(struct agent *a, struct agent_effects *fx)
{
    a->state = AGENT_JOINING;
    a->done = false;
    agent_add_effect(fx, AGENT_DO_JOIN);
}

/* now */
static void agent_leave_for_good(struct agent *a, int code, struct agent_effects *fx)
{
    a->state = AGENT_OVER;
    agent_add_effect(fx, AGENT_DO_EXIT)->code = code;
}

/* Does a round run, or do workers wait here that have let go of one? */
static bool agent_runs(const struct agent *a)
{
    return a->state == AGENT_RUNNING || a->state == AGENT_HOLDING || (a->state == AGENT_JOINING && a->live > 0);
}

static void agent_clear(struct agent *a, struct agent_effects *fx)
{
    if (!a->clearing || a->keeping)
        agent_add_effect(fx, AGENT_DO_CLEAR);
    a->clearing = true;
    a->keeping = false;
}

/* signo 0: SIGTERM. */
static void agent_stop_by(struct agent *a, int reason, int signo, bool typed, struct agent_effects *fx)
{
    struct agent_effect *f = agent_add_effect(fx, AGENT_DO_STOP);
    a->state = AGENT_STOPPING;
    a->clearing = a->keeping = false;
    a->sent = signo ? signo : SIGTERM;
    f->reason = reason;
    f->signo = a->sent;
    f->typed = typed;
    if (a->live == 0)
        agent_clear(a, fx);
}

/* by SIGTERM */
static void agent_stop(struct agent *a, int reason, struct agent_effects *fx)
{
    agent_stop_by(a, reason, 0, false, fx);
}

/* Leave because of a signal; the other nodes learn which, for their workers and users. */
static void agent_leave_by_signal(struct agent *a, struct agent_effects *fx)
{
    struct agent_effect *f = agent_add_effect(fx, AGENT_DO_LEAVE);
    f->cause.rank = -1;
    snprintf(f->cause.text, sizeof f->cause.text, "%s", stops_signal_name(a->signo));
}

/* once the workers are gone */
static void agent_end_with(struct agent *a, int code)
{
    a->ended = true;
    a->code = code;
}

/* --- the workers */

static void agent_requeue(struct agent *a, struct agent_effects *fx)
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
    a->rough = a->rough || (code != EXIT_OK && code != EXIT_REQUEUE);
    a->held -= ev->was_held && a->held > 0;
    if (a->state == AGENT_HOLDING) {
        agent_check_held(a, fx);
    } else if (a->state == AGENT_JOINING) { /* the next round starts another worker in its place */
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

/* A worker hangs. It is stopped like the others, and its exit code is ignored. */
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
        if (a->state == AGENT_RUNNING) /* else the round is over; if another one follows, it repeats the notice */
            agent_add_effect(fx, AGENT_DO_FAIL)->cause = ev->cause;
    } else if (!a->released) {
        agent_end_with(a, ev->cause.exit_code);
        a->signo = 0;
        agent_add_effect(fx, AGENT_DO_LEAVE)->cause = ev->cause;
    }
    a->state = AGENT_STOPPING;
    agent_clear(a, fx);
}

/* Exit with this code as soon as the rendezvous agrees, or does not answer in time. */
static void agent_part(struct agent *a, int code, struct agent_effects *fx)
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
    if (a->state != AGENT_CLEARING && a->state != AGENT_STOPPING)
        return;
    a->live = 0; /* some may never have been started */
    if (a->state == AGENT_CLEARING && !a->ended) {
        report_done(a, fx);
        return;
    }
    if (!a->released)
        agent_join(a, fx);
    if (a->signo || a->ended)
        agent_part(a, code_of_end(a), fx);
    a->unclean = false;
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
    agent_check(a, fx);
}
