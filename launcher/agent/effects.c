/* Carries out what the agent's machine asks for, one event after the other (agent.h). */
#include "launcher/agent/effects.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/container_of.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/include/crun.h"
#include "common/job/exitcode.h"
#include "launcher/agent/agent_loop.h"
#include "launcher/agent/machine/farewell.h"
#include "launcher/agent/member.h"
#include "launcher/agent/notices.h"
#include "launcher/agent/round.h"
#include "launcher/agent/run.h"
#include "launcher/config/config.h"
#include "launcher/guard/guardian.h"
#include "launcher/observe/events.h"
#include "launcher/output/logmux.h"
#include "launcher/report/failure_share.h"
#include "launcher/workers/group.h"

/* Size of the queue. Events from outside (signals, news, timers) come through the loop, one at a time, and each is
 * finished before the next. So the queue holds only what the effects of one event cause: at most an end and a word
 * of each worker, and a few words of a rendezvous in this process. */
enum { EVENTS_A_WORKER = 2, EVENTS_MORE = 16 };

#define SLOW_MS 1000 /* of a stop: whoever typed Ctrl-C wonders by then */

struct effects {
    struct run *r;
    struct agent_event *queue;       /* queue_max of them */
    unsigned queue_max, first, last; /* of the queue, modulo queue_max */
    bool pumping;
    uv_timer_t grace;  /* for AGENT_DO_STOP, AGENT_DO_AWAIT or AGENT_TELL_MS */
    int64_t grace_ms;  /* with which it was started */
    uv_timer_t slow;   /* the workers that a signal stops take their time: how long they have is told */
    uv_timer_t insist; /* within the grace: sends SIGTERM after the signal that the workers got first */
    int signo;         /* which one that was */
    bool wished;       /* by the user, that all this ends */
    int64_t stage_ms;  /* when the present stage of the end is over; 0: none, or not known */
    bool done, failed;
    int exit_code;
};

/* --- by when it will be over */

void effects_wish(struct run *r)
{
    r->effects->wished = true;
    guardian_stopping(r->link, r->effects->stage_ms);
}

bool effects_has_wish(const struct run *r)
{
    return r->effects && r->effects->wished;
}

void effects_await_end(struct run *r, int64_t left_ms)
{
    struct effects *fx = r->effects;
    fx->stage_ms = left_ms < 0 ? 0 : clock_ms() + left_ms;
    if (fx->wished)
        guardian_stopping(r->link, fx->stage_ms);
}

/* --- the end */

/* Has the job succeeded without this node ever having had a part in it? */
static bool is_idle(const struct run *r)
{
    const struct rdzv_news *end = member_end(r);
    return end->kind == RDZV_NEWS_END && end->exit_code == EXIT_OK && !r->agent.had_seat &&
           r->agent.state == AGENT_OVER && r->agent.part_code == 0;
}

static void finish(struct run *r, int code)
{
    struct effects *fx = r->effects;
    char text[FAREWELL_MAX], notice[NOTICES_TEXT_MAX];
    const struct farewell f = {.code = code,
                               .signo = r->agent.signo,
                               .notice = notices_text(r, notice),
                               .ended = r->agent.ended,
                               .end_code = r->agent.code,
                               .end_unknown = r->agent.done && member_end(r)->seq == 0,
                               .idle = is_idle(r),
                               .unbegun = !r->agent.had_seat,
                               .by = member_end(r)->cause.text,
                               .rough = r->agent.rough,
                               .bad = r->agent.bad_code != 0};
    round_print_times(r);
    switch (farewell(&f, text)) {
    case FAREWELL_NONE:
        fx->failed = code != EXIT_OK;
        break;
    case FAREWELL_WHOLE:
        logmux_print(r->mux, "%s", text);
        break;
    case FAREWELL_STOPPED:
        round_print_stopped(r, text);
        break;
    }
    fx->exit_code = code;
    fx->done = true;
    effects_await_end(r, FAILURE_SHARE_MS); /* the report of the failures comes next */
    events_ended(r->events, code, round_restarts(r), member_end(r)->cause.text);
}

bool run_is_done(const struct run *r)
{
    return r->effects->done;
}

bool run_has_failed(const struct run *r)
{
    return r->effects->failed;
}

int run_exit_code(const struct run *r)
{
    return r->effects->exit_code;
}

