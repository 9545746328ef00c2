#include "worker/device/cuda/kern/kern_attention.cu"
