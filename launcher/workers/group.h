/* The workers of one round on this node: starts them together, watches, stops and kills them.
 *
 * How data flows: the agent creates one group and starts it once a round. For each worker group.c makes pipes
 * (logmux.h) and a page of shared memory, asks the agent for environment and arguments (spawn_env.c puts the variables
 * together), and calls spawn.c, which knows how to clone and exec and nothing else. What happens to the workers is
 * reported through struct group_events. The state of each worker is in an array of struct failure_worker
 * (report/failure.h), which the failure report reads directly.
 *
 *   - group_start: pipes for all, which go to the output process; once their log files are open, or after
 *     LOGMUX_OPEN_MS, shared pages and clone3 for each; one close-on-exec pipe tells when all execs have succeeded, or
 *     which failed;
 *   - every worker is watched through its pidfd, all in one epoll, from the moment it exists: the kernel queues them in
 *     the order of deaths, so the first report is the first death;
 *   - group_stop: writes the reason into the pages, then signals the process groups (and sends SIGCONT, because a
 *     stopped process cannot obey);
 *   - group_hold: asks workers that outlive rounds (crun_stay() of libcrun) through their pages to let go of this one,
 *     and stops the others. group_clear() with `keep` leaves the held workers, their pages, their pipes and the cgroup;
 *     the next group_start() gives them the new round and starts the others beside them;
 *   - warm spares are started after the workers, and are held from their start (crun_page.h). They come after the
 *     workers in the arrays. The next group_start() moves one into the place of each dead worker, as a held worker, and
 *     gives it that worker's pipes. A spare that ends before is not started again in that round;
 *   - group_clear: SIGKILL to the whole tree below this process, daemons included, until no process is left, or only
 *     dead ones that a debugger holds. */
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
    /* A worker ended; group_workers()[local] says how. woken_ns: when the kernel notified us. */
    void (*ended)(void *arg, int local, int64_t woken_ns);
    /* Was it killed because memory ran out? Called for one that died of SIGKILL, in whose cgroup such a kill was
     * counted (w->kills). */
    bool (*is_oom)(void *arg, const struct failure_worker *w);
    /* The first worker has finished its first step; at most once a round. */
    void (*progressed)(void *arg, int64_t first_step_ns);
    void (*held)(void *arg); /* one more worker has let go of the round */
    void (*gone)(void *arg); /* no process is left, except held workers, and all output has been read */
    /* called instead of gone(): these processes are left kill_ms after SIGKILL */
    void (*unkillable)(void *arg, const char *who);
    /* Path for the error record of a process that is about to be started; NULL: there is no place for one. spare:
     * its number, -1: a worker. Valid until the next call. */
    const char *(*make_error_path)(void *arg, int local, int spare);
    /* Environment of a worker (local -1: of a spare); the group frees it with free(). */
    int (*make_env)(void *arg, int local, int page_fd, const char *error_path, char ***ret, struct err *e);
    /* Arguments of a worker (local -1: of a spare) that differ from group_options.argv, freed likewise; *ret NULL:
     * they do not differ. */
    int (*make_argv)(void *arg, int local, char ***ret, struct err *e);
    /* What a held worker is told of the new round. */
    void (*make_round)(void *arg, int local, struct crun_page_round *ret);
};

struct group_options {
    int workers;
    bool holds; /* workers that outlive rounds may */
    /* number of warm spares: processes that start up beside the workers, and take the places of those that die; only
     * with `holds` */
    int spares;
    pid_t terminal_group; /* process group of the job that has the terminal; 0: no worker gets crun's terminal */
    /* standard output is that terminal, too: the worker writes to it directly, past the multiplexer */
    bool terminal_out;
    /* Rank that reads crun's standard input; if that is a terminal, it joins terminal_group, or has a pty. -1: the
     * only worker, if it is a terminal. */
    int stdin_rank;
    bool has_stdin; /* a worker gets standard input */
    const struct log_conf *log;
    /* ms after SIGKILL; if a process still lives then, the kernel cannot end it (a device or a file system hangs) */
    int64_t kill_ms;
    const char *path;
    char *const *argv;
    sigset_t mask;                     /* of the workers */
    struct sigaction on_pipe, on_ttou; /* dispositions of the workers */
    struct rlimit nofile;              /* and their limit of open files */
    const struct binding *bindings;    /* one for each worker; NULL: workers are not bound */
    struct cgroup *cgroup;             /* NULL: none; the caller begins its rounds */
    bool cgroup_must;                  /* no worker may start outside it */
    struct oom_kills *oom;             /* of the cgroup of all workers */
    struct roster *roster;             /* NULL: workers are not recorded */
    struct logmux *mux;
    struct group_events events;
    void *arg;
};

int group_create(struct group **ret, uv_loop_t *loop, const struct group_options *o, struct err *e);

/* Start all workers except held ones; ranks are rank_base + local. The round before must be gone. On failure the
 * processes that were started live: call group_clear(). Later failures are reported through events.failed. */
int group_start(struct group *g, int rank_base, struct err *e);

struct group_stop {
    int reason; /* enum crun_stop_reason */
    int signo;
    bool typed; /* the terminal has sent it to the workers that share it */
};
void group_stop(struct group *g, const struct group_stop *s);
bool group_can_hold(const struct group *g);           /* a worker of the round that outlives it is there */
bool group_can_grow(const struct group *g);           /* all workers of the round can go on when nodes join */
void group_hold(struct group *g);                     /* events.held for each that lets go */
int group_held(const struct group *g);                /* number of held workers that live */
bool group_is_held(const struct group *g, int local); /* true even while events.ended reports its end */
/* crun's terminal: the worker gets what is typed, as does crun */
bool group_has_terminal(const struct group *g, int local);
/* Stop all workers with all below them, or continue them. typed: by a key, whose signal workers that share crun's
 * terminal have got themselves. */
void group_pause(struct group *g, bool pause, bool typed);
void group_insist(struct group *g);             /* SIGTERM to workers that were told to stop and are still there */
void group_forward(struct group *g, int signo); /* to workers that are ready for the signal; it would kill the others */
/* This worker of the round hangs: it counts as failed, however it ends. hung: see struct failure_worker. */
void group_hung(struct group *g, int local, const char *hung);
/* Kill all processes of the round; then events.gone is called once. keep: except held workers. */
void group_clear(struct group *g, bool keep);
/* The same once all workers have ended, except that what they left behind gets SIGTERM first, and GROUP_DISMISS_MS. */
void group_dismiss(struct group *g);
#define GROUP_DISMISS_MS 5000
void group_on_sigchld(struct group *g); /* reaps orphans that became ours */
/* No more events: SIGKILL the whole tree until no process is left, and none is being made. Blocks timeout_ms at
 * most; false: a process is left. */
bool group_end_now(struct group *g, int64_t timeout_ms);

const struct failure_worker *group_workers(const struct group *g);
bool group_attached(const struct group *g); /* some worker of this round knows libcrun */

/* valid until the next round; NULL: it was never started */
struct crun_page *group_page(const struct group *g, int local);
const char *group_error_text(const struct group *g, int local); /* the error text in its shared page; NULL: none */
/* Path of the error record of the process that has or had this place, which may be of an earlier round; NULL: there
 * is no place for one. */
const char *group_error_path(const struct group *g, int local);

void group_destroy(struct group *g); /* nobody may be left */

#endif
