/* `trainer demo`: a small training whose rank is killed on the way, explained step by step. */
#include "worker/demo/demo.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/args/args.h"
#include "common/base/err.h"
#include "common/base/path.h"
#include "common/base/utf8.h"
#include "common/job/exitcode.h"
#include "worker/data/sets/shapes.h"
#include "worker/demo/job.h"
#include "worker/demo/launcher.h"
#include "worker/report/plot.h"

#define CLASSES 10
#define SIZE 64 /* pixels a side */
#define BATCH 64
#define EPOCHS 5
#define ACCURACY_MIN 95.0
#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)
enum { TRAIN_IMAGES = 4000, TEST_IMAGES = 1000 };
enum { STEPS = EPOCHS * ((TRAIN_IMAGES + BATCH - 1) / BATCH), KILL_AT = STEPS / 3 };

struct demo_config {
    const char *out, *crun;
    int64_t seed;
};

#define AT(field) .at = offsetof(struct demo_config, field)

static const struct arg_spec specs[] = {
    {.name = "out",
     .type = ARG_STRING,
     AT(out),
     .def = "runs/demo",
     .metavar = "DIR",
     .help = "folder that gets the data set, and a folder a run with log, metrics, checkpoints and plot.png"},
    {.name = "seed", .type = ARG_INT, AT(seed), .def = "0", .min = 0, .max = 0x1p53, .help = "of the training"},
    {.name = "crun",
     .type = ARG_STRING,
     AT(crun),
     .metavar = "FILE",
     .help = "the launcher; default: beside trainer, or on PATH as crun-launcher or crun"},
    ARG_END,
};

static const struct arg_program program = {
    .name = "trainer demo",
    .usage = "[--out DIR] [--seed N]",
    .summary =
        "Draw a data set of ten shapes, train a ResNet-18 on it as two processes under crun, kill one of them a third "
        "of the way, see crun replace it and training go on, and draw the curves. A minute or two on two cores.",
    .specs = specs,
    .operands = ARG_NO_OPERANDS,
};

static int exit_code(int rc)
{
    switch (rc) {
    case ERR_USAGE:
        return EXIT_USAGE_ERROR;
    case ERR_OUTPUT:
        return EXIT_CANT_CREATE;
    case ERR_DATA:
        return EXIT_DATA;
    case -ENOENT:
        return EXIT_UNAVAILABLE;
    default:
        return EXIT_FAIL;
    }
}

/* OUT/data, drawn once. */
static int make_data(const struct demo_config *c, char data[PATH_MAX], struct err *e)
{
    if (snprintf(data, PATH_MAX - 16, "%s/data", c->out) >= PATH_MAX - 16)
        return err_set(e, ERR_USAGE, "--out: the path is too long");
    printable_line(stdout, "== data: %s", data);
    fflush(stdout);
    const struct shapes_options o = {
        .out = data, .classes = CLASSES, .train_images = TRAIN_IMAGES, .test_images = TEST_IMAGES, .image_size = SIZE};
    return shapes_make(&o, e);
}