/* --- effects */

static void post_grace_over(struct run *r)
{
    run_post(r, &(struct agent_event){.kind = AGENT_GRACE_OVER});
    run_pump(r);
}

static void on_grace_over(uv_timer_t *t)
{
    const struct effects *fx = container_of(t, struct effects, grace);
    if (fx->r->agent.state == AGENT_HOLDING)
        logmux_print(fx->r->mux, "some workers did not let go of the broken round within %g s; killing them",
                     (double)fx->grace_ms / 1000);
    else if (fx->grace_ms > 0)
        logmux_print(fx->r->mux, "some workers did not end within %g s of %s; killing them",
                     (double)fx->grace_ms / 1000, stops_signal_name(fx->signo));
    post_grace_over(fx->r);
}

static void on_wait_over(uv_timer_t *t)
{
    post_grace_over((container_of(t, struct effects, grace))->r);
}

static void on_told_long_enough(uv_timer_t *t)
{
    struct run *r = (container_of(t, struct effects, grace))->r;
    if (r->agent.state == AGENT_JOINING)
        round_give_up(r);
}

static void on_insist(uv_timer_t *t)
{
    group_insist((container_of(t, struct effects, insist))->r->group);
}

static void on_slow(uv_timer_t *t)
{
    const struct effects *fx = container_of(t, struct effects, slow);
    const struct run *r = fx->r;
    const bool all = r->config->nnodes.max == 1 || member_hosts(r);
    if (r->agent.state != AGENT_STOPPING)
        return;
    logmux_print(r->mux, "stopping after %s: the workers have %g s in all; Ctrl-C kills %s at once",
                 stops_signal_name(fx->signo), (double)fx->grace_ms / 1000, all ? "them" : "those of this node");
}

void effects_stop_grace(struct run *r)
{
    uv_timer_stop(&r->effects->slow);
    uv_timer_stop(&r->effects->grace);
    uv_timer_stop(&r->effects->insist);
}

static void stop_workers(struct run *r, const struct agent_effect *f)
{
    struct effects *fx = r->effects;
    log_info("agent", "stopping the workers reason=%s signal=%s",
             crun_stop_reason_name((enum crun_stop_reason)f->reason), stops_signal_name(f->signo));
    fx->signo = f->signo;
    fx->grace_ms = stops_grace_ms(&r->config->stops, f->reason);
    effects_await_end(r, fx->grace_ms);
    group_stop(r->group, &(struct group_stop){.reason = f->reason, .signo = f->signo, .typed = f->typed});
    uv_timer_start(&fx->grace, on_grace_over, (uint64_t)fx->grace_ms, 0);
    if (r->agent.signo && f->reason == CRUN_STOP_DRAIN && fx->grace_ms > SLOW_MS)
        uv_timer_start(&fx->slow, on_slow, SLOW_MS, 0);
    if (f->signo != SIGTERM)
        uv_timer_start(&fx->insist, on_insist, (uint64_t)stops_insist_ms(fx->grace_ms), 0);
    events_stop(r->events, f->reason, fx->grace_ms);
}

static void hold_workers(struct run *r)
{
    struct effects *fx = r->effects;
    log_info("agent", "holding the workers that outlive the round");
    fx->grace_ms = (int64_t)(r->config->stops.hold * 1000);
    effects_await_end(r, fx->grace_ms);
    group_hold(r->group);
    uv_timer_start(&fx->grace, on_grace_over, (uint64_t)fx->grace_ms, 0);
    events_stop(r->events, CRUN_STOP_HOLD, fx->grace_ms);
}

/* Check a request's return value. Requests are queued at once; only a rendezvous in this process can refuse one
 * here, and then one of the two has a bug. */
static void check_request(struct run *r, int rc, const struct err *e)
{
    if (rc == 0)
        return;
    log_error("agent", "the rendezvous refused a request: %s", e->text);
    run_post(r, &(struct agent_event){.kind = AGENT_NEWS, .news = {.kind = RDZV_NEWS_END, .exit_code = EXIT_INTERNAL}});
}

