#include "worker/config.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/log.h"
#include "worker/data/dataset.h"
#include "worker/data/input.h"
#include "worker/data/sampler.h"
#include "worker/device/device.h"
#include "worker/model/model.h"
#include "worker/optim/schedule.h"
#include "worker/report/progress.h"

#define CHECKPOINT_NAME_MAX 200 /* bytes: with the epochs and suffixes behind it, it is still a file name */

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

static int parse_window(const char *text, void *field, struct err *e)
{
    struct window *w = field;
    char first[64];
    const char *comma = strchr(text, ',');
    if (!comma || (size_t)(comma - text) >= sizeof first)
        return err_set(e, ERR_USAGE, "'%s' is not FIRST,COUNT", text);
    snprintf(first, sizeof first, "%.*s", (int)(comma - text), text);
    TRY(parse_i64(first, "FIRST", 1, INT64_MAX / 2, &w->first, e));
    return parse_i64(comma + 1, "COUNT", 1, INT64_MAX / 2, &w->count, e);
}

static int parse_milestones(const char *text, void *field, struct err *e)
{
    struct milestones *m = field;
    char one[32];
    m->n = 0;
    for (const char *at = text, *end; at; at = end ? end + 1 : NULL) {
        end = strchr(at, ',');
        size_t n = end ? (size_t)(end - at) : strlen(at);
        if (m->n == MILESTONES_MAX)
            return err_set(e, ERR_USAGE, "'%s' has more than %d epochs", text, MILESTONES_MAX);
        snprintf(one, sizeof one, "%.*s", n < sizeof one ? (int)n : (int)sizeof one - 1, at);
        TRY(parse_f64(one, "epoch", 0, 1e6, &m->epoch[m->n], e));
        if (m->n > 0 && m->epoch[m->n] <= m->epoch[m->n - 1])
            return err_set(e, ERR_USAGE, "'%s' does not rise: %g after %g", text, m->epoch[m->n], m->epoch[m->n - 1]);
        m->n++;
    }
    return 0;
}

static int parse_channels(const char *text, double min, void *field, struct err *e)
{
    struct channels *c = field;
    char one[32];
    c->n = 0;
    for (const char *at = text, *end; at; at = end ? end + 1 : NULL) {
        end = strchr(at, ',');
        size_t n = end ? (size_t)(end - at) : strlen(at);
        if (c->n == 3)
            return err_set(e, ERR_USAGE, "'%s' has more than 3 channels", text);
        snprintf(one, sizeof one, "%.*s", n < sizeof one ? (int)n : (int)sizeof one - 1, at);
        TRY(parse_f64(one, "value", min, 1000, &c->v[c->n], e));
        c->n++;
    }
    return 0;
}

static int parse_mean(const char *text, void *field, struct err *e)
{
    return parse_channels(text, -1000, field, e);
}

static int parse_std(const char *text, void *field, struct err *e)
{
    return parse_channels(text, 1e-6, field, e);
}

