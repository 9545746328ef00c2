/* trainer gpu-doctor: from the device to two ranks, a rung at a time; and one file that says all of it. */
#include "worker/cli/cli.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/args/args.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/path.h"
#include "common/job/exitcode.h"
#include "worker/cli/gpu_ladder.h"
#include "worker/config/exit_code.h"
#include "worker/device/module/module.h"
#include "worker/model/model.h"
#include "worker/program/program.h"

enum { RUNG_MS = 150000, LABELS = 10 };

struct doctor_config {
    const char *out, *arch;
    double budget;
    int64_t steps, batch, image_size;
};

#define AT(field) offsetof(struct doctor_config, field)

static const struct arg_spec specs[] = {
    {.name = "out",
     .type = ARG_STRING,
     .at = AT(out),
     .def = "gpu-doctor",
     .metavar = "DIR",
     .help = "folder for the output of each rung, and gpu-doctor.txt, which has all of it"},
    {.name = "budget",
     .type = ARG_SECONDS,
     .at = AT(budget),
     .def = "480",
     .min = 1,
     .max = 86400,
     .help = "seconds for all rungs; the rest is left out when they are over"},
    {.name = "arch", .type = ARG_STRING, .at = AT(arch), .def = "resnet18", .help = "network of the runs"},
    {.name = "image-size",
     .type = ARG_INT,
     .at = AT(image_size),
     .def = "64",
     .min = 8,
     .max = 1024,
     .help = "pixels of a side"},
    {.name = "batch-size",
     .type = ARG_INT,
     .at = AT(batch),
     .def = "64",
     .min = 2,
     .max = 4096,
     .help = "images a step"},
    {.name = "steps", .type = ARG_INT, .at = AT(steps), .def = "20", .min = 3, .max = 1000, .help = "of each run"},
    ARG_END,
};

static const struct arg_program program = {
    .name = "trainer gpu-doctor",
    .usage = "[--out DIR] [--budget SECONDS]",
    .summary =
        "Climb the ladder of a GPU run: device, plain convolutions, halves, fused patterns, graphs, autotune, two "
        "ranks; each a run of its own with a deadline, its losses compared with the plain one's. The first rung "
        "that fails is repeated kernel by kernel and named. DIR/gpu-doctor.txt has everything to send. Exit codes: "
        "0 all rungs hold, 1 one fails, 69 there is no GPU, 124 --budget ended before the last rung; those before hold.",
    .specs = specs,
    .operands = ARG_NO_OPERANDS,
};

static void append(FILE *to, const char *path)
{
    char piece[65536];
    size_t n;
    FILE *f = fopen(path, "re");
    fprintf(to, "\n===== %s\n", path);
    while (f && (n = fread(piece, 1, sizeof piece, f)) > 0)
        fwrite(piece, 1, n, to);
    if (f)
        fclose(f);
}

/* The folder's name is no pattern, whatever is in it. */
static void quote(const char *folder, char *out, size_t cap)
{
    size_t n = 0;
    for (; *folder && n + 2 < cap; folder++) {
        if (strchr("*?[]\\", *folder))
            out[n++] = '\\';
        out[n++] = *folder;
    }
    out[n] = '\0';
}

/* What the run left behind, in one file. */
static int write_report(const struct doctor_config *c, const char *verdict, struct err *e)
{
    static const char *const kinds[] = {"rung-*/log", "rung-*/metrics.jsonl", "plans/*/*.json"};
    char path[PATH_MAX], folder[PATH_MAX], pattern[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/gpu-doctor.txt", c->out);
    unlink(path); /* of the run before */
    FILE *f = fopen(path, "wxe");
    if (!f)
        return err_errno(e, errno, "write %s", path);
    fprintf(f, "trainer %s gpu-doctor\n%s\n", CRUN_VERSION, verdict);
    quote(c->out, folder, sizeof folder);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        glob_t found = {0};
        snprintf(pattern, sizeof pattern, "%s/%s", folder, kinds[k]);
        if (glob(pattern, 0, NULL, &found) == 0)
            for (size_t i = 0; i < found.gl_pathc; i++)
                append(f, found.gl_pathv[i]);
        globfree(&found);
    }
    const bool bad = ferror(f);
    if (fclose(f) != 0 || bad)
        return err_errno(e, errno ? errno : EIO, "write %s", path);
    printf("all of it: %s\n", path);
    return 0;
}

/* What training would refuse is no fault of the GPU's. */
static int check_network(const struct doctor_config *c, struct err *e)
{
    const struct model_options m = {.arch = c->arch,
                                    .classes = LABELS,
                                    .input = input_pictures(3, (int)c->image_size, (int)c->image_size, NULL, NULL)};
    struct program *p;
    TRY(model_build(&p, &m, e));
    program_destroy(p);
    return 0;
}

static int climb(const struct doctor_config *c, int gpus, struct gpu_ladder_end *ret, struct err *e)
{
    char self[PATH_MAX], verdict[1024];
    struct err why = {0};
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return err_errno(e, errno, "find this program");
    self[n] = '\0';
    TRY(path_make_writable(c->out, e));
    const struct gpu_ladder l = {.out = c->out,
                                 .self = self,
                                 .deadline_ms = clock_ms() + (int64_t)(c->budget * 1e3),
                                 .rung_ms = RUNG_MS,
                                 .gpus = gpus,
                                 .steps = (int)c->steps,
                                 .batch = (int)c->batch,
                                 .arch = c->arch,
                                 .image_size = (int)c->image_size};
    TRY(gpu_ladder_climb(&l, ret, &why, e));
    if (!ret->rung)
        snprintf(verdict, sizeof verdict, "every rung holds");
    else if (ret->no_time)
        snprintf(verdict, sizeof verdict, "--budget %g ended at: %s: %s; every rung before it holds", c->budget,
                 ret->rung, why.text);
    else
        snprintf(verdict, sizeof verdict, "the first rung that fails: %s: %s", ret->rung, why.text);
    puts(verdict);
    return write_report(c, verdict, e);
}

int gpu_doctor_main(int argc, char **argv)
{
    struct doctor_config c = {0};
    struct arg_result r;
    struct err e;
    struct gpu_ladder_end end = {0};
    log_init(LOG_WARN, "");
    int rc = args_parse(&program, argc, argv, &c, &r, &e);
    if (rc == 0 && args_answer(&program, "trainer " CRUN_VERSION, &c, &r, stdout))
        return EXIT_OK;
    if (rc == 0)
        rc = check_network(&c, &e);
    if (rc == 0) {
        const struct cuda_module *m = cuda_module(&e);
        const int gpus = m ? m->count(&e) : 0;
        rc = gpus == 0 ? -ENODEV : climb(&c, gpus, &end, &e);
    }
    if (rc < 0) {
        fprintf(stderr, "trainer gpu-doctor: %s\n", e.text);
        return exit_code_of(rc);
    }
    return end.no_time ? EXIT_HUNG : end.rung ? EXIT_FAIL : EXIT_OK;
}
