/* Spawning on a thread of its own, which lives as long as the agent (PDEATHSIG follows the thread that cloned): a
 * program, script or folder on a disk that hangs holds up this thread, and not the loop. */
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

/* Processes to start, one after the other. The thread's between spawn_thread_start() and done(). */
struct spawn_batch {
    const struct spawn_request *requests;
    struct spawned *spawned; /* likewise n; those before n_spawned are there */
    int n, n_spawned, rc;    /* rc: of the first that could not be made; the rest is not tried */
    struct err e;
    atomic_bool cancelled;               /* by anybody: no further one */
    void (*done)(struct spawn_batch *b); /* on the loop's thread */
};

int spawn_thread_create(struct spawn_thread **ret, uv_loop_t *loop, struct err *e);
/* One batch at a time. */
void spawn_thread_start(struct spawn_thread *t, struct spawn_batch *b);
/* No process is being made, nor will be before the next batch. NULL allowed. */
bool spawn_thread_is_idle(struct spawn_thread *t);
/* NULL allowed; the loop turns once more after it. The thread goes with the process: it may hang in a batch. */
void spawn_thread_close(struct spawn_thread *t);

#endif
