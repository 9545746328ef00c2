/* `crun stacks`: see stacks_tool.h. */
#include "launcher/tools/stacks/stacks_tool.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "launcher/tools/stacks/ask_nodes.h"
#include "launcher/tools/stacks/groups.h"
#include "launcher/tools/stacks/local.h"
#include "launcher/outside/whom.h"

struct stacks_config {
    struct ask_options ask;
    bool json;
};

static const struct arg_spec specs[] = {
    ARG_GROUP("Stacks"),
    ASK_OPTIONS(WHOM_HELP),
    {.name = "json",
     .type = ARG_FLAG,
     .at = offsetof(struct stacks_config, json),
     .help = "print JSON: groups of ranks with one stack, and nodes that did not answer"},
    ARG_END,
};

const struct arg_program stacks_program = {
    .name = "crun stacks",
    .usage = "[options] RUN|PID",
    .summary = "Show what the main thread of each rank of a running job does, by py-spy or eu-stack on each node: equal "
               "stacks together, the fewest ranks first. RUN: all its nodes are asked. PID: of a crun on this machine; "
               "its own rendezvous is asked, else its workers here are looked at.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

/* 0: it is no process id of a crun here, but the name of a job. */
static pid_t pid_of(const char *word)
{
    char *end;
    const long n = strtol(word, &end, 10);
    return !*end && word[0] >= '1' && word[0] <= '9' && n < INT_MAX && local_is_crun((pid_t)n) ? (pid_t)n : 0;
}

static int gather_stacks(const char *target, struct ask_options *o, struct groups *g, struct err *e)
{
    const struct ask_nodes q = {
        .what = "stacks", .rank = -1, .rank_is = groups_add, .node_is_missing = groups_miss, .arg = g};
    const char *run = target;
    const pid_t pid = pid_of(target);
    if (pid == 0)
        return ask_nodes(o, run, &q, e);
    if (local_find_job(pid, o, &run) == 1) {
        const int rc = ask_nodes(o, run, &q, e);
        if (rc == 0)
            return 0;
        fprintf(stderr, "crun stacks: the rendezvous of process %d does not answer for it, so these are its workers "
                        "here: %s\n",
                (int)pid, e->text);
        groups_free(g);
    }
    return local_stacks(pid, (int)(o->timeout_s * 1000), &q, e);
}

static int complain(const struct err *e, int code)
{
    fprintf(stderr, "crun stacks: %s\n", e->text);
    return code;
}

int stacks_main(int argc, char **argv)
{
    struct stacks_config c = {0};
    struct groups g = {0};
    struct arg_result r;
    struct err e;
    if (args_parse(&stacks_program, argc, argv, &c, &r, &e) < 0)
        return complain(&e, EXIT_USAGE_ERROR);
    if (args_answer(&stacks_program, "crun " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    if (argc - r.first_operand != 1) {
        err_set(&e, ERR_USAGE, "expected one RUN, or one PID");
        return complain(&e, EXIT_USAGE_ERROR);
    }
    int rc = gather_stacks(argv[r.first_operand], &c.ask, &g, &e);
    if (rc == 0 && c.json)
        rc = groups_print_json(&g, stdout, &e);
    else if (rc == 0)
        groups_print(&g, stdout);
    const bool none = g.n == 0 && g.n_missing > 0;
    groups_free(&g);
    if (rc == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        rc = err_errno(&e, errno, "the terminal");
    return rc < 0 ? complain(&e, whom_exit_code(rc)) : none ? EXIT_FAIL : EXIT_OK;
}
