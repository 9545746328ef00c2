/* The watcher: a process that does nothing until `crun chaos` is gone, for any reason. Then it ends all open faults:
 * it continues stopped processes, sets links up, and clocks right. A disk is filled by an unnamed file, which
 * disappears with its process. Only if both are killed in the same instant, something may be left. */
#ifndef CRUN_LAUNCHER_CHAOS_WATCHER_H
#define CRUN_LAUNCHER_CHAOS_WATCHER_H

struct chaos_means;
struct chaos_table;
struct err;

#define CHAOS_WATCHER_MS 5000 /* ms for the watcher to end when it has nothing to undo */

struct chaos_watcher {
    int pid;
    int pid_fd;  /* readable: the watcher is gone, and another one is needed */
    int life_fd; /* its other end notices our end */
};

/* Signals must be blocked. -errno. */
int chaos_watcher_start(struct chaos_watcher *w, struct chaos_table *t, const struct chaos_means *m, struct err *e);

/* The table is empty: end the watcher, even if it is gone already. Waits CHAOS_WATCHER_MS at most for a stopped one. */
void chaos_watcher_end(struct chaos_watcher *w);

#endif
