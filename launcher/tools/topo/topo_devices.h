/* GPUs and network adapters of this machine, and their distances. */
#ifndef CRUN_LAUNCHER_TOPO_DEVICES_H
#define CRUN_LAUNCHER_TOPO_DEVICES_H

#include <stddef.h>

#include "launcher/place/gpus.h"

#define TOPO_NICS_MAX 64
#define TOPO_DEVICES_MAX (GPUS_MAX + TOPO_NICS_MAX)
#define TOPO_PATH_MAX 512

struct topo_device {
    char label[16];           /* "GPU0", "NIC1" */
    char name[NVML_TEXT];     /* "NVIDIA H100 ...", "mlx5_0" */
    char path[TOPO_PATH_MAX]; /* folder below /sys/devices; "" if sysfs does not show it */
    int numa_node;            /* -1: not known */
    const struct gpu *gpu;    /* NULL: a network adapter */
};

struct topo_devices {
    struct topo_device v[TOPO_DEVICES_MAX];
    struct gpu gpus[GPUS_MAX];
    int n, n_gpus; /* GPUs come first */
};

/* sys: "/sys". CUDA_VISIBLE_DEVICES hides none of them. */
void topo_devices_find(struct topo_devices *ret, const char *sys);

/* The text of one cell: "X", "NV4", "SYS" ..., "?" if not known; returns out. */
char *topo_devices_relation(const struct topo_devices *d, int a, int b, char *out, size_t cap);

/* The CPUs near a device as the kernel lists them, "" if it does not; returns out. */
char *topo_devices_cpus(const struct topo_device *d, char *out, size_t cap);

#endif
