/* The deputy: a third process, which acts only if guardian and agent cannot.
 *
 *   - the guardian was killed, and the agent is stopped, spins, or is held by a debugger: the deputy kills all that is
 *     below the agent, then the agent;
 *   - the same if the one that is left had begun to kill everybody, and was stopped then;
 *   - the agent was killed, and the guardian does not act: direct workers died with their parent (PDEATHSIG); the
 *     deputy kills what they left below the guardian;
 *   - both stand still, and the lease is over by DEPUTY_LATE_MS: it kills all that is below the agent, as the guardian
 *     would have;
 *   - both were killed: it kills and removes the cgroup, if there is one, and kills what the workers left in their
 *     sessions (roster.h). Without a cgroup, processes in sessions of their own live on.
 *
 * As long as one of the two lives, even if it is stopped, it is a subreaper above all workers and their daemons: a walk
 * down from it finds them all. The deputy is a helper (neighbours.h): another one replaces it if it dies. It is ended
 * last, without a walk through /proc. If it is stopped, it is continued when the guardian dies (PDEATHSIG).
 *
 * The output process stands in for a deputy that was killed together with one of the two: a thread of it then does
 * all of this but the watch over the lease, a little later. */
#ifndef CRUN_LAUNCHER_DEPUTY_H
#define CRUN_LAUNCHER_DEPUTY_H

#include <sys/types.h>

#define DEPUTY_LATE_MS 500 /* after the guardian (GUARDIAN_LATE_MS), and within the rendezvous' second for the kill */

struct guardian_link;

struct deputy {
    const struct guardian_link *link;
    pid_t guardian, agent;
    int guardian_fd; /* readable once the guardian is gone, or nobody is left */
    int agent_fd;    /* pidfd */
};

/* Run the deputy to its end. Returns its exit code. */
int deputy_run(const struct deputy *d);

/* In the output process, when guardian or agent is gone: act as the deputy in a thread. d is copied; its descriptors
 * must stay open. */
void deputy_stand_in(const struct deputy *d);

/* Before the output process ends: if the guardian is gone, wait until the stand-in deputy has acted, a minute at
 * most. (The agent that it kills is what this process waited for.) */
void deputy_stand_in_wait(void);

#endif
