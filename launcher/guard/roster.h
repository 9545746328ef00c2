/* The roster: which workers a crun started, in memory that all its processes share.
 *
 * While guardian or agent lives, every process of the job is below one of the two and found by a walk down (tree.h).
 * If both are killed at once, the workers die by PDEATHSIG and their children belong to init. Then the deputy finds
 * the children by what they inherited: a process is the job's if
 *
 *   - its session is that of a worker on the roster. A worker that has crun's terminal has crun's session and process
 *     group: of such a worker the process group counts;
 *   - its user is the deputy's;
 *   - it began after that worker;
 *   - its environment holds the job's TORCHELASTIC_RUN_ID and this node's CRUN_NODE_ID.
 *
 * A process that made a session of its own or replaced its environment is not found; a cgroup (cgroup.h) has it. */
#ifndef CRUN_LAUNCHER_ROSTER_H
#define CRUN_LAUNCHER_ROSTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define ROSTER_MAX 8192 /* entries, for workers and spares; further ones are not recorded */
#define ROSTER_VARIABLE_MAX 256

struct roster_entry {
    _Atomic int64_t began; /* start time in clock ticks since boot, as in /proc/PID/stat; not later than the worker's */
    _Atomic pid_t terminal; /* its process group, if that is crun's own; 0: the worker leads a session of its own */
    _Atomic pid_t pid;      /* 0: none */
};

/* Zeroed memory that is shared. */
struct roster {
    _Atomic bool is_named;
    char run[ROSTER_VARIABLE_MAX], node[ROSTER_VARIABLE_MAX]; /* "NAME=value" */
    struct roster_entry v[ROSTER_MAX];
};

/* In the agent, once: set what its workers have in their environments. */
void roster_name(struct roster *r, const char *run_id, const char *node_id);

/* Entry i; NULL if r is NULL or i is beyond the roster. */
struct roster_entry *roster_at(struct roster *r, int i);

/* Fill the entry before the worker is made. terminal: see struct roster_entry. e may be NULL. */
void roster_begin(struct roster_entry *e, pid_t terminal);
/* Complete the entry in the new process, which may borrow the agent's memory: system calls only. e may be NULL. */
void roster_enter(struct roster_entry *e);
/* The worker gets another place; its old entry becomes free. */
void roster_move(struct roster *r, int from, int to);

/* SIGKILL every process of the job until none is found twice in a row, or timeout_ms has passed. */
void roster_kill(const struct roster *r, int64_t timeout_ms);

#endif
