/* A cgroup of the job, below crun's own, and in it one for each round: killing all of a round, whatever it forked, is
 * one write. Whoever is cloned into a cgroup that was once killed is killed, too (seen with Linux 6.18, which compares
 * how often its parent's own was), so no round can have that of another one.
 *
 * Only the v2 tree, found through mountinfo (hybrid systems mount it at /sys/fs/cgroup/unified). No controller is used,
 * so none has to be enabled. Where none can be made (a read-only tree, as in most containers; no permission; a kernel
 * without cgroup.kill, < 5.14) crun works without: guardian and agent are subreapers and find every descendant through
 * /proc (tree.h). That path stays the one that decides whether somebody is left; this one is quicker, and cannot be
 * outrun by a process that forks all the time.
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

/* t: of this process. shared: GUARDIAN_PATH_MAX bytes for the folder's path, which the guardian reads; empty on
 * failure. -errno with a sentence. Some 50 us. */
int cgroup_create(struct cgroup **ret, const struct cgroup_tables *t, char *shared, struct err *e);

/* The cgroup of the next round. -errno. */
int cgroup_begin_round(struct cgroup *c, uint64_t round, struct err *e);

/* Removes that of the round before, if it is empty: once the workers of this one run, for it takes half as long as to
 * make one. NULL is fine. */
void cgroup_tidy(struct cgroup *c);

/* For CLONE_INTO_CGROUP; -1: c is NULL or no round has begun. The cgroup's own. */
int cgroup_fd(const struct cgroup *c);

/* SIGKILL to everybody in the round's cgroup and below it. False if that was not possible (or c is NULL). */
bool cgroup_kill(struct cgroup *c);

/* Nobody may be left. What cannot be removed now is the guardian's to remove. NULL is fine. */
void cgroup_destroy(struct cgroup *c);

/* The guardian's: by the path in shared, which may be empty. */
bool cgroup_kill_at(const char *path);
void cgroup_remove_at(char *path); /* waits up to a second for the last ones to leave; *path becomes "" */

#endif
