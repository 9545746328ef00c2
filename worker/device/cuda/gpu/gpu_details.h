/* What a log needs to say of a card, for whoever reads it elsewhere: versions built with and found, driver, UUID,
 * clocks, power, memory. */
#ifndef CRUN_WORKER_DEVICE_CUDA_GPU_DETAILS_H
#define CRUN_WORKER_DEVICE_CUDA_GPU_DETAILS_H

#include <stddef.h>

/* UUID of visible device `index` as nvidia-smi -L prints it: of the MIG instance where it is one.
 * whole: cudaDeviceProp.uuid, which is the whole GPU's. out: GPU_UUID_BYTES (gpu.h). */
void gpu_uuid(int index, const void *whole, char *out);

/* One line a fact, "name: value". What cannot be asked is left out. Clocks and power are NVML's, where it is. */
void gpu_details(int index, char *out, size_t cap);

#endif
