/* What happened to a job, for people: the last events with their causes, and the restarts. */
#include "common/base/log.h"
#include "rendezvousd/jobs/jobs_impl.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void note(struct job *job, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void note(struct job *job, const char *fmt, ...)
{
    struct happening *h = &job->events[job->event_count++ % JOBS_EVENTS];
    va_list ap;
    h->at_ms = job->jobs->o.now() - job->started_ms;
    h->round = rdzv_round(job->machine);
    va_start(ap, fmt);
    vsnprintf(h->text, sizeof h->text, fmt, ap);
    va_end(ap);
}

struct job_before job_before_(const struct job *job)
{
    return (struct job_before){rdzv_state(job->machine), rdzv_round(job->machine), rdzv_restarts(job->machine)};
}

static void note_event(struct job *job, const struct rdzv_event *ev)
{
    switch (ev->kind) {
    case RDZV_JOIN:
        note(job, "node %s joined with %d slots from %s", ev->node, ev->slots, ev->addr);
        break;
    case RDZV_FAIL:
        note(job, "node %s reports a failure: %.100s", ev->node, ev->cause.text);
        break;
    case RDZV_DONE:
        note(job, "node %s is done", ev->node);
        break;
    case RDZV_LEAVE:
        if (ev->cause.exit_code)
            note(job, "node %s leaves: %.100s", ev->node, ev->cause.text);
        else
            note(job, "node %s leaves in good order", ev->node);
        break;
    case RDZV_GONE:
        note(job, "node %s is gone", ev->node);
        break;
    case RDZV_SILENT:
        note(job, "node %s is silent", ev->node);
        break;
    case RDZV_RESUME:
        note(job, "node %s is back", ev->node);
        break;
    case RDZV_DRAIN:
        note(job, "drain");
        break;
    case RDZV_TICK:
        break;
    }
}

/* The cause stands in the news that the step has made. */
static const struct rdzv_cause *cause_of(const struct job *job)
{
    static const struct rdzv_cause none = {.rank = -1};
    const struct rdzv_effects *fx = &job->jobs->fx;
    return fx->n ? &fx->v[0].news.cause : &none;
}

static void note_restart(struct job *job, const struct job_before *before)
{
    struct job_restart *r = &job->restarts[job->restart_count++ % JOBS_RESTARTS];
    r->at_ms = job->jobs->o.now() - job->started_ms;
    r->round = before->round;
    r->cause = *cause_of(job);
}

void job_note_(struct job *job, const struct job_before *before, const struct rdzv_event *ev)
{
    enum rdzv_state now = rdzv_state(job->machine);
    note_event(job, ev);
    if (rdzv_restarts(job->machine) > before->restarts)
        note_restart(job, before);
    if (rdzv_round(job->machine) > before->round) {
        note(job, "round %llu begins", (unsigned long long)rdzv_round(job->machine));
        log_info("jobs", "run=%s round %llu begins nodes=%d", job->run, (unsigned long long)rdzv_round(job->machine),
                 rdzv_nodes(job->machine));
    } else if (now != before->state) {
        note(job, "%s%s%.100s", rdzv_state_name(now), cause_of(job)->text[0] ? ": " : "", cause_of(job)->text);
    }
}
