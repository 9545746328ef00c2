/* The process that writes for the daemon (common/rdzv/homes/home_process.h): one for all its directories. Started with
 * the first door, and again when it has died. */
#ifndef CRUN_RENDEZVOUSD_STATE_PROCESS_H
#define CRUN_RENDEZVOUSD_STATE_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

struct state_process {
    pid_t pid;
    int fd; /* where it is asked; -1: there is none */
};

/* A door to a thread there that serves this directory (state_writer.h): a stream socket, not blocking, the caller's.
 * -errno. */
int state_process_door(struct state_process *p, const char *path);

/* A door of it broke: has the process died, as it may still be about to, the next door starts another one. Waits for
 * that, 20 ms at most. */
void state_process_broke(struct state_process *p);

/* Nobody asks any more: it ends once it has written what it was sent. Waits for that, so long at most. */
void state_process_end(struct state_process *p, int64_t most_ms);

#endif
