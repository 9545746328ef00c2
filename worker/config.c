#include "worker/config.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/log.h"
#include "worker/model/model.h"
#include "worker/optim/schedule.h"

#define AT(field) offsetof(struct train_config, field)

static int parse_range(const char *text, void *field, struct err *e)
{
    struct range *r = field;
    char first[64];
    const char *comma = strchr(text, ',');
    if (!comma || (size_t)(comma - text) >= sizeof first)
        return err_set(e, ERR_USAGE, "'%s' is not MIN,MAX", text);
    snprintf(first, sizeof first, "%.*s", (int)(comma - text), text);
    TRY(parse_f64(first, "MIN", 1e-6, 1, &r->min, e));
    TRY(parse_f64(comma + 1, "MAX", 1e-6, 1, &r->max, e));
    if (r->min > r->max)
        return err_set(e, ERR_USAGE, "MIN %g is above MAX %g", r->min, r->max);
    return 0;
}

static const struct arg_spec specs[] = {
    ARG_GROUP("Data"),
    {.name = "train-data", .type = ARG_STRING, .at = AT(train_data), .aliases = "train_data", .metavar = "DIR",
     .required = true, .help = "training images: DIR/<class>/*.jpg"},
    {.name = "test-data", .type = ARG_STRING, .at = AT(test_data), .metavar = "DIR",
     .help = "held-out images in the same classes; without it nothing is evaluated"},
    {.name = "num-labels", .type = ARG_INT, .at = AT(num_labels), .def = "0", .min = 0, .max = 1 << 24,
     .aliases = "num-classes", .help = "classes of the model; 0: as many as the training set has"},
    {.name = "num-channels", .type = ARG_INT, .at = AT(num_channels), .def = "3", .min = 1, .max = 3,
     .help = "3 (RGB) or 1 (grey)"},
    {.name = "image-size", .type = ARG_INT, .at = AT(image_size), .def = "224", .min = 8, .max = 4096,
     .help = "images are cropped and scaled to this many pixels square"},
    {.name = "crop-scale", .type = ARG_CUSTOM, .at = AT(crop_scale), .def = "0.08,1", .parse = parse_range,
     .metavar = "MIN,MAX", .help = "share of the image's area that a random training crop keeps"},
    {.name = "strict-data", .type = ARG_FLAG, .at = AT(strict_data),
     .help = "fail on an image that cannot be decoded, instead of giving it weight 0 and counting it"},
    {.name = "loader-threads", .type = ARG_INT, .at = AT(loader_threads), .def = "0", .min = 0, .max = 1024,
     .aliases = "workers", .help = "threads that decode images; 0: cores / local ranks"},

    ARG_GROUP("Model"),
    {.name = "arch", .short_name = 'a', .type = ARG_STRING, .at = AT(arch), .def = "resnet50",
     .help = "resnet18, resnet34, resnet50, resnet101, resnet152 or convnet"},
    {.name = "device", .type = ARG_STRING, .at = AT(device), .def = "auto",
     .help = "auto, cpu (oneDNN, fp32 or bf16) or ref (plain C in double precision, the yardstick)"},
    {.name = "amp", .type = ARG_CHOICE, .at = AT(amp), .choices = "auto|bf16|off", .def = "off",
     .help = "bf16 activations and convolutions with fp32 master weights; auto: where the processor has bf16 units; "
             "bf16 elsewhere is emulated"},
    {.name = "zero-init-residual", .type = ARG_FLAG, .at = AT(zero_init_residual), .def = "on",
     .help = "start the last batch-norm scale of every residual block at 0"},
    {.name = "sync-bn", .type = ARG_FLAG, .at = AT(sync_bn),
     .help = "batch statistics over all ranks instead of each rank's share"},

    ARG_GROUP("Training"),
    {.name = "batch-size", .short_name = 'b', .type = ARG_INT, .at = AT(batch_size), .def = "256", .min = 1,
     .max = 1 << 20, .help = "global batch: images per step over all ranks"},
    {.name = "num-epochs", .type = ARG_INT, .at = AT(num_epochs), .def = "90", .min = 1, .max = 1000000,
     .aliases = "epochs", .help = "passes over the training set"},
    {.name = "max-steps", .type = ARG_INT, .at = AT(max_steps), .def = "0", .min = 0, .max = 1e15,
     .help = "end training after this many steps; 0: by epochs alone"},
    {.name = "max-time", .type = ARG_SECONDS, .at = AT(max_time), .def = "0",
     .help = "stop in good order (checkpoint, exit code 75) after this much time of this process; 0: never"},
    {.name = "base-learning-rate", .type = ARG_REAL, .at = AT(base_lr), .def = "0.1", .min = 0, .max = 1e9,
     .aliases = "lr,learning-rate", .help = "rate after warm-up, for the global batch"},
    {.name = "momentum", .type = ARG_REAL, .at = AT(momentum), .def = "0.9", .min = 0, .max = 1, .help = "of SGD"},
    {.name = "weight-decay", .type = ARG_REAL, .at = AT(weight_decay), .def = "1e-4", .min = 0, .max = 1,
     .aliases = "wd", .help = "added to the gradient, as in torch.optim.SGD, of every parameter"},
    {.name = "lr-policy", .type = ARG_CHOICE, .at = AT(lr_policy), .choices = "cosine|step|fixed", .def = "cosine",
     .help = "how the rate falls after warm-up"},
    {.name = "lr-step", .type = ARG_REAL, .at = AT(lr_step_epochs), .def = "30", .min = 0.001, .max = 1e6,
     .help = "lr-policy step: epochs between drops"},
    {.name = "lr-gamma", .type = ARG_REAL, .at = AT(lr_gamma), .def = "0.1", .min = 0, .max = 1,
     .help = "lr-policy step: factor of a drop"},
    {.name = "warmup-epochs", .type = ARG_REAL, .at = AT(warmup_epochs), .def = "-1", .min = -1, .max = 1e6,
     .help = "epochs of linear warm-up; -1: the first 5 % of all steps"},
    {.name = "seed", .type = ARG_INT, .at = AT(seed), .def = "0", .min = 0, .max = 9e15,
     .help = "initial weights, order and augmentation of the samples are functions of it"},
    {.name = "eval-every", .type = ARG_INT, .at = AT(eval_every), .def = "1", .min = 0, .max = 1000000,
     .help = "epochs between evaluations; the last epoch is always evaluated; 0: only that"},

    ARG_GROUP("Checkpoints"),
    {.name = "checkpoint-dir", .type = ARG_STRING, .at = AT(checkpoint_dir), .metavar = "DIR",
     .help = "where checkpoints go; without it none are written"},
    {.name = "checkpoint-every", .type = ARG_INT, .at = AT(checkpoint_every), .def = "0", .min = 0, .max = 1e12,
     .metavar = "STEPS", .help = "steps between checkpoints; 0: at the end of every epoch"},
    {.name = "checkpoint-seconds", .type = ARG_SECONDS, .at = AT(checkpoint_seconds), .def = "0",
     .help = "time between checkpoints, in addition; 0: never"},
    {.name = "checkpoint-keep", .type = ARG_INT, .at = AT(checkpoint_keep), .def = "2", .min = 0, .max = 1000000,
     .help = "newest checkpoints kept; 0: all"},
    {.name = "resume", .type = ARG_CHOICE, .at = AT(resume), .choices = "off|auto", .def = "off",
     .help = "auto: go on from the newest complete checkpoint in --checkpoint-dir, from the start if there is none"},

    ARG_GROUP("Logs"),
    {.name = "log-dir", .type = ARG_STRING, .at = AT(log_dir), .metavar = "DIR",
     .help = "metrics.jsonl and the Caffe2 CSV log; default: the checkpoint folder; neither: no files"},
    {.name = "print-freq", .type = ARG_INT, .at = AT(print_freq), .def = "10", .min = 1, .max = 1e9,
     .help = "steps between progress lines where stderr is no terminal"},
    {.name = "log-level", .type = ARG_CHOICE, .at = AT(log_level), .choices = "error|warn|info|debug", .def = "warn",
     .env = "CRUN_LOG_LEVEL", .help = "messages about the program itself"},

    ARG_GROUP("Machine"),
    {.name = "threads", .type = ARG_INT, .at = AT(threads), .def = "0", .min = 0, .max = 4096,
     .help = "compute threads of this rank; 0: cores / local ranks"},
    {.name = "comm", .type = ARG_STRING, .at = AT(comm), .def = "auto",
     .help = "collectives: auto, gloo or local (one rank)"},
    {.name = "comm-timeout", .type = ARG_SECONDS, .at = AT(comm_timeout), .def = "300",
     .help = "deadline of a collective"},
    {.name = "bucket-mb", .type = ARG_INT, .at = AT(bucket_mb), .def = "25", .min = 1, .max = 4096,
     .help = "gradients are reduced in pieces of this size while backward runs"},
    {.name = "check-replicas", .type = ARG_INT, .at = AT(check_replicas), .def = "0", .min = 0, .max = 1e12,
     .metavar = "STEPS", .help = "compare the state of all ranks every so many steps and fail if a bit differs; 0: never"},
    ARG_END,
};

