/* What happens to the agent, as lines of its event log (event_log.h) and as the figures its metrics show
 * (agent_http.h). */
#ifndef CRUN_LAUNCHER_EVENTS_H
#define CRUN_LAUNCHER_EVENTS_H

#include <stdint.h>

#include "launcher/agent/agent.h"

struct err;
struct failure_worker;
struct run;
struct timeline;

#define RESTART_PHASES(X)                                                                                              \
    X(detect, "detect", woken, told)                                                                                   \
    X(stop, "stop", told, gone)                                                                                        \
    X(rendezvous, "rendezvous", gone, round)                                                                           \
    X(spawn, "spawn", round, spawned)                                                                                  \
    X(first_step, "first_step", spawned, first_step)

/* Since this agent began. */
struct event_figures {
    int64_t state_ns; /* monotonic: when the agent's state began */
    uint64_t rounds, hangs, fenced, failed, restarts;
    double restart_s, last_s; /* of all restarts together; of the last one */
#define X(field, name, from, to) double field##_s;
    RESTART_PHASES(X) /* of the last one */
#undef X
};

int events_open(struct run *r, struct err *e); /* sets r->events; NULL where nobody wants any */
void events_close(struct run *r);

void events_state(struct run *r, enum agent_state before, enum agent_event_kind why);
void events_round(struct run *r, const struct rdzv_news *before); /* r->round begins; before: the one before it */
void events_started(struct run *r);                               /* every worker executes its program */
void events_exited(struct run *r, const struct failure_worker *w);
void events_stop(struct run *r, int reason, int64_t grace_ms);
void events_gone(struct run *r); /* nobody of the round is left */
void events_restart(struct run *r, const struct timeline *t);
void events_hang(struct run *r, int rank, const char *text);
void events_fenced(struct run *r, const char *why);
void events_signal(struct run *r, int signo, const char *meaning);
void events_ended(struct run *r, int code);

#endif
