/* Turns what happens to the agent into lines of its event log (event_log.h) and into the figures of its metrics
 * (agent_http.h).
 *
 * The agent calls one function for each thing that happens. Each updates the figures, and writes a line if lines are
 * wanted (--event-log, --event-log-handler console). Nothing is asked of the agent. Loop thread only. */
#ifndef CRUN_LAUNCHER_EVENTS_H
#define CRUN_LAUNCHER_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/rdzv/machine/rdzv.h"

struct err;
struct events;
struct failure_worker;
struct logmux;
struct timeline;

#define RESTART_PHASES(X)                                                                                              \
    X(detect, "detect", woken, detected)                                                                               \
    X(stop, "stop", detected, gone)                                                                                    \
    X(rendezvous, "rendezvous", gone, round)                                                                           \
    X(spawn, "spawn", round, spawned)                                                                                  \
    X(met, "met", spawned, met)                                                                                        \
    X(first_step, "first_step", spawned, first_step)

/* Since this agent began. */
struct event_figures {
    int64_t state_ns; /* monotonic: when the agent's state began */
    uint64_t rounds, hangs, fenced, failed, restarts;
    double restart_s, last_s; /* sum of all restarts; the last one */
#define X(field, name, from, to) double field##_s;
    RESTART_PHASES(X) /* of the last one */
#undef X
};

struct events_options { /* strings are borrowed */
    struct logmux *mux;
    bool file, console; /* where lines go: logmux_options.event_log, crun's own lines */
    const char *run_id, *node, *host, *program;
    int workers, min_nodes, max_nodes;
    int64_t max_restarts;
    const char *rendezvous, *endpoint; /* its kind and its address, without secrets */
};

int events_open(struct events **ret, const struct events_options *o, struct err *e);
void events_close(struct events *ev); /* NULL allowed */
const struct event_figures *events_figures(const struct events *ev);

/* The agent's state changed from `before` to `now`; all three are names. */
void events_state(struct events *ev, const char *before, const char *now, const char *because);
void events_round(struct events *ev, const struct rdzv_news *news);                  /* the round begins here */
void events_started(struct events *ev, const struct failure_worker *workers, int n); /* all execute the program */
/* first: the worker ended while others were being started, so its start has not been logged yet. */
void events_exited(struct events *ev, const struct failure_worker *w, bool first);
void events_stop(struct events *ev, int reason, int64_t grace_ms); /* enum crun_stop_reason */
void events_gone(struct events *ev);                               /* no process of the round is left */
void events_restart(struct events *ev, const struct timeline *t);
void events_hang(struct events *ev, int rank, const char *text);
/* why: "data"; peer -1: not a link */
void events_straggler(struct events *ev, int rank, int peer, const char *why, uint64_t step, const char *text);
void events_fenced(struct events *ev, const char *why);
void events_signal(struct events *ev, int signo, const char *meaning);
/* this node will be taken away; option: the one that announced it */
void events_notice(struct events *ev, const char *option);
void events_ended(struct events *ev, int code, int restarts, const char *cause); /* the job; cause "": none given */

#endif
