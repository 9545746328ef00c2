/* NVIDIA's management library, opened on first use: it counts and describes GPUs without creating a context on them.
 *
 * Its header is not in the library's package, so the functions that we call are declared here as in its manual. */
#ifndef CRUN_LAUNCHER_NVML_LIB_H
#define CRUN_LAUNCHER_NVML_LIB_H

struct err;

typedef struct nvml_device_opaque *nvml_device;

struct nvml_pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32]; /* "00000000:3B:00.0" */
};

enum {
    NVML_SUCCESS = 0,
    NVML_LINKS = 18,
    NVML_TEXT = 96,
    NVML_XID = 8,       /* type of an event */
    NVML_RECOVERIES = 1 /* counter of an NVLink's errors: how often it had to be set up anew */
};

typedef struct nvml_events_opaque *nvml_events;

struct nvml_event {
    nvml_device device;
    unsigned long long type, data; /* data: the Xid */
    unsigned gpu_instance, compute_instance;
};

struct nvml_utilization {
    unsigned gpu, memory; /* percent of the time in which a kernel ran; in which memory was read or written */
};

struct nvml_memory {
    unsigned long long total, free, used; /* bytes */
};

/* Values of nvmlDeviceGetTopologyCommonAncestor. */
enum nvml_level {
    NVML_INTERNAL = 0,
    NVML_SINGLE = 10,
    NVML_MULTIPLE = 20,
    NVML_HOSTBRIDGE = 30,
    NVML_NODE = 40,
    NVML_SYSTEM = 50
};

#define NVML_LIB_FUNCTIONS(X)                                                                                          \
    X(nvmlInit_v2, (void))                                                                                             \
    X(nvmlShutdown, (void))                                                                                            \
    X(nvmlDeviceGetCount_v2, (unsigned *))                                                                             \
    X(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvml_device *))                                                        \
    X(nvmlDeviceGetUUID, (nvml_device, char *, unsigned))                                                              \
    X(nvmlDeviceGetName, (nvml_device, char *, unsigned))                                                              \
    X(nvmlDeviceGetPciInfo_v3, (nvml_device, struct nvml_pci *))                                                       \
    X(nvmlDeviceGetUtilizationRates, (nvml_device, struct nvml_utilization *))                                         \
    X(nvmlDeviceGetMemoryInfo, (nvml_device, struct nvml_memory *))                                                    \
    X(nvmlDeviceGetRemappedRows, (nvml_device, unsigned *, unsigned *, unsigned *, unsigned *))                        \
    X(nvmlEventSetCreate, (nvml_events *))                                                                             \
    X(nvmlDeviceRegisterEvents, (nvml_device, unsigned long long, nvml_events))                                        \
    X(nvmlEventSetWait_v2, (nvml_events, struct nvml_event *, unsigned))                                               \
    X(nvmlDeviceGetTopologyCommonAncestor, (nvml_device, nvml_device, int *))                                          \
    X(nvmlDeviceGetNvLinkState, (nvml_device, unsigned, int *))                                                        \
    X(nvmlDeviceGetNvLinkErrorCounter, (nvml_device, unsigned, unsigned, unsigned long long *))                        \
    X(nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvml_device, unsigned, struct nvml_pci *))

struct nvml_lib {
#define X(name, args) int(*name) args;
    NVML_LIB_FUNCTIONS(X)
#undef X
};

/* Opened and initialised; stays for the life of the process. NULL, with one sentence, if there is no driver. Main
 * thread. */
const struct nvml_lib *nvml_lib(struct err *e);

#endif
