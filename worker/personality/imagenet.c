/* The ImageNet examples of PyTorch (examples/imagenet/main.py), TorchShard, Apex (main_amp.py) and Horovod: one family
 * of options. batch-size is that of a machine, as in the first two; world-size and rank count machines; workers are
 * divided among a machine's processes, rounding up. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/err.h"
#include "worker/device/module/module.h"
#include "worker/optim/schedule.h"
#include "worker/personality/personality.h"

struct imagenet {
    struct train_config train;
    int64_t batch, batch_per_process, workers, world_size, rank, gpu, local_rank;
    int backend;
    bool multiprocessing, dummy, no_accel, zero, adasum;
    char train_dir[4096], val_dir[4096], one_gpu[24];
};

#define OWN(field) offsetof(struct imagenet, field)

static const struct arg_spec own[] = {
    ARG_GROUP("Options of the ImageNet examples"),
    {.name = "batch-size",
     .short_name = 'b',
     .type = ARG_INT,
     .at = OWN(batch),
     .def = "256",
     .min = 1,
     .max = 1 << 20,
     .help = "images a step of one machine, over all its processes"},
    {.name = "batch-per-process",
     .type = ARG_INT,
     .at = OWN(batch_per_process),
     .def = "0",
     .min = 0,
     .max = 1 << 20,
     .help = "images a step of one process, which is what Apex and Horovod mean by --batch-size; 0: by --batch-size"},
    {.name = "workers",
     .short_name = 'j',
     .type = ARG_INT,
     .at = OWN(workers),
     .def = "4",
     .min = 0,
     .max = 1024,
     .aliases = "loader-threads",
     .help = "threads of one machine that decode images, divided among its processes"},
    {.name = "world-size",
     .type = ARG_INT,
     .at = OWN(world_size),
     .def = "-1",
     .min = -1,
     .max = 65536,
     .help = "machines on which this command is typed; -1: this one, or what the launcher says"},
    {.name = "rank",
     .type = ARG_INT,
     .at = OWN(rank),
     .def = "-1",
     .min = -1,
     .max = 65535,
     .help = "number of this machine, from 0"},
    {.name = "dist-backend",
     .type = ARG_CHOICE,
     .at = OWN(backend),
     .choices = "auto|nccl|gloo|tcp",
     .def = "auto",
     .help = "collectives; nccl falls back to gloo where there is no GPU, and says so"},
    {.name = "multiprocessing-distributed",
     .type = ARG_FLAG,
     .at = OWN(multiprocessing),
     .help = "start a process for each GPU of this machine; without GPUs as many as --procs says, or one"},
    {.name = "gpu",
     .type = ARG_INT,
     .at = OWN(gpu),
     .def = "-1",
     .min = -1,
     .max = 1023,
     .help = "the one device to use; disables data parallelism"},
    {.name = "dummy", .type = ARG_FLAG, .at = OWN(dummy), .help = "made-up images: 1281167 to train, 50000 to test"},
    {.name = "no-accel",
     .type = ARG_FLAG,
     .at = OWN(no_accel),
     .aliases = "no-cuda",
     .help = "compute on the CPU, without a notice"},
    {.name = "local-rank",
     .type = ARG_INT,
     .at = OWN(local_rank),
     .def = "-1",
     .min = -1,
     .max = 65535,
     .help = "given by torch.distributed.launch; has to be what LOCAL_RANK says"},
    {.name = "enable-zero-optim",
     .type = ARG_FLAG,
     .at = OWN(zero),
     .aliases = "use-zero",
     .help = "--zero 1: each rank keeps its share of the optimizer's moments"},
    {.name = "use-adasum", .type = ARG_FLAG, .at = OWN(adasum), .help = "adaptive summation: not supported"},
    ARG_END,
};

static const struct personality_default defaults[] = {
    {"train-data", NULL, 0, "train-dir"},
    {"test-data", NULL, 0, "val-dir"},
    {"num-labels", "1000", 0, NULL},
    {"num-epochs", "90", 0, NULL},
    {"base-learning-rate", "0.1", 0, "base-lr"},
    {"lr-policy", "step", 0, NULL},
    {"warmup-epochs", "-1", 0, NULL},
    {"zero-init-residual", "off", 0, NULL},
    {"sampler", "distributed", 0, NULL},
    {"progress", "torch", 0, NULL},
    {"print-freq", "10", 'p', NULL},
    {"checkpoint-dir", "checkpoint.pth.tar", 0, NULL},
    {"if-checkpoint", "aside", 0, NULL},
    {NULL, NULL, 0, NULL},
};

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* --pretrained is a switch of PyTorch's example, and has a value here: an option or DIR that stands behind it is no
 * file of weights. */
static int check_pretrained(const struct imagenet *c, bool has_dir, struct err *e)
{
    char train[4096];
    const char *file = c->train.pretrained;
    if (!file)
        return 0;
    if (file[0] == '-')
        return err_set(e, ERR_USAGE,
                       "--pretrained takes a file of weights, '%s' is an option: save those of torchvision in Python "
                       "(torch.save(resnet50(weights='DEFAULT').state_dict(), 'w.pth')), then --pretrained w.pth",
                       file);
    snprintf(train, sizeof train, "%s/train", file);
    if (!has_dir && is_folder(train))
        return err_set(e, ERR_USAGE,
                       "--pretrained takes a file of weights, '%s' is a folder of data: save those of torchvision in "
                       "Python (torch.save(resnet50(weights='DEFAULT').state_dict(), 'w.pth')), then --pretrained "
                       "w.pth %s",
                       file, file);
    return 0;
}