static const struct arg_spec specs[] = {
    ARG_GROUP("Data"),
    {.name = "train-data",
     .type = ARG_STRING,
     .at = AT(train_data),
     .metavar = "PATH",
     .required = true,
     .help = "training images: DIR/<class>/*.jpg, an LMDB or LevelDB of Caffe or Caffe2 records, MNIST's or CIFAR-10's "
             "files; null: made "
             "up, nothing is read"},
    {.name = "test-data",
     .type = ARG_STRING,
     .at = AT(test_data),
     .metavar = "PATH",
     .help = "held-out images in the same classes; without it nothing is evaluated"},
    {.name = "data-format",
     .type = ARG_CHOICE,
     .at = AT(data_format),
     .choices = DATASET_CHOICES,
     .def = "auto",
     .aliases = "db-type",
     .help = "what --train-data and --test-data are; auto: what they look like"},
    {.name = "null-images",
     .type = ARG_INT,
     .at = AT(null_images),
     .def = "0",
     .min = 0,
     .max = 1e9,
     .help = "--train-data null: images of an epoch; 0: 1281167"},
    {.name = "num-labels",
     .type = ARG_INT,
     .at = AT(num_labels),
     .def = "0",
     .min = 0,
     .max = 1 << 24,
     .aliases = "num-classes",
     .help = "classes of the model; 0: as many as the training set has"},
    {.name = "num-channels",
     .type = ARG_INT,
     .at = AT(num_channels),
     .def = "3",
     .min = 1,
     .max = 3,
     .help = "3 (RGB) or 1 (grey)"},
    {.name = "image-size",
     .type = ARG_INT,
     .at = AT(image_size),
     .def = "224",
     .min = 8,
     .max = 4096,
     .help = "images are cropped and scaled to this many pixels square"},
    {.name = "scale",
     .type = ARG_INT,
     .at = AT(scale),
     .def = "0",
     .min = 0,
     .max = 16384,
     .help =
         "pixels of the short side that the crop is cut from: --input caffe2, and evaluation with torch. 0: 256, torch "
         "image-size * 256 / 224"},
    {.name = "mean",
     .type = ARG_CUSTOM,
     .at = AT(mean),
     .parse = parse_mean,
     .metavar = "M[,M,M]",
     .help = "subtracted from each channel, in shares of 255; default: that of --input"},
    {.name = "std",
     .type = ARG_CUSTOM,
     .at = AT(std),
     .parse = parse_std,
     .metavar = "S[,S,S]",
     .help = "what each channel is then divided by; default: that of --input"},
    {.name = "crop-scale",
     .type = ARG_CUSTOM,
     .at = AT(crop_scale),
     .def = "0.08,1",
     .parse = parse_range,
     .metavar = "MIN,MAX",
     .help = "share of the image's area that a random training crop keeps"},
    {.name = "input",
     .type = ARG_CHOICE,
     .at = AT(input),
     .choices = INPUT_CHOICES,
     .def = "torch",
     .help = "torch: random resized crop, flip, ImageNet's mean and deviation; caffe2: short side scaled, random crop, "
             "flip, BGR around 0; plain: 0 to 1, nothing random; cifar: a crop of the padded image, flip, CIFAR-10's "
             "mean and deviation"},
    {.name = "sampler",
     .type = ARG_CHOICE,
     .at = AT(sampler),
     .choices = SAMPLER_CHOICES,
     .def = "global",
     .help = "global: one order cut into batches and those into shares, each sample once an epoch for any number of "
             "ranks; distributed: ranks take turns in an order padded to a multiple of them, as torch's "
             "DistributedSampler; sharded: nodes take turns in the order of the records, round and round, as Caffe2's "
             "readers"},
    {.name = "shuffle",
     .type = ARG_CHOICE,
     .at = AT(shuffle),
     .choices = "auto|on|off",
     .def = "auto",
     .help = "an order of its own for every pass (sharded: one for all); off: that of the set; auto: off where the "
             "sampler is sharded"},
    {.name = "drop-last",
     .type = ARG_FLAG,
     .at = AT(drop_last),
     .help = "--sampler distributed: leave out the samples that the ranks do not divide, instead of repeating some"},
    {.name = "epoch-size",
     .type = ARG_INT,
     .at = AT(epoch_size),
     .def = "0",
     .min = 0,
     .max = 1e15,
     .help = "samples of an epoch, rounded down to whole batches, but at least one; passes over the set go on from one "
             "epoch to the next. 0: as many as the set has"},
    {.name = "strict-data",
     .type = ARG_FLAG,
     .at = AT(strict_data),
     .help = "fail on an image that cannot be decoded, instead of giving it weight 0 and counting it"},
    {.name = "debug-batch-sha",
     .type = ARG_STRING,
     .at = AT(debug_batch_sha),
     .metavar = "FILE",
     .help =
         "append a JSON line for every training batch of every rank: epoch, step, SHA-256 of its pixels, labels and "
         "weights, ids of its samples; -: to standard output"},
    {.name = "loader-threads",
     .type = ARG_INT,
     .at = AT(loader_threads),
     .def = "0",
     .min = 0,
     .max = 1024,
     .aliases = "workers",
     .help = "threads that decode images; 0: cores / local ranks"},

    ARG_GROUP("Model"),
    {.name = "arch",
     .short_name = 'a',
     .type = ARG_STRING,
     .at = AT(arch),
     .def = "resnet50",
     .help = "resnet18, resnet34, resnet50, resnet101, resnet152, convnet or mlp"},
    {.name = "net-style",
     .type = ARG_CHOICE,
     .at = AT(net_style),
     .choices = "torch|caffe2",
     .def = "torch",
     .help = "ResNets: torchvision's, or those of Caffe2's resnet.py (batch-norm eps 1e-3, new statistics weigh 0.9, "
             "max-pool "
             "without padding)"},
    {.name = "device",
     .type = ARG_STRING,
     .at = AT(device),
     .def = "auto",
     .help = "auto (a GPU where one can be used, else the CPU), cuda, cpu (oneDNN) or ref (plain C in double "
             "precision, the yardstick)"},
    {.name = "opt-level",
     .type = ARG_CUSTOM,
     .at = AT(precision.level),
     .parse = precision_parse_level,
     .metavar = "O0|O1|O2|O3",
     .help = "O0 (default): fp32. O1: fp32 weights, operands of convolutions and linear layers cast to halves. O2: a "
             "model and "
             "activations of halves, fp32 batch norm and master weights. O3: halves throughout"},
    {.name = "amp-dtype",
     .type = ARG_CUSTOM,
     .at = AT(precision.half),
     .parse = precision_parse_half,
     .metavar = "fp16|bf16",
     .help = "what a half is at O1, O2 and O3; default fp16"},
    {.name = "amp",
     .type = ARG_CUSTOM,
     .at = AT(precision.amp),
     .parse = precision_parse_amp,
     .metavar = "off|auto|bf16|fp16",
     .help = "bf16, fp16: short for --opt-level O2 --amp-dtype bf16, fp16; auto: bf16 where the processor has units "
             "for it, else "
             "O0; off: O0. What it lacks is emulated"},
    {.name = "enable-amp-mode", .type = ARG_FLAG, .at = AT(precision.amp_mode), .help = "--opt-level O1"},
    {.name = "keep-batchnorm-fp32",
     .type = ARG_CUSTOM,
     .at = AT(precision.keep_bn),
     .parse = precision_parse_yes_no,
     .metavar = "True|False",
     .help = "batch norm in fp32 at O2 (default True) and O3 (default False)"},
    {.name = "loss-scale",
     .type = ARG_CUSTOM,
     .at = AT(precision.loss_scale),
     .parse = precision_parse_scale,
     .metavar = "dynamic|NUMBER",
     .help = "factor of the loss in the backward pass; dynamic (default with fp16 at O1 and O2): from 65536, halved "
             "where gradients "
             "overflow (that step is left out), doubled after 2000 steps without; else 1"},
    {.name = "memory-format",
     .type = ARG_CHOICE,
     .at = AT(format),
     .choices = "auto|nchw|nhwc",
     .def = "auto",
     .help = "how activations lie in memory; auto: in the blocks that this device is fastest with"},
    {.name = "channels-last", .type = ARG_FLAG, .at = AT(channels_last), .help = "--memory-format nhwc"},
    {.name = "zero-init-residual",
     .type = ARG_FLAG,
     .at = AT(zero_init_residual),
     .def = "on",
     .help = "start the last batch-norm scale of every residual block at 0"},
    {.name = "sync-bn",
     .type = ARG_FLAG,
     .at = AT(sync_bn),
     .help = "batch statistics over all ranks instead of each rank's share"},

    ARG_GROUP("Training"),
    {.name = "batch-size",
     .short_name = 'b',
     .type = ARG_INT,
     .at = AT(batch_size),
     .def = "256",
     .min = 1,
     .max = 1 << 20,
     .help = "global batch: images per step over all ranks"},
    {.name = "accumulate",
     .type = ARG_INT,
     .at = AT(accumulate),
     .def = "1",
     .min = 1,
     .max = 65536,
     .aliases = "batches-per-allreduce",
     .help = "parts in which a rank's share goes through the model, one after the other; gradients are added up and "
             "reduced once. Batch "
             "statistics are each part's own"},
    {.name = "num-epochs",
     .type = ARG_INT,
     .at = AT(num_epochs),
     .def = "90",
     .min = 1,
     .max = 1000000,
     .aliases = "epochs",
     .help = "passes over the training set"},
    {.name = "max-steps",
     .type = ARG_INT,
     .at = AT(max_steps),
     .def = "0",
     .min = 0,
     .max = 1e15,
     .help = "end training after this many steps; 0: by epochs alone"},
    {.name = "max-time",
     .type = ARG_SECONDS,
     .at = AT(max_time),
     .def = "0",
     .help = "stop in good order (checkpoint, exit code 75) after this much time of this process; 0: never"},
    {.name = "base-learning-rate",
     .type = ARG_REAL,
     .at = AT(base_lr),
     .def = "0.1",
     .min = 0,
     .max = 1e9,
     .aliases = "lr,learning-rate",
     .help = "rate after warm-up, for the global batch"},
    {.name = "optimizer",
     .type = ARG_CHOICE,
     .at = AT(optimizer),
     .choices = "sgd|lars|adam|adamw",
     .def = "sgd",
     .help = "sgd, adam and adamw as in torch.optim; lars: a rate for every matrix and filter from the norms of "
             "weights and gradients"},
    {.name = "nesterov",
     .type = ARG_FLAG,
     .at = AT(nesterov),
     .help = "sgd: Nesterov's momentum, as in torch.optim.SGD"},
    {.name = "sgd-rule",
     .type = ARG_CHOICE,
     .at = AT(sgd_rule),
     .choices = "torch|caffe2",
     .def = "torch",
     .help = "sgd: caffe2 keeps the rate inside the momentum (Nesterov's, MomentumSGDUpdate)"},
    {.name = "momentum",
     .type = ARG_REAL,
     .at = AT(momentum),
     .def = "0.9",
     .min = 0,
     .max = 1,
     .aliases = "beta1",
     .help = "of sgd and lars; beta1 of adam and adamw"},
    {.name = "beta2",
     .type = ARG_REAL,
     .at = AT(beta2),
     .def = "0.999",
     .min = 0,
     .max = 1,
     .help = "of adam and adamw"},
    {.name = "adam-eps",
     .type = ARG_REAL,
     .at = AT(adam_eps),
     .def = "1e-8",
     .min = 1e-30,
     .max = 1,
     .help = "added to the root of adam's second moment"},
    {.name = "lars-eta",
     .type = ARG_REAL,
     .at = AT(lars_eta),
     .def = "0.001",
     .min = 1e-9,
     .max = 1,
     .help = "lars: share of a tensor's norm that a step at rate 1 may move it"},
    {.name = "weight-decay",
     .type = ARG_REAL,
     .at = AT(weight_decay),
     .def = "1e-4",
     .min = 0,
     .max = 1,
     .aliases = "wd",
     .help = "added to the gradient, as in torch.optim.SGD (adamw: taken off the weights)"},
    {.name = "bn-decay",
     .type = ARG_FLAG,
     .at = AT(bn_decay),
     .def = "on",
     .help = "weight decay of biases and batch norm, too"},
    {.name = "clip-grad-norm",
     .type = ARG_REAL,
     .at = AT(clip_grad_norm),
     .def = "0",
     .min = 0,
     .max = 1e9,
     .help = "scale the gradients down to this L2 norm over all parameters; 0: never"},
    {.name = "max-loss",
     .type = ARG_REAL,
     .at = AT(max_loss),
     .def = "0",
     .min = 0,
     .max = 1e9,
     .help =
         "end training (exit code 1) where the mean loss of an epoch reaches this; 0: only where it is not a number"},
    {.name = "label-smoothing",
     .type = ARG_REAL,
     .at = AT(label_smoothing),
     .def = "0",
     .min = 0,
     .max = 1,
     .help = "share of the target that is spread over all classes in training, as in torch.nn.CrossEntropyLoss"},
    {.name = "ema",
     .type = ARG_REAL,
     .at = AT(ema),
     .def = "0",
     .min = 0,
     .max = 1,
     .help = "keep a moving average of weights and statistics of which each step keeps this share (0.9999), and "
             "evaluate it; 0: none"},
    {.name = "lr-policy",
     .type = ARG_CHOICE,
     .at = AT(lr_policy),
     .choices = "cosine|step|multistep|poly|exp|inv|fixed|horovod|apex",
     .def = "cosine",
     .help =
         "how the rate falls after warm-up; horovod, apex: as in their ImageNet examples, warm-up and scale included"},
    {.name = "lr-milestones",
     .type = ARG_CUSTOM,
     .at = AT(milestones),
     .def = "30,60,80",
     .parse = parse_milestones,
     .metavar = "EPOCHS",
     .help = "lr-policy multistep: epochs at which the rate drops by lr-gamma"},
    {.name = "lr-power",
     .type = ARG_REAL,
     .at = AT(lr_power),
     .def = "2",
     .min = 0.01,
     .max = 100,
     .help = "lr-policy poly: (1 - share of the run done)^power; inv: (1 + gamma * steps)^-power"},
    {.name = "lr-scale",
     .type = ARG_CHOICE,
     .at = AT(lr_scale),
     .choices = "none|workers|batch256",
     .def = "none",
     .help = "multiply the rate by the number of ranks, or by batch-size / 256"},
    {.name = "lr-step",
     .type = ARG_REAL,
     .at = AT(lr_step_epochs),
     .def = "30",
     .min = 0.001,
     .max = 1e6,
     .help = "lr-policy step: epochs between drops"},
    {.name = "lr-gamma",
     .type = ARG_REAL,
     .at = AT(lr_gamma),
     .def = "0.1",
     .min = 1e-9,
     .max = 1,
     .help = "lr-policy step, multistep: factor of a drop; exp: factor of a step; inv: see lr-power"},
    {.name = "warmup-epochs",
     .type = ARG_REAL,
     .at = AT(warmup_epochs),
     .def = "-1",
     .min = -1,
     .max = 1e6,
     .help = "epochs of warm-up; -1: the first 5 % of all steps (lr-policy horovod, apex: 5 epochs)"},
    {.name = "lr-warmup",
     .type = ARG_CHOICE,
     .at = AT(lr_warmup),
     .choices = "linear|caffe2|constant",
     .def = "linear",
     .help = "linear: from rate / steps up; caffe2 (linearWarmup): from warmup-start times the rate up; constant: that "
             "all the time"},
    {.name = "warmup-start",
     .type = ARG_REAL,
     .at = AT(warmup_start),
     .def = "0.1",
     .min = 0,
     .max = 1,
     .help = "lr-warmup caffe2, constant: share of the rate to begin with"},
    {.name = "seed",
     .type = ARG_INT,
     .at = AT(seed),
     .def = "0",
     .min = 0,
     .max = 9e15,
     .help = "initial weights, order and augmentation of the samples are functions of it"},
    {.name = "eval-every",
     .type = ARG_INT,
     .at = AT(eval_every),
     .def = "1",
     .min = 0,
     .max = 1000000,
     .help = "epochs between evaluations; the last epoch is always evaluated; 0: only that"},
    {.name = "eval-steps",
     .type = ARG_INT,
     .at = AT(eval_steps),
     .def = "0",
     .min = 0,
     .max = 1e12,
     .aliases = "test-iters",
     .help = "batches of an evaluation; 0: the whole test set"},
    {.name = "start-epoch",
     .type = ARG_INT,
     .at = AT(start_epoch),
     .def = "0",
     .min = 0,
     .max = 1000000,
     .help = "a run without a checkpoint to go on from begins with this epoch (from 0): its rate, its order"},

    ARG_GROUP("Checkpoints"),
    {.name = "checkpoint-dir",
     .type = ARG_STRING,
     .at = AT(checkpoint_dir),
     .metavar = "DIR",
     .help = "where checkpoints go; without it none are written"},
    {.name = "checkpoint-every",
     .type = ARG_INT,
     .at = AT(checkpoint_every),
     .def = "0",
     .min = 0,
     .max = 1e12,
     .metavar = "STEPS",
     .help = "steps between checkpoints; 0: at the end of every epoch"},
    {.name = "checkpoint-seconds",
     .type = ARG_SECONDS,
     .at = AT(checkpoint_seconds),
     .def = "0",
     .help = "time between checkpoints, in addition; 0: never"},
    {.name = "checkpoint-keep",
     .type = ARG_INT,
     .at = AT(checkpoint_keep),
     .def = "2",
     .min = 0,
     .max = 1000000,
     .help = "newest checkpoints kept; 0: all"},
    {.name = "if-checkpoint",
     .type = ARG_CHOICE,
     .at = AT(if_checkpoint),
     .choices = "refuse|aside",
     .def = "refuse",
     .help = "a new run whose checkpoint folder holds an older run's checkpoints: refuse, or rename the folder to "
             "DIR.until-TIME"},
    {.name = "checkpoint-sync",
     .type = ARG_FLAG,
     .at = AT(checkpoint_sync),
     .help = "write checkpoints between two steps; otherwise training goes on while a copy in memory is written"},
    {.name = "checkpoint-per-node",
     .type = ARG_FLAG,
     .at = AT(checkpoint_per_node),
     .help = "the first rank of every node writes, for a --checkpoint-dir on disks of the nodes' own; otherwise rank 0 "
             "alone writes"},
    {.name = "checkpoint-name",
     .type = ARG_STRING,
     .at = AT(checkpoint_name),
     .metavar = "NAME",
     .help = "also keep a link NAME_<epochs done>.mdl in --checkpoint-dir to the checkpoint of the last whole epoch"},
    {.name = "resume",
     .type = ARG_STRING,
     .at = AT(resume),
     .def = "off",
     .metavar = "off|auto|PATH",
     .help = "auto: go on from the newest complete checkpoint in --checkpoint-dir, from the start if there is none; a "
             "path (a checkpoint folder, or a step-N folder in one): from that, which must exist. A restart by crun "
             "always goes on"},
    {.name = "pretrained",
     .type = ARG_STRING,
     .at = AT(pretrained),
     .metavar = "FILE",
     .help = "initial weights where nothing is resumed: a .safetensors or .pth file with torchvision's names, or a "
             "checkpoint; a last layer for another number of classes keeps its initial value"},
    {.name = "evaluate",
     .short_name = 'e',
     .type = ARG_FLAG,
     .at = AT(evaluate),
     .help = "evaluate --test-data with what --resume, --pretrained or else the seed gives, print the accuracy and "
             "end; nothing "
             "is written"},

    ARG_GROUP("Logs"),
    {.name = "log-dir",
     .type = ARG_STRING,
     .at = AT(log_dir),
     .metavar = "DIR",
     .help = "metrics.jsonl and the Caffe2 CSV log; default: the checkpoint folder; neither: no files"},
    {.name = "tensorboard",
     .type = ARG_STRING,
     .at = AT(tensorboard),
     .metavar = "DIR",
     .help = "write event files for TensorBoard there: loss, accuracy, rate, images/s and waits of every step, and "
             "evaluations"},
    {.name = "timeline",
     .type = ARG_STRING,
     .at = AT(timeline),
     .metavar = "FILE",
     .help =
         "write what some steps spend their time on there, in Chrome's trace format: operations, reductions, waits, "
         "evaluations, checkpoints"},
    {.name = "timeline-steps",
     .type = ARG_CUSTOM,
     .at = AT(timeline_steps),
     .def = "3,10",
     .parse = parse_window,
     .metavar = "FIRST,COUNT",
     .help = "steps of this process that --timeline tells of, counted from 1"},
    {.name = "prof",
     .type = ARG_INT,
     .at = AT(prof),
     .def = "0",
     .min = 0,
     .max = 1e15,
     .metavar = "STEP",
     .help = "a timeline of ten steps from this one on; without --timeline in timeline.json of the log folder or here; "
             "0: none"},
    {.name = "progress",
     .type = ARG_CHOICE,
     .at = AT(progress),
     .choices = PROGRESS_CHOICES,
     .def = "plain",
     .help =
         "whose lines tell how far training is: this program's, or those of PyTorch's ImageNet example, Apex's, the "
         "MNIST article's, Caffe2's"},
    {.name = "print-freq",
     .type = ARG_INT,
     .at = AT(print_freq),
     .def = "0",
     .min = 0,
     .max = 1e9,
     .help = "steps between progress lines (plain: where stderr is no terminal); 0: 10, article 100, caffe2 1"},
    {.name = "log-all-ranks",
     .type = ARG_FLAG,
     .at = AT(log_all_ranks),
     .help = "progress lines of every rank, not of rank 0 alone; the others' begin with \"rank N: \""},
    {.name = "log-level",
     .type = ARG_CHOICE,
     .at = AT(log_level),
     .choices = "error|warn|info|debug",
     .def = "warn",
     .env = "CRUN_LOG_LEVEL",
     .help = "messages about the program itself"},

    ARG_GROUP("Ranks without a launcher"),
    {.name = "procs",
     .type = ARG_INT,
     .at = AT(procs),
     .def = "0",
     .min = 0,
     .max = 1024,
     .help = "processes that trainer starts on this machine, a rank each, and ends together; 0: it is one itself"},
    {.name = "gpus",
     .type = ARG_STRING,
     .at = AT(gpus),
     .metavar = "LIST",
     .help = "GPUs of this machine (of those in CUDA_VISIBLE_DEVICES), comma-separated, each driven by a process that "
             "trainer starts; on a CPU only their number counts"},
    {.name = "oversubscribe",
     .type = ARG_FLAG,
     .at = AT(oversubscribe),
     .help = "let ranks share GPUs where a machine has more ranks than GPUs; else that is refused"},
    {.name = "data-parallel",
     .type = ARG_FLAG,
     .at = AT(data_parallel),
     .help = "--gpus or --procs on this machine alone: refuses --nodes"},
    {.name = "nodes",
     .type = ARG_INT,
     .at = AT(nodes),
     .def = "0",
     .min = 0,
     .max = 65536,
     .help = "machines on which trainer is started with these options; 0: this one"},
    {.name = "node-rank",
     .type = ARG_INT,
     .at = AT(node_rank),
     .def = "0",
     .min = 0,
     .max = 65535,
     .help = "number of this machine, from 0"},
    {.name = "dist-url",
     .type = ARG_STRING,
     .at = AT(dist_url),
     .metavar = "URL",
     .help =
         "where the machines meet: tcp://HOST:PORT (machine 0 hosts), env:// (MASTER_ADDR and MASTER_PORT say that), "
         "redis://HOST:PORT or file:///FOLDER that all see"},
    {.name = "run-id",
     .type = ARG_STRING,
     .at = AT(run_id),
     .metavar = "ID",
     .help = "name of the run in a Redis or a folder: the same on all machines"},

    ARG_GROUP("GPUs (no effect on a CPU)"),
    {.name = "tf32",
     .type = ARG_FLAG,
     .at = AT(tf32),
     .def = "on",
     .help = "in fp32, convolutions and linear layers may round what they multiply to TF32's 10 bits"},
    {.name = "cuda-graphs",
     .type = ARG_FLAG,
     .at = AT(cuda_graphs),
     .def = "on",
     .help = "capture a step as a CUDA graph and launch it whole; off: kernel by kernel, for debugging"},
    {.name = "autotune",
     .type = ARG_FLAG,
     .at = AT(autotune),
     .def = "on",
     .help = "time cuDNN's candidates for every convolution before the first step and keep the fastest"},
    {.name = "conv-fusion",
     .type = ARG_FLAG,
     .at = AT(conv_fusion),
     .def = "on",
     .help = "convolutions that take batch norm's work along where cuDNN has them (fp16)"},
    {.name = "deterministic",
     .type = ARG_FLAG,
     .at = AT(deterministic),
     .help = "equal runs give equal bits: convolutions that do not are left out"},
    {.name = "cudnn-workspace-limit-mb",
     .type = ARG_INT,
     .at = AT(workspace_mb),
     .def = "0",
     .min = 0,
     .max = 1 << 20,
     .help = "scratch memory that a convolution may take; 0: any"},
    {.name = "plan-cache",
     .type = ARG_STRING,
     .at = AT(plan_cache),
     .metavar = "DIR",
     .help = "keep what --autotune found there, by GPU and version of cuDNN, and take it up again"},

    ARG_GROUP("Machine"),
    {.name = "threads",
     .type = ARG_INT,
     .at = AT(threads),
     .def = "0",
     .min = 0,
     .max = 4096,
     .help = "compute threads of this rank; 0: cores / local ranks"},
    {.name = "comm",
     .type = ARG_STRING,
     .at = AT(comm),
     .def = "auto",
     .help = "collectives: auto, nccl (GPUs), gloo or local (one rank); auto: nccl where gradients are on a GPU"},
    {.name = "comm-timeout",
     .type = ARG_SECONDS,
     .at = AT(comm_timeout),
     .def = "300",
     .help = "deadline of a collective"},
    {.name = "bucket-mb",
     .type = ARG_INT,
     .at = AT(bucket_mb),
     .def = "25",
     .min = 1,
     .max = 4096,
     .help = "gradients are reduced in pieces of this size while backward runs"},
    {.name = "allreduce-dtype",
     .type = ARG_CHOICE,
     .at = AT(allreduce),
     .choices = "fp32|fp16|bf16",
     .def = "fp32",
     .help = "type in which gradients travel between ranks"},
    {.name = "fp16-allreduce", .type = ARG_FLAG, .at = AT(fp16_allreduce), .help = "--allreduce-dtype fp16"},
    {.name = "check-replicas",
     .type = ARG_INT,
     .at = AT(check_replicas),
     .def = "0",
     .min = 0,
     .max = 1e12,
     .metavar = "STEPS",
     .help = "compare the state of all ranks every so many steps and fail if a bit differs; 0: never"},
    ARG_END,
};

