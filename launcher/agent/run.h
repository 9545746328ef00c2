/* The inside of the agent, for what a run is made of: its loop and effects, member, rounds, events, hangs, reports of
 * failures, HTTP. */
#ifndef CRUN_LAUNCHER_RUN_H
#define CRUN_LAUNCHER_RUN_H

#include <stdbool.h>
#include <uv.h>

#include "launcher/agent/agent.h"
#include "launcher/observe/timeline.h"
#include "launcher/output/log_layout.h"
#include "launcher/place/placement.h"
#include "launcher/rendezvous/bootstrap.h"
#include "launcher/workers/group.h"

struct cgroup;
struct config;
struct agent_http;
struct events;
struct failure_report;
struct guardian_link;
struct hang_watch;
struct logmux;
struct program;
struct rendezvous;
struct watch;

#define RUN_QUEUE_MAX 64

struct run {
    const struct config *config;
    const struct program *program;
    const struct guardian_link *link;
    uv_loop_t loop;
    struct agent agent;
    struct agent_event queue
        [RUN_QUEUE_MAX]; /* events that callbacks leave; pump() applies them, so that no step runs within another */
    unsigned queue_first, queue_last;
    bool pumping;
    struct rendezvous *rendezvous;
    int rdzv_fd; /* the connection that stands for this node, -1: none */
    struct bootstrap store;
    struct failure_report *failures;
    char *members;         /* every address of every node, on group rank 0 */
    char master_addr[256]; /* where the workers of the round meet */
    int master_port;
    char store_url[280];
    uv_timer_t report, take_over;
    uint64_t last_round;  /* that this node was told of, as a member or not */
    struct rdzv_news end; /* zeroed until the job is over */
    bool said_joined;     /* to the crun that started this one */
    bool refused;         /* the rendezvous does not take this node, and that is said */
    bool shares_terminal; /* with its one worker */
    bool preempted;       /* a preemption notice came */
    bool hurry;           /* a stop signal came after the end: wait for no other node */
    bool drops_console;   /* nor for the console: it was not the worker's too, which may have died of it */
    struct logmux *mux;
    struct group *group;
    struct hang_watch *hang; /* NULL: not watched */
    struct events *events;
    struct agent_http *http; /* NULL: none */
    char waits_for[320];     /* while this node joins, for people */
    struct cgroup *cgroup;   /* NULL: none */
    struct placement placement;
    bool set_omp;                               /* the workers are told their share of the cores */
    struct rdzv_news round;                     /* the current one */
    int prev_base;                              /* rank base of the round before, -1: none */
    struct watch *signals, *guardian, *control; /* control NULL: nobody else starts this crun */
    int signal_fd;
    uv_timer_t grace;
    int64_t grace_ms;         /* that it was started with */
    struct timeline timeline; /* of the restart that the current round is */
    struct timeline broken;   /* of the restart that follows, once a worker of the current round has failed */
    bool wait_first_step;     /* the workers of the broken round knew libcrun: their line waits for the first step */
    char node[RDZV_ID_MAX + 1], host[64];
    struct log_layout logs;
    char error_file[2304];
    char page_variable[32], omp_variable[32];
    const char *nccl_async;
    bool unspawned; /* the program could not be started, and that is said */
    bool failed;    /* the job ended badly, and that is to be reported */
    bool done;
    int exit_code;
};

/* Leave an event for the machine; run_pump() applies what is left, unless it is at work already. */
void run_post(struct run *r, const struct agent_event *ev);
void run_pump(struct run *r);

/* round.c */
extern const struct group_events round_events; /* their arg is the struct run */
void round_spawn(struct run *r, const struct rdzv_news *news);
void round_begin_timeline(struct run *r, int64_t woken_ns, const char *cause); /* the current round is broken */
void round_say_timeline(struct run *r);                 /* unless it is said, or the round is no restart */
const char *round_error_path(struct run *r, int rank);  /* of its error record; NULL: there is no place for one */
void round_say_stopped(struct run *r, const char *why); /* and which workers ended neither well nor by our SIGTERM */

#endif
