/* One process a rank, forked from this one, which then watches over them.
 *
 *   - the first rank that fails ends all: SIGTERM, and SIGKILL GRACE_MS later
 *   - signals to the parent go to every rank
 *   - a parent that is killed takes the ranks with it (PDEATHSIG)
 * Ranks are not started again: that is crun's trade. What several of them end with is said once. */
#ifndef CRUN_WORKER_SPAWN_H
#define CRUN_WORKER_SPAWN_H

#include <stdbool.h>

struct err;

/* Before any thread is started. Returns in every rank with its number in *ret_rank, and in the parent, with -1 there,
 * after all have ended: *ret_code is what to exit with, that of the rank that failed (128 + signal), EXIT_REQUEUE if
 * some stopped before the end, else 0. */
int spawn_ranks(int n, int *ret_rank, int *ret_code, struct err *e);

/* Is this rank the first to say the sentence, of those that spawn_ranks() made? True in a process that is none. */
bool spawn_says_first(const char *text);

#endif