const struct arg_program train_program = {
    .name = "trainer",
    .usage = "--train-data DIR [options]",
    .summary = "Train an image classifier with data parallelism. Under crun every rank runs the same command line; "
               "alone it is "
               "rank 0 of 1.",
    .epilog = "Other commands (each with --help): trainer caffe2, imagenet and mnist take the options of other "
              "programs; make-data "
              "and make-db make data sets; predict, convert and plot use what a run leaves; gpu-info, comm-bench and "
              "comm-test "
              "look at the machine.\n"
              "Exit codes: 0 complete, 2 wrong command line, 65 bad data, 75 stopped before the end (start again to go "
              "on), 78 the checkpoint does not fit.",
    .specs = specs,
    .operands = ARG_NO_OPERANDS,
};

enum resume train_config_resume(const struct train_config *c)
{
    if (!c->resume || strcmp(c->resume, "off") == 0)
        return RESUME_OFF;
    return strcmp(c->resume, "auto") == 0 ? RESUME_AUTO : RESUME_PATH;
}

enum allreduce train_config_allreduce(const struct train_config *c)
{
    return c->fp16_allreduce ? ALLREDUCE_FP16 : (enum allreduce)c->allreduce;
}

static int check_aliases(const struct train_config *c, struct err *e)
{
    struct precision p;
    TRY(precision_resolve(&c->precision, false, &p, e));
    if (c->channels_last && c->format == MEMORY_NCHW)
        return err_set(e, ERR_USAGE, "--channels-last and --memory-format nchw contradict each other");
    if (c->fp16_allreduce && c->allreduce == ALLREDUCE_BF16)
        return err_set(e, ERR_USAGE, "--fp16-allreduce and --allreduce-dtype bf16 contradict each other");
    return 0;
}

