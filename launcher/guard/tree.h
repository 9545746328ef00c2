/* The process tree below this process: killing it to the last process.
 *
 * Works because guardian and agent are subreapers: whoever loses its parent, setsid'ed daemons included, becomes our
 * child, so "no children left" (ECHILD) means that nobody is left.
 *
 * No part of it is a child that was cloned without a signal for its end (beside.h): neither killed nor described with
 * it. Nobody else's is: whoever becomes our child later on is given such a signal by the kernel. */
#ifndef CRUN_LAUNCHER_TREE_H
#define CRUN_LAUNCHER_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Whether there is a /proc. Without it only children are found, slowly (whole trees by and by, as orphans become
 * children), nobody else's are, and tree_signal() reaches nobody. */
bool tree_has_proc(void);

/* SIGKILL every descendant that /proc shows now (procs.h). Returns how many lived; one born meanwhile is found by the
 * next call. */
int tree_kill(void);

/* The same for every descendant of that process, but not the process itself. */
int tree_kill_below(pid_t root);

/* The same for every descendant of this process but those and what is below them: how many there are, dead ones that
 * nobody has reaped left out. kill: SIGKILL to each. < 0: there is no /proc. */
int tree_others(const pid_t *kept, int n, bool kill);

/* SIGSTOP to every descendant of this process but `spared` and what is below them, parents first. go_on: SIGCONT,
 * parents last, as a crun among them would name workers of its own that it finds stopped. Returns how many ran: stop
 * them again until nobody does, as one may have forked meanwhile. < 0: there is no /proc. */
int tree_pause(const pid_t *spared, int n, bool go_on);

/* This signal to a descendant, or to those of its process group, if they catch or block it (/proc tells); to others it
 * would mean death. */
void tree_signal(pid_t pid, bool group, int signo);

/* The process catches or blocks the signal. False: it does not, or there is no /proc. */
bool tree_is_ready_for(pid_t pid, int signo);

/* The process was sent it and has not taken it yet. False: so it is not, or there is no /proc. */
bool tree_has_pending(pid_t pid, int signo);

/* True if this process has no child, dead or alive. */
bool tree_empty(void);

/* True if nobody lives, and none of the dead is ours to reap: those that are left belong to a debugger first. Who asks
 * so twice, TREE_DEAD_MS apart, has missed nobody. */
bool tree_is_dead(void);
#define TREE_DEAD_MS 50

/* Kill and reap until nobody is left or timeout_ms has passed. SIGCHLD must be blocked. Returns true if nobody is left,
 * or only dead ones that belong to a debugger first. */
bool tree_kill_all(int64_t timeout_ms);

/* The same, but not longer than stuck_ms while all that are left wait in the kernel. */
bool tree_kill_or_leave(int64_t timeout_ms, int64_t stuck_ms);

/* For whoever is not above them all: kill the descendants of root, but not `spared`, until none is alive or timeout_ms
 * has passed. Returns true if none is. They stay root's to reap. */
bool tree_end_below(pid_t root, pid_t spared, int64_t timeout_ms);

/* The first descendants still there, as "123 (name, state D in nfs_wait), ..." for a message about unkillable
 * processes. */
void tree_describe(char *out, size_t cap);

/* The same of one process; where its first thread has ended, of one that has not. */
#define TREE_ONE_MAX 144
void tree_describe_one(pid_t pid, char *out, size_t cap);

/* Between two looks at /proc while something is still dying: a death wakes us at once, a birth does not. */
#define TREE_RESCAN_MS 5

#endif
