#include "worker/device/cuda/kern/kern_bn_pool.cu"
