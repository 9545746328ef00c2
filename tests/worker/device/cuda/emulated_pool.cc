#include "worker/device/cuda/kern_pool.cu"
