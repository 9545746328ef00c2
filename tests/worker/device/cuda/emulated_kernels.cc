#include "worker/device/cuda/kernels.cu"
