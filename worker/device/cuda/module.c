/* What trainer-cuda.so exports. */
#include "worker/device/cuda/module.h"

#include "common/err.h"
#include "worker/comm/comm.h"
#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/dnn.h"
#include "worker/device/cuda/gpu.h"

#ifdef HAVE_NCCL
#define NCCL &comm_nccl_ops
#else
#define NCCL NULL
#endif

static int properties(int index, char **ret, struct err *e)
{
    struct dnn *d;
    TRY(dnn_open(&d, &(struct dnn_options){.index = index}, e));
    const int rc = dnn_properties(d, ret, e);
    dnn_close(d);
    return rc;
}

__attribute__((visibility("default"))) extern const struct cuda_module trainer_cuda_module;
const struct cuda_module trainer_cuda_module = {.abi = CUDA_MODULE_ABI,
                                                .version = CRUN_VERSION,
                                                .device = &device_cuda_ops,
                                                .nccl = NCCL,
                                                .count = gpu_count,
                                                .properties = properties};
