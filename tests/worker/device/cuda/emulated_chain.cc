#include "worker/device/cuda/kern/kern_chain.cu"
