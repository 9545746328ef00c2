/* The rounds of this node: starts the parts of a round, handles what its workers report, and measures how long a
 * restart took. */
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

/* AGENT_DO_SPAWN: begin this round and start its workers. Failures are posted as AGENT_SPAWN_FAILED. */
void round_begin(struct run *r, const struct rdzv_news *news);
/* This node, which cannot start anything (struct config.cannot), has waited long enough for the others. */
void round_give_up(struct run *r);

const struct rdzv_news *round_news(const struct run *r); /* news of the newest round, zeroed before the first */
bool round_has_own_output(const struct run *r);          /* its folders are named after it */
int round_previous_base(const struct run *r);            /* rank of our first worker in the round before, -1: none */
bool round_is_started(const struct run *r);              /* all workers execute their program (or did) */
bool round_is_unstarted(const struct run *r);            /* its workers cannot be started, and that has been printed */
int round_restarts(const struct run *r);                 /* restarts of the job, as far as this node has heard */

/* The times of a restart (observe/timeline.h). round_break(): a worker failed, or the rendezvous reported a failure.
 * round_note_detected(): the cause is known, and the rendezvous has been told. round_print_times(): print the line,
 * unless it was printed, or the round is not a restart. */
void round_break(struct run *r, int64_t woken_ns, const char *cause);
void round_note_detected(struct run *r);
void round_print_times(struct run *r);

/* On group rank 0, for programs that do not report their steps: `readers` of PyTorch's clients have read a key of
 * the round's store. Once all ranks but one have, the ranks have met: each waits for a key of another, except the
 * one that wrote it. */
void round_note_met(void *run, size_t readers);

/* also prints which workers ended neither with 0 or 75 nor by our SIGTERM */
void round_print_stopped(struct run *r, const char *why);

#endif
