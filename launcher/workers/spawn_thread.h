/* Spawns processes on threads that live as long as the agent (PDEATHSIG follows the thread that cloned): a program,
 * script or folder on a disk that hangs blocks these threads, not the loop. There are several, because a thread
 * waits for each exec, and execs on different processors do not delay each other. */
#ifndef CRUN_LAUNCHER_SPAWN_THREAD_H
#define CRUN_LAUNCHER_SPAWN_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "common/base/err.h"
#include "launcher/workers/spawn.h"

struct spawn_thread;

struct spawned {
    pid_t pid;
    int pidfd;
};

/* Processes to start. Belongs to the threads from spawn_thread_start() to done(). */
struct spawn_batch {
    const struct spawn_request *requests; /* borrowed, room for all that will come */
    struct spawned *spawned;              /* likewise, zeros; pid 0: not started */
    int n;                                /* requests that are ready: spawn_thread_add() */
    int n_begun, n_ended;                 /* of these, in order */
    bool is_complete;                     /* no more will come: spawn_thread_complete() */
    int rc; /* error of the first request that could not be prepared or started; after that no further one is begun */
    struct err e;
    atomic_bool cancelled;               /* by anybody: no further one */
    void (*done)(struct spawn_batch *b); /* on the loop's thread */
};

/* Start the threads: one more than crun has processors, because each waits until its child has exec'ed, and then for
 * a processor that the new worker uses; at most SPAWN_THREADS_MAX, and at most `workers`; fewer, but at least one,
 * if the system gives no more. On failure *ret is unchanged, and the loop must turn once more. */
#define SPAWN_THREADS_MAX 4
int spawn_thread_create(struct spawn_thread **ret, uv_loop_t *loop, int workers, struct err *e);
/* Start a batch; one at a time. It starts requests that are ready while the caller prepares the rest:
 * spawn_thread_complete() must follow. */
void spawn_thread_start(struct spawn_thread *t, struct spawn_batch *b);
/* requests[b->n] is ready. */
void spawn_thread_add(struct spawn_thread *t, struct spawn_batch *b);
/* No more requests come. rc < 0, with e: a request could not be prepared, and the batch fails with that. */
void spawn_thread_complete(struct spawn_thread *t, struct spawn_batch *b, int rc, const struct err *e);
/* True if no process is being made, and none will be before the next batch. NULL allowed. */
bool spawn_thread_is_idle(struct spawn_thread *t);
/* NULL allowed; the loop must turn once more afterwards. The threads end with the process, because they may hang in
 * a batch. */
void spawn_thread_close(struct spawn_thread *t);

#endif
