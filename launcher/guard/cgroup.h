/* A cgroup of the job, below crun's own, and in it one for each round: one write kills everything of a round, whatever
 * it forked. Each round needs a new one: a process that is cloned into a cgroup that was killed before is killed, too
 * (seen with Linux 6.18).
 *
 * Only the v2 tree, found through mountinfo (hybrid systems mount it at /sys/fs/cgroup/unified). No controller is used,
 * so none has to be enabled. If none can be made (a read-only tree, as in most containers; no permission; a kernel
 * without cgroup.kill, < 5.14) crun works without: guardian and agent are subreapers and find every descendant through
 * /proc (tree.h). /proc always decides whether somebody is left; the cgroup is quicker, and a process that forks all
 * the time cannot escape it.
 *
 * The agent makes and removes them; the guardian kills and removes what a dead agent left; the next crun in the same
 * cgroup removes what both left that were killed at once. */
#ifndef CRUN_LAUNCHER_CGROUP_H
#define CRUN_LAUNCHER_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cgroup;
struct cgroup_tables; /* cgroup_path.h */
struct err;

/* Create the job's cgroup. t: tables of this process. shared: GUARDIAN_PATH_MAX bytes for the folder's path, which
 * the guardian reads; empty on failure. -errno with a sentence. Takes about 50 us. */
int cgroup_create(struct cgroup **ret, const struct cgroup_tables *t, char *shared, struct err *e);

/* The cgroup of the next round. -errno. */
int cgroup_begin_round(struct cgroup *c, uint64_t round, struct err *e);

/* Remove the cgroup of the round before, if it is empty. Call it once the workers of this round run: it takes half
 * as long as making one. c may be NULL. */
void cgroup_tidy(struct cgroup *c);

/* Descriptor for CLONE_INTO_CGROUP; the cgroup owns it. -1: c is NULL, or no round has begun. */
int cgroup_fd(const struct cgroup *c);

/* SIGKILL every process in the round's cgroup and below it. False if that was not possible (or c is NULL). */
bool cgroup_kill(struct cgroup *c);

/* Remove the cgroups; no process may be left. The guardian removes what cannot be removed now. c may be NULL. */
void cgroup_destroy(struct cgroup *c);

/* For the guardian: kill by the path in `shared`, which may be empty. */
bool cgroup_kill_at(const char *path);
void cgroup_remove_at(char *path); /* waits up to a second for the last processes to leave; *path becomes "" */

#endif
