/* Caffe2's resnet50_trainer.py: its options, defaults and units. batch_size is that of a machine, a shard is a machine,
 * epoch_size counts the images of all of them. Caffe2 multiplies the loss by 1/(devices * shards) and adds up
 * gradients, which is the mean over the global batch. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "worker/data/loader/input.h"
#include "worker/device/module/module.h"
#include "worker/personality/personality.h"

struct caffe2 {
    struct train_config train;
    int64_t batch, num_gpus, num_shards, shard_id, redis_port, workspace_mb, num_layers;
    const char *redis_host, *file_store, *save_dir, *model_name, *load_path, *model;
    int transport, dtype;
    bool use_cpu, use_ideep, model_parallel, use_nccl, float16_compute, tensor_core;
};

#define OWN(field) offsetof(struct caffe2, field)

static const struct arg_spec own[] = {
    ARG_GROUP("Options of resnet50_trainer.py"),
    {.name = "batch-size",
     .short_name = 'b',
     .type = ARG_INT,
     .at = OWN(batch),
     .def = "32",
     .min = 1,
     .max = 1 << 20,
     .help = "images a step of one machine, over all its devices"},
    {.name = "num-gpus",
     .type = ARG_INT,
     .at = OWN(num_gpus),
     .def = "1",
     .min = 1,
     .max = 1024,
     .help = "devices of this machine, a process each; --gpus LIST goes before it"},
    {.name = "num-shards",
     .type = ARG_INT,
     .at = OWN(num_shards),
     .def = "1",
     .min = 1,
     .max = 65536,
     .help = "machines of the run"},
    {.name = "shard-id",
     .type = ARG_INT,
     .at = OWN(shard_id),
     .def = "0",
     .min = 0,
     .max = 65535,
     .help = "number of this machine, from 0"},
    {.name = "redis-host",
     .type = ARG_STRING,
     .at = OWN(redis_host),
     .metavar = "HOST",
     .help = "Redis where the machines meet"},
    {.name = "redis-port",
     .type = ARG_INT,
     .at = OWN(redis_port),
     .def = "6379",
     .min = 1,
     .max = 65535,
     .help = "its port"},
    {.name = "file-store-path",
     .type = ARG_STRING,
     .at = OWN(file_store),
     .def = "/tmp",
     .metavar = "DIR",
     .help = "without Redis: folder that all machines see, where they meet"},
    {.name = "save-model-name",
     .type = ARG_STRING,
     .at = OWN(model_name),
     .metavar = "NAME",
     .help = "save after every epoch: DIR/NAME_<epochs>.mdl is the newest checkpoint. Without it nothing is saved"},
    {.name = "save-dir",
     .type = ARG_STRING,
     .at = OWN(save_dir),
     .metavar = "DIR",
     .help = "where to; default: --file_store_path if it is given, else the current folder"},
    {.name = "load-model-path",
     .type = ARG_STRING,
     .at = OWN(load_path),
     .metavar = "PATH",
     .help = "go on from this checkpoint (..._<epochs>.mdl)"},
    {.name = "use-cpu", .type = ARG_FLAG, .at = OWN(use_cpu), .help = "compute on the CPU, without a notice"},
    {.name = "use-ideep",
     .type = ARG_FLAG,
     .at = OWN(use_ideep),
     .help = "compute on the CPU (by oneDNN, which has taken over from that library)"},
    {.name = "cudnn-workspace-limit-mb",
     .type = ARG_INT,
     .at = OWN(workspace_mb),
     .def = "64",
     .min = 0,
     .max = 1 << 20,
     .help = "scratch memory of cuDNN's convolutions; no effect on a CPU, with a warning"},
    {.name = "use-nccl", .type = ARG_FLAG, .at = OWN(use_nccl), .help = "collectives by NCCL: needs GPUs"},
    {.name = "distributed-transport",
     .type = ARG_CHOICE,
     .at = OWN(transport),
     .choices = "tcp|ibverbs",
     .def = "tcp",
     .help = "between machines; ibverbs is not supported"},
    {.name = "dtype",
     .type = ARG_CHOICE,
     .at = OWN(dtype),
     .choices = "float|float16",
     .def = "float",
     .help = "float16: fp16 parameters and activations with fp32 copies: --opt-level O2 --loss-scale 1"},
    {.name = "float16-compute", .type = ARG_FLAG, .at = OWN(float16_compute), .help = "all in fp16: --opt-level O3"},
    {.name = "enable-tensor-core",
     .type = ARG_FLAG,
     .at = OWN(tensor_core),
     .help = "fp16 units of a GPU; no effect on a CPU, with a warning"},
    {.name = "model-parallel",
     .type = ARG_FLAG,
     .at = OWN(model_parallel),
     .help = "--stages 2: the second half of the model on "
             "as many devices more"},
    {.name = "model",
     .type = ARG_STRING,
     .at = OWN(model),
     .def = "resnet",
     .help = "resnet; the others of the later trainer (resnext, shufflenet) are not supported"},
    {.name = "num-layers",
     .type = ARG_INT,
     .at = OWN(num_layers),
     .def = "50",
     .min = 1,
     .max = 1000,
     .help = "depth of the resnet: 18, 34, 50, 101 or 152"},
    ARG_END,
};

static const struct personality_default defaults[] = {
    {"image-size", "227", 0, NULL},
    {"num-labels", "1000", 0, NULL},
    {"num-epochs", "1000", 0, NULL},
    {"lr-policy", "step", 0, NULL},
    {"warmup-epochs", "0", 0, NULL},
    {"sgd-rule", "caffe2", 0, NULL},
    {"bn-decay", "off", 0, NULL},
    {"zero-init-residual", "off", 0, NULL},
    {"net-style", "caffe2", 0, NULL},
    {"sampler", "sharded", 0, NULL},
    {"input", "caffe2", 0, NULL},
    {"progress", "caffe2", 0, NULL},
    {"log-dir", ".", 0, NULL},
    {"max-loss", "40", 0, NULL},
    {NULL, NULL, 0, NULL},
};

/* Names of the original's checks and advice, so that people find them. */
static int check(const struct caffe2 *c, const struct personality_args *a, struct err *e)
{
    const struct train_config *t = &c->train;
    TRY(personality_refuse(c->transport != 0, "--distributed_transport ibverbs", "transport over InfiniBand verbs", e));
    TRY(personality_refuse(c->use_nccl && !cuda_likely(), "--use_nccl", "NCCL without GPUs", e));
    TRY(personality_refuse(strcmp(c->model, "resnet") != 0, "--model other than resnet", "that model", e));
    if (t->image_size > 256 && t->input == INPUT_CAFFE2 && !personality_given(a, "input"))
        return err_set(
            e, ERR_USAGE,
            "--image_size %d: images are first scaled to 256 pixels, of which a crop of this size is taken: at "
            "most 256",
            (int)t->image_size);
    if (c->model_parallel && personality_given(a, "stages") && t->stages != 2)
        return err_set(e, ERR_USAGE, "--stages %d: --model_parallel is two of them; leave one of the options out",
                       (int)t->stages);
    if (c->shard_id >= c->num_shards)
        return err_set(e, ERR_USAGE, "--shard_id %d: the shards of --num_shards %d are counted from 0 to %d",
                       (int)c->shard_id, (int)c->num_shards, (int)c->num_shards - 1);
    return 0;
}

