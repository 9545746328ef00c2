/* `crun logs`: see stacks_tool.h. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/json/json.h"
#include "launcher/tools/stacks/ask_nodes.h"
#include "launcher/tools/stacks/stacks_tool.h"
#include "launcher/outside/whom.h"

struct logs_config {
    struct ask_options ask;
};

static const struct arg_spec specs[] = {
    ARG_GROUP("Logs"),
    ASK_OPTIONS(WHOM_HELP),
    ARG_END,
};

const struct arg_program logs_program = {
    .name = "crun logs",
    .usage = "[options] RUN [RANK]",
    .summary = "Show the last lines that the ranks of a running job wrote, or those of RANK alone: the end of their log "
               "files (--log-dir), 4 KiB of each.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

struct logs {
    int ranks, missing;
};

static void print_lines(const char *name, const char *text)
{
    char line[4096];
    if (text[0])
        printf("  %s:\n", name);
    for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        printf("    | %s\n", ask_nodes_clean(line));
    }
}

static int print_rank(void *arg, const char *host, const cJSON *rank)
{
    char text[512];
    ((struct logs *)arg)->ranks++;
    printf("rank %d on %s", json_int_or(rank, "rank", -1), host);
    snprintf(text, sizeof text, "%s", json_str_or(rank, "why", ""));
    if (text[0]) {
        printf(": %s\n", ask_nodes_clean(text));
        return 0;
    }
    snprintf(text, sizeof text, "%s", json_str_or(rank, "file", ""));
    printf(": %s\n", ask_nodes_clean(text));
    print_lines("stdout", json_str_or(rank, "out", ""));
    print_lines("stderr", json_str_or(rank, "err", ""));
    return 0;
}

static int print_missing(void *arg, const char *host, const char *why)
{
    ((struct logs *)arg)->missing++;
    printf("%s: %s\n", host, why);
    return 0;
}

static int read_rank(const char *word, int *ret, struct err *e)
{
    char *end;
    const long n = strtol(word, &end, 10);
    if (!*word || *end || n < 0 || n >= INT_MAX)
        return err_set(e, ERR_USAGE, "'%s': expected the RANK of a worker, 0 or more", word);
    *ret = (int)n;
    return 0;
}

static int complain(const struct err *e, int code)
{
    fprintf(stderr, "crun logs: %s\n", e->text);
    return code;
}

int logs_main(int argc, char **argv)
{
    struct logs_config c = {0};
    struct logs seen = {0};
    struct ask_nodes q = {
        .what = "logs", .rank = -1, .rank_is = print_rank, .node_is_missing = print_missing, .arg = &seen};
    struct arg_result r;
    struct err e;
    if (args_parse(&logs_program, argc, argv, &c, &r, &e) < 0)
        return complain(&e, EXIT_USAGE_ERROR);
    if (args_answer(&logs_program, "crun " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    const int n = argc - r.first_operand;
    int rc = n == 1 || n == 2 ? 0 : err_set(&e, ERR_USAGE, "expected RUN, and perhaps a RANK");
    if (rc == 0 && n == 2)
        rc = read_rank(argv[r.first_operand + 1], &q.rank, &e);
    if (rc == 0)
        rc = ask_nodes(&c.ask, argv[r.first_operand], &q, &e);
    if (rc == 0 && seen.ranks == 0 && seen.missing == 0)
        rc = q.rank < 0 ? err_set(&e, ERR_REFUSED, "no worker runs")
                        : err_set(&e, ERR_REFUSED, "there is no rank %d in its present round", q.rank);
    if (rc == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        rc = err_errno(&e, errno, "the terminal");
    return rc < 0 ? complain(&e, whom_exit_code(rc)) : seen.ranks ? EXIT_OK : EXIT_FAIL;
}
