#include "worker/device/cuda/kern/kern_loss.cu"
