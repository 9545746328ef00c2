/* The process that writes for the daemon (common/rdzv/homes/home_process.h): one for all its directories. Started
 * with the first connection (door), and again when it has died. */
#ifndef CRUN_RENDEZVOUSD_STATE_PROCESS_H
#define CRUN_RENDEZVOUSD_STATE_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

struct state_process {
    pid_t pid;
    int fd; /* socket to it; -1: none */
};

/* Open a door: a connection to a thread of that process that serves this directory (state_writer.h). A non-blocking
 * stream socket; the caller closes it. -errno. */
int state_process_door(struct state_process *p, const char *path);

/* A door broke: if the process has died, or is about to, the next door starts another one. Waits 20 ms at most to
 * find out. */
void state_process_broke(struct state_process *p);

/* No more requests: the process ends once it has written what it was sent. Waits most_ms at most for that. */
void state_process_end(struct state_process *p, int64_t most_ms);

#endif
