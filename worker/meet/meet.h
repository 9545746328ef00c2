/* Where the ranks of a job find each other: the store they begin with. Environment -> meet_open() -> a store -> the
 * communicator is opened over it (worker/comm) -> meet_close(), when nobody needs it any more. Without a launcher
 * ranks.c says who is who, and spawn.c starts this machine's.
 *
 * - crun: CRUN_STORE.
 * - torchrun with TORCHELASTIC_USE_AGENT_STORE=True: its agent's TCPStore at MASTER_ADDR:MASTER_PORT, under a prefix
 *   that this start of the job has for itself (meet_agree.c): newer agents keep their store over restarts, and count
 *   restarts by node.
 * - CRUN_STORE=redis://host:port: a Redis, under a prefix of this start. CRUN_STORE=file:///folder: rank 0 hosts one
 *   and says where in the folder (meet_file.c).
 * - mpirun, srun, torchrun without its store, RANK and WORLD_SIZE by hand: rank 0 hosts one. At MASTER_ADDR:MASTER_PORT
 *   if they are set; else, if all ranks are on this host, at a port of its own that it tells the others (meet_port.c);
 *   else, under Slurm, on the first node of the step at a port made of the job's id. */
#ifndef CRUN_WORKER_MEET_H
#define CRUN_WORKER_MEET_H

#include <stdbool.h>
#include <stdint.h>

struct env_contract;
struct err;
struct meet_host;
struct store;

struct meet {
    struct store *store; /* NULL: a world of one */
    struct store *base;  /* what lies under it, if it is a view */
    struct meet_host *host;
    bool hosted; /* by rank 0 */
    int rank, world;
};

/* Blocks, up to timeout_ms. ERR_USAGE where the environment does not say enough. On failure everything is closed
 * again. */
int meet_open(struct meet *m, const struct env_contract *env, int64_t timeout_ms, struct err *e);

/* After an orderly end rank 0 goes on hosting until the others need it no more, or timeout_ms is over; 0: at once. */
void meet_close(struct meet *m, int64_t timeout_ms);

#endif
