/* Finds the NVIDIA GPUs of this machine without creating a context on them: through NVML, else from
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

/* Find all GPUs, in the order of the driver (PCI bus). Returns their number; 0 if there is none, or no driver. */
int gpus_find(struct gpu ret[GPUS_MAX]);

/* The root of the files that describe the machine: HWLOC_FSROOT, as in hwloc, to look at another machine's; "": this
 * one. */
const char *machine_root(void);

/* Select the GPUs that CUDA_VISIBLE_DEVICES lists, in its order: indices, UUIDs (GPU-...) or beginnings of them; the
 * list ends at the first entry that names no GPU, or one named already. visible: the variable, NULL: not set, all
 * are visible. Moves the visible ones to the front; returns their number. Of MIG-... entries CUDA uses one per
 * process, so only the first counts. Pure. */
int gpus_visible(struct gpu *gpus, int n, const char *visible);

/* Both, with CUDA_VISIBLE_DEVICES of this process. */
int gpus_usable(struct gpu ret[GPUS_MAX]);

#endif
