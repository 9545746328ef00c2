/* The guardian: what the user started. It forks the agent before anything is initialised, and outlives it.
 *
 *   - it forwards signals to the agent, waits for it, ends whatever is left of its tree and returns its exit code;
 *   - SIGTSTP (Ctrl-Z) stops the guardian and, by way of the agent, the workers, which are in sessions of their own;
 *     the agent goes on, so that the other nodes do not take this one for dead;
 *   - the agent dies (kill -9, a fault of its own): the guardian, a subreaper, inherits all its processes and kills
 *     them;
 *   - the agent is stopped or hangs past its lease: the guardian kills the agent's processes, not the agent;
 *   - the agent does not act on a stop signal: the guardian gives it up, with all below it (patience.h, stuck.h);
 *   - the guardian dies: the agent sees the end of their link, kills its tree and goes;
 *   - one dies and the other one does not act, or both are stopped past the lease: the deputy acts (deputy.h), or the
 *     output process in its place;
 *   - both at the same instant: direct workers die by PDEATHSIG, and the deputy kills what they leave (roster.h).
 *
 * It also keeps the proof of this node's death. The agent's connection to the rendezvous is set to end with a reset
 * (SO_LINGER), which proves nothing; the guardian holds a duplicate of it and, when none of its processes is left
 * (ECHILD), ends it in good order. So end-of-file says to the rendezvous that nobody of this node runs any more, and
 * the next round may begin at once.
 *
 * Beside the agent it starts the deputy, and the output process (output_process.h), once the agent asks for it, and
 * another whenever one dies; it is none of the tree (beside.h), and ends last: where stdout or stderr is a file, its
 * thread writes what the guardian says at the very end (console_file.h). The gauges process (launcher/observe/gauges.h)
 * has no work once the agent is gone.
 *
 * Signals are blocked before anything else is done: from main() on each of them waits until there is somebody to take
 * it.
 *
 * It takes no memory from the heap while the agent lives, unless it has somebody to kill, and links nothing of its own:
 * about 1 MB, and right as PID 1 (it reaps every orphan). */
#ifndef CRUN_LAUNCHER_GUARDIAN_H
#define CRUN_LAUNCHER_GUARDIAN_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "launcher/guard/deputy.h"
#include "launcher/stdio/console_file.h"

struct board;
struct file_at;
struct roster;

/* What the agent inherits. */
struct guardian_link {
    int guardian_fd;      /* readable: the guardian is gone */
    sigset_t worker_mask; /* signal mask that crun was started with: workers get it back */
    sigset_t ignored;     /* signals that were ignored when crun started (nohup, a background job): they stay so */
    struct sigaction worker_pipe; /* dispositions crun was started with, for the same reason */
    struct sigaction worker_ttou;
    struct rlimit worker_nofile;
    struct console_file console[CONSOLE_FILES]; /* stdout and stderr, where they are files */
    char *cgroup_dir;  /* shared: GUARDIAN_PATH_MAX bytes for the job's cgroup, or "" (cgroup.h) */
    int deputy_fd;     /* eventfd: the deputy is to look at the lease; -1: it does not */
    int output_fd;     /* to the output process: SOCK_SEQPACKET */
    int home_fd;       /* to its threads that have homes at hand (home_process.h): SOCK_SEQPACKET; -1: no room for it */
    void *output_page; /* shared with it: GUARDIAN_OUTPUT_PAGE bytes, zeroed */
    void *gauges_page; /* shared with the gauges process: GUARDIAN_GAUGES_PAGE bytes, zeroed */
    _Atomic uint64_t *signals; /* shared; guardian_signals() */
    _Atomic int64_t *lease_ms; /* shared; guardian_lease() */
    struct file_at *at;        /* shared: the file of the user's that the agent waits for */
    struct board *board;       /* shared; patience.h */
    struct roster *roster;     /* shared; roster.h */
};

#define GUARDIAN_PATH_MAX 1024
#define GUARDIAN_OUTPUT_PAGE 512
#define GUARDIAN_GAUGES_PAGE 1024
#define GUARDIAN_OUTPUT_MS 2000 /* the output process ends that long after all others */
#define GUARDIAN_BESIDES 50     /* a process beside the agent is started so often; then something is wrong with it */

