/* The deputy: a third process, which does nothing until guardian and agent do not act.
 *
 *   - the guardian was killed, and the agent is stopped, spins, or is held by a debugger: the deputy kills all that is
 *     below the agent, then the agent;
 *   - likewise where the one that is left had begun to end everybody, and was stopped then;
 *   - the agent was killed, and the guardian does not act: direct workers died with their parent (PDEATHSIG); the
 *     deputy kills what they left below the guardian;
 *   - both stand still, and the lease is over by DEPUTY_LATE_MS: it kills all that is below the agent, as the guardian
 *     would have;
 *   - both were killed: it kills and removes the cgroup, where there is one. Daemons
 *     that workers made live on where there is no cgroup.
 *
 * As long as one of the two lives it is above all workers and their daemons (a subreaper), however little it does: so
 * the walk down from it finds them all. The deputy is a child of the guardian, beside the tree as those of beside.h:
 * ECHILD tells the guardian that the tree is dead with the deputy still there, which is ended last, without a walk
 * through /proc. Stopped, it goes on when the guardian dies (PDEATHSIG). */
#ifndef CRUN_LAUNCHER_DEPUTY_H
#define CRUN_LAUNCHER_DEPUTY_H

#include <sys/types.h>

#define DEPUTY_LATE_MS 500 /* after the guardian (GUARDIAN_LATE_MS), and within the rendezvous' second for the kill */

struct guardian_link;

/* In the guardian, after the agent, which so is its first child. Signals must be blocked. close_fds: n descriptors of
 * the guardian, not to be held by the deputy: sockets whose end tells others that the guardian is gone. Returns its
 * pid; 0: there can be none, and all holds but for two accidents at once. */
pid_t deputy_start(const struct guardian_link *l, pid_t agent, const int *close_fds, int n);

/* The guardian's, once nobody of the tree is left: end it, and later on take its exit, which is waited for 20 ms. 0 is
 * fine. */
void deputy_kill(pid_t deputy);
void deputy_reap(pid_t deputy);

#endif
