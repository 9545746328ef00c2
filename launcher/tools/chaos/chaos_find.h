/* Which processes can be targets, and which of them a fault finds now, from /proc. */
#ifndef CRUN_LAUNCHER_CHAOS_FIND_H
#define CRUN_LAUNCHER_CHAOS_FIND_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct chaos_part;
struct chaos_targets;
struct err;

/* A process; `started` distinguishes it from a later one with the same pid (chaos_started()). */
struct chaos_process {
    pid_t pid;
    uint64_t started;
};

struct chaos_found {
    int n;    /* 0: none */
    int node; /* where */
    int rank; /* rank of a worker in its present round; -1: none */
    size_t cap;
    struct chaos_process *v; /* of role node: its guardian first */
};

/* Check before anything is done: every pid belongs to a process, every file exists and holds a pid, and the
 * processes given as cruns are cruns. A process that a file names may be gone, as another may follow. If a process
 * is not a crun, waits CHAOS_EXEC_MS, because it may become one. ERR_USAGE; -errno: it cannot be known. */
#define CHAOS_EXEC_MS 500
int chaos_find_check(const struct chaos_targets *t, struct err *e);

/* Find the process that a part of a fault means, or for role "node" all of them. *ret: zeroed, or from an earlier
 * call, whose memory is reused; free(ret->v). -EPERM: a target is not a crun; -ENOMEM. */
int chaos_find(const struct chaos_targets *t, const struct chaos_part *part, struct chaos_found *ret, struct err *e);

#endif