/* What the output process inherits. */
struct guardian_output {
    int agent_fd, home_fd; /* to the agent; those after it get them as well */
    int input_fd;          /* of stdin_file.h; -1: none, as home_fd */
    /* At end-of-file: the guardian is gone. BESIDE_END: nobody of the tree is left. GUARDIAN_SILENT: nor does the
     * guardian say a word any more. */
    int guardian_fd;
    const struct console_file *console;
    void *page;           /* guardian_link.output_page */
    struct deputy deputy; /* of the same two; deputy_stand_in() */
};

/* Those that the guardian starts; each runs in a process of its own and returns its exit code. */
struct guardian_programs {
    int (*agent)(const struct guardian_link *link, int argc, char **argv);
    int (*output)(const struct guardian_output *output); /* NULL: none */
    /* NULL: none. page: guardian_link.gauges_page; guardian_fd: readable when it is to end. */
    int (*gauges)(void *page, int guardian_fd);
};

/* Forwarded to the agent from the first moment, before it has read the command line. */
#define GUARDIAN_SIGNALS(X)                                                                                            \
    X(SIGTERM)                                                                                                         \
    X(SIGINT)                                                                                                          \
    X(SIGHUP)                                                                                                          \
    X(SIGQUIT)                                                                                                         \
    X(SIGUSR1)                                                                                                         \
    X(SIGUSR2)                                                                                                         \
    X(SIGTSTP)

/* Runs the agent in a child and returns the exit code of crun. */
int guardian_run(const struct guardian_programs *programs, int argc, char **argv);

#define GUARDIAN_SILENT 'S'

/* In the output process: its agent is gone and all is written; no other is to take its place. stays: for what the
 * guardian may still say. */
void guardian_output_is_done(const struct guardian_output *o, bool stays);
/* Standard input is read to its end; or why it ends early, an errno. */
void guardian_input_is_done(const struct guardian_output *o, int why);

/* In the agent, before it starts anybody: what it prints from now on waits for no disk (console_file.h), nor does what
 * a worker reads from standard input, if keeps_stdin (stdin_file.h); else a standard input that is a file is
 * /dev/null. */
void guardian_start_console(const struct guardian_link *l, bool keeps_stdin);
/* In the agent: start the output process. */
void guardian_start_output(const struct guardian_link *l);
/* In the agent: start the gauges process; again: nothing. */
void guardian_start_gauges(const struct guardian_link *l);

/* In the agent. fd: the connection that stands for this node; the guardian keeps a duplicate in place of the one
 * before, if any. -1: it keeps none. From here on the connection ends with a reset, whoever closes it last, unless
 * guardian_prove() came before. */
void guardian_hold(const struct guardian_link *l, int fd);

/* Nobody of this node runs any more: let this connection end in good order. */
void guardian_prove(int fd);

/* In the agent: forward these from now on; `stops` of them are stop signals (patience.h). Others do to the guardian
 * what they do by default, and the agent ends the workers when it is gone. The agent gets them by sigqueue(3) with
 * GUARDIAN_TYPED where a terminal sent them; SIGTSTP twice, when the guardian stops and when it goes on
 * (board.is_paused). */
void guardian_signals(const struct guardian_link *l, const sigset_t *set, const sigset_t *stops);
enum { GUARDIAN_SENT, GUARDIAN_TYPED };

/* In the agent. A stop signal has counted: this agent is gone by until_ms (clock_ms()), or names a later time. 0: it
 * cannot say. */
void guardian_stopping(const struct guardian_link *l, int64_t until_ms);

/* In the agent. Workers may run until then (clock_ms()), 0: as long as they like. GUARDIAN_LATE_MS later the guardian
 * kills those that are left. */
void guardian_lease(const struct guardian_link *l, int64_t until_ms);

#define GUARDIAN_LATE_MS 250 /* well within the second that a rendezvous grants for the kill (rdzv_config.kill_ms) */

#endif