/* DIR/train and DIR/val, as torchvision's ImageFolder is given them. */
static int choose_data(struct imagenet *c, const struct personality_args *a, struct err *e)
{
    struct train_config *t = &c->train;
    const int first = a->result->first_operand, n = a->argc - first;
    const char *dir = n > 0 ? a->argv[first] : "imagenet";
    TRY(check_pretrained(c, n > 0, e));
    if (n > 1)
        return err_set(e, ERR_USAGE, "unexpected argument '%s': one folder that holds train and val is taken",
                       a->argv[first + 1]);
    if (c->dummy) {
        personality_warn("=> Dummy data is used!");
        t->train_data = t->test_data = "null";
        return 0;
    }
    if (t->train_data && n > 0)
        return err_set(e, ERR_USAGE, "'%s' and --train-data %s: which one?", dir, t->train_data);
    if (t->train_data)
        return 0;
    snprintf(c->train_dir, sizeof c->train_dir, "%s/train", dir);
    snprintf(c->val_dir, sizeof c->val_dir, "%s/val", dir);
    t->train_data = c->train_dir;
    if (!t->test_data && (is_folder(c->val_dir) || !is_folder(c->train_dir)))
        t->test_data = c->val_dir;
    return 0;
}

/* A process for each device: there is none to count. */
static int choose_ranks(struct imagenet *c, const struct personality_world *w, struct err *e)
{
    struct train_config *t = &c->train;
    if (w->launched && c->multiprocessing)
        return err_set(
            e, ERR_USAGE,
            "a launcher has started %d processes: leave --multiprocessing-distributed out, which starts them itself",
            w->world);
    if (w->launched)
        return 0;
    if (c->rank >= 0 && c->world_size < 1)
        return err_set(e, ERR_USAGE, "--rank %d needs --world-size, the number of machines", (int)c->rank);
    if (c->world_size > 1 && c->rank < 0)
        return err_set(e, ERR_USAGE, "--world-size %d needs --rank, the number of this machine", (int)c->world_size);
    if (c->world_size > 0)
        t->nodes = c->world_size;
    t->node_rank = c->rank > 0 ? c->rank : 0;
    if (t->procs > 1 && !c->multiprocessing)
        return err_set(e, ERR_USAGE, "--procs %d goes with --multiprocessing-distributed", (int)t->procs);
    return 0;
}

static int check_local_rank(const struct imagenet *c, struct err *e)
{
    const char *text = getenv("LOCAL_RANK");
    if (c->local_rank < 0 || !text || atoi(text) == c->local_rank)
        return 0;
    return err_set(e, ERR_USAGE, "--local-rank %d, but LOCAL_RANK is %s", (int)c->local_rank, text);
}

static void say_what_is_used(const struct imagenet *c, const struct personality_args *a)
{
    if (c->gpu >= 0 && !c->multiprocessing)
        personality_warn("You have chosen a specific GPU. This will completely disable data parallelism.");
    if (c->backend == 1 && !cuda_likely())
        personality_warn("--dist-backend nccl: no GPU can be used here, gloo is");
    if (!c->no_accel)
        personality_say_slow(a);
}

/* The names of the backends are ours but for tcp, which is Gloo over it. */
static void choose_backend(struct imagenet *c)
{
    if (c->backend != 0 && c->train.nodes * c->train.procs > 1)
        c->train.comm = "gloo";
}

static void choose_batch(struct imagenet *c, const struct personality_world *w)
{
    struct train_config *t = &c->train;
    t->zero = c->zero ? 1 : t->zero;
    t->batch_size = c->batch_per_process ? c->batch_per_process * w->world : c->batch * w->nodes;
    t->by_world = true;
    t->loader_threads = (c->workers + w->procs - 1) / w->procs;
    if (t->loader_threads < 1)
        t->loader_threads = 1;
    if (t->lr_policy != LR_HOROVOD && t->lr_policy != LR_APEX && t->warmup_epochs < 0)
        t->warmup_epochs = 0; /* only those two have one */
}

/* --gpu N: that one, and no process for another. */
static void choose_device(struct imagenet *c, const struct personality_args *a, const struct personality_world *w)
{
    if (c->no_accel && !personality_given(a, "device"))
        c->train.device = "cpu";
    if (c->gpu < 0 || c->multiprocessing || w->launched)
        return;
    snprintf(c->one_gpu, sizeof c->one_gpu, "%d", (int)c->gpu);
    c->train.gpus = c->one_gpu;
}

static int apply(void *config, const struct personality_args *a, struct err *e)
{
    struct imagenet *c = config;
    struct train_config *t = &c->train;
    struct personality_world w;
    TRY(personality_refuse(c->adasum, "--use-adasum", "adaptive summation", e));
    TRY(choose_data(c, a, e));
    TRY(check_local_rank(c, e));
    TRY(personality_world(&w, c->world_size > 0 ? (int)c->world_size : 1, t->procs ? (int)t->procs : 1, e));
    TRY(choose_ranks(c, &w, e));
    choose_backend(c);
    choose_device(c, a, &w);
    choose_batch(c, &w);
    say_what_is_used(c, a);
    return 0;
}

const struct personality personality_imagenet = {
    .name = "imagenet",
    .usage = "[options] [DIR]",
    .summary = "Train on DIR/train and DIR/val (default: imagenet) with the options of PyTorch's ImageNet example and "
               "of those made from it "
               "(TorchShard, Apex, Horovod).",
    .epilog = "What differs from the originals stands in docs/reference/personalities.md.",
    .own = own,
    .defaults = defaults,
    .config_size = sizeof(struct imagenet),
    .operands = ARG_OPERANDS,
    .apply = apply,
};
