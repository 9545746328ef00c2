/* Shared by the files of the group; for them alone. */
#ifndef CRUN_LAUNCHER_GROUP_INTERNAL_H
#define CRUN_LAUNCHER_GROUP_INTERNAL_H

#include "launcher/base/repeat.h"
#include "launcher/workers/group.h"
#include "launcher/workers/group_state.h"

struct launch;
struct spawn_thread;
struct watch;

/* One worker process and the page shared with it. */
struct child {
    int local;
    int pidfd;      /* -1: none */
    bool guest;     /* in a process group that is not its own (the terminal's) */
    bool reads;     /* crun's standard input */
    bool pty;       /* has a terminal of its own */
    pid_t stop_pid; /* pid to which the next fields belong */
    bool stopped;
    bool stop_unsaid;       /* it was stopped; to be printed when the pause is over */
    int stop_signal;        /* that stopped it last */
    struct repeat stops;    /* reports of its stops */
    struct crun_page *page; /* mapped until the next round begins, or the agent ends */
    int out[2];             /* the worker's ends of its pipes until it is started; -1: none */
    int keep[2];            /* copies of them for the process that takes its place in a later round; -1: none */
    int wake_fd;            /* eventfd that the worker polls (crun_page.h); -1: none */
    bool held;              /* has let go of the round */
    int stdio_fd;           /* of a spare: socket over which it gets its pipes; -1: none */
    char *error_path;       /* path for its error record, valid as long as the page; NULL: none */
};

struct group {
    enum group_state state; /* group_set() */
    uv_loop_t *loop;
    struct group_options o;
    int null_fd;
    int in_fd, out_fd; /* of the terminal, -1: not the worker's */
    int status_fd;     /* our end of the exec status pipe; -1: the results of all execs are known */
    struct watch *status;
    int notify_fd; /* eventfd that all workers write; -1: none */
    int memory_fd; /* crun_node_memory(), of all workers and rounds; -1: none */
    struct watch *notify;
    bool progressed;  /* the first step of the round has been reported */
    int64_t begun_ns; /* of the round */
    int deaths_fd;    /* epoll of all pidfds; it reports them in the order of deaths */
    struct watch *deaths_watch;
    uv_timer_t rescan;
    uv_timer_t late;  /* OPENING: log files are not open yet; RUNNING: spares are not started yet */
    uv_timer_t pause; /* runs until a stop of a worker may be printed */
    int open_handles; /* the timers */
    struct spawn_thread *spawner;
    struct launch *launch;  /* the launch in progress; NULL: none */
    uint64_t forward;       /* signals that came during the launch: bit signo - 1 */
    struct group_stop stop; /* STOPPING: also for processes that are still being made */
    int looks;              /* consecutive looks that found no other process, or all stopped */
    bool warming;           /* spares are being launched */
    bool paused;            /* by group_pause() */
    bool pause_typed;       /* workers with the terminal stop and continue by themselves */
    int64_t pause_deadline;
    bool goes_on;  /* some workers of the round are of an earlier one */
    bool unshared; /* a worker has no shared page, and that has been printed */
    int64_t clear_deadline;
    int64_t sweep_ms; /* no look at /proc before this */
    int64_t dead_ms;  /* since when no process was seen alive; 0: one was */
    unsigned deaths;
    int n; /* workers started in this round */
    struct child *children;
    struct failure_worker *workers;
    struct crun_page **retired; /* of the round before */
    int n_retired;
};

/* --- group_page.c */

/* Make a new page, shared with the worker; *ret_fd is close-on-exec, and the caller closes it. Returns 1 if it
 * cannot be shared because file sizes are limited; *ret_fd is untouched then. */
int group_create_page(struct group *g, struct child *c, int *ret_fd, struct err *e);
/* Mark the page as held from the start; *ret_fd is the other end of its socket, which the caller closes. */
int group_make_spare(struct child *c, int *ret_fd, struct err *e);
void group_drop_page(struct child *c);
/* The same, but free the memory once the next workers are made: freeing takes longer than making one. */
void group_retire_page(struct group *g, struct child *c);
void group_drop_retired(struct group *g);
/* Make the worker look at its page; its descriptor becomes readable if there is the reason of a stop. */
void group_wake(struct child *c, bool has_reason);

/* --- group_hold.c */

int group_slots(const struct group *g); /* workers and spares */
void group_warm_up(struct group *g);    /* start the spares that are missing */
void group_use_spares(struct group *g); /* in the places of dead workers */
void group_spare_ended(struct group *g, struct child *c);
void group_drop_spares(struct group *g);           /* they are dead, or about to be */
void group_take_acks(struct group *g);             /* read acknowledgements of held workers */
void group_tell_round(struct group *g);            /* give held workers the new round; they are not held any more */
void group_keep_nobody(struct group *g);           /* do not keep held workers: they are ended like the others */
void group_check_rest(struct group *g);            /* group_check_gone(), where some are kept */
int group_kept(const struct group *g, pid_t *ret); /* pids of held workers and of spares; room for group_slots() */

/* --- group_start.c */

void group_on_status(void *arg); /* arg: the group; reads which execs failed, or that all succeeded */
void group_close_status(struct group *g);
void group_on_notify(void *arg); /* acknowledgements, or a first step */
void group_close_notify(struct group *g);
void group_close_kept(struct child *c);
void group_warm_up_soon(struct group *g);
void group_launch_now(struct group *g); /* launch now if the workers wait for their log files */
void group_give_up_opening(struct group *g);
int group_launch_spares(struct group *g, struct err *e); /* those that are not there; g->warming */
void group_cancel_launch(struct group *g);               /* processes that are not made yet will not be */

/* --- group_stop.c */

/* Wait for a worker without blocking; ret->si_pid is 0 if it has not ended. options: WNOWAIT, or 0. < 0: see errno. */
int group_wait_worker(const struct failure_worker *w, siginfo_t *ret, int options);
void group_stop_child(struct child *c, pid_t pid, const struct group_stop *s); /* the reason first, then the signals */
void group_stop_late(struct group *g);              /* those that were made since group_stop() */
void group_stand_still(struct group *g);            /* while paused: look at all processes now, and again later */
bool group_is_dead(const struct failure_worker *w); /* dead, but not handled yet */
void group_look_for_stops(struct group *g);         /* print workers that were stopped */
bool group_ask_to_go(void); /* SIGTERM to all processes below this one; false: they cannot be listed */

/* --- group.c */

void group_set(struct group *g, enum group_event e); /* change to the following state */
bool group_is_there(const struct failure_worker *w); /* started, and not known to be dead */
void group_finish_round(struct group *g, const char *left);
void group_end_output(struct group *g); /* no worker that writes is left */
void group_rescan_in(struct group *g, int64_t ms);
int group_watch_child(struct group *g, struct child *c); /* 0 or -errno */
void group_kill_children(struct group *g);
void group_reap_orphans(struct group *g);
void group_check_gone(struct group *g);

#endif
