#include "worker/device/cuda/kern/kern_bn_apply.cu"
