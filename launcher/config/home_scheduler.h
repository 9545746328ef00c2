/* What schedulers leave in the environment of a process they start on each node. Pure. */
#ifndef CRUN_LAUNCHER_HOME_SCHEDULER_H
#define CRUN_LAUNCHER_HOME_SCHEDULER_H

#include "launcher/config/home.h"

struct scheduler {
    const char *name;             /* NULL: none; static storage */
    char host[HOME_HOST_MAX + 1]; /* of node 0, "" if not known */
    char unread[61];              /* its list of nodes, whose first host cannot be told; "": none */
    int port;                     /* the same on every node, different for jobs that share nodes (mostly) */
    char job[HOME_ID_MAX + 1];    /* id, "" if not known */
    int node_rank;                /* -1: not numbered */
    int nodes;                    /* that it has started crun on; 0: not known */
};

/* The first that is there: Slurm, PBS, Kubernetes, Open MPI (which under the others runs as their child). max_nodes: of
 * the job; where it is the number of tasks, each task is a node, with the task's number. */
void scheduler_look(const struct home_look *look, int max_nodes, struct scheduler *ret);

/* Slurm's srun or Open MPI's mpirun started several tasks on a node, and max_nodes is not their number: several cruns
 * would each start all workers of the node. ERR_USAGE with the remedies. */
int scheduler_check_tasks(const struct home_look *look, int max_nodes, struct err *e);

#endif
