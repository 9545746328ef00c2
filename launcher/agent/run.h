/* A run of the agent: what does not change while it lasts, the machine, and the parts that do the work. Each part is a
 * struct in a file of its own, and others use only its functions. For this room alone: other rooms get what they need
 * by options and callbacks.
 *
 *     signals, member, round, hangs ──run_post()──► effects ──agent_step()──► agent
 *                                                      │
 *     round, member, signals, group ◄── the effects ───┘ */
#ifndef CRUN_LAUNCHER_RUN_H
#define CRUN_LAUNCHER_RUN_H

#include <stdbool.h>
#include <uv.h>

#include "launcher/agent/machine/agent.h"
#include "launcher/base/oom.h"
#include "launcher/output/log_layout.h"

struct agent_http;
struct agent_view;
struct answers;
struct config;
struct effects;
struct events;
struct failure_report;
struct group;
struct guardian_link;
struct hang_watch;
struct hangs;
struct logmux;
struct member;
struct notices;
struct program;
struct round;
struct signals;
struct stragglers;
struct turns;
struct worker_setup;

struct run {
    const struct config *config;
    const struct program *program;
    const struct guardian_link *link;
    const struct cgroup_tables *cgroups;  /* of this process */
    struct oom_kills oom;                 /* of the workers */
    char node[RDZV_ID_MAX + 1], host[65]; /* HOST_NAME_MAX */
    bool shares_terminal;                 /* with its one worker */
    uv_loop_t loop;
    struct log_layout logs;
    bool logs_moved;    /* the user named no folder, and the default cannot be written: logs are in a private one */
    char scratch[1024]; /* temporary folder of error records and stacks; "": none */

    struct agent agent;         /* only effects.c steps it */
    struct effects *effects;    /* the queue of the machine's events, and its effects */
    struct turns *turns;        /* measures whether the loop runs */
    struct notices *notices;    /* that this node will be taken away */
    struct signals *signals;    /* stop signals, the guardian's end, the crun that started this one */
    struct member *member;      /* this node as a member of the job: rendezvous and bootstrap store */
    struct round *round;        /* the current round, and the times of the restart that began it */
    struct worker_setup *setup; /* cores, cgroup, environment and arguments of the workers */
    struct group *group;        /* the workers: workers/group.h */

    struct logmux *mux;              /* output/logmux.h */
    struct hang_watch *hang;         /* hang/hang_watch.h; NULL: not watched */
    struct hangs *hangs;             /* and the way to group rank 0 */
    struct stragglers *stragglers;   /* watches for stragglers (straggler/straggler_watch.h), and acts on them */
    struct failure_report *failures; /* report/failure_report.h */
    struct events *events;           /* observe/events.h */
    struct answers *answers;         /* answer/answers.h */
    struct agent_http *http;         /* observe/agent_http.h; NULL: none */
};

/* view.c: the agent as status pages see it (observe/agent_view.h); for struct agent_http_options.look */
void view_fill(void *run, struct agent_view *ret);

#endif
