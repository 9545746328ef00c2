/* The NVIDIA GPUs of this machine, found without making a context on any of them: through NVML, else from
 * /proc/driver/nvidia/gpus. */
#ifndef CRUN_LAUNCHER_GPUS_H
#define CRUN_LAUNCHER_GPUS_H

#include "launcher/place/nvml_lib.h"

#define GPUS_MAX 64

struct err;

struct gpu {
    char uuid[NVML_TEXT]; /* "GPU-..." */
    char name[NVML_TEXT];
    char pci[32];       /* as sysfs writes it: "0000:3b:00.0" */
    int numa_node;      /* -1: not known */
    nvml_device device; /* NULL: found without NVML */
};

/* All of them, in the order of the driver (PCI bus). Returns how many; 0 where there is none or no driver. */
int gpus_find(struct gpu ret[GPUS_MAX]);

/* Where the files that describe the machine lie: HWLOC_FSROOT as hwloc takes it, to look at another one's; "" for this
 * one. */
const char *machine_root(void);

/* What CUDA_VISIBLE_DEVICES leaves, in its order: indices, UUIDs (GPU-...) or beginnings of one, ended by the first
 * that names no GPU or one named already. visible: the variable, NULL: not set, all are visible. Moves the visible ones
 * to the front; returns how many. Of MIG-... CUDA takes one for each process, so the first counts and no other.
 * Pure. */
int gpus_visible(struct gpu *gpus, int n, const char *visible);

/* Both, with CUDA_VISIBLE_DEVICES of this process. */
int gpus_usable(struct gpu ret[GPUS_MAX]);

#endif
