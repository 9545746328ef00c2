#include "worker/device/cuda/kern_loss.cu"