static void apply(struct run *r, const struct agent_effect *f)
{
    struct err e = {0};
    log_debug("agent", "%s state=%s", agent_effect_name(f->kind), agent_state_name(r->agent.state));
    switch (f->kind) {
    case AGENT_DO_JOIN:
        effects_await_end(r, -1);
        if (r->config->cannot.code)
            uv_timer_start(&r->effects->grace, on_told_long_enough, AGENT_TELL_MS, 0);
        check_request(r, member_join(r, &e), &e);
        break;
    case AGENT_DO_FAIL:
        check_request(r, member_fail(r, &f->cause, &e), &e);
        round_note_detected(r);
        break;
    case AGENT_DO_DONE:
        check_request(r, member_done(r, &e), &e);
        break;
    case AGENT_DO_LEAVE:
        check_request(r, member_leave(r, f->cause.exit_code || f->cause.text[0] ? &f->cause : NULL, &e), &e);
        break;
    case AGENT_DO_SPAWN:
        round_begin(r, &f->news);
        break;
    case AGENT_DO_STOP:
        stop_workers(r, f);
        break;
    case AGENT_DO_HOLD:
        hold_workers(r);
        break;
    case AGENT_DO_CLEAR:
        effects_stop_grace(r);
        effects_await_end(r, (int64_t)(r->config->stops.kill * 1000));
        group_clear(r->group, f->keep);
        break;
    case AGENT_DO_DISMISS:
        effects_await_end(r, GROUP_DISMISS_MS + (int64_t)(r->config->stops.kill * 1000));
        group_dismiss(r->group);
        break;
    case AGENT_DO_AWAIT:
        uv_timer_start(&r->effects->grace, on_wait_over, AGENT_PART_MS, 0);
        effects_await_end(r, AGENT_PART_MS);
        break;
    case AGENT_DO_EXIT:
        finish(r, f->code);
        break;
    }
}

/* --- the queue */

static void step(struct run *r, const struct agent_event *ev)
{
    struct agent_effects fx;
    enum agent_state before = r->agent.state;
    agent_step(&r->agent, ev, &fx);
    if (r->agent.state != before) {
        log_debug("agent", "%s: %s -> %s", agent_event_name(ev->kind), agent_state_name(before),
                  agent_state_name(r->agent.state));
        events_state(r->events, agent_state_name(before), agent_state_name(r->agent.state), agent_event_name(ev->kind));
    }
    for (int i = 0; i < fx.n; i++)
        apply(r, &fx.v[i]);
}

void run_post(struct run *r, const struct agent_event *ev)
{
    struct effects *fx = r->effects;
    if (fx->first == fx->last)
        fx->first = fx->last = 0;
    assert(fx->last - fx->first < fx->queue_max);
    fx->queue[fx->last++ % fx->queue_max] = *ev;
}

void run_pump(struct run *r)
{
    struct effects *fx = r->effects;
    if (fx->pumping)
        return;
    fx->pumping = true;
    while (fx->first != fx->last && !fx->done) {
        struct agent_event ev = fx->queue[fx->first++ % fx->queue_max];
        ev.holds = r->group && r->config->max_restarts > 0 && group_can_hold(r->group);
        ev.grows = r->group && group_can_grow(r->group);
        step(r, &ev);
    }
    fx->pumping = false;
}

/* --- life */

int effects_open(struct run *r, struct err *e)
{
    struct effects *fx = calloc(1, sizeof *fx);
    if (!fx)
        return err_errno(e, ENOMEM, "agent");
    fx->r = r;
    fx->queue_max = EVENTS_A_WORKER * (unsigned)r->config->nproc + EVENTS_MORE;
    fx->queue = calloc(fx->queue_max, sizeof *fx->queue);
    if (!fx->queue) {
        free(fx);
        return err_errno(e, ENOMEM, "agent");
    }
    uv_timer_init(&r->loop, &fx->grace);
    uv_timer_init(&r->loop, &fx->insist);
    uv_timer_init(&r->loop, &fx->slow);
    r->effects = fx;
    return 0;
}

void effects_close(struct run *r)
{
    if (!r->effects)
        return;
    uv_close((uv_handle_t *)&r->effects->grace, NULL);
    uv_close((uv_handle_t *)&r->effects->insist, NULL);
    uv_close((uv_handle_t *)&r->effects->slow, NULL);
}

void effects_free(struct run *r)
{
    if (r->effects)
        free(r->effects->queue);
    free(r->effects);
    r->effects = NULL;
}
