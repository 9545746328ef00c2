/* The workers of one round on this node: started together, watched, stopped, cleared away.
 *
 * How data flows: the agent creates one group and starts it once a round. For each worker group.c makes pipes
 * (logmux.h) and a page of shared memory, asks the agent for environment and arguments (spawn_env.c puts the variables
 * together), and calls spawn.c, which knows how to clone and exec and nothing else. What happens to the workers comes
 * back through struct group_events; how each of them stands is in an array of struct failure_worker
 * (report/failure.h), which the failure report reads as it is.
 *
 *   - group_start: pipes for all, which go to the output process; once their log files are open, or after
 *     LOGMUX_OPEN_MS, shared pages and clone3 for each; one close-on-exec pipe tells when all execs are through, or
 *     which failed;
 *   - every worker is watched through its pidfd, all in one epoll, from the moment it exists: the kernel queues them in
 *     the order of deaths, so the first report is the first death;
 *   - group_stop: reason into the pages, then a signal to the process groups (and SIGCONT: a stopped process cannot
 *     obey);
 *   - group_hold: workers that outlive rounds (crun_stay() of libcrun) are notified by their pages to let go of this
 *     one, the others are stopped. A cleared round that keeps who has let go leaves them, their pages, their pipes and
 *     its cgroup; the next group_start() hands them the new round and starts the others beside them;
 *   - spares are started once the workers are, held from their start (crun_page.h). They sit behind the workers in the
 *     arrays; the next group_start() moves one into the place of each worker that is dead, as if that had been held,
 *     and gives it its pipes. One that ends before is not started again in that round;
 *   - group_clear: SIGKILL to the whole tree below this process, daemons included, until nobody is left, or only dead
 *     ones that a debugger holds. */
#ifndef CRUN_LAUNCHER_GROUP_H
#define CRUN_LAUNCHER_GROUP_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <uv.h>

#include "launcher/report/failure.h"

struct binding;
struct cgroup;
struct crun_page;
struct crun_page_round;
struct err;
struct group;
struct log_conf;
struct logmux;
struct oom_kills;
struct roster;

struct group_events {
    void (*started)(void *arg);                          /* every exec is through */
    void (*unstarted)(void *arg, int local, int error);  /* errno of an exec that failed */
    void (*failed)(void *arg, int rc, const char *text); /* after group_start(): as if that had failed */
    /* group_workers()[local] says how; woken_ns: when the kernel notified us. */
    void (*ended)(void *arg, int local, int64_t woken_ns);
    /* The first worker finished its first step; at most once a round. */
    void (*progressed)(void *arg, int64_t first_step_ns);
    void (*held)(void *arg); /* one more has let go of the round */
    void (*gone)(void *arg); /* nobody is left, all output is read; or nobody but those that are held */
    void (*unkillable)(void *arg, const char *who); /* instead of it: these are left, kill_ms after SIGKILL */
    /* Where a process that is about to be made is to leave its error record; NULL: there is no place for one. spare:
     * its number, -1: a worker. Valid until the next call. */
    const char *(*make_error_path)(void *arg, int local, int spare);
    /* Environment of a worker, local -1: of a spare; freed with free() by the group. */
    int (*make_env)(void *arg, int local, int page_fd, const char *error_path, char ***ret, struct err *e);
    /* Arguments of a worker (-1: likewise) that differ from group_options.argv, freed likewise; NULL in *ret: they do
     * not. */
    int (*make_argv)(void *arg, int local, char ***ret, struct err *e);
    /* What a worker that was held learns of the round. */
    void (*make_round)(void *arg, int local, struct crun_page_round *ret);
};

struct group_options {
    int workers;
    bool holds;           /* workers that outlive rounds may */
    int spares;           /* processes that start up beside the workers, and take the places of those that died; with
                             holds alone */
    pid_t terminal_group; /* of the job that has the terminal; 0: nobody is to have crun's */
    bool terminal_out;    /* and standard output is that terminal, which a worker then writes to past the multiplexer */
    /* Rank that reads crun's standard input: from a terminal it joins terminal_group, or has a pty. -1: a worker that
     * is alone, from a terminal. */
    int stdin_rank;
    bool has_stdin; /* somebody is to have it */
    const struct log_conf *log;
    /* after SIGKILL; longer means that the kernel cannot end the process (a device, a file system hangs) */
    int64_t kill_ms;
    const char *path;
    char *const *argv;
    sigset_t mask;                     /* of the workers */
    struct sigaction on_pipe, on_ttou; /* dispositions of the workers */
    struct rlimit nofile;              /* and their limit of open files */
    const struct binding *bindings;    /* one for each worker; NULL: none is bound */
    struct cgroup *cgroup;             /* NULL: none; the caller begins its rounds */
    bool cgroup_must;                  /* no worker may start outside it */
    struct oom_kills *oom;             /* of the cgroup of all workers */
    struct roster *roster;             /* NULL: the workers are not noted */
    struct logmux *mux;
    struct group_events events;
    void *arg;
};

int group_create(struct group **ret, uv_loop_t *loop, const struct group_options *o, struct err *e);

/* Start all workers but those that are held; ranks are rank_base + local. The round before must be gone. On failure
 * what was started lives: group_clear(). What fails later comes as events.failed. */
int group_start(struct group *g, int rank_base, struct err *e);

struct group_stop {
    int reason; /* enum crun_stop_reason */
    int signo;
    bool typed; /* the terminal has sent it to those that share it */
};
void group_stop(struct group *g, const struct group_stop *s);
bool group_can_hold(const struct group *g);                /* some worker of the round is there that outlives it */
bool group_can_grow(const struct group *g);                /* all workers of the round outlive it when nodes come */
void group_hold(struct group *g);                          /* events.held for each that lets go */
int group_held(const struct group *g);                     /* how many have, and live */
bool group_is_held(const struct group *g, int local);      /* also while events.ended says that it lives no more */
bool group_has_terminal(const struct group *g, int local); /* crun's: it gets what is typed, as does crun */
/* They stand still with all below them, until they are to go on, or to stop. typed: those that share crun's terminal
 * have had the key themselves. */
void group_pause(struct group *g, bool pause, bool typed);
void group_insist(struct group *g);             /* SIGTERM to those that were notified and are still there */
void group_forward(struct group *g, int signo); /* to those that are ready for it; the others would die of it */
/* This worker of the round, where it still lives, stands still: a failure, however it ends. hung: struct
 * failure_worker. */
void group_hung(struct group *g, int local, const char *hung);
/* Then events.gone, once. keep: those that are held stay. */
void group_clear(struct group *g, bool keep);
/* The same once all workers have ended; but what they left behind gets SIGTERM, and GROUP_DISMISS_MS. */
void group_dismiss(struct group *g);
#define GROUP_DISMISS_MS 5000
void group_on_sigchld(struct group *g); /* reaps orphans that became ours */
/* No more events: SIGKILL to the whole tree, until nobody is left and nobody is being made. Blocks for so
 * long at most; false: somebody is left. */
bool group_end_now(struct group *g, int64_t timeout_ms);

const struct failure_worker *group_workers(const struct group *g);
bool group_attached(const struct group *g); /* some worker of this round knows libcrun */

struct crun_page *group_page(const struct group *g, int local); /* until the next round; NULL: it was never started */
const char *group_error_text(const struct group *g, int local); /* left in its shared page; NULL if none */
/* Of the process that has or had this place, which may be older than the round; NULL: there is no place for one. */
const char *group_error_path(const struct group *g, int local);

void group_destroy(struct group *g); /* nobody may be left */

#endif
