/* The guardian: what the user started. It forks the agent before anything is initialised, and outlives it.
 *
 *   - it forwards signals to the agent, waits for it, ends whatever is left of its tree and returns its exit code;
 *   - the agent dies (kill -9, a fault of its own): the guardian, a subreaper, inherits all its processes and kills
 *     them;
 *   - the agent is stopped or hangs past its lease: the guardian kills the agent's processes, not the agent;
 *   - the guardian dies: the agent sees the end of their link, kills its tree and goes;
 *   - both at the same instant: direct workers die by PDEATHSIG, daemons they made may live on.
 *
 * It also keeps the proof of this node's death. The agent's connection to the rendezvous is set to end with a reset
 * (SO_LINGER), which proves nothing; the guardian holds a duplicate of it and, when none of its processes is left
 * (ECHILD), ends it in good order. So end-of-file says to the rendezvous that nobody of this node runs any more, and
 * the next round may begin at once.
 *
 * It takes no memory from the heap while the agent lives and links nothing of its own: about 1 MB, and right as PID 1
 * (it reaps every orphan). */
#ifndef CRUN_LAUNCHER_GUARDIAN_H
#define CRUN_LAUNCHER_GUARDIAN_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

struct board;

/* What the agent inherits. */
struct guardian_link {
    int guardian_fd;      /* readable: the guardian is gone */
    sigset_t worker_mask; /* signal mask that crun was started with: workers get it back */
    sigset_t ignored;     /* signals that were ignored when crun started (nohup, a background job): they stay so */
    struct sigaction worker_pipe; /* dispositions crun was started with, for the same reason */
    struct sigaction worker_ttou;
    struct rlimit worker_nofile;
    char *cgroup_dir;  /* shared likewise: the job's cgroup, or "" (cgroup.h) */
    char *scratch_dir; /* shared: the agent stores the path of its temporary folder here, GUARDIAN_PATH_MAX bytes */
    _Atomic uint64_t *signals; /* shared; guardian_signals() */
    _Atomic int64_t *lease_ms; /* shared; guardian_lease() */
    struct board *board;       /* shared; patience.h */
};

#define GUARDIAN_PATH_MAX 1024

/* Forwarded to the agent from the first moment, before it has read the command line. */
#define GUARDIAN_SIGNALS(X)                                                                                            \
    X(SIGTERM)                                                                                                         \
    X(SIGINT)                                                                                                          \
    X(SIGHUP)                                                                                                          \
    X(SIGQUIT)                                                                                                         \
    X(SIGUSR1)                                                                                                         \
    X(SIGUSR2)

/* Runs agent() in a child and returns the exit code of crun. */
int guardian_run(int (*agent)(const struct guardian_link *link, int argc, char **argv), int argc, char **argv);

/* In the agent. fd: the connection that stands for this node; the guardian keeps a duplicate in place of the one
 * before, if any. -1: it keeps none. From here on the connection ends with a reset, whoever closes it last, unless
 * guardian_prove() came before. */
void guardian_hold(const struct guardian_link *l, int fd);

/* Nobody of this node runs any more: let this connection end in good order. */
void guardian_prove(int fd);

/* In the agent: forward these from now on; `stops` of them are stop signals (patience.h). Others do to the guardian what they do by default, and the agent ends the
 * workers when it is gone. The agent gets them by sigqueue(3) with GUARDIAN_TYPED where a terminal sent them. */
void guardian_signals(const struct guardian_link *l, const sigset_t *set, const sigset_t *stops);
enum { GUARDIAN_SENT, GUARDIAN_TYPED };

/* In the agent. A stop signal has counted: this agent is gone by until_ms (clock_ms()), or has said so anew. 0: it
 * cannot say. */
void guardian_stopping(const struct guardian_link *l, int64_t until_ms);

/* In the agent. Workers may run until then (clock_ms()), 0: as long as they like. GUARDIAN_LATE_MS later the guardian
 * kills those that are left. */
void guardian_lease(const struct guardian_link *l, int64_t until_ms);

#define GUARDIAN_LATE_MS 250 /* well within the second that a rendezvous grants for the kill (rdzv_config.kill_ms) */

/* Remove the flat temporary folder named by scratch_dir, if any. */
void guardian_remove_scratch(char *scratch_dir);

#endif
