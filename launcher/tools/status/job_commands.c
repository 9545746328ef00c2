/* See job_commands.h. */
#include "launcher/tools/status/job_commands.h"

#include <stdio.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "launcher/outside/ask_options.h"
#include "launcher/outside/whom.h"

static const struct arg_spec specs[] = {
    ARG_GROUP("Rendezvous"),
    ASK_OPTIONS(WHOM_HELP),
    ARG_END,
};

const struct arg_program drain_program = {
    .name = "crun drain",
    .usage = "[options] RUN",
    .summary = "Stop a job of one's own in good order: its workers save and end, and each of its cruns exits with 75.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

const struct arg_program stop_program = {
    .name = "crun stop",
    .usage = "[options] RUN",
    .summary = "End a job of one's own now: its workers get SIGTERM, after --shutdown-timeout SIGKILL, and each of its "
               "cruns exits with 143 and says who stopped the job.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

static int run(const struct arg_program *p, const char *verb, int argc, char **argv)
{
    struct ask_options o = {0};
    struct arg_result r;
    struct whom w;
    struct err e;
    redisReply *reply;
    int rc = args_parse(p, argc, argv, &o, &r, &e);
    if (rc == 0 && args_answer(p, "crun " CRUN_VERSION, &o, &r, stdout))
        return EXIT_OK;
    if (rc == 0 && argc - r.first_operand != 1)
        rc = err_set(&e, ERR_USAGE, "expected one RUN");
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", p->name, e.text);
        return EXIT_USAGE_ERROR;
    }
    const char *const words[] = {verb, argv[r.first_operand]};
    rc = whom_init(&w, &o, words[1], &e);
    if (rc == 0) {
        rc = whom_request(&w, 2, words, &reply, &e);
        whom_finish(&w);
    }
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", p->name, e.text);
        return whom_exit_code(rc);
    }
    freeReplyObject(reply);
    return EXIT_OK;
}

int drain_main(int argc, char **argv)
{
    return run(&drain_program, "RDZV.DRAIN", argc, argv);
}

int stop_main(int argc, char **argv)
{
    return run(&stop_program, "RDZV.STOP", argc, argv);
}
