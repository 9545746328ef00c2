/* What a log needs to say of a card, for whoever reads it elsewhere: versions built with and found, driver, UUID,
 * clocks, power, memory. */
#ifndef CRUN_WORKER_DEVICE_CUDA_GPU_DETAILS_H
#define CRUN_WORKER_DEVICE_CUDA_GPU_DETAILS_H

#include <stddef.h>

/* One line a fact, "name: value". What cannot be asked is left out. Clocks and power are NVML's, where it is. */
void gpu_details(int index, char *out, size_t cap);

#endif
