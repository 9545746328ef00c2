#include "worker/device/cuda/kern_update.cu"
