/* The rounds of this node: what begins when one does, what its workers report, and how long a restart took. */
#ifndef CRUN_LAUNCHER_ROUND_H
#define CRUN_LAUNCHER_ROUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "launcher/workers/group.h"

struct err;
struct rdzv_news;
struct run;

int round_open(struct run *r, struct err *e); /* sets r->round */
void round_close(struct run *r);

extern const struct group_events round_events; /* their arg is the struct run */

/* AGENT_DO_SPAWN: begin this round and start its workers. What fails is posted as AGENT_SPAWN_FAILED. */
void round_begin(struct run *r, const struct rdzv_news *news);
/* This node, which can start nothing (struct config.cannot), has waited long enough for the others to end with it. */
void round_give_up(struct run *r);

const struct rdzv_news *round_news(const struct run *r); /* of the newest round, zeroed before the first */
bool round_has_own_output(const struct run *r);          /* its folders are named after it */
int round_previous_base(const struct run *r);            /* rank of our first worker in the one before, -1: none */
bool round_is_started(const struct run *r);              /* all workers execute their program (or did) */
bool round_is_unstarted(const struct run *r);            /* they cannot be started, and that is reported */
int round_restarts(const struct run *r);                 /* of the job, as far as this node has heard */

/* The times of a restart (observe/timeline.h): a worker failed, or the rendezvous reported a failure; the cause is
 * known and the rendezvous informed; the line is printed, unless it is already, or the round is no restart. */
void round_break(struct run *r, int64_t woken_ns, const char *cause);
void round_note_detected(struct run *r);
void round_print_times(struct run *r);

/* On group rank 0, for programs that do not report their steps: so many of PyTorch's clients have read a key of the
 * round's store. When all ranks but one have, what they meet for has come: each but the one that wrote it waits for a
 * key of another. */
void round_note_met(void *run, size_t readers);

void round_print_stopped(struct run *r, const char *why); /* and which workers ended neither well nor by our SIGTERM */

#endif
