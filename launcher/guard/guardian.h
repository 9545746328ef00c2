/* The guardian: what the user started. It forks the agent before anything is initialised, and outlives it.
 *
 *   - it forwards signals to the agent, waits for it, ends whatever is left of its tree and returns its exit code;
 *   - SIGTSTP (Ctrl-Z) stops the guardian and, by way of the agent, the workers, which are in sessions of their own;
 *     the agent goes on, so that the other nodes do not think that this one is dead;
 *   - the agent dies (kill -9, a fault of its own): the guardian, a subreaper, inherits all its processes and kills
 *     them;
 *   - the agent is stopped or hangs past its lease: the guardian kills the agent's processes, not the agent;
 *   - the agent does not act on a stop signal: the guardian gives it up, with all below it (patience.h, stuck.h);
 *   - the guardian dies: the agent sees the end of their link, kills its tree and exits;
 *   - one dies and the other one does not act, or both are stopped past the lease: the deputy acts (deputy.h), or the
 *     output process in its place;
 *   - both at the same instant: direct workers die by PDEATHSIG, and the deputy kills what they leave (roster.h).
 *
 * It also proves this node's death to the rendezvous. The agent's connection is set to end with a reset (SO_LINGER),
 * which proves nothing. The guardian holds a duplicate of it, and closes it in good order when none of its processes is
 * left (ECHILD). So end-of-file tells the rendezvous that no process of this node runs any more, and the next round may
 * begin at once.
 *
 * It also starts the helpers (beside.h): the deputy and, once the agent asks for it, the output process
 * (output_process.h), and replaces each that dies. The output process ends last: if stdout or stderr is a file, a
 * thread of it writes what the guardian prints at the very end (console_file.h). The gauges process
 * (launcher/observe/gauges.h) has no work once the agent is gone.
 *
 * Signals are blocked before anything else is done: from main() on each signal waits until somebody can read it.
 *
 * While the agent lives it allocates nothing, unless it has somebody to kill: about 1 MB. It is fit to be PID 1,
 * because it reaps every orphan. */
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
    /* signals that were ignored when crun started (nohup, a background job) stay ignored in workers */
    sigset_t ignored;
    struct sigaction worker_pipe; /* disposition of SIGPIPE when crun started, for the same reason */
    struct sigaction worker_ttou;
    struct rlimit worker_nofile;
    struct console_file console[CONSOLE_FILES]; /* stdout and stderr, where they are files */
    char *cgroup_dir; /* shared: GUARDIAN_PATH_MAX bytes for the path of the job's cgroup, or "" (cgroup.h) */
    int deputy_fd;    /* eventfd that wakes the deputy to look at the lease; -1: it does not watch the lease */
    int output_fd;    /* to the output process: SOCK_SEQPACKET */
    /* SOCK_SEQPACKET to the output process's threads for shared homes (home_process.h); -1: not available */
    int home_fd;
    void *output_page;         /* shared with it: GUARDIAN_OUTPUT_PAGE bytes, zeroed */
    void *gauges_page;         /* shared with the gauges process: GUARDIAN_GAUGES_PAGE bytes, zeroed */
    _Atomic uint64_t *signals; /* shared; guardian_signals() */
    _Atomic int64_t *lease_ms; /* shared; guardian_lease() */
    struct file_at *at;        /* shared: the user's file that blocks the agent now */
    struct board *board;       /* shared; patience.h */
    struct roster *roster;     /* shared; roster.h */
};

#define GUARDIAN_PATH_MAX 1024
#define GUARDIAN_OUTPUT_PAGE 512
#define GUARDIAN_GAUGES_PAGE 2048
#define GUARDIAN_OUTPUT_MS 2000 /* ms: the output process ends that long after all others */
#define GUARDIAN_BESIDES 50     /* starts of one helper: more would not help, because something is wrong with it */

/* What the output process inherits. */
struct guardian_output {
    int agent_fd, home_fd; /* sockets to the agent; a replacement of this process gets them as well */
    int input_fd;          /* of stdin_file.h; -1: none, as home_fd */
    /* At end-of-file: the guardian is gone. BESIDE_END: nobody of the tree is left. GUARDIAN_SILENT: nor will the
     * guardian print anything more. */
    int guardian_fd;
    const struct console_file *console;
    void *page;           /* guardian_link.output_page */
    struct deputy deputy; /* of the same two; deputy_stand_in() */
};

/* The programs that the guardian starts; each runs in a process of its own and returns its exit code. */
struct guardian_programs {
    int (*agent)(const struct guardian_link *link, int argc, char **argv);
    int (*output)(const struct guardian_output *output); /* NULL: none */
    /* NULL: none. page: guardian_link.gauges_page; guardian_fd: readable when the process must end. */
    int (*gauges)(void *page, int guardian_fd);
};

/* Signals that are forwarded from the first moment, before the agent has read the command line. */
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

/* In the output process: its agent is gone and all is written, so it must not be replaced. stays: it goes on for
 * what the guardian may still print. */
void guardian_output_is_done(const struct guardian_output *o, bool stays);
/* In the output process: standard input has been read to its end; or why: the errno that ended it early. */
void guardian_input_is_done(const struct guardian_output *o, int why);

/* In the agent, before it starts any process: from now on what it prints waits for no disk (console_file.h); with
 * keeps_stdin, nor does a worker that reads standard input (stdin_file.h). Without keeps_stdin, a standard input
 * that is a file becomes /dev/null. */
void guardian_start_console(const struct guardian_link *l, bool keeps_stdin);
/* In the agent: start the output process. */
void guardian_start_output(const struct guardian_link *l);
/* In the agent: start the gauges process; a second call does nothing. */
void guardian_start_gauges(const struct guardian_link *l);

/* In the agent. fd: this node's connection to the rendezvous; the guardian keeps a duplicate of it instead of the
 * one before. -1: it keeps none. From now on the connection ends with a reset, whoever closes it last, unless
 * guardian_prove() came before. */
void guardian_hold(const struct guardian_link *l, int fd);

/* No process of this node runs any more: close this connection in good order. */
void guardian_prove(int fd);

/* In the agent: forward these signals from now on; `stops` of them are stop signals (patience.h). Other signals have
 * their default effect on the guardian, and the agent ends the workers when the guardian is gone. The agent gets
 * signals by sigqueue(3), with GUARDIAN_TYPED if a terminal sent them. It gets SIGTSTP twice: when the guardian
 * stops, and when it goes on (board.is_paused). */
void guardian_signals(const struct guardian_link *l, const sigset_t *set, const sigset_t *stops);
enum { GUARDIAN_SENT, GUARDIAN_TYPED };

/* In the agent: a stop signal was accepted. This agent will be gone by until_ms (clock_ms()), or will name a later
 * time. 0: not known. */
void guardian_stopping(const struct guardian_link *l, int64_t until_ms);

/* In the agent: workers may run until then (clock_ms()); 0: without limit. The guardian kills those that are left
 * GUARDIAN_LATE_MS later. */
void guardian_lease(const struct guardian_link *l, int64_t until_ms);

#define GUARDIAN_LATE_MS 250 /* well within the second that a rendezvous grants for the kill (rdzv_config.kill_ms) */

#endif
