#include "worker/device/cuda/kern/kern_proof.cu"
