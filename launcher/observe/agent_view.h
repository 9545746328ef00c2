/* What an agent shows of itself: a snapshot. The agent fills one for each request; agent_http.c and agent_metrics.c
 * only read it. */
#ifndef CRUN_LAUNCHER_AGENT_VIEW_H
#define CRUN_LAUNCHER_AGENT_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "launcher/output/logmux.h"

struct crun_page;
struct event_figures;
struct failure_worker;

struct agent_view { /* pointers are borrowed until the answer has been made */
    const char *run_id, *node, *host, *role;
    const char *const *states; /* names of all states of an agent */
    int n_states, state;       /* state: index of the current one */
    bool ready;                /* all workers of this node run */
    char waits_for[640];       /* if not ready: what the agent waits for, for people */
    bool preempted;            /* a preemption notice came */

    uint64_t round; /* the newest, 0: none yet */
    bool in_round;  /* a round is on; if not, the next three mean nothing */
    int world_size, nodes, group_rank;
    int restarts; /* restarts used up, as far as this node has heard */
    int64_t max_restarts;

    const char *rendezvous, *endpoint; /* its kind and its address, without secrets */
    bool hosts;                        /* this agent does */
    bool dials, connected;             /* the rendezvous is reached by a connection; that connection is up */

    int workers;                       /* of this node */
    const struct failure_worker *list; /* of them; zeroed before the first round */
    bool waiting, stopping, started; /* workers wait for a round; are being stopped; have all executed their program */
    const struct crun_page *(*page)(const void *arg, int local); /* shared with this worker; NULL: none */
    const void *arg;

    const struct event_figures *figures;
    struct logmux_figures logs;
};

#endif
