/* Which processes there are to be met, and which a fault finds just now, from /proc. */
#ifndef CRUN_LAUNCHER_CHAOS_FIND_H
#define CRUN_LAUNCHER_CHAOS_FIND_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct chaos_part;
struct chaos_targets;
struct err;

/* A process; `started` distinguishes it from a later one of the same number (chaos_started()). */
struct chaos_process {
    pid_t pid;
    uint64_t started;
};

struct chaos_found {
    int n;    /* 0: nobody is there */
    int node; /* where */
    int rank; /* of a worker, in its present round; -1: of no one */
    size_t cap;
    struct chaos_process *v; /* of role node: its guardian first */
};

/* Before anything is done: every pid is that of a process, every file is there and holds one, and who lives and stands
 * for a crun is one. A process of which a file tells may be gone: another may follow. Blocks for CHAOS_EXEC_MS where
 * a process is no crun: it may be about to become one. ERR_USAGE; -errno: it cannot be known. */
#define CHAOS_EXEC_MS 500
int chaos_find_check(const struct chaos_targets *t, struct err *e);

/* The process that is meant, or of role node all of them. *ret: zeros, or what an earlier call has left, whose memory
 * is used again; free(ret->v). -EPERM: a target is no crun (another program); -ENOMEM. */
int chaos_find(const struct chaos_targets *t, const struct chaos_part *part, struct chaos_found *ret, struct err *e);

#endif
