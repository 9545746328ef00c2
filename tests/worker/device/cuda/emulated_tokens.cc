#include "worker/device/cuda/kern/kern_tokens.cu"