/* Devices that hold the model between them. */
static int devices_of_model(const struct caffe2 *c)
{
    return c->model_parallel ? 2 : 1;
}

/* --num_gpus are those of the first half of the model; a list names all. */
static int devices_of(const struct caffe2 *c)
{
    int n = 1;
    if (!c->train.gpus)
        return (int)c->num_gpus * devices_of_model(c);
    for (const char *p = c->train.gpus; *p; p++)
        n += *p == ',';
    return n;
}

/* "resnet50" */
static int choose_model(struct caffe2 *c, const struct personality_args *a, struct err *e)
{
    static const char *const archs[] = {"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"};
    char name[32];
    if (personality_given(a, "arch"))
        return 0;
    snprintf(name, sizeof name, "resnet%d", (int)c->num_layers);
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strcmp(archs[i], name) == 0) {
            c->train.arch = archs[i];
            c->train.given.arch = personality_given(a, "num-layers");
            return 0;
        }
    return err_set(e, ERR_USAGE, "--num_layers %d: expected 18, 34, 50, 101 or 152", (int)c->num_layers);
}

static int choose_place(struct caffe2 *c, const struct personality_args *a, const struct personality_world *w,
                        struct err *e)
{
    static char url[2 * PATH_MAX];
    struct train_config *t = &c->train;
    if (w->launched) {
        if (c->num_shards > 1 && c->num_shards != w->nodes)
            personality_warn(
                "a launcher has started %d processes on %d machines: --num_shards %d and --shard_id do not count",
                w->world, w->nodes, (int)c->num_shards);
        return 0;
    }
    if (!t->gpus)
        t->procs = devices_of(c) > 1 ? devices_of(c) : 0;
    if (c->num_shards == 1)
        return 0;
    t->nodes = c->num_shards;
    t->node_rank = c->shard_id;
    if (!t->run_id)
        return err_set(
            e, ERR_USAGE,
            "--num_shards %d needs --run_id: a name for this run, the same on all machines, never used before",
            (int)c->num_shards);
    if (c->redis_host) {
        snprintf(url, sizeof url, "redis://%s:%d", c->redis_host, (int)c->redis_port);
    } else {
        char here[PATH_MAX] = "";
        if (c->file_store[0] != '/' && !getcwd(here, sizeof here - 1))
            return err_errno(e, errno, "--file_store_path %s", c->file_store);
        snprintf(url, sizeof url, "file://%s%s%s", here, *here ? "/" : "", c->file_store);
        if (!personality_given(a, "file-store-path"))
            personality_warn(
                "the %d machines meet in /tmp: unless they share it, give --redis_host or --file_store_path",
                (int)c->num_shards);
    }
    t->dist_url = url;
    return 0;
}

