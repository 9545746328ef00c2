/* What the user wishes: signals, and the notice of a preemption (agent.h). */
#include "launcher/agent/machine/agent_internal.h"

#include <signal.h>
#include <stdint.h>

#include "common/include/crun.h"
#include "common/job/exitcode.h"
#include "launcher/guard/patience.h"

static void on_first_signal(struct agent *a, bool typed, struct agent_effects *fx)
{
    if (a->state == AGENT_CLEARING) /* all workers are complete: DONE comes before LEAVE */
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
    case AGENT_STOPPING: /* because of a failure: it goes on, but no further round follows */
        break;
    case AGENT_FINISHING:
        agent_part(a, EXIT_REQUEUE, fx);
        break;
    default:
        agent_part(a, a->heard_round ? EXIT_REQUEUE : 128 + a->signo, fx);
    }
}

void agent_on_preempted(struct agent *a, struct agent_effects *fx)
{
    if (agent_runs(a)) {
        agent_requeue(a, fx);
        return;
    }
    switch (a->state) {
    case AGENT_IDLE:
        agent_leave_for_good(a, EXIT_REQUEUE, fx);
        break;
    case AGENT_STOPPING: /* it goes on, but no further round follows */
        if (a->ended || a->signo)
            break;
        agent_end_with(a, EXIT_REQUEUE);
        agent_add_effect(fx, AGENT_DO_LEAVE);
        break;
    case AGENT_CLEARING: /* all workers are complete: DONE comes before LEAVE */
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

void agent_on_signal(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
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
