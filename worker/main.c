/* trainer: read the command line and the environment a launcher gave, train, leave a record on failure. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/env_contract.h"
#include "common/err.h"
#include "common/exitcode.h"
#include "common/failure_record.h"
#include "common/include/crun.h"
#include "common/log.h"
#include "worker/config.h"
#include "worker/data/make_db.h"
#include "worker/data/shapes.h"
#include "worker/report/plot_main.h"
#include "worker/stop.h"
#include "worker/train.h"

/* Threads of an OpenMP team spin between loops unless told otherwise before the runtime starts, and would take the cores from loader
 * and communication. The runtime reads this before main(), so start over once with it set. */
static void wait_passively(char **argv)
{
    if (getenv("OMP_WAIT_POLICY"))
        return;
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return;
    self[n] = '\0';
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv(self, argv); /* where this fails, spinning is only slower */
}

static int exit_code(int rc)
{
    switch (rc) {
    case ERR_USAGE:
    case -EINVAL:
        return EXIT_USAGE_ERROR;
    case ERR_DATA:
    case ERR_CORRUPT:
        return EXIT_DATA;
    case ERR_MISMATCH:
        return EXIT_MISMATCH;
    case -ENODEV:
    case -ENOTSUP:
        return EXIT_UNAVAILABLE;
    case ERR_OUTPUT:
    case -ENOSPC:
        return EXIT_CANT_CREATE;
    default:
        return EXIT_FAIL;
    }
}

static int fail(const struct env_contract *env, int rc, const struct err *e)
{
    int code = exit_code(rc);
    fprintf(stderr, "trainer: %s\n", e->text);
    struct failure_record record = {
        .timestamp = (int64_t)time(NULL), .exitcode = code, .rank = (int)env->rank, .step = -1};
    snprintf(record.message, sizeof record.message, "%s", e->text);
    struct err ignored;
    failure_record_write(env->error_file, &record, &ignored);
    crun_record_error(code, e->text);
    return code;
}

static int train(const struct train_config *cfg, int argc, char **argv)
{
    struct err e = {0};
    struct env_contract env = {0};
    struct crun_info info;
    struct buf line = {0};
    int code = EXIT_OK;
    int rc = env_contract_read(&env, &e);
    if (rc == 0)
        rc = crun_init(&info);
    if (rc == 0) {
        crun_catch_crashes(); /* without, a crash only says less */
        crun_phase(CRUN_PHASE_STARTING);
    }
    if (rc == 0)
        rc = stop_init(&e);
    char prefix[64];
    snprintf(prefix, sizeof prefix, "rank=%d", (int)env.rank);
    log_init((enum log_level)cfg->log_level, prefix);
    for (int i = 0; i < argc; i++)
        buf_printf(&line, "%s%s", i ? " " : "", argv[i]);
    if (rc == 0)
        rc = train_run(cfg, &env, line.data, &code, &e);
    if (rc < 0)
        code = fail(&env, rc, &e);
    buf_free(&line); /* no crun_finish(): the signal thread reads the page until the process ends */
    return code;
}

static int train_main(int argc, char **argv)
{
    struct train_config cfg = {0};
    struct arg_result args;
    struct err e;
    int rc = args_parse(&train_program, argc, argv, &cfg, &args, &e);
    if (rc == 0 && args_answer(&train_program, "trainer " CRUN_VERSION, &cfg, &args, stdout))
        return EXIT_OK;
    if (rc == 0)
        rc = train_config_check(&cfg, &e);
    if (rc < 0) {
        fprintf(stderr, "trainer: %s\n", e.text);
        return EXIT_USAGE_ERROR;
    }
    return train(&cfg, argc, argv);
}

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
} commands[] = {
    {"train", train_main},
    {"make-data", shapes_main},
    {"make-db", make_db_main},
    {"plot", plot_main},
};

int main(int argc, char **argv)
{
    wait_passively(argv);
    if (argc < 2 || argv[1][0] == '-')
        return train_main(argc, argv);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].main(argc - 1, argv + 1);
    fprintf(stderr, "trainer: '%s' is not a command; train (the default), make-data, make-db and plot are\n", argv[1]);
    return EXIT_USAGE_ERROR;
}
