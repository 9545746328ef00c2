/* The room common/job: what launcher and workers agree on beyond the rendezvous. The launcher passes environment
 * variables (here), some of them taken from Slurm's (slurm.h). The worker returns an exit code (exitcode.h) and, if it
 * fails, a record of the reason in a file that the launcher named (failure_record.h).
 *
 * The environment a worker is started with: written by the launcher, read by the worker, in one place.
 *
 * torchrun's variables (torch 2.15) are all there; CRUN_* are ours. The list below is the only one: the launcher
 * writes them, trainer and libcrun read them, and the docs are generated from it. */
#ifndef CRUN_COMMON_ENV_CONTRACT_H
#define CRUN_COMMON_ENV_CONTRACT_H

#include <stdbool.h>
#include <stdint.h>

struct err;

#define ENV_INTS(X) /* field, variable, meaning */                                                                     \
    X(rank, "RANK", "global rank, 0..world_size-1")                                                                    \
    X(world_size, "WORLD_SIZE", "processes of the job")                                                                \
    X(local_rank, "LOCAL_RANK", "rank on this node")                                                                   \
    X(local_world_size, "LOCAL_WORLD_SIZE", "processes on this node")                                                  \
    X(group_rank, "GROUP_RANK", "rank of this node")                                                                   \
    X(group_world_size, "GROUP_WORLD_SIZE", "nodes of this round")                                                     \
    X(role_rank, "ROLE_RANK", "rank within the role")                                                                  \
    X(role_world_size, "ROLE_WORLD_SIZE", "processes of the role")                                                     \
    X(master_port, "MASTER_PORT", "port of the round's bootstrap store")                                               \
    X(restart_count, "TORCHELASTIC_RESTART_COUNT", "restarts of the job so far, the same on every rank")               \
    X(max_restarts, "TORCHELASTIC_MAX_RESTARTS", "restarts allowed")                                                   \
    X(round, "CRUN_ROUND", "round number; only grows")                                                                 \
    X(prev_rank, "CRUN_PREV_RANK", "rank in the round before, -1 if none")                                             \
    X(global_restarts, "CRUN_GLOBAL_RESTARTS", "restarts of the job so far, counted over all nodes")

#define ENV_STRINGS(X)                                                                                                 \
    X(role_name, "ROLE_NAME", "label of the role")                                                                     \
    X(master_addr, "MASTER_ADDR", "address of the round's bootstrap store")                                            \
    X(run_id, "TORCHELASTIC_RUN_ID", "id of the job")                                                                  \
    X(use_agent_store, "TORCHELASTIC_USE_AGENT_STORE", "True: connect to the store, do not host it")                   \
    X(error_file, "TORCHELASTIC_ERROR_FILE", "where a worker may leave its error.json")                                \
    X(signals, "TORCHELASTIC_SIGNALS_TO_HANDLE", "signals the launcher forwards")                                      \
    X(nccl_async, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "inherited or 1")                                                 \
    X(store_url, "CRUN_STORE", "bootstrap store as a URL: resp://host:port")                                           \
    X(node_id, "CRUN_NODE_ID", "stable name of this node")                                                             \
    X(restart_reason, "CRUN_RESTART_REASON", "why this round began: start, failure, resize")

struct env_contract {
#define X(field, variable, meaning) int64_t field;
    ENV_INTS(X)
#undef X
#define X(field, variable, meaning) const char *field;
    ENV_STRINGS(X)
#undef X
};

/* Read from environ. Under crun: everything. Under torchrun: what it sets. Alone (no RANK, no WORLD_SIZE): rank 0 of a
 * world of 1, store_url NULL. Values are checked (0 <= rank < world_size, ...); -EINVAL names the variable and its
 * value. A warm spare's ranks are -1. Strings point into environ; missing ones are NULL. Other schedulers' ranks
 * (mpirun, srun) are mapped here too. */
int env_contract_read(struct env_contract *c, struct err *e);

/* The number of this process among those of its node, 0..local_world_size-1. That is not always LOCAL_RANK, because
 * --virtual-local-rank (crun and torchrun) makes LOCAL_RANK 0 for all: with it, the ranks of a node are consecutive,
 * so this is rank modulo local_world_size. Without it, it is LOCAL_RANK. Not for warm spares. */
int env_contract_place(const struct env_contract *c);

/* Call put(ctx, "NAME", "value") for every variable of *c; NULL strings are left out. The value is valid during the
 * call. */
int env_contract_write(const struct env_contract *c, int (*put)(void *ctx, const char *name, const char *value),
                       void *ctx);

/* "1" for a warm spare (crun.h), whose RANK, LOCAL_RANK and ROLE_RANK are -1. The spawner sets it; not part of the
 * struct. */
#define ENV_SPARE "CRUN_SPARE"

/* Descriptor number of the shared page (crun_page.h). The spawner sets it; not part of the struct. */
#define ENV_PAGE_FD "CRUN_PAGE_FD"

#endif
