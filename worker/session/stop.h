/* How a worker learns that it should end (decision 0009).
 *
 *   failure, abort   the process ends at once from the signal thread: a peer is dead, nothing that it could save is
 *                    agreed upon
 *   resize, drain    a flag: ranks agree on a step in the next all-reduce, save, exit 75
 *   SIGTERM or SIGINT without crun: as drain; a second SIGINT a second later ends the process at once
 * While ranks still wait for each other there is nobody to agree with:
 *   5 s after the signal the process ends with 75 */
#ifndef CRUN_WORKER_STOP_H
#define CRUN_WORKER_STOP_H

#include <stdbool.h>
#include <stdint.h>

struct err;

/* Block SIGTERM and SIGINT in this and all later threads, and start the thread that waits for them. Call before any
 * other thread exists, after crun_init(). */
int stop_init(struct err *e);
bool stop_wanted(void);

/* The communicator stands: from now on a stop is agreed upon, however long the step takes. */
void stop_ranks_have_met(void);

/* After a collective failed: a peer may have died, and the launcher is about to say so. Wait up to timeout_ms for its
 * signal (which ends this process), so that the peer and not this rank is taken for the culprit. Returns if none comes.
 * Without crun: returns at once. */
void stop_await_verdict(int64_t timeout_ms);

#endif
