/* What trainer-cuda.so exports. */
#include "worker/device/module/module.h"

#include "common/base/err.h"
#include "common/base/log.h"
#include "worker/comm/comm.h"
#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/dnn/dnn.h"
#include "worker/device/cuda/gpu/gpu.h"

#ifdef HAVE_NCCL
#define NCCL &comm_nccl_ops
#else
#define NCCL NULL
#endif

static int properties(int index, char **ret, struct err *e)
{
    struct cudnn *d;
    TRY(cudnn_open(&d, &(struct cudnn_options){.index = index}, e));
    const int rc = cudnn_properties(d, ret, e);
    cudnn_close(d);
    return rc;
}

__attribute__((visibility("default"))) extern const struct cuda_module trainer_cuda_module;
const struct cuda_module trainer_cuda_module = {.abi = CUDA_MODULE_ABI,
                                                .version = CRUN_VERSION,
                                                .device = &device_cuda_ops,
                                                .nccl = NCCL,
                                                .count = gpu_count,
                                                .properties = properties,
                                                .log_init = log_init};
