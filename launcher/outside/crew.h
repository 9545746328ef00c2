/* The room outside/: for commands that look at a job from outside. crew.h finds the processes of a crun on this
 * machine in /proc; whom.h finds the server that answers for a job; ask_options.h has the options for that. */
#ifndef CRUN_LAUNCHER_CREW_H
#define CRUN_LAUNCHER_CREW_H

#include <stdbool.h>
#include <sys/types.h>

struct procs;

/* The agent among the processes below a guardian; 0: there is none. */
pid_t crew_agent(const struct procs *below, pid_t guardian);

/* Is it a worker? False: it is not, or may not be looked at. *ret: its rank in the newest round; -1: a spare. */
bool crew_rank(pid_t pid, int *ret);

#endif
