#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/env_contract.h"

static struct env_contract c;
static struct err error;

/* The whole environment is "A=1 B=2 ...". */
static int read_env(const char *text)
{
    char copy[1024];
    clearenv();
    snprintf(copy, sizeof copy, "%s", text);
    for (char *save, *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(w, '=');
        *eq = 0;
        setenv(w, eq + 1, 1);
    }
    memset(&error, 0, sizeof error);
    return env_contract_read(&c, &error);
}

static void read_ok(const char *text)
{
    if (read_env(text) != 0)
        fail_msg("'%s': %s", text, error.text);
}

static void a_process_alone_is_rank_0_of_1(void **state)
{
    read_ok("HOME=/");
    assert_int_equal(c.rank, 0);
    assert_int_equal(c.world_size, 1);
    assert_int_equal(c.local_world_size, 1);
    assert_int_equal(c.group_world_size, 1);
    assert_int_equal(c.role_world_size, 1);
    assert_int_equal(c.prev_rank, -1);
    assert_null(c.store_url);
}

static void torchruns_variables_are_read(void **state)
{
    read_ok("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 ROLE_RANK=5 "
            "ROLE_WORLD_SIZE=8 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RESTART_COUNT=2 "
            "TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_RUN_ID=j1 TORCHELASTIC_ERROR_FILE=");
    assert_int_equal(c.rank, 5);
    assert_int_equal(c.world_size, 8);
    assert_int_equal(c.local_rank, 1);
    assert_int_equal(c.group_rank, 1);
    assert_int_equal(c.master_port, 29500);
    assert_int_equal(c.restart_count, 2);
    assert_string_equal(c.run_id, "j1");
    assert_string_equal(c.master_addr, "10.0.0.1");
    assert_null(c.error_file); /* empty counts as unset */
}

static void what_is_not_given_follows_from_the_rest(void **state)
{
    read_ok("RANK=3 WORLD_SIZE=4 LOCAL_RANK=1");
    assert_int_equal(c.local_world_size, 2);
    assert_int_equal(c.role_rank, 3);
    assert_int_equal(c.role_world_size, 4);
}

static void every_process_of_a_node_has_a_place_of_its_own(void **state)
{
    read_ok(
        "RANK=5 WORLD_SIZE=8 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=j");
    assert_int_equal(env_contract_place(&c), 1); /* --virtual-local-rank */
    read_ok(
        "RANK=6 WORLD_SIZE=8 LOCAL_RANK=2 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=j");
    assert_int_equal(env_contract_place(&c), 2);
    read_ok("RANK=2 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2"); /* ranks that go round the nodes */
    assert_int_equal(env_contract_place(&c), 1);
    read_ok("HOME=/");
    assert_int_equal(env_contract_place(&c), 0);
}

static void ranks_of_mpirun_and_mpiexec_are_mapped(void **state)
{
    read_ok("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2");
    assert_int_equal(c.rank, 3);
    assert_int_equal(c.world_size, 4);
    assert_int_equal(c.local_rank, 1);
    assert_int_equal(c.local_world_size, 2);
    read_ok("PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=3");
    assert_int_equal(c.rank, 2);
    assert_int_equal(c.local_world_size, 3);
}

#define SLURM "SLURM_PROCID=4 SLURM_NTASKS=6 SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NNODES=2 "

static void ranks_of_srun_are_mapped_inside_a_step_only(void **state)
{
    read_ok(SLURM "SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=3(x2)");
    assert_int_equal(c.rank, 4);
    assert_int_equal(c.world_size, 6);
    assert_int_equal(c.local_rank, 1);
    assert_int_equal(c.local_world_size, 3);
    assert_int_equal(c.group_rank, 1);
    assert_int_equal(c.group_world_size, 2);
    read_ok(SLURM "SLURM_STEP_ID=1 SLURM_STEP_NUM_TASKS=5 SLURM_STEP_TASKS_PER_NODE=3,2");
    assert_int_equal(c.world_size, 5);
    assert_int_equal(c.local_world_size, 2);
    static const char *const no_step[] = {SLURM, SLURM "SLURM_STEP_ID=4294967291", SLURM "SLURM_STEP_ID=4294967290"};
    for (size_t i = 0; i < 3; i++) {
        read_ok(no_step[i]);
        assert_int_equal(c.rank, 0);
        assert_int_equal(c.world_size, 1);
    }
}

