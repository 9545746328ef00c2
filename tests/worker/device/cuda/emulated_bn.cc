#include "worker/device/cuda/kern/kern_bn.cu"
