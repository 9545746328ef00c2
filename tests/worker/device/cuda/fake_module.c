/* A GPU module without a GPU, for CRUN_CUDA_MODULE: trainer's own way to a GPU, from the command line to the exit code,
 * over the fake one.
 *   FAKE_GPUS   how many the machine has, default 1; CUDA_VISIBLE_DEVICES chooses among them, by number
 *   FAKE_CARD   properties of the card to plan for (h200.json): cuDNN chooses what runs, as on a GPU; unset: there is
 *               no cuDNN
 *   FAKE_PROPERTIES set: gpu-info finds some
 *   FAKE_TELLS  set: how long it may tune
 *   FAKE_FAULT  graphs: whatever is launched as a graph fails; wrong: an engine computes something else
 *   FAKE_WRONG  that engine does, or algorithm of products */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/properties.h"
#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/dnn/dnn.h"
#include "worker/device/device.h"
#include "worker/device/module/module.h"

static struct device_ops ops;

/* The first engine that computes a gradient of weights errs; or that of this name. */
static enum fake_wrong wrong(void *ctx, const struct gpu_dnn *d)
{
    static char first[256];
    const char *name = getenv("FAKE_WRONG");
    (void)ctx;
    if (cudnn_pattern_product(d->pattern))
        return name && strcmp(name, cudnn_plan_name(d->plan)) == 0 ? FAKE_SCALED : FAKE_RIGHT;
    if (d->pattern != DNN_WGRAD || !d->plan)
        return FAKE_RIGHT;
    if (!first[0])
        snprintf(first, sizeof first, "%s", name ? name : cudnn_plan_name(d->plan));
    return strcmp(first, cudnn_plan_name(d->plan)) == 0 ? FAKE_SCALED : FAKE_RIGHT;
}

static int machine_has(void)
{
    const char *n = getenv("FAKE_GPUS");
    return n ? atoi(n) : 1;
}

/* What GPU `index` of the visible ones is on the machine; -1: so many are not visible. As CUDA reads it, the list ends
 * at the first entry that names no GPU. */
static int on_machine(int index)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list)
        return index < machine_has() ? index : -1;
    for (int n = 0;; n++) {
        char *end;
        const long gpu = strtol(list, &end, 10);
        if (end == list || gpu < 0 || gpu >= machine_has())
            return -1;
        if (n == index)
            return (int)gpu;
        if (*end != ',')
            return -1;
        list = end + 1;
    }
}

static int count(struct err *e)
{
    int n = 0;
    while (on_machine(n) >= 0)
        n++;
    if (n == 0)
        err_set(e, -ENODEV, "no fake GPU can be used here");
    return n;
}

static int fake_open(struct device **ret, const struct device_options *o, struct err *e)
{
    struct cuda_options options;
    struct cudnn_options d;
    struct gpu *g;
    struct cudnn *dnn = NULL;
    const char *card = getenv("FAKE_CARD");
    cuda_options_from(o, &options, &d);
    fprintf(stderr, "fake GPU %d of %d\n", on_machine(o->index), machine_has());
    if (getenv("FAKE_TELLS"))
        fprintf(stderr, "fake GPU: tuning takes %g s at most\n", o->gpu.tune_seconds);
    if (card) {
        char *props = properties_read(card);
        d.props_json = props;
        const int rc = cudnn_open(&dnn, &d, e);
        free(props);
        TRY(rc);
    }
    const char *fault = getenv("FAKE_FAULT");
    const int rc = fake_gpu_open(
        &g, &(struct fake_options){.number = on_machine(o->index),
                                   .no_graph_runs = fault && !strcmp(fault, "graphs"),
                                   .wrong = getenv("FAKE_WRONG") || (fault && !strcmp(fault, "wrong")) ? wrong : NULL});
    if (rc < 0) {
        cudnn_close(dnn);
        return err_errno(e, -rc, "a fake GPU");
    }
    return cuda_open_on(ret, g, dnn, &options, e);
}

static int properties(int index, char **ret, struct err *e)
{
    *ret = getenv("FAKE_PROPERTIES") ? strdup("{}") : NULL;
    return *ret ? 0 : err_set(e, -ENODEV, "a fake GPU has no properties");
}

__attribute__((visibility("default"))) extern struct cuda_module trainer_cuda_module;
struct cuda_module trainer_cuda_module = {.abi = CUDA_MODULE_ABI,
                                          .version = CRUN_VERSION,
                                          .device = &ops,
                                          .count = count,
                                          .properties = properties,
                                          .log_init = log_init};

__attribute__((constructor)) static void begin(void)
{
    ops = device_cuda_ops;
    ops.open = fake_open;
}
