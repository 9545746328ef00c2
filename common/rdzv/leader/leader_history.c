/* What happened to a job, for people: the last events with their causes, and the restarts. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/utf8.h"
#include "common/rdzv/leader/leader_impl.h"

static void note(struct leader *l, int64_t now, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void note(struct leader *l, int64_t now, const char *fmt, ...)
{
    struct leader_happening *h = &l->history.events[l->history.event_count++ % LEADER_EVENTS];
    va_list ap;
    h->at_ms = now - l->history.started_ms;
    h->round = rdzv_round(l->machine);
    va_start(ap, fmt);
    vsnprintf(h->text, sizeof h->text, fmt, ap);
    va_end(ap);
    utf8_clean(h->text); /* a cause comes from a node, and may be cut within a character */
}

struct leader_before leader_before_(const struct leader *l)
{
    if (!l->machine)
        return (struct leader_before){.state = RDZV_JOINING};
    return (struct leader_before){rdzv_state(l->machine), rdzv_round(l->machine), rdzv_restarts(l->machine)};
}

static void note_event(struct leader *l, const struct rdzv_event *ev, int64_t now)
{
    switch (ev->kind) {
    case RDZV_JOIN:
        note(l, now, "node %s joined with %d slots from %s", ev->node, ev->slots, ev->addr);
        break;
    case RDZV_FAIL:
        note(l, now, "node %s reports a failure: %s", ev->node, ev->cause.text);
        break;
    case RDZV_DONE:
        note(l, now, "node %s is done", ev->node);
        break;
    case RDZV_LEAVE:
        if (ev->cause.exit_code)
            note(l, now, "node %s leaves (exit code %d): %s", ev->node, ev->cause.exit_code, ev->cause.text);
        else
            note(l, now, "node %s leaves in good order", ev->node);
        break;
    case RDZV_GONE:
        note(l, now, "node %s is gone", ev->node);
        break;
    case RDZV_SILENT:
        note(l, now, "node %s is silent", ev->node);
        break;
    case RDZV_RESUME:
        note(l, now, "node %s is back", ev->node);
        break;
    case RDZV_DRAIN:
        note(l, now, "%s", ev->cause.exit_code ? ev->cause.text : "drain");
        break;
    case RDZV_TICK:
        break;
    }
}

/* The cause of this step, from the news that the step made. */
static const struct rdzv_cause *cause_of(const struct leader *l)
{
    static const struct rdzv_cause none = {.rank = -1};
    return l->fx.n ? &l->fx.v[0].news.cause : &none;
}

static void note_restart(struct leader *l, const struct leader_before *before, int64_t now)
{
    struct leader_restart *r = &l->history.restarts[l->history.restart_count++ % LEADER_RESTARTS];
    r->at_ms = now - l->history.started_ms;
    r->round = before->round;
    r->cause = *cause_of(l);
    utf8_clean(r->cause.text);
}

void leader_note_(struct leader *l, const struct leader_before *before, const struct rdzv_event *ev, int64_t now)
{
    enum rdzv_state state = rdzv_state(l->machine);
    note_event(l, ev, now);
    if (rdzv_restarts(l->machine) > before->restarts)
        note_restart(l, before, now);
    if (rdzv_round(l->machine) > before->round)
        note(l, now, "round %llu begins", (unsigned long long)rdzv_round(l->machine));
    else if (state != before->state)
        note(l, now, "%s%s%s", rdzv_state_name(state), cause_of(l)->text[0] ? ": " : "", cause_of(l)->text);
}