/* Not in /tmp, where everybody's would meet, unless it is asked for. */
static int choose_checkpoints(struct caffe2 *c, const struct personality_args *a, struct err *e)
{
    struct train_config *t = &c->train;
    if (c->save_dir && !c->model_name)
        return err_set(e, ERR_USAGE, "--save_dir needs --save_model_name: what is saved there is NAME_<epochs>.mdl");
    if (c->model_name) {
        t->checkpoint_dir = c->save_dir ? c->save_dir : personality_given(a, "file-store-path") ? c->file_store : ".";
        t->checkpoint_name = c->model_name;
    }
    if (c->load_path)
        t->resume = c->load_path;
    return 0;
}

static void choose_collectives(struct caffe2 *c, const struct personality_args *a, const struct personality_world *w)
{
    if (c->use_nccl && w->world > 1 && !personality_given(a, "comm"))
        c->train.comm = "nccl";
}

static void choose_precision(struct caffe2 *c)
{
    struct precision_options *p = &c->train.precision;
    if (c->float16_compute)
        p->level = LEVEL_O3;
    else if (c->dtype) {
        p->level = LEVEL_O2;
        p->loss_scale = 1;
    }
}

/* The rate is "based on 256 global batch size", says its help, and is never rescaled. */
static void say_what_does_not_fit(const struct caffe2 *c, const struct personality_args *a)
{
    const struct train_config *t = &c->train;
    if (t->batch_size != 256 && !personality_given(a, "base-learning-rate") && t->lr_scale == LR_SCALE_NONE)
        personality_warn(
            "--base_learning_rate %g is meant for a global batch of 256, this run's is %d; %g would fit, or --lr-scale "
            "batch256",
            t->base_lr, (int)t->batch_size, t->base_lr * (double)t->batch_size / 256);
    if (personality_given(a, "cudnn-workspace-limit-mb") && !cuda_likely())
        personality_warn("--cudnn_workspace_limit_mb %d has no effect on a CPU", (int)c->workspace_mb);
    if (c->tensor_core && !cuda_likely())
        personality_warn("--enable_tensor_core has no effect on a CPU");
    if (!c->use_cpu && !c->use_ideep)
        personality_say_slow(a);
    if (c->use_ideep)
        personality_warn("--use_ideep: oneDNN is used, on the CPU");
}

static int apply(void *config, const struct personality_args *a, struct err *e)
{
    struct caffe2 *c = config;
    struct personality_world w;
    const int devices = devices_of(c);
    TRY(check(c, a, e));
    TRY(personality_world(&w, (int)c->num_shards, devices, e));
    if (w.procs % devices_of_model(c) != 0)
        return err_set(e, ERR_USAGE, "--model_parallel over %d devices: expected an even number, half for each half",
                       w.procs);
    if (c->batch % (w.procs / devices_of_model(c)) != 0)
        return err_set(e, ERR_USAGE, "--batch_size %d over %d devices: Number of GPUs must divide batch size",
                       (int)c->batch, w.procs / devices_of_model(c));
    if (c->model_parallel)
        c->train.stages = 2;
    TRY(choose_model(c, a, e));
    TRY(choose_place(c, a, &w, e));
    choose_collectives(c, a, &w);
    TRY(choose_checkpoints(c, a, e));
    c->train.batch_size = c->batch * w.nodes;
    c->train.by_world = true;
    if (c->train.epoch_size && c->train.epoch_size < c->train.batch_size)
        return err_set(e, ERR_USAGE, "--epoch_size %d is less than one batch of %d images", (int)c->train.epoch_size,
                       (int)c->train.batch_size);
    choose_precision(c);
    c->train.workspace_mb = c->workspace_mb;
    if ((c->use_cpu || c->use_ideep) && !personality_given(a, "device"))
        c->train.device = "cpu";
    say_what_does_not_fit(c, a);
    return 0;
}

const struct personality personality_caffe2 = {
    .name = "caffe2",
    .usage = "--train_data PATH [options]",
    .summary = "Train as Caffe2's resnet50_trainer.py does: its options, defaults and log.",
    .epilog = "What differs from the original stands in docs/reference/personalities.md.",
    .own = own,
    .defaults = defaults,
    .config_size = sizeof(struct caffe2),
    .operands = ARG_NO_OPERANDS,
    .apply = apply,
};
