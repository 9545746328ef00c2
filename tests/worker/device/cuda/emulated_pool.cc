#include "worker/device/cuda/kern/kern_pool.cu"
