/* The process tree below this process: killing it to the last process.
 *
 * Works because guardian and agent are subreapers: a process that loses its parent becomes our child, even a daemon
 * after setsid(2). So "no children left" (ECHILD) means that nobody is left.
 *
 * A child that was cloned without an exit signal (beside.h) is not part of the tree: it is neither killed nor
 * described. Other processes cannot hide in this way: the kernel gives an exit signal to those that become our
 * children later. */
#ifndef CRUN_LAUNCHER_TREE_H
#define CRUN_LAUNCHER_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Is there a /proc? Without it only direct children are found, slowly (whole trees step by step, as orphans become
 * our children); tree_signal() then reaches nobody. */
bool tree_has_proc(void);

/* SIGKILL every descendant that /proc shows now (procs.h). Returns how many were alive; the next call finds one born
 * meanwhile. */
int tree_kill(void);

/* The same for every descendant of that process, but not the process itself. */
int tree_kill_below(pid_t root);

/* SIGKILL (if kill) every descendant of this process, except `kept` and what is below them. Returns how many there
 * are, not counting dead ones that nobody has reaped, and those that only hold the memory of a dead worker; < 0: there
 * is no /proc. */
int tree_others(const pid_t *kept, int n, bool kill);

/* SIGSTOP every descendant of this process except `spared` and what is below them, parents first. go_on: SIGCONT
 * instead, parents last, because a crun among them would report workers that it finds stopped. Returns how many were
 * running: repeat until none, as one may have forked meanwhile. < 0: there is no /proc. */
int tree_pause(const pid_t *spared, int n, bool go_on);

/* Send a signal to a descendant, or to those of its process group, if they catch or block it (/proc shows that);
 * others would be killed by it. */
void tree_signal(pid_t pid, bool group, int signo);

/* Does the process catch or block the signal? False, too, if there is no /proc. */
bool tree_is_ready_for(pid_t pid, int signo);

/* Is the signal pending in the process? False, too, if there is no /proc. */
bool tree_has_pending(pid_t pid, int signo);

/* True if this process has no child, dead or alive, but helpers. */
bool tree_empty(void);

/* qemu-user refuses a child without an exit signal. A helper that has one is told to this process's tree by its pid:
 * (0, pid) when it starts, (pid, 0) once it is reaped. False: the table is full, or has no such pid. */
bool tree_set_beside(pid_t before, pid_t after);
#define TREE_BESIDE_MAX 16

/* True if no process lives, and none of the dead is ours to reap: those that are left belong to a debugger first. A
 * caller that asks twice, TREE_DEAD_MS apart, has missed none. */
bool tree_is_dead(void);
#define TREE_DEAD_MS 50

/* Kill and reap until nobody is left, or timeout_ms has passed. SIGCHLD must be blocked. Returns true if nobody is
 * left, except dead processes that belong to a debugger first. */
bool tree_kill_all(int64_t timeout_ms);

/* The same, but at most stuck_ms while all that are left wait in the kernel. */
bool tree_kill_or_leave(int64_t timeout_ms, int64_t stuck_ms);

/* For a process that is not above the tree: kill the descendants of root, except `spared`, until none is alive or
 * timeout_ms has passed. Returns true if none is. Root has to reap them. */
bool tree_end_below(pid_t root, pid_t spared, int64_t timeout_ms);

/* The first descendants still there, as "123 (name, state D in nfs_wait), ..." for a message about unkillable
 * processes. */
void tree_describe(char *out, size_t cap);

/* The same for one process; if its first thread has ended, for a live thread. */
#define TREE_ONE_MAX 144
void tree_describe_one(pid_t pid, char *out, size_t cap);

/* ms between two looks at /proc while something is dying: a death wakes us at once, a birth does not. */
#define TREE_RESCAN_MS 5

#endif
