/* The conformance suites' device under test: cuda over the GPU that is not there, with cuDNN's own plans for the card
 * that RIG_CARD describes. Which engines win is chance, by the seed (CRUN_TEST_SEED): what a step computes must not
 * depend on it. */
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/device_rig.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "tests/worker/device/cuda/properties.h"
#include "worker/device/cuda/plan.h"

const char *const rig_device = "cuda";

static float by_chance(void *ctx, const struct cudnn_plan *last)
{
    (void)ctx;
    /* fusions stay: they are what is looked at */
    return !last ? 100 : cudnn_pattern_fused(cudnn_plan_pattern(last)) ? 1 + (float)(rand() % 100) / 100 : 10;
}

int rig_open(struct device **ret, const char *name, const struct device_options *o, struct err *e)
{
    struct gpu *g;
    struct cuda_options own;
    struct cudnn_options of_dnn;
    struct cudnn *dnn;
    if (strcmp(name, "cuda"))
        return device_ref_ops.open(ret, o, e);
    char *props = properties_read(getenv("RIG_CARD"));
    cuda_options_from(o, &own, &of_dnn);
    of_dnn.props_json = props;
    const int rc = cudnn_open(&dnn, &of_dnn, e);
    free(props);
    TRY(rc);
    const char *seed = getenv("CRUN_TEST_SEED");
    srand(seed ? (unsigned)strtoul(seed, NULL, 10) : 1);
    fake_gpu_open(&g, &(struct fake_options){.cudnn_ms = by_chance});
    return cuda_open_on(ret, g, dnn, &own, e);
}

size_t rig_plan_bytes(const struct plan *pl)
{
    return ((const struct cuda_plan *)pl)->memory_bytes;
}

void rig_plan_profile(const struct plan *pl, FILE *f)
{
    fail_msg("the cuda device has no profile on the host");
}
