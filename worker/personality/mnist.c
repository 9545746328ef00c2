/* The scripts of the well-known tutorial on data-parallel training (mnist.py, mnist-distributed.py, mnist-mixed.py):
 * 100 images a process, SGD at 1e-4 without momentum, seed 0, two epochs, pixels from 0 to 1 and nothing else done to
 * them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/base/err.h"
#include "worker/personality/personality.h"

struct mnist {
    struct train_config train;
    int64_t nodes, gpus, nr, batch;
    const char *data;
};

#define OWN(field) offsetof(struct mnist, field)

static const struct arg_spec own[] = {
    ARG_GROUP("Options of the tutorial"),
    {.name = "nodes",
     .short_name = 'n',
     .type = ARG_INT,
     .at = OWN(nodes),
     .def = "1",
     .min = 1,
     .max = 65536,
     .metavar = "N",
     .help = "machines"},
    {.name = "gpus",
     .short_name = 'g',
     .type = ARG_INT,
     .at = OWN(gpus),
     .def = "1",
     .min = 1,
     .max = 1024,
     .help = "processes on each machine, a device each"},
    {.name = "nr",
     .type = ARG_INT,
     .at = OWN(nr),
     .def = "0",
     .min = 0,
     .max = 65535,
     .help = "number of this machine, from 0 (also -nr)"},
    {.name = "data",
     .type = ARG_STRING,
     .at = OWN(data),
     .def = "./data",
     .metavar = "DIR",
     .aliases = "train-data",
     .help = "folder with MNIST's files, or with MNIST/raw, where torchvision puts them; nothing is downloaded"},
    {.name = "batch-size",
     .short_name = 'b',
     .type = ARG_INT,
     .at = OWN(batch),
     .def = "100",
     .min = 1,
     .max = 1 << 20,
     .help = "images a step of one process"},
    ARG_END,
};

static const struct personality_default defaults[] = {
    {"arch", "convnet", 0, NULL},    {"image-size", "28", 0, NULL},    {"num-channels", "1", 0, NULL},
    {"num-labels", "10", 0, NULL},   {"num-epochs", "2", 0, NULL},     {"base-learning-rate", "1e-4", 0, NULL},
    {"momentum", "0", 0, NULL},      {"weight-decay", "0", 0, NULL},   {"lr-policy", "fixed", 0, NULL},
    {"warmup-epochs", "0", 0, NULL}, {"seed", "0", 0, NULL},           {"sampler", "distributed", 0, NULL},
    {"input", "plain", 0, NULL},     {"progress", "article", 0, NULL}, {NULL, NULL, 0, NULL},
};

static int choose_ranks(struct mnist *c, const struct personality_args *a, const struct personality_world *w,
                        struct err *e)
{
    struct train_config *t = &c->train;
    if (c->nr >= c->nodes && !w->launched)
        return err_set(e, ERR_USAGE, "-nr %d: the machines of -n %d are counted from 0 to %d", (int)c->nr,
                       (int)c->nodes, (int)c->nodes - 1);
    if (w->launched && (personality_given(a, "gpus") || personality_given(a, "nodes")))
        return err_set(e, ERR_USAGE,
                       "a launcher has started %d processes: leave -n, -g and -nr out, which start them here",
                       w->world);
    if (w->launched)
        return 0;
    t->procs = c->gpus > 1 ? c->gpus : 0;
    t->node_rank = c->nr;
    if (c->nodes == 1)
        return 0;
    t->nodes = c->nodes;
    if (!t->dist_url && (!getenv("MASTER_ADDR") || !getenv("MASTER_PORT")))
        return err_set(
            e, ERR_USAGE,
            "-n %d: set MASTER_ADDR and MASTER_PORT to where machine 0 is and a free port there (the tutorial has "
            "10.57.23.164 and 8888 in its script)",
            (int)c->nodes);
    if (!t->dist_url)
        t->dist_url = "env://";
    return 0;
}

static int apply(void *config, const struct personality_args *a, struct err *e)
{
    struct mnist *c = config;
    struct personality_world w;
    TRY(personality_world(&w, (int)c->nodes, (int)c->gpus, e));
    TRY(choose_ranks(c, a, &w, e));
    c->train.train_data = c->data;
    c->train.batch_size = c->batch * w.world;
    c->train.by_world = true;
    personality_say_slow(a);
    return 0;
}

const struct personality personality_mnist = {
    .name = "mnist",
    .usage = "[options]",
    .summary = "Train a small network on MNIST's files as the tutorial on data-parallel training does.",
    .epilog = "What differs from the original stands in docs/reference/personalities.md.",
    .own = own,
    .defaults = defaults,
    .config_size = sizeof(struct mnist),
    .operands = ARG_NO_OPERANDS,
    .apply = apply,
};
