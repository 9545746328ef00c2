#include "worker/device/cuda/kern/kernels.cu"
