/* What must hold of an agent after each of its steps, whatever the order of events (agent.h). A broken rule is a
 * mistake of ours, and what would follow is worse than an end: workers that nobody kills, or two rounds at once. */
#include <assert.h>

#include "launcher/agent/machine/agent.h"

static int count(const struct agent_effects *fx, enum agent_effect_kind kind)
{
    int n = 0;
    for (int i = 0; i < fx->n; i++)
        n += fx->v[i].kind == kind;
    return n;
}

/* A state in which workers of a round run, or would be started. */
static bool wants_rounds(enum agent_state s)
{
    return s == AGENT_JOINING || s == AGENT_RUNNING || s == AGENT_HOLDING;
}

static void check_workers(const struct agent *a)
{
    const bool may_live = a->state == AGENT_JOINING || a->state == AGENT_RUNNING || a->state == AGENT_HOLDING ||
                          a->state == AGENT_STOPPING;
    assert(a->live >= 0 && a->live <= a->slots && a->held >= 0);
    assert(a->live == 0 || may_live || a->state == AGENT_OVER); /* OVER: some that SIGKILL did not end */
    assert(a->live > 0 || a->state != AGENT_RUNNING);
    assert(a->clearing || a->live > 0 || a->state != AGENT_STOPPING);      /* else nothing ends the stop */
    assert(a->clearing || a->held < a->live || a->state != AGENT_HOLDING); /* else nothing ends the hold */
    assert(a->clearing || !a->keeping);
}

static void check_parting(const struct agent *a)
{
    assert(!wants_rounds(a->state) || !a->signo);      /* who leaves gets no further round */
    assert(!wants_rounds(a->state) || !a->ended);      /* nor does a node whose job is over */
    assert(!wants_rounds(a->state) || !a->released);   /* nor one from which nothing is expected any more */
    assert(a->state != AGENT_PARTING || !a->released); /* else it waits for an answer that will not come */
    assert(a->state != AGENT_FINISHING || a->done);
    assert(!wants_rounds(a->state) || !a->done);
}

void agent_check(const struct agent *a, const struct agent_effects *fx)
{
    check_workers(a);
    check_parting(a);
    assert(count(fx, AGENT_DO_EXIT) == 0 || fx->v[fx->n - 1].kind == AGENT_DO_EXIT);
    assert(count(fx, AGENT_DO_EXIT) == 0 || a->state == AGENT_OVER);
    assert(count(fx, AGENT_DO_SPAWN) == 0 || (a->state == AGENT_RUNNING && a->live == a->slots));
    assert(count(fx, AGENT_DO_AWAIT) == 0 || a->state == AGENT_PARTING);
}
