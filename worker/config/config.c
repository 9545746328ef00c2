/* The table of trainer's options, their defaults, and what follows from one another. */
#include "worker/config/config.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/job/manual.h"
#include "worker/config/config_parse.h"
#include "worker/config/recipes.h"
#include "worker/data/loader/input.h"
#include "worker/data/loader/sampler.h"
#include "worker/data/sets/dataset.h"
#include "worker/device/device.h"
#include "worker/optim/schedule.h"
#include "worker/report/progress.h"

#define AT(field) offsetof(struct train_config, field)

static const struct arg_spec specs[] = {
#include "worker/config/config_model.def"

#include "worker/config/config_training.def"

#include "worker/config/config_goal.def"

#include "worker/config/config_run.def"
    ARG_END,
};

static const struct arg_section *const sections[] = {&manual_program_exit_codes, NULL};

const struct arg_program train_program = {
    .name = "trainer",
    .usage = "--train-data DIR [options]",
    .summary = "Train an image classifier with data parallelism. Under crun every rank runs the same command line; "
               "alone it is "
               "rank 0 of 1.",
    .epilog =
        "Other commands (each with --help): trainer caffe2, imagenet and mnist take the options of other "
        "programs; demo trains, kills a rank and goes on; make-data and make-db make data sets; plan says what a run "
        "would hold and send, summary what it would train; predict, generate, convert and plot use what a run leaves; gpu-info, gpu-doctor, comm-bench and "
        "comm-test look at the machine.\n"
        "Exit codes: 0 complete, 2 wrong command line, 65 bad data, 75 stopped before the end (start again to go "
        "on), 78 the checkpoint does not fit.",
    .specs = specs,
    .operands = ARG_OPERANDS, /* of --evaluate */
    .sections = sections,
    .settings = recipes_settings,
};

int train_config_defaults(struct train_config *c, struct arg_result *r, struct err *e)
{
    char *argv[] = {(char *)"trainer", NULL};
    return args_parse(&train_program, 1, argv, c, r, e);
}

void train_config_by_optimizer(struct train_config *c, const struct arg_program *p, const struct arg_result *r)
{
    static const struct {
        double base_lr, weight_decay, eps;
    } usual[] = {[OPTIMIZER_ADAM] = {1e-3, 0, 1e-8},
                 [OPTIMIZER_ADAMW] = {1e-3, 1e-2, 1e-8},
                 [OPTIMIZER_LAMB] = {1e-3, 1e-2, 1e-6}}; /* timm's */
    if (c->optimizer < OPTIMIZER_ADAM)
        return; /* the table's */
    if (args_source(p, r, "base-learning-rate") == ARG_FROM_DEFAULT)
        c->base_lr = usual[c->optimizer].base_lr;
    if (args_source(p, r, "weight-decay") == ARG_FROM_DEFAULT)
        c->weight_decay = usual[c->optimizer].weight_decay;
    if (args_source(p, r, "adam-eps") == ARG_FROM_DEFAULT)
        c->adam_eps = usual[c->optimizer].eps;
}

/* The first of these options that was given. */
static const char *first_given(const struct arg_program *p, const struct arg_result *r, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (args_source(p, r, names[i]) != ARG_FROM_DEFAULT)
            return names[i];
    return NULL;
}

void train_config_note_given(struct train_config *c, const struct arg_program *p, const struct arg_result *r)
{
    static const char *const pictures[] =
        {"image-size",           "num-channels", "input",         "scale",        "mean",         "std",
         "interpolation",        "crop-scale",   "cache-decoded", "ignore-index", "augment",      "color-jitter",
         "random-erase",         "mixup",        "cutmix",        "mix-group",    "crop-padding", "hflip",
         "repeated-augmentation"},
                             *const tokens[] = {"token-bytes", "sequence-length"};
    c->given.of_pictures = first_given(p, r, pictures, sizeof pictures / sizeof *pictures);
    c->given.of_tokens = first_given(p, r, tokens, sizeof tokens / sizeof *tokens);
    c->given.arch = args_source(p, r, "arch") != ARG_FROM_DEFAULT;
    c->given.image_size = args_source(p, r, "image-size") != ARG_FROM_DEFAULT;
    c->given.num_channels = args_source(p, r, "num-channels") != ARG_FROM_DEFAULT;
}

const char *train_config_samples(const struct train_config *c, char out[64])
{
    if (c->length)
        snprintf(out, 64, "sequences of %d tokens", c->length);
    else
        snprintf(out, 64, "%d x %d images", (int)c->image_size, (int)c->image_size);
    return out;
}

enum resume train_config_resume(const struct train_config *c)
{
    if (!c->resume || strcmp(c->resume, "off") == 0)
        return RESUME_OFF;
    return strcmp(c->resume, "auto") == 0 ? RESUME_AUTO : RESUME_PATH;
}

const char *train_config_held_out(const struct train_config *c)
{
    return c->val_split > 0 ? c->train_data : c->test_data;
}

int train_config_tensor(const struct train_config *c, int world)
{
    if (c->model_parallel_dim == MODEL_PARALLEL_NONE)
        return 1;
    const int each = world / (int)c->stages;
    return c->model_parallel_size ? (int)c->model_parallel_size : c->model_parallel && each > 0 ? each : 1;
}

struct pipeline train_config_pipeline(const struct train_config *c)
{
    const int chunks = c->stage_chunks ? (int)c->stage_chunks : c->schedule == PIPELINE_INTERLEAVED ? 2 : 1;
    return (struct pipeline){(enum pipeline_kind)c->schedule, (int)c->stages, (int)c->accumulate, chunks};
}

int train_config_zero(const struct train_config *c)
{
    return c->fsdp ? 3 : (int)c->zero;
}

enum allreduce train_config_allreduce(const struct train_config *c)
{
    return c->fp16_allreduce ? ALLREDUCE_FP16 : (enum allreduce)c->allreduce;
}

/* Where no home is known, nothing is kept. */
static const char *plan_cache(const struct train_config *c, char *out, size_t cap)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (!c->plan_cache || !*c->plan_cache || strcmp(c->plan_cache, "none") == 0)
        return NULL;
    if (strcmp(c->plan_cache, "auto") != 0)
        return c->plan_cache;
    if (cache && *cache == '/')
        snprintf(out, cap, "%s/crun/plans", cache);
    else if (home && *home == '/')
        snprintf(out, cap, "%s/.cache/crun/plans", home);
    else
        return NULL;
    return out;
}

/* Other ranks wait for rank 0 meanwhile: no longer than they would for any answer. */
static double tune_seconds(const struct train_config *c, bool alone)
{
    const double most = c->comm_timeout / 2;
    return !alone && (c->tune_seconds <= 0 || c->tune_seconds > most) ? most : c->tune_seconds;
}

void train_config_gpu(const struct train_config *c, bool alone, struct gpu_options *ret, char cache[CONFIG_CACHE_BYTES])
{
    *ret = (struct gpu_options){.eager = !c->cuda_graphs,
                                .tune = c->autotune,
                                .tune_seconds = tune_seconds(c, alone),
                                .check = c->cuda_check,
                                .tf32 = c->tf32,
                                .fused = c->conv_fusion,
                                .deterministic = c->deterministic,
                                .fast_attention = c->fast_attention,
                                .workspace_limit = (size_t)c->workspace_mb << 20,
                                .cache_dir = plan_cache(c, cache, CONFIG_CACHE_BYTES)};
}
