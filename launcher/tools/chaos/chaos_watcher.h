/* A process that does nothing until `crun chaos` is gone, however it went: then it ends all faults that are open (a
 * process that is stopped goes on, a link is up, a clock is right). What fills a disk is a file without a name, which
 * goes with the process that holds it. Only where both are killed in one instant something may be left. */
#ifndef CRUN_LAUNCHER_CHAOS_WATCHER_H
#define CRUN_LAUNCHER_CHAOS_WATCHER_H

struct chaos_means;
struct chaos_table;
struct err;

#define CHAOS_WATCHER_MS 5000 /* for its end, where it has nothing to do */

struct chaos_watcher {
    int pid;
    int pid_fd;  /* readable: it is gone, and another one is needed */
    int life_fd; /* its other end sees our end */
};

/* Signals must be blocked. -errno. */
int chaos_watcher_start(struct chaos_watcher *w, struct chaos_table *t, const struct chaos_means *m, struct err *e);

/* The table is empty: let it go. Also one that is gone. It waits CHAOS_WATCHER_MS at most for a stopped one. */
void chaos_watcher_end(struct chaos_watcher *w);

#endif
