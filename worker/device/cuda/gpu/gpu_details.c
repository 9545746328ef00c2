/* Collects what a log needs to say of a card. */
#include "worker/device/cuda/gpu/gpu_details.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn_graph.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#ifdef HAVE_NCCL
#include <nccl.h>
#endif

#include "worker/device/cuda/gpu/gpu.h"

struct lines {
    char *out;
    size_t cap, used;
};

__attribute__((format(printf, 2, 3))) static void line(struct lines *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = l->used < l->cap ? vsnprintf(l->out + l->used, l->cap - l->used, fmt, args) : 0;
    va_end(args);
    l->used += n > 0 ? (size_t)n : 0;
}

static void versions(struct lines *l)
{
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    line(l, "CUDA: built with %d.%d, runtime %d.%d, driver for %d.%d\n", CUDART_VERSION / 1000,
         CUDART_VERSION % 1000 / 10, runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
    const int built = (int)CUDNN_VERSION, found = (int)cudnnGetVersion();
    line(l, "cuDNN: built with %d.%d.%d, found %d.%d.%d\n", built / 10000, built % 10000 / 100, built % 100,
         found / 10000, found % 10000 / 100, found % 100);
    line(l, "cuBLASLt: found %zu\n", cublasLtGetVersion());
#ifdef HAVE_NCCL
    int nccl = 0;
    ncclGetVersion(&nccl);
    line(l, "NCCL: built with %d, found %d\n", NCCL_VERSION_CODE, nccl);
#else
    line(l, "NCCL: not built in\n");
#endif
}

/* The runtime asks the driver for cudaDeviceProp's as CUDA 9.2 did, and is told that of the whole GPU. It numbers
 * devices as the driver does. */
void gpu_uuid(int index, const void *whole, char *out)
{
    int (*ask)(void *, int) = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    unsigned char own[16], id[16];
    void *at = NULL;
    memcpy(id, whole, sizeof id);
    if (cudaGetDriverEntryPointByVersion("cuDeviceGetUuid", &at, 11040, cudaEnableDefault, &found) == cudaSuccess &&
        found == cudaDriverEntryPointSuccess) {
        memcpy(&ask, &at, sizeof ask);
        if (ask(own, index) == 0)
            memcpy(id, own, sizeof id);
    }
    int n = snprintf(out, GPU_UUID_BYTES, "%s-", memcmp(id, whole, sizeof id) == 0 ? "GPU" : "MIG");
    for (int i = 0; i < 16; i++)
        n += snprintf(out + n, (size_t)(GPU_UUID_BYTES - n), "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                      id[i]);
}

static void card(struct lines *l, int index, char bus[32])
{
    struct cudaDeviceProp p;
    size_t left = 0, total = 0;
    char uuid[GPU_UUID_BYTES];
    if (cudaGetDeviceProperties(&p, index) != cudaSuccess)
        return;
    gpu_uuid(index, p.uuid.bytes, uuid);
    line(l, "card: %s, compute capability %d.%d, %d multiprocessors, L2 %d MiB, ECC %s\n", p.name, p.major, p.minor,
         p.multiProcessorCount, p.l2CacheSize >> 20, p.ECCEnabled ? "on" : "off");
    line(l, "UUID: %s\n", uuid);
    if (cudaDeviceGetPCIBusId(bus, 32, index) == cudaSuccess)
        line(l, "PCI: %s\n", bus);
    if (cudaMemGetInfo(&left, &total) == cudaSuccess)
        line(l, "memory: %zu of %zu MiB free\n", left >> 20, total >> 20);
}

/* --- NVML: its library comes with the driver, its header need not be here */

enum { NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2 };

struct nvml {
    void *lib;
    int (*init)(void);
    int (*by_bus)(const char *bus, void **device);
    int (*driver)(char *version, unsigned length);
    int (*clock)(void *device, int type, unsigned *mhz);
    int (*most)(void *device, int type, unsigned *mhz);
    int (*power)(void *device, unsigned *mw);
    int (*limit)(void *device, unsigned *mw);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
    int (*throttle)(void *device, unsigned long long *reasons);
};

static bool find_all(struct nvml *n)
{
    const struct {
        const char *name;
        void **at;
    } wanted[] = {{"nvmlInit_v2", (void **)&n->init},
                  {"nvmlDeviceGetHandleByPciBusId_v2", (void **)&n->by_bus},
                  {"nvmlSystemGetDriverVersion", (void **)&n->driver},
                  {"nvmlDeviceGetClockInfo", (void **)&n->clock},
                  {"nvmlDeviceGetMaxClockInfo", (void **)&n->most},
                  {"nvmlDeviceGetPowerUsage", (void **)&n->power},
                  {"nvmlDeviceGetEnforcedPowerLimit", (void **)&n->limit},
                  {"nvmlDeviceGetTemperature", (void **)&n->temperature},
                  {"nvmlDeviceGetCurrentClocksThrottleReasons", (void **)&n->throttle}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!(*wanted[i].at = dlsym(n->lib, wanted[i].name)))
            return false;
    return true;
}

/* Since NVML shuts itself down with the process, nobody does it here. */
static void clocks(struct lines *l, const char *bus)
{
    struct nvml n = {.lib = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL)};
    void *device = NULL;
    char driver[96] = "";
    unsigned sm = 0, sm_most = 0, memory = 0, memory_most = 0, power = 0, limit = 0, celsius = 0;
    unsigned long long reasons = 0;
    if (!n.lib || !find_all(&n) || n.init() != 0)
        return;
    if (n.driver(driver, sizeof driver) == 0)
        line(l, "driver: %s\n", driver);
    if (n.by_bus(bus, &device) != 0)
        return;
    if (n.clock(device, NVML_CLOCK_SM, &sm) == 0 && n.most(device, NVML_CLOCK_SM, &sm_most) == 0 &&
        n.clock(device, NVML_CLOCK_MEM, &memory) == 0 && n.most(device, NVML_CLOCK_MEM, &memory_most) == 0)
        line(l, "clocks: %u of %u MHz, memory %u of %u MHz\n", sm, sm_most, memory, memory_most);
    if (n.power(device, &power) == 0 && n.limit(device, &limit) == 0)
        line(l, "power: %u of %u W\n", power / 1000, limit / 1000);
    if (n.temperature(device, 0, &celsius) == 0 && n.throttle(device, &reasons) == 0)
        line(l, "temperature: %u C, clocks held back by 0x%llx\n", celsius, reasons);
}

void gpu_details(int index, char *out, size_t cap)
{
    struct lines l = {.out = out, .cap = cap};
    char bus[32] = "";
    if (cap > 0)
        out[0] = '\0';
    versions(&l);
    card(&l, index, bus);
    clocks(&l, bus);
}