void train_config_gpu(const struct train_config *c, struct gpu_options *ret)
{
    *ret = (struct gpu_options){.eager = !c->cuda_graphs,
                                .tune = c->autotune,
                                .tf32 = c->tf32,
                                .fused = c->conv_fusion,
                                .deterministic = c->deterministic,
                                .workspace_limit = (size_t)c->workspace_mb << 20,
                                .cache_dir = c->plan_cache};
}

int train_config_check(const struct train_config *c, struct err *e)
{
    TRY(check_aliases(c, e));
    if ((c->checkpoint_dir && !*c->checkpoint_dir) || (c->log_dir && !*c->log_dir))
        return err_set(e, ERR_USAGE, "%s '': a folder is needed",
                       c->checkpoint_dir && !*c->checkpoint_dir ? "--checkpoint-dir" : "--log-dir");
    if (c->num_channels != 1 && c->num_channels != 3)
        return err_set(e, ERR_USAGE, "--num-channels %d: must be 1 or 3", (int)c->num_channels);
    if (c->scale && c->input != INPUT_TORCH && c->input != INPUT_CAFFE2)
        return err_set(e, ERR_USAGE, "--scale %d: --input plain and cifar scale to --image-size", (int)c->scale);
    if (c->input != INPUT_TORCH && (c->crop_scale.min != 0.08 || c->crop_scale.max != 1))
        return err_set(e, ERR_USAGE, "--crop-scale: only --input torch crops shares of the area");
    if ((c->mean.n && c->mean.n != 1 && c->mean.n != c->num_channels) ||
        (c->std.n && c->std.n != 1 && c->std.n != c->num_channels))
        return err_set(e, ERR_USAGE, "--mean and --std take one value or one for each of the %d channels",
                       (int)c->num_channels);
    if (c->drop_last && c->sampler != SAMPLER_DISTRIBUTED)
        return err_set(e, ERR_USAGE, "--drop-last is an option of --sampler distributed; the others repeat nothing");
    if (c->num_labels == 1)
        return err_set(e, ERR_USAGE, "--num-labels 1: a classifier needs at least 2 classes");
    if (train_config_resume(c) == RESUME_AUTO && !c->checkpoint_dir)
        return err_set(e, ERR_USAGE, "--resume auto needs --checkpoint-dir: it says where to look");
    if (c->evaluate && !c->test_data)
        return err_set(e, ERR_USAGE, "--evaluate needs --test-data");
    if (c->checkpoint_name && (!c->checkpoint_dir || !*c->checkpoint_name || strchr(c->checkpoint_name, '/')))
        return err_set(e, ERR_USAGE, "--checkpoint-name '%s': a file name in --checkpoint-dir is needed",
                       c->checkpoint_name);
    if (c->checkpoint_name && strlen(c->checkpoint_name) > CHECKPOINT_NAME_MAX)
        return err_set(e, ERR_USAGE, "--checkpoint-name: %zu bytes, at most %d are taken", strlen(c->checkpoint_name),
                       CHECKPOINT_NAME_MAX);
    if ((c->checkpoint_every || c->checkpoint_seconds > 0) && !c->checkpoint_dir)
        return err_set(e, ERR_USAGE, "--checkpoint-every and --checkpoint-seconds need --checkpoint-dir");
    if (c->optimizer != OPTIMIZER_SGD && (c->nesterov || c->sgd_rule != SGD_TORCH))
        return err_set(e, ERR_USAGE, "--nesterov and --sgd-rule are rules of --optimizer sgd");
    if (c->nesterov && c->sgd_rule == SGD_CAFFE2)
        return err_set(e, ERR_USAGE, "--nesterov goes with --sgd-rule torch; caffe2's rule is Nesterov's already");
    if (c->nesterov && c->momentum == 0)
        return err_set(e, ERR_USAGE, "--nesterov needs a --momentum above 0");
    if ((c->optimizer == OPTIMIZER_ADAM || c->optimizer == OPTIMIZER_ADAMW) && (c->momentum >= 1 || c->beta2 >= 1))
        return err_set(e, ERR_USAGE, "--momentum %g, --beta2 %g: adam needs both below 1", c->momentum, c->beta2);
    if ((c->lr_policy == LR_HOROVOD || c->lr_policy == LR_APEX) && c->lr_scale != LR_SCALE_NONE)
        return err_set(e, ERR_USAGE, "--lr-policy %s scales the rate itself: leave --lr-scale out",
                       schedule_policy_name((enum lr_policy)c->lr_policy));
    if (c->start_epoch >= c->num_epochs)
        return err_set(e, ERR_USAGE, "--start-epoch %d: the run has %d epochs, counted from 0", (int)c->start_epoch,
                       (int)c->num_epochs);
    if (c->data_parallel && !c->gpus && !c->procs)
        return err_set(e, ERR_USAGE, "--data-parallel: over which devices? Give --gpus or --procs");
    if (c->ema >= 1)
        return err_set(e, ERR_USAGE, "--ema %g: an average that keeps all of itself never moves", c->ema);
    if (c->comm_timeout <= 0)
        return err_set(e, ERR_USAGE, "--comm-timeout 0: must be above 0 seconds");
    return 0;
}
