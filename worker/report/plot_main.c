/* `trainer plot`: its options, and the script that gnuplot gets. */
#include "worker/report/plot_main.h"

#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/job/exitcode.h"
#include "worker/report/plot.h"

struct plot_config {
    const char *out;
    double smoothing;
};

static int parse_smoothing(const char *text, void *field, struct err *e)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= 0 && v <= 1e9) || (v > 1 && v != floor(v)))
        return err_set(e, ERR_USAGE, "expected a number of steps (1: none) or a share of them below 1");
    *(double *)field = v;
    return 0;
}

static const struct arg_spec specs[] = {
    {.name = "out",
     .type = ARG_STRING,
     .at = offsetof(struct plot_config, out),
     .metavar = "FILE.png",
     .help = "where to put the picture; default: RUN/plot.png, of several runs plot.png"},
    {.name = "smooth",
     .type = ARG_CUSTOM,
     .at = offsetof(struct plot_config, smoothing),
     .parse = parse_smoothing,
     .def = "0.033",
     .metavar = "N|SHARE",
     .help =
         "steps around each one that a curve of training is the mean of, or which share of the run's; 0 or 1: none"},
    ARG_END,
};

static const struct arg_program program = {
    .name = "trainer plot",
    .usage = "[--out FILE.png] [--smooth N|SHARE] RUN...",
    .summary =
        "Draw loss, accuracy and images per second over the steps, with gnuplot. RUN is a folder with metrics.jsonl, "
        "such a "
        "file or a CSV log of Caffe2's trainer; several (up to 7) are laid over one another, test curves dashed.",
    .specs = specs,
    .operands = ARG_OPERANDS,
};

static int fail(int code, const char *text)
{
    fprintf(stderr, "trainer plot: %s\n", text);
    return code;
}

static int exit_code(int rc)
{
    switch (rc) {
    case ERR_USAGE:
        return EXIT_USAGE_ERROR;
    case ERR_OUTPUT:
        return EXIT_CANT_CREATE;
    case ERR_DATA:
    case ERR_CORRUPT:
        return EXIT_DATA;
    default:
        return EXIT_UNAVAILABLE;
    }
}

static int draw(char **runs, size_t n, const struct plot_config *c)
{
    char png[PATH_MAX] = "plot.png";
    struct stat st;
    struct err e;
    bool folder = stat(runs[0], &st) == 0 && S_ISDIR(st.st_mode);
    if (c->out ? snprintf(png, sizeof png, "%s", c->out) >= PATH_MAX
               : n == 1 && folder && snprintf(png, sizeof png, "%s/plot.png", runs[0]) >= PATH_MAX)
        return fail(EXIT_USAGE_ERROR, "a path is too long");
    int rc = plot_draw((const char *const *)runs, n, c->smoothing, png, &e);
    if (rc < 0)
        return fail(exit_code(rc), e.text);
    puts(png);
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
    if (r.first_operand == argc)
        return fail(EXIT_USAGE_ERROR, "a run is needed: trainer plot RUN... [--out FILE.png]");
    return draw(argv + r.first_operand, (size_t)(argc - r.first_operand), &c);
}
