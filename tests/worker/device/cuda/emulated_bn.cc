#include "worker/device/cuda/kern_bn.cu"
