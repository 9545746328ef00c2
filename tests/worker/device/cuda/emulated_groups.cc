#include "worker/device/cuda/kern/kern_groups.cu"
