#include "worker/report/plot_main.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "common/args.h"
#include "common/err.h"
#include "common/exitcode.h"
#include "worker/report/metrics.h"

struct plot_config {
    const char *out;
};

static const struct arg_spec specs[] = {
    {.name = "out",
     .type = ARG_STRING,
     .at = offsetof(struct plot_config, out),
     .metavar = "FILE.png",
     .help = "where to put the picture; default: RUN_DIR/plot.png"},
    ARG_END,
};

static const struct arg_program program = {
    .name = "trainer plot",
    .usage = "[--out FILE.png] RUN_DIR",
    .summary = "Draw loss, accuracy and images per second of RUN_DIR/metrics.jsonl over the steps, with gnuplot.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

static int fail(int code, const char *text)
{
    fprintf(stderr, "trainer plot: %s\n", text);
    return code;
}

static int exit_code(int rc, const char *jsonl)
{
    if (rc == ERR_OUTPUT)
        return EXIT_CANT_CREATE;
    return rc == ERR_DATA || rc == ERR_CORRUPT || access(jsonl, R_OK) < 0 ? EXIT_DATA : EXIT_UNAVAILABLE;
}

static int draw(const char *run_dir, const char *out)
{
    char jsonl[PATH_MAX], png[PATH_MAX];
    struct err e;
    if (snprintf(jsonl, sizeof jsonl, "%s/metrics.jsonl", run_dir) >= PATH_MAX ||
        snprintf(png, sizeof png, "%s/plot.png", run_dir) >= PATH_MAX)
        return fail(EXIT_USAGE_ERROR, "the path of RUN_DIR is too long");
    int rc = metrics_plot(jsonl, out ? out : png, &e);
    if (rc < 0)
        return fail(exit_code(rc, jsonl), e.text);
    puts(out ? out : png);
    return EXIT_OK;
}

int plot_main(int argc, char **argv)
{
    struct plot_config c = {0};
    struct arg_result r = {0};
    struct err e;
    if (args_parse(&program, argc, argv, &c, &r, &e) < 0)
        return fail(EXIT_USAGE_ERROR, e.text);
    if (args_answer(&program, "trainer " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    if (r.first_operand != argc - 1)
        return fail(EXIT_USAGE_ERROR, "exactly one RUN_DIR is needed: trainer plot RUN_DIR [--out FILE.png]");
    return draw(argv[r.first_operand], c.out);
}
