/* What the rendezvous says (agent.h). */
#include "common/include/crun.h"
#include "common/job/exitcode.h"
#include "launcher/agent/machine/agent_internal.h"
#include "launcher/config/stops.h"

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
    case AGENT_PARTING: /* a node that leaves knows its code better, unless its part was complete */
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

void agent_on_news(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
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

/* Another round may begin at any moment, or has: nobody gets a grace. */
void agent_on_fenced(struct agent *a, struct agent_effects *fx)
{
    if (agent_runs(a) || a->state == AGENT_STOPPING || a->state == AGENT_CLEARING) {
        a->state = AGENT_STOPPING; /* what was complete no longer counts */
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

void agent_on_failed(struct agent *a, const struct agent_event *ev, struct agent_effects *fx)
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
