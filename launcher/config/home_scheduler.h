/* What schedulers leave in the environment of a process they start on each node. Pure. */
#ifndef CRUN_LAUNCHER_HOME_SCHEDULER_H
#define CRUN_LAUNCHER_HOME_SCHEDULER_H

#include "launcher/config/home.h"

struct scheduler {
    const char *name;             /* NULL: none; static storage */
    char host[HOME_HOST_MAX + 1]; /* of node 0, "" if not known */
    int port;                     /* the same on every node, different for jobs that share nodes (mostly) */
    char job[HOME_ID_MAX + 1];    /* id, "" if not known */
    int node_rank;                /* -1: not numbered */
};

/* The first that is there: Slurm, PBS, Kubernetes, Open MPI (which under the others runs as their child). */
void scheduler_look(const struct home_look *look, struct scheduler *ret);

#endif
