/* Workers that outlive the round: notified to let go of it, and kept while the rest is cleared (agent.h). */
#include <signal.h>

#include "common/include/crun.h"
#include "launcher/agent/machine/agent_internal.h"

void agent_clear_rest(struct agent *a, struct agent_effects *fx)
{
    if (!a->clearing)
        agent_add_effect(fx, AGENT_DO_CLEAR)->keep = true;
    a->clearing = a->keeping = true;
}

void agent_hold(struct agent *a, struct agent_effects *fx)
{
    a->state = AGENT_HOLDING;
    a->held = 0;
    a->sent = SIGTERM;
    agent_add_effect(fx, AGENT_DO_HOLD);
}

void agent_break_round(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
{
    if (ev->holds)
        agent_hold(a, fx);
    else
        agent_stop_by(a, CRUN_STOP_FAILURE, 0, false, fx);
}

void agent_check_held(struct agent *a, struct agent_effects *fx)
{
    if (a->state == AGENT_HOLDING && a->held == a->live)
        agent_clear_rest(a, fx);
}

void agent_on_held(struct agent *a, struct agent_effects *fx)
{
    if (a->state != AGENT_HOLDING || a->clearing)
        return;
    a->held++;
    agent_check_held(a, fx);
}
