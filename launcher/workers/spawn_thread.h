/* Spawning on threads of its own, which live as long as the agent (PDEATHSIG follows the thread that cloned): a
 * program, script or folder on a disk that hangs holds up these threads, and not the loop. There are several, as a
 * thread waits for each exec, and execs of different processors do not hinder each other. */
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

/* Processes to start. The threads' between spawn_thread_start() and done(). */
struct spawn_batch {
    const struct spawn_request *requests; /* borrowed, room for all that will come */
    struct spawned *spawned;              /* likewise, zeros; pid 0: not started */
    int n;                                /* requests that are ready: spawn_thread_add() */
    int n_begun, n_ended;                 /* of these, in order */
    bool is_complete;                     /* no more will come: spawn_thread_complete() */
    int rc; /* of the first that could not be prepared or made; once it is known no other one is begun */
    struct err e;
    atomic_bool cancelled;               /* by anybody: no further one */
    void (*done)(struct spawn_batch *b); /* on the loop's thread */
};

/* One thread more than there are processors for crun, as each waits until its child has exec'ed, and then for a
 * processor that the new worker has; SPAWN_THREADS_MAX and workers at most; fewer, but one, where the system gives no
 * more. On failure *ret is as it was, and the loop must turn once more. */
#define SPAWN_THREADS_MAX 4
int spawn_thread_create(struct spawn_thread **ret, uv_loop_t *loop, int workers, struct err *e);
/* One batch at a time. It starts what is ready, while the caller prepares the rest: spawn_thread_complete() must
 * follow. */
void spawn_thread_start(struct spawn_thread *t, struct spawn_batch *b);
/* requests[b->n] is ready. */
void spawn_thread_add(struct spawn_thread *t, struct spawn_batch *b);
/* rc < 0, with e: another one could not be prepared, and the batch fails with that. */
void spawn_thread_complete(struct spawn_thread *t, struct spawn_batch *b, int rc, const struct err *e);
/* No process is being made, nor will be before the next batch. NULL allowed. */
bool spawn_thread_is_idle(struct spawn_thread *t);
/* NULL allowed; the loop turns once more after it. The threads go with the process: they may hang in a batch. */
void spawn_thread_close(struct spawn_thread *t);

#endif
