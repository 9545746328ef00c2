/* trainer comm-bench and comm-test: options (comm_options.h), the ranks (comm_ranks.h), and a table of what they did
 * (comm_table.h). */
#include "worker/cli/cli.h"

#include <stdio.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "worker/cli/comm_table.h"
#include "worker/config/exit_code.h"

enum { EXIT_WRONG = 1 };

static int run(const struct arg_program *program, int argc, char **argv)
{
    struct comm_bench_options o = {0};
    struct comm_ranks ranks = {.o = &o};
    struct arg_result args = {0};
    double wrong = 0;
    struct err e;
    int rc = args_parse(program, argc, argv, &o, &args, &e);
    if (rc == 0 && args_answer(program, "trainer " CRUN_VERSION, &o, &args, stdout))
        return EXIT_OK;
    if (rc == 0) {
        rc = comm_ranks_open(&ranks, &e);
        if (rc == 0)
            rc = comm_table(&ranks, &wrong, &e);
        comm_ranks_close(&ranks, rc < 0);
    }
    if (rc < 0)
        fprintf(stderr, "%s: %s\n", program->name, e.text);
    return rc < 0 ? exit_code_of(rc) : wrong > 0 ? EXIT_WRONG : EXIT_OK;
}

int comm_bench_main(int argc, char **argv)
{
    return run(&comm_bench_program, argc, argv);
}

int comm_test_main(int argc, char **argv)
{
    struct arg_program program;
    comm_test_program(&program);
    return run(&program, argc, argv);
}