/* OUT/run-20261122-045841-seed0; *ret_id: its last part, which names the job too. */
static int make_run(const struct demo_config *c, char run[PATH_MAX], const char **ret_id, struct err *e)
{
    const time_t now = time(NULL);
    struct tm tm;
    char when[32];
    strftime(when, sizeof when, "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
    if (snprintf(run, PATH_MAX - 32, "%s/run-%s-seed%lld", c->out, when, (long long)c->seed) >= PATH_MAX - 32)
        return err_set(e, ERR_USAGE, "--out: the path is too long");
    *ret_id = strrchr(run, '/') + 1;
    return path_make_dirs(run, e);
}

/* folder/name */
static int join(char out[PATH_MAX], const char *folder, const char *name, struct err *e)
{
    if (snprintf(out, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX)
        return err_set(e, ERR_USAGE, "--out: the path is too long");
    return 0;
}

/* crun --standalone … trainer …: as a user would type it. */
static int train(const struct demo_config *c, const char *crun, const char *data, const char *run, const char *id,
                 struct job_result *ret, struct err *e)
{
    char self[PATH_MAX], seed[24];
    char train_data[PATH_MAX], test_data[PATH_MAX], logs[PATH_MAX], events[PATH_MAX], checkpoints[PATH_MAX];
    TRY(launcher_self(self, e));
    TRY(join(train_data, data, "train", e));
    TRY(join(test_data, data, "val", e));
    TRY(join(logs, run, "logs", e));
    TRY(join(events, run, "events.jsonl", e));
    TRY(join(checkpoints, run, "checkpoints", e));
    snprintf(seed, sizeof seed, "%lld", (long long)c->seed);
    /* clang-format off */
    const char *const argv[] = {
        crun, "--standalone", "--nproc-per-node", "2", "--max-restarts", "3", "--run-id", id,
        "--log-dir", logs, "--event-log", events,
        self, "train", "--train-data", train_data, "--test-data", test_data,
        "--arch", "resnet18", "--image-size", TEXT_OF(SIZE), "--num-labels", TEXT_OF(CLASSES),
        "--batch-size", TEXT_OF(BATCH), "--num-epochs", TEXT_OF(EPOCHS), "--base-learning-rate", "0.1",
        "--crop-scale", "0.6,1", "--amp", "auto", "--seed", seed,
        "--checkpoint-dir", checkpoints, "--checkpoint-every", "20", "--resume", "auto",
        "--log-dir", run, "--print-freq", "20", NULL};
    /* clang-format on */
    const struct job_options o = {
        .argv = (char *const *)(size_t)argv, .run = run, .kill_at = KILL_AT, .steps_in_all = STEPS};
    printable_line(stdout, "== training: %s", run);
    return job_run(&o, ret, e);
}

/* What came of it. EXIT_FAIL if it is not what the demo promises. */
static int tell(const char *run, const struct job_result *r)
{
    char png[PATH_MAX];
    struct err e;
    if (!r->restart[0] || !r->goes_on[0]) {
        fputs("trainer demo: no worker was killed and restarted\n", stderr);
        return EXIT_FAIL;
    }
    printf("\n== %s\n== %s\n== accuracy on %d held-out images: %.2f %%\n", r->restart, r->goes_on, TEST_IMAGES,
           r->accuracy);
    snprintf(png, sizeof png, "%s/plot.png", run);
    if (plot_draw(&run, 1, 0.033, png, &e) < 0)
        printf("== plot: none, for %s\n", e.text);
    else
        printable_line(stdout, "== plot: %s", png);
    printable_line(stdout, "== metrics: %s/metrics.jsonl, output of each rank: %s/logs", run, run);
    if (r->accuracy >= ACCURACY_MIN)
        return EXIT_OK;
    fprintf(stderr, "trainer demo: Acc@1 %.2f %% is below %.0f %%\n", r->accuracy, ACCURACY_MIN);
    return EXIT_FAIL;
}

static int demo(const struct demo_config *c)
{
    char crun[PATH_MAX], data[PATH_MAX], run[PATH_MAX];
    struct job_result result = {0};
    const char *id = "";
    struct err e;
    int rc = launcher_find(crun, c->crun, &e);
    if (rc == 0)
        rc = make_data(c, data, &e);
    if (rc == 0)
        rc = make_run(c, run, &id, &e);
    if (rc == 0)
        rc = train(c, crun, data, run, id, &result, &e);
    if (rc < 0) {
        fprintf(stderr, "trainer demo: %s\n", e.text);
        return exit_code(rc);
    }
    if (result.code != EXIT_OK) {
        printable_line(stderr, "trainer demo: crun ended with %d; %s/output has its output", result.code, run);
        return result.code;
    }
    return tell(run, &result);
}

int demo_main(int argc, char **argv)
{
    struct demo_config c = {0};
    struct arg_result r = {0};
    struct err e;
    if (args_parse(&program, argc, argv, &c, &r, &e) < 0) {
        fprintf(stderr, "trainer demo: %s\n", e.text);
        return EXIT_USAGE_ERROR;
    }
    if (args_answer(&program, "trainer " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    return demo(&c);
}
