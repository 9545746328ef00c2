/* Starting one process: clone3 with a pidfd, then exec.
 *
 * Our own code, because neither uv_spawn nor posix_spawn can set this between fork and exec: session, PDEATHSIG,
 * which descriptors stay open. As with vfork(2) the child borrows our memory until it execs; on other processors
 * than x86-64, and without clone3, it gets a copy. Threads that call spawn() must live as long as the process
 * (spawn_thread.h), because PDEATHSIG fires when the spawning *thread* ends. Several threads may call it at once. */
#ifndef CRUN_LAUNCHER_SPAWN_H
#define CRUN_LAUNCHER_SPAWN_H

#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

struct binding;
struct err;
struct roster_entry;

#define SPAWN_KEEP_MAX 5

struct spawn_request {
    const char *path;
    char *const *argv, *const *envp;
    int stdio[3];             /* become 0, 1, 2; each >= 3 */
    int keep[SPAWN_KEEP_MAX]; /* further descriptors that are inherited under their own numbers */
    int n_keep;
    int status_fd;               /* close-on-exec pipe: a struct spawn_failure is written if the exec fails */
    int tag;                     /* put into it */
    pid_t group;                 /* process group to join; 0: a group and a session of its own */
    struct roster_entry *roster; /* notes the new process; NULL: nothing does */
    bool terminal;               /* with group 0: stdio[0] is the terminal of that session */
    const sigset_t *mask;        /* the new process's */
    const struct sigaction *on_pipe, *on_ttou;
    const struct rlimit *nofile;
    const struct binding *binding; /* its cores; NULL: those of this process */
    int cgroup_fd;                 /* cgroup2 to be born in, -1: this process's */
    bool cgroup_must;              /* fail if that is not possible; else start it outside the cgroup */
};

struct spawn_failure {
    int tag, error; /* errno of execve; negative: -errno of binding it to cores */
};

/* Returns 0 as soon as the process exists (its exec may still fail: status_fd). Waits for the exec, as
 * posix_spawn(3) does: a file system that hangs blocks this thread, though it can still be killed. -errno if the
 * process cannot be made. The caller closes *ret_pidfd. */
int spawn(const struct spawn_request *r, pid_t *ret_pid, int *ret_pidfd, struct err *e);

#endif
