/* What an agent shows of itself: a picture of this moment. The agent fills one for each request; agent_http.c and
 * agent_metrics.c only read it. */
#ifndef CRUN_LAUNCHER_AGENT_VIEW_H
#define CRUN_LAUNCHER_AGENT_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "launcher/output/logmux.h"

struct crun_page;
struct event_figures;
struct failure_worker;

struct agent_view { /* pointers are borrowed until the answer is made */
    const char *run_id, *node, *host, *role;
    const char *const *states; /* names of all states that an agent can be in */
    int n_states, state;       /* state: index of the current one */
    bool ready;                /* all workers of this node run */
    char waits_for[640];       /* not ready: what is waited for, for people */
    bool preempted;            /* a preemption notice came */

    uint64_t round; /* the newest, 0: none yet */
    bool in_round;  /* it is not over; else the next three say nothing */
    int world_size, nodes, group_rank;
    int restarts; /* used up, as far as this node has heard */
    int64_t max_restarts;

    const char *rendezvous, *endpoint; /* its kind and where it is, without secrets */
    bool hosts;                        /* this agent does */
    bool dials, connected;             /* a connection leads to the rendezvous; and stands */

    int workers;                       /* of this node */
    const struct failure_worker *list; /* of them; zeroed before the first round */
    bool waiting, stopping, started;   /* for a round; being stopped; all execute their program */
    const struct crun_page *(*page)(const void *arg, int local); /* shared with this worker; NULL: none */
    const void *arg;

    const struct event_figures *figures;
    struct logmux_figures logs;
};

#endif
