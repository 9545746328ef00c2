/* The conformance suites' device under test: cuda, planned over the GPU that is not there. */
#include <string.h>

#include "tests/conformance/device_rig.h"
#include "tests/worker/device/cuda/fake_gpu.h"
#include "worker/device/cuda/plan.h"

const char *const rig_device = "cuda";

int rig_open(struct device **ret, const char *name, const struct device_options *o, struct err *e)
{
    struct gpu *g;
    struct cuda_options own;
    struct cudnn_options none;
    if (strcmp(name, "cuda"))
        return device_ref_ops.open(ret, o, e);
    fake_gpu_open(&g, &(struct fake_options){0});
    cuda_options_from(o, &own, &none);
    return cuda_open_on(ret, g, NULL, &own, e);
}

size_t rig_plan_bytes(const struct plan *pl)
{
    return ((const struct cuda_plan *)pl)->memory_bytes;
}

void rig_plan_profile(const struct plan *pl, FILE *f)
{
    fail_msg("the cuda device has no profile on the host");
}
