/* Where a worker's ranks come from. The first match wins:
 *
 * - RANK and WORLD_SIZE (crun, torchrun, by hand): everything else is read by its own name, what is missing is derived.
 * - mpirun (Open MPI), mpiexec (Hydra: MPICH, Intel MPI), srun: rank, size, local rank, local size are mapped. Slurm
 *   sets its variables in the shell of an allocation, too, where each process would believe that it is rank 0 of many:
 *   they count only inside a job step. mpirun under Slurm starts its own daemons as a step, so Slurm comes last.
 * - none: alone, rank 0 of 1. */
#include "common/job/env_contract.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/job/slurm.h"

static const struct int_variable {
    size_t at;
    const char *name;
} ints[] = {
#define X(field, variable, meaning) {offsetof(struct env_contract, field), variable},
    ENV_INTS(X)
#undef X
};

static const struct string_variable {
    size_t at;
    const char *name;
} strings[] = {
#define X(field, variable, meaning) {offsetof(struct env_contract, field), variable},
    ENV_STRINGS(X)
#undef X
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* An empty variable counts as unset. */
static const char *lookup(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* *ret stays as it is if the variable is unset. */
static int read_int(const char *name, int64_t min, int64_t max, int64_t *ret, struct err *e)
{
    const char *text = lookup(name);
    if (!text || parse_i64(text, name, min, max, ret, e) == 0)
        return 0;
    if (e)
        e->code = -EINVAL;
    return -EINVAL;
}

static const struct foreign {
    const char *rank, *size, *local_rank, *local_size;
    bool slurm;
} foreigners[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", .slurm = true},
};

/* Step ids from 0xfffffff0 up are not real steps: the batch script, the interactive shell, the external container. */
static bool in_slurm_step(void)
{
    const char *id = lookup("SLURM_STEP_ID");
    int64_t v;
    return id && parse_i64(id, "SLURM_STEP_ID", 0, INT64_MAX, &v, NULL) == 0 && v < 0xfffffff0;
}

/* Slurm's variables name the nodes as well. Those of the step override those of the job. */
static int read_slurm_nodes(struct env_contract *c, struct err *e)
{
    TRY(read_int("SLURM_STEP_NUM_TASKS", 1, INT32_MAX, &c->world_size, e));
    TRY(read_int("SLURM_NODEID", 0, INT32_MAX, &c->group_rank, e));
    TRY(read_int("SLURM_NNODES", 1, INT32_MAX, &c->group_world_size, e));
    TRY(read_int("SLURM_STEP_NUM_NODES", 1, INT32_MAX, &c->group_world_size, e));
    c->local_world_size = slurm_tasks_on_node(lookup("SLURM_STEP_TASKS_PER_NODE"), c->group_rank);
    return 0;
}

static int read_foreign(const struct foreign *f, struct env_contract *c, struct err *e)
{
    TRY(read_int(f->rank, 0, INT32_MAX, &c->rank, e));
    TRY(read_int(f->size, 1, INT32_MAX, &c->world_size, e));
    TRY(read_int(f->local_rank, 0, INT32_MAX, &c->local_rank, e));
    if (f->slurm)
        return read_slurm_nodes(c, e);
    return read_int(f->local_size, 1, INT32_MAX, &c->local_world_size, e);
}

static int read_ranks(struct env_contract *c, struct err *e)
{
    const char *rank = lookup("RANK"), *world = lookup("WORLD_SIZE");
    if (!rank != !world)
        return err_set(e, -EINVAL, "%s is set but %s is not: set both or neither", rank ? "RANK" : "WORLD_SIZE",
                       rank ? "WORLD_SIZE" : "RANK");
    if (rank)
        return 0;
    for (size_t i = 0; i < COUNT(foreigners); i++) {
        const struct foreign *f = &foreigners[i];
        if (lookup(f->rank) && lookup(f->size) && lookup(f->local_rank) && (!f->slurm || in_slurm_step()))
            return read_foreign(f, c, e);
    }
    /* If a PMI job went on without its local ranks, each process would start a job of its own. */
    const char *size = lookup("PMI_SIZE");
    if (size && strcmp(size, "1") != 0)
        return err_set(e, -EINVAL,
                       "PMI_SIZE is %s but the local rank (MPI_LOCALRANKID) is not known: set RANK, WORLD_SIZE, "
                       "LOCAL_RANK and LOCAL_WORLD_SIZE",
                       size);
    return 0;
}

/* Fill in variables that are not set from those that are. */
static void derive(struct env_contract *c)
{
    if (c->local_world_size <= 0)
        c->local_world_size = c->local_rank + 1;
    if (c->role_rank < 0)
        c->role_rank = c->rank;
    if (c->role_world_size < 0)
        c->role_world_size = c->world_size;
}

static int check_rank(int64_t rank, const char *rank_name, int64_t world, const char *world_name, struct err *e)
{
    if (rank >= 0 && rank < world)
        return 0;
    return err_set(e, -EINVAL, "%s=%" PRId64 " does not fit %s=%" PRId64 ": expected 0 to %s - 1", rank_name, rank,
                   world_name, world, world_name);
}

static bool is_spare(const struct env_contract *c)
{
    return c->rank < 0;
}

static int check(const struct env_contract *c, struct err *e)
{
    if (is_spare(c)) /* who has no rank yet */
        return 0;
    TRY(check_rank(c->rank, "RANK", c->world_size, "WORLD_SIZE", e));
    TRY(check_rank(c->local_rank, "LOCAL_RANK", c->local_world_size, "LOCAL_WORLD_SIZE", e));
    TRY(check_rank(c->group_rank, "GROUP_RANK", c->group_world_size, "GROUP_WORLD_SIZE", e));
    TRY(check_rank(c->role_rank, "ROLE_RANK", c->role_world_size, "ROLE_WORLD_SIZE", e));
    if (c->local_world_size > c->world_size)
        return err_set(e, -EINVAL,
                       "LOCAL_WORLD_SIZE=%" PRId64 " does not fit WORLD_SIZE=%" PRId64 ": expected 1 to %" PRId64,
                       c->local_world_size, c->world_size, c->world_size);
    return 0;
}

int env_contract_place(const struct env_contract *c)
{
    const bool is_consecutive = c->run_id; /* crun or torchrun has started it */
    return (int)(is_consecutive ? c->rank % c->local_world_size : c->local_rank);
}

int env_contract_read(struct env_contract *ret, struct err *e)
{
    struct env_contract c = {.world_size = 1, .group_world_size = 1, .prev_rank = -1};
    c.local_world_size = c.role_rank = c.role_world_size = -1; /* unknown: see derive() */
    const bool may_be_spare = lookup(ENV_SPARE);
    TRY(read_ranks(&c, e));
    for (size_t i = 0; i < COUNT(ints); i++) {
        int64_t *field = (int64_t *)((char *)&c + ints[i].at);
        const bool is_rank = field == &c.rank || field == &c.local_rank || field == &c.role_rank;
        int64_t min = field == &c.prev_rank || (may_be_spare && is_rank) ? -1 : 0,
                max = field == &c.master_port ? 65535 : INT32_MAX;
        TRY(read_int(ints[i].name, min, field == &c.round ? INT64_MAX : max, field, e));
    }
    for (size_t i = 0; i < COUNT(strings); i++)
        *(const char **)((char *)&c + strings[i].at) = lookup(strings[i].name);
    derive(&c);
    TRY(check(&c, e));
    *ret = c;
    return 0;
}

int env_contract_write(const struct env_contract *c, int (*put)(void *ctx, const char *name, const char *value),
                       void *ctx)
{
    for (size_t i = 0; i < COUNT(ints); i++) {
        char text[24];
        snprintf(text, sizeof text, "%" PRId64, *(const int64_t *)((const char *)c + ints[i].at));
        TRY(put(ctx, ints[i].name, text));
    }
    for (size_t i = 0; i < COUNT(strings); i++) {
        const char *value = *(const char *const *)((const char *)c + strings[i].at);
        if (value)
            TRY(put(ctx, strings[i].name, value));
    }
    return 0;
}
