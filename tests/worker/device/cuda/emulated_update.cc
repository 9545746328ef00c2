#include "worker/device/cuda/kern/kern_update.cu"
