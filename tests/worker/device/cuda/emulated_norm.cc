#include "worker/device/cuda/kern/kern_norm.cu"
