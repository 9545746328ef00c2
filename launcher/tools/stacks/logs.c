/* `crun logs`: prints the last lines of a job's ranks (logs.h). */
#include "launcher/tools/stacks/logs.h"

#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "common/json/json.h"
#include "launcher/tools/stacks/ask_nodes.h"

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
        fputs("    | ", stdout);
        ask_nodes_put(line);
        putchar('\n');
    }
}

static void print_head(const char *host, const char *text)
{
    ask_nodes_put(host);
    fputs(": ", stdout);
    ask_nodes_put(text);
    putchar('\n');
}

static int print_rank(void *arg, const char *host, const cJSON *rank)
{
    ((struct logs *)arg)->ranks++;
    printf("rank %d on ", json_int_or(rank, "rank", -1));
    print_head(host, json_str_or(rank, "why", json_str_or(rank, "file", "")));
    print_lines("stdout", json_str_or(rank, "out", ""));
    print_lines("stderr", json_str_or(rank, "err", ""));
    return 0;
}

static int print_missing(void *arg, const char *host, const char *why)
{
    ((struct logs *)arg)->missing++;
    print_head(host, why);
    return 0;
}

int logs_print(const struct ask_options *o, const char *run, int rank, struct err *e)
{
    struct logs seen = {0};
    const struct ask_nodes q = {
        .what = "logs", .rank = rank, .rank_is = print_rank, .node_is_missing = print_missing, .arg = &seen};
    TRY(ask_nodes(o, run, &q, e));
    if (seen.ranks > 0 || seen.missing > 0)
        return seen.ranks > 0 ? EXIT_OK : EXIT_FAIL;
    return rank < 0 ? err_set(e, ERR_REFUSED, "no worker runs")
                    : err_set(e, ERR_REFUSED, "there is no rank %d in its present round", rank);
}
