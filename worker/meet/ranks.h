/* The ranks that trainer starts by itself: one process a device, on one machine or on several.
 *
 * --procs, --gpus, --nodes, --node-rank, --dist-url and --run-id say how many and where they meet. What comes out is
 * the environment that a launcher would have given, so that everything behind it has one source. */
#ifndef CRUN_WORKER_RANKS_H
#define CRUN_WORKER_RANKS_H

#include <stdbool.h>

struct err;
struct train_config;

struct ranks {
    bool asked; /* any of the options was given; else the environment is left as it is */
    int procs;  /* of this machine; more than one: fork */
    int nodes, node_rank;
    char host[256]; /* tcp://: where rank 0 hosts */
    int port;
    const char *store;  /* redis://..., file:///...: or NULL */
    const char *run_id; /* or NULL */
};

/* From the options and, for env://, the environment. ERR_USAGE with a sentence that names what is missing or
 * contradicts. */
int ranks_find(struct ranks *ret, const struct train_config *cfg, struct err *e);

/* Make this process local rank `local_rank` of them: sets RANK, WORLD_SIZE and so on. */
void ranks_enter(const struct ranks *r, int local_rank);

#endif
