/* The guardian: what the user started. It forks the agent before anything is initialised, and outlives it.
 *
 *   - it forwards signals to the agent, waits for it, ends whatever is left of its tree and returns its exit code;
 *   - the agent dies (kill -9, a fault of its own): the guardian, a subreaper, inherits all its processes and kills them;
 *   - the guardian dies: the agent sees the end of a pipe, kills its tree and goes;
 *   - both at the same instant: direct workers die by PDEATHSIG, daemons they made may live on.
 * It keeps no heap and links nothing of its own: about 1 MB, and right as PID 1 (it reaps every orphan). */
#ifndef CRUN_LAUNCHER_GUARDIAN_H
#define CRUN_LAUNCHER_GUARDIAN_H

#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>

/* What the agent inherits. */
struct guardian_link {
    int guardian_fd;              /* end-of-file: the guardian is gone */
    sigset_t worker_mask;         /* signal mask that crun was started with: workers get it back */
    sigset_t handled;             /* stop signals that were not ignored at the start */
    struct sigaction worker_pipe; /* dispositions crun was started with, for the same reason */
    struct sigaction worker_ttou;
    struct rlimit worker_nofile;
    char *scratch_dir; /* shared: the agent stores the path of its temporary folder here, GUARDIAN_PATH_MAX bytes */
};

#define GUARDIAN_PATH_MAX 1024

/* Signals that stop the job in good order; torchrun's default list. */
#define GUARDIAN_SIGNALS(X)                                                                                            \
    X(SIGTERM)                                                                                                         \
    X(SIGINT)                                                                                                          \
    X(SIGHUP)                                                                                                          \
    X(SIGQUIT)

/* Runs agent() in a child and returns the exit code of crun. */
int guardian_run(int (*agent)(const struct guardian_link *link, int argc, char **argv), int argc, char **argv);

/* Remove the flat temporary folder named by scratch_dir, if any. */
void guardian_remove_scratch(char *scratch_dir);

#endif