static void the_innermost_starter_wins(void **state)
{
    read_ok(
        "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_SIZE=9 OMPI_COMM_WORLD_LOCAL_RANK=7");
    assert_int_equal(c.rank, 1);
    read_ok(SLURM "SLURM_STEP_ID=0 OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_SIZE=9 OMPI_COMM_WORLD_LOCAL_RANK=7");
    assert_int_equal(c.rank, 7);
}

static void mistakes_name_the_variable_and_its_value(void **state)
{
    static const struct {
        const char *env, *expected;
    } cases[] = {
        {"RANK=x WORLD_SIZE=2", "RANK: 'x' is not a whole number"},
        {"RANK=0", "RANK is set but WORLD_SIZE is not: set both or neither"},
        {"WORLD_SIZE=2", "WORLD_SIZE is set but RANK is not: set both or neither"},
        {"RANK=2 WORLD_SIZE=2", "RANK=2 does not fit WORLD_SIZE=2: expected 0 to WORLD_SIZE - 1"},
        {"RANK=0 WORLD_SIZE=0", "RANK=0 does not fit WORLD_SIZE=0: expected 0 to WORLD_SIZE - 1"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE=3 does not fit WORLD_SIZE=2: expected 1 to 2"},
        {"MASTER_PORT=65536", "MASTER_PORT: 65536 is out of range, expected 0 to 65535"},
        {"PMI_RANK=1 PMI_SIZE=2", "PMI_SIZE is 2 but the local rank (MPI_LOCALRANKID) is not known: set RANK, "
                                  "WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_env(cases[i].env), -EINVAL);
        assert_string_equal(error.text, cases[i].expected);
        assert_int_equal(error.code, -EINVAL);
    }
}

static int put(void *ctx, const char *name, const char *value)
{
    (*(int *)ctx)++;
    return setenv(name, value, 1);
}

static void what_is_written_is_read_back(void **state)
{
    const struct env_contract w = {.rank = 1,
                                   .world_size = 6,
                                   .local_rank = 1,
                                   .local_world_size = 2,
                                   .group_rank = 0,
                                   .group_world_size = 3,
                                   .role_rank = 1,
                                   .role_world_size = 6,
                                   .master_port = 1234,
                                   .restart_count = 4,
                                   .max_restarts = 5,
                                   .round = 7,
                                   .prev_rank = -1,
                                   .global_restarts = 3,
                                   .role_name = "default",
                                   .store_url = "resp://h:1",
                                   .restart_reason = "failure"};
    int n = 0;
    clearenv();
    assert_int_equal(env_contract_write(&w, put, &n), 0);
    assert_int_equal(n, 14 + 3); /* every number, and the strings that are set */
    assert_int_equal(env_contract_read(&c, &error), 0);
#define X(field, variable, meaning) assert_int_equal(c.field, w.field);
    ENV_INTS(X)
#undef X
    assert_string_equal(c.store_url, "resp://h:1");
    assert_string_equal(c.restart_reason, "failure");
    assert_null(c.master_addr);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_alone_is_rank_0_of_1),
        cmocka_unit_test(torchruns_variables_are_read),
        cmocka_unit_test(what_is_not_given_follows_from_the_rest),
        cmocka_unit_test(every_process_of_a_node_has_a_place_of_its_own),
        cmocka_unit_test(ranks_of_mpirun_and_mpiexec_are_mapped),
        cmocka_unit_test(ranks_of_srun_are_mapped_inside_a_step_only),
        cmocka_unit_test(the_innermost_starter_wins),
        cmocka_unit_test(mistakes_name_the_variable_and_its_value),
        cmocka_unit_test(what_is_written_is_read_back),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP); /* the cases clear the environment */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
