/* `crun stacks`, `logs`, `drain` and `stop`: see commands.h. */
#include "launcher/tools/stacks/commands.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "launcher/outside/whom.h"
#include "launcher/tools/stacks/ask_nodes.h"
#include "launcher/tools/stacks/groups.h"
#include "launcher/tools/stacks/local.h"
#include "launcher/tools/stacks/logs.h"

struct commands_config {
    struct ask_options ask;
    bool json;
};

#define WHERE ASK_OPTIONS(WHOM_HELP)
static const struct arg_spec specs[] = {ARG_GROUP("Rendezvous"), WHERE, ARG_END};
static const struct arg_spec stacks_specs[] = {
    ARG_GROUP("Stacks"),
    WHERE,
    {.name = "json",
     .type = ARG_FLAG,
     .at = offsetof(struct commands_config, json),
     .help = "print JSON: groups of ranks with one stack, and nodes that did not answer"},
    ARG_END,
};

const struct arg_program stacks_program = {
    .name = "crun stacks",
    .usage = "[options] RUN|PID",
    .summary =
        "Show what the main thread of each rank of a running job does, by py-spy or eu-stack on each node: equal "
        "stacks together, the fewest ranks first. RUN: all its nodes are asked. PID: of a crun on this machine; "
        "its own rendezvous is asked, else its workers here are looked at.",
    .specs = stacks_specs,
    .operands = ARG_OPERANDS,
};

const struct arg_program logs_program = {
    .name = "crun logs",
    .usage = "[options] RUN [RANK]",
    .summary =
        "Show the last lines that the ranks of a running job wrote, or those of RANK alone: the end of their log "
        "files (--log-dir), 4 KiB of each.",
    .specs = specs,
    .operands = ARG_OPERANDS,
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

/* --- stacks */

/* The pid, if the word is that of a crun on this machine; 0: it is a job's name. */
static pid_t pid_of(const char *word)
{
    char *end;
    const long n = strtol(word, &end, 10);
    return !*end && word[0] >= '1' && word[0] <= '9' && n < INT_MAX && local_is_crun((pid_t)n) ? (pid_t)n : 0;
}

/* A number that is no crun's was taken for a job's name: if there is no such job either, say both. */
static int say_what_it_was(const char *target, int rc, struct err *e)
{
    const struct err why = *e;
    if (rc >= 0 || target[strspn(target, "0123456789")])
        return rc;
    return err_set(e, rc, "no crun of yours has process id %.20s here, and as the name of a job: %s", target, why.text);
}

static int gather_stacks(const char *target, struct ask_options *o, struct groups *g, struct err *e)
{
    const struct ask_nodes q = {
        .what = "stacks", .rank = -1, .rank_is = groups_add, .node_is_missing = groups_miss, .arg = g};
    const char *run = target;
    const pid_t pid = pid_of(target);
    if (pid == 0)
        return say_what_it_was(target, ask_nodes(o, run, &q, e), e);
    if (local_find_job(pid, o, &run) == 1) {
        if (ask_nodes(o, run, &q, e) == 0)
            return 0;
        fprintf(stderr,
                "crun stacks: the rendezvous of process %d does not answer for it, so these are its workers here: %s\n",
                (int)pid, e->text);
        groups_free(g);
    }
    return local_stacks(pid, (int)(o->timeout_s * 1000), &q, e);
}

static int show_stacks(struct commands_config *c, int n, char **words, struct err *e)
{
    struct groups g = {0};
    (void)n;
    int rc = gather_stacks(words[0], &c->ask, &g, e);
    if (rc == 0 && (rc = groups_print(&g, c->json)) < 0)
        err_set(e, rc, "no memory for the stacks");
    const bool none = g.n == 0 && g.missing;
    groups_free(&g);
    return rc < 0 ? rc : none ? EXIT_FAIL : EXIT_OK;
}

/* --- logs */

static int show_logs(struct commands_config *c, int n, char **words, struct err *e)
{
    char *end = words[0] + strlen(words[0]);
    const long rank = n > 1 ? strtol(words[1], &end, 10) : -1;
    if (n > 1 && (!words[1][0] || *end || rank < 0 || rank >= INT_MAX))
        return err_set(e, ERR_USAGE, "'%s': expected the RANK of a worker, 0 or more", words[1]);
    return logs_print(&c->ask, words[0], (int)rank, e);
}

/* --- drain and stop */

static int end_job(const struct ask_options *o, const char *verb, const char *run, struct err *e)
{
    const char *const words[] = {verb, run};
    struct whom w;
    redisReply *r;
    TRY(whom_init(&w, o, run, e));
    const int rc = whom_request(&w, 2, words, &r, e);
    whom_finish(&w);
    if (rc == 0)
        freeReplyObject(r);
    return rc;
}

static int drain(struct commands_config *c, int n, char **words, struct err *e)
{
    (void)n;
    return end_job(&c->ask, "RDZV.DRAIN", words[0], e);
}

static int stop(struct commands_config *c, int n, char **words, struct err *e)
{
    (void)n;
    return end_job(&c->ask, "RDZV.STOP", words[0], e);
}

/* --- all of them */

/* Run a command with 1 to `most` operands. act: returns the exit code, or an error. */
static int run(const struct arg_program *p, int most, int argc, char **argv,
               int (*act)(struct commands_config *c, int n, char **words, struct err *e))
{
    struct commands_config c = {0};
    struct arg_result r;
    struct err e;
    int rc = args_parse(p, argc, argv, &c, &r, &e) < 0 ? ERR_USAGE : 0;
    if (rc == 0 && args_answer(p, "crun " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    const int n = rc == 0 ? argc - r.first_operand : 0;
    if (rc == 0 && (n < 1 || n > most))
        rc = err_set(&e, ERR_USAGE, "expected %s", p->usage + strlen("[options] "));
    if (rc == 0)
        rc = act(&c, n, argv + r.first_operand, &e);
    if (rc >= 0 && (fflush(stdout) != 0 || ferror(stdout)))
        rc = err_errno(&e, errno, "the terminal");
    if (rc >= 0)
        return rc;
    fprintf(stderr, "%s: %s\n", p->name, e.text);
    return whom_exit_code(rc);
}

int stacks_main(int argc, char **argv)
{
    return run(&stacks_program, 1, argc, argv, show_stacks);
}

int logs_main(int argc, char **argv)
{
    return run(&logs_program, 2, argc, argv, show_logs);
}

int drain_main(int argc, char **argv)
{
    return run(&drain_program, 1, argc, argv, drain);
}

int stop_main(int argc, char **argv)
{
    return run(&stop_program, 1, argc, argv, stop);
}