const struct arg_program train_program = {
    .name = "trainer",
    .usage = "--train-data DIR [options]",
    .summary = "Train an image classifier with data parallelism. Under crun every rank runs the same command line; alone it is "
               "rank 0 of 1.",
    .epilog = "Other commands: trainer make-data, trainer plot (each with --help).\n"
              "Exit codes: 0 complete, 2 wrong command line, 65 bad data, 75 stopped before the end (start again to go "
              "on), 78 the checkpoint does not fit.",
    .specs = specs,
    .operands = ARG_NO_OPERANDS,
};

int train_config_check(const struct train_config *c, struct err *e)
{
    if (c->num_channels != 1 && c->num_channels != 3)
        return err_set(e, ERR_USAGE, "--num-channels %d: must be 1 or 3", (int)c->num_channels);
    if (c->num_labels == 1)
        return err_set(e, ERR_USAGE, "--num-labels 1: a classifier needs at least 2 classes");
    if (c->resume == RESUME_AUTO && !c->checkpoint_dir)
        return err_set(e, ERR_USAGE, "--resume auto needs --checkpoint-dir: it says where to look");
    if ((c->checkpoint_every || c->checkpoint_seconds > 0) && !c->checkpoint_dir)
        return err_set(e, ERR_USAGE, "--checkpoint-every and --checkpoint-seconds need --checkpoint-dir");
    if (c->comm_timeout <= 0)
        return err_set(e, ERR_USAGE, "--comm-timeout 0: must be above 0 seconds");
    return 0;
}
