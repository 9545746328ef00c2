/* Stands before NVIDIA's library in tests: three GPUs below one host bridge, the first two joined by two NVLinks. */
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/place/nvml_lib.h"

#define X(name, args) int name args;
NVML_LIB_FUNCTIONS(X)
#undef X

static int index_of(nvml_device d)
{
    return (int)(uintptr_t)d - 1;
}

int nvmlInit_v2(void)
{
    return NVML_SUCCESS;
}

int nvmlShutdown(void)
{
    return NVML_SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *ret)
{
    *ret = 3;
    return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned i, nvml_device *ret)
{
    *ret = (nvml_device)(uintptr_t)(i + 1);
    return NVML_SUCCESS;
}

int nvmlDeviceGetUUID(nvml_device d, char *out, unsigned cap)
{
    snprintf(out, cap, "GPU-%d0000000-0000-0000-0000-000000000000", index_of(d) + 1);
    return NVML_SUCCESS;
}

int nvmlDeviceGetName(nvml_device d, char *out, unsigned cap)
{
    snprintf(out, cap, "Fake GPU");
    return NVML_SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(nvml_device d, struct nvml_pci *ret)
{
    memset(ret, 0, sizeof *ret);
    snprintf(ret->bus_id, sizeof ret->bus_id, "0000FFFF:%02X:00.0", 0xfa + index_of(d));
    return NVML_SUCCESS;
}

int nvmlDeviceGetUtilizationRates(nvml_device d, struct nvml_utilization *ret)
{
    *ret = (struct nvml_utilization){.gpu = 90 + (unsigned)index_of(d), .memory = 40};
    return NVML_SUCCESS;
}

/* FAKE_NVML_HANGS: a driver that does not answer any more. */
int nvmlDeviceGetMemoryInfo(nvml_device d, struct nvml_memory *ret)
{
    if (getenv("FAKE_NVML_HANGS"))
        for (;;)
            pause();
    *ret = (struct nvml_memory){.total = 80ull << 30, .free = 60ull << 30, .used = 20ull << 30};
    return NVML_SUCCESS;
}

/* FAKE_NVML_LINK: the second NVLink of the first GPU is down while that file is there. */
static bool is_cut(void)
{
    return getenv("FAKE_NVML_LINK") && access(getenv("FAKE_NVML_LINK"), F_OK) == 0;
}

/* Who has looked at all links finds a line in a file beside it. */
static void note_look(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s.seen", getenv("FAKE_NVML_LINK"));
    FILE *file = fopen(path, "a");
    fputs(is_cut() ? "down\n" : "up\n", file);
    fclose(file);
}

/* FAKE_NVML_XID: the first GPU has a row to be remapped, the second falls off the bus once that file is there. Who asks
 * again knows it, and the file has a line. */
int nvmlDeviceGetRemappedRows(nvml_device d, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    *corrected = *uncorrected = *failed = 0;
    if (getenv("FAKE_NVML_LINK") && index_of(d) == 0)
        note_look();
    *pending = getenv("FAKE_NVML_XID") && index_of(d) == 0;
    return NVML_SUCCESS;
}

int nvmlEventSetCreate(nvml_events *ret)
{
    *ret = (nvml_events)(uintptr_t)1;
    return NVML_SUCCESS;
}

int nvmlDeviceRegisterEvents(nvml_device d, unsigned long long types, nvml_events set)
{
    return types == NVML_XID ? NVML_SUCCESS : -1;
}

int nvmlEventSetWait_v2(nvml_events set, struct nvml_event *ret, unsigned ms)
{
    static bool told;
    const char *name = getenv("FAKE_NVML_XID");
    FILE *file = told ? fopen(name, "w") : NULL;
    if (file) {
        fputs("told\n", file);
        fclose(file);
    }
    for (unsigned waited = 0; waited < ms; waited += 10, poll(NULL, 0, 10))
        if (name && !told && access(name, F_OK) == 0) {
            *ret = (struct nvml_event){.device = (nvml_device)(uintptr_t)2, .type = NVML_XID, .data = 79};
            told = true;
            return NVML_SUCCESS;
        }
    return 10; /* the time is over */
}

int nvmlDeviceGetTopologyCommonAncestor(nvml_device a, nvml_device b, int *ret)
{
    *ret = NVML_MULTIPLE;
    return NVML_SUCCESS;
}

int nvmlDeviceGetNvLinkState(nvml_device d, unsigned link, int *ret)
{
    *ret = link < 2 && index_of(d) < 2 && !(index_of(d) == 0 && link == 1 && is_cut());
    return link < 4 ? NVML_SUCCESS : 3;
}

int nvmlDeviceGetNvLinkErrorCounter(nvml_device d, unsigned link, unsigned counter, unsigned long long *ret)
{
    *ret = 7;
    return counter == NVML_RECOVERIES && link < 2 && index_of(d) < 2 ? NVML_SUCCESS : 3;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvml_device d, unsigned link, struct nvml_pci *ret)
{
    return nvmlDeviceGetPciInfo_v3((nvml_device)(uintptr_t)(2 - index_of(d)), ret);
}
