/* The door to the kernels: one table from ids to launchers. */
#include "worker/device/cuda/kern/kern.cuh"

extern "C" int kernel_launch(enum kernel k, const void *args, void *stream)
{
    cudaStream_t s = static_cast<cudaStream_t>(stream);
    (void)cudaGetLastError(); /* what others left, cudaErrorNotReady above all, is not this launch's */
    switch (k) {
#define X(id, type)                                                                                                    \
    case id:                                                                                                           \
        launch_##id(static_cast<const type *>(args), s);                                                               \
        break;
        KERNELS(X)
#undef X
    case KERNEL_COUNT:
        break;
    }
    return (int)cudaGetLastError();
}
