/* trainer: read the command line and the environment a launcher gave, train, leave a record on failure. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "common/include/crun.h"
#include "common/job/env_contract.h"
#include "common/job/exitcode.h"
#include "common/job/failure_record.h"
#include "worker/cli/cli.h"
#include "worker/config/config.h"
#include "worker/config/cores.h"
#include "worker/config/exit_code.h"
#include "worker/data/db/make_db.h"
#include "worker/data/sets/shapes.h"
#include "worker/demo/demo.h"
#include "worker/meet/ranks.h"
#include "worker/meet/spawn.h"
#include "worker/personality/personality.h"
#include "worker/planner/here.h"
#include "worker/report/plot_main.h"
#include "worker/session/stop.h"
#include "worker/train/train.h"

/* Is there a core for each compute thread of this node's processes, as far as the environment tells? */
static bool a_core_for_each(void)
{
    const char *threads = getenv("OMP_NUM_THREADS"), *processes = getenv("LOCAL_WORLD_SIZE");
    const long n = threads ? atol(threads) : 1,
               m = processes ? atol(processes) : 1; /* without a number, each takes its share */
    return n >= 1 && m >= 1 && n <= cores_of_process() / m;
}

/* Threads of an OpenMP team spin between loops for milliseconds unless set otherwise before the runtime starts, and
 * would take the cores from loader and communication. They are to sleep; where each has its core, after some 0.1 ms,
 * which is what waking one costs on a virtual machine. The runtime reads this before main(), so start over once with it
 * set. */
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
    if (a_core_for_each())
        setenv("GOMP_SPINCOUNT", "8000", 0);
    execv(self, argv); /* where this fails, spinning is only slower */
}

static int fail(const struct env_contract *env, int rc, const struct err *e)
{
    int code = exit_code_of(rc);
    if (spawn_says_first(e->text))
        fprintf(stderr, "trainer: %s\n", e->text);
    struct failure_record record = {
        .timestamp = (int64_t)time(NULL), .exitcode = code, .rank = (int)env->rank, .step = -1};
    snprintf(record.message, sizeof record.message, "%s", e->text);
    struct err ignored;
    failure_record_write(env->error_file, &record, &ignored);
    crun_record_error(code, e->text);
    return code;
}

/* A result that nobody got is none. */
static bool flush_stdout_fails(void)
{
    return fflush(stdout) != 0 || ferror(stdout);
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
    if (rc == 0 && code == EXIT_OK && flush_stdout_fails())
        rc = err_set(&e, ERR_OUTPUT, "the result cannot be written to standard output; all else is done");
    if (rc < 0)
        code = fail(&env, rc, &e);
    buf_free(&line); /* no crun_finish(): the signal thread reads the page until the process ends */
    return code;
}

/* Become the ranks that the options ask for, and train as each of them. */
static int train_as_asked(const struct train_config *cfg, int argc, char **argv)
{
    struct ranks ranks;
    struct err e;
    int local_rank = 0, code = EXIT_OK;
    int rc = train_config_check(cfg, &e);
    if (rc == 0)
        rc = here_check(cfg, cfg->auto_parallel, &e);
    if (rc == 0)
        rc = ranks_find(&ranks, cfg, &e);
    if (rc == 0 && ranks.asked && ranks.procs > 1)
        rc = spawn_ranks(ranks.procs, &local_rank, &code, &e);
    if (rc < 0) {
        fprintf(stderr, "trainer: %s\n", e.text);
        return exit_code_of(rc);
    }
    if (local_rank < 0)
        return code;
    if (ranks.asked)
        ranks_enter(&ranks, local_rank);
    return train(cfg, argc, argv);
}

/* `-e CHECKPOINT`. */
static int take_operand(struct train_config *c, int argc, char **argv, const struct arg_result *r, struct err *e)
{
    if (r->first_operand >= argc)
        return 0;
    if (!c->evaluate || argc - r->first_operand > 1 || train_config_resume(c) != RESUME_OFF)
        return err_set(
            e, ERR_USAGE,
            "unexpected argument '%s': trainer takes options, and one checkpoint with --evaluate, if there is "
            "no --resume",
            argv[r->first_operand]);
    c->resume = argv[r->first_operand];
    return 0;
}

static int train_main(int argc, char **argv)
{
    struct train_config cfg = {0};
    struct arg_result args;
    struct err e;
    int rc = args_parse(&train_program, argc, argv, &cfg, &args, &e);
    if (rc == 0) {
        train_config_by_optimizer(&cfg, &train_program, &args);
        train_config_note_given(&cfg, &train_program, &args);
        rc = args.help || args.version ? 0 : take_operand(&cfg, argc, argv, &args, &e);
    }
    if (rc == 0 && args_answer(&train_program, "trainer " CRUN_VERSION, &cfg, &args, stdout))
        return EXIT_OK;
    if (rc < 0) {
        fprintf(stderr, "trainer: %s\n", e.text);
        return EXIT_USAGE_ERROR;
    }
    return train_as_asked(&cfg, argc, argv);
}

/* Another program's command line. */
static int personality_main(const struct personality *p, int argc, char **argv)
{
    struct train_config *cfg;
    struct err e;
    int code, rc = personality_parse(p, argc, argv, "trainer " CRUN_VERSION, &cfg, &e);
    if (rc > 0)
        return EXIT_OK;
    if (rc < 0) {
        fprintf(stderr, "trainer %s: %s\n", p->name, e.text);
        return exit_code_of(rc);
    }
    code = train_as_asked(cfg, argc, argv);
    free(cfg);
    return code;
}

static int caffe2_main(int argc, char **argv)
{
    return personality_main(&personality_caffe2, argc, argv);
}

static int imagenet_main(int argc, char **argv)
{
    return personality_main(&personality_imagenet, argc, argv);
}

static int mnist_main(int argc, char **argv)
{
    return personality_main(&personality_mnist, argc, argv);
}

static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
} commands[] = {
    {"train", train_main},
    {"caffe2", caffe2_main},
    {"imagenet", imagenet_main},
    {"mnist", mnist_main},
    {"make-data", shapes_main},
    {"make-db", make_db_main},
    {"plot", plot_main},
    {"convert", convert_main},
    {"predict", predict_main},
    {"generate", generate_main},
    {"plan", plan_main},
    {"summary", summary_main},
    {"gpu-info", gpu_info_main},
    {"gpu-doctor", gpu_doctor_main},
    {"comm-bench", comm_bench_main},
    {"comm-test", comm_test_main},
    {"demo", demo_main},
};

static int check_stdout(size_t command, int code)
{
    if (!flush_stdout_fails() || code != EXIT_OK)
        return code;
    fprintf(stderr, "trainer %s: standard output cannot be written\n", commands[command].name);
    return EXIT_CANT_CREATE;
}

static int unknown_command(const char *name)
{
    const size_t last = sizeof commands / sizeof *commands - 1;
    char clean[256];
    fprintf(stderr, "trainer: '%s' is not a command; ", printable(name, clean, sizeof clean));
    for (size_t i = 0; i <= last; i++) {
        if (i > 0)
            fputs(i == last ? " and " : ", ", stderr);
        fprintf(stderr, "%s%s", commands[i].name, i == 0 ? " (the default)" : "");
    }
    fputs(" are\n", stderr);
    return EXIT_USAGE_ERROR;
}

int main(int argc, char **argv)
{
    wait_passively(argv);
    if (argc < 2 || argv[1][0] == '-')
        return check_stdout(0, train_main(argc, argv));
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return check_stdout(i, commands[i].main(argc - 1, argv + 1));
    return unknown_command(argv[1]);
}
