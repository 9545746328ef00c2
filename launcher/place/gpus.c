/* Finds the NVIDIA GPUs of this machine, and applies CUDA_VISIBLE_DEVICES (gpus.h). */
#include "launcher/place/gpus.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/file.h"

/* NVML writes "00000000:3B:00.0", sysfs "0000:3b:00.0". */
static void normal_pci(const char *from, char out[32])
{
    const size_t n = strcspn(from, ":");
    snprintf(out, 32, "%.31s", n > 4 ? from + n - 4 : from);
    for (char *p = out; *p; p++)
        *p = (char)tolower((unsigned char)*p);
}

const char *machine_root(void)
{
    const char *root = getenv("HWLOC_FSROOT");
    return root && strcmp(root, "/") != 0 ? root : "";
}

static int numa_node_of(const char *pci)
{
    return file_read_int(-1, "%s/sys/bus/pci/devices/%s/numa_node", machine_root(), pci);
}

static int find_by_nvml(const struct nvml_lib *l, struct gpu *ret)
{
    unsigned count = 0;
    int n = 0;
    if (l->nvmlDeviceGetCount_v2(&count) != NVML_SUCCESS)
        return 0;
    for (unsigned i = 0; i < count && n < GPUS_MAX; i++) {
        struct gpu g = {.numa_node = -1};
        struct nvml_pci pci = {0};
        /* no permission, or the GPU fell off the bus */
        if (l->nvmlDeviceGetHandleByIndex_v2(i, &g.device) != NVML_SUCCESS)
            continue;
        l->nvmlDeviceGetUUID(g.device, g.uuid, sizeof g.uuid);
        l->nvmlDeviceGetName(g.device, g.name, sizeof g.name);
        if (l->nvmlDeviceGetPciInfo_v3(g.device, &pci) == NVML_SUCCESS)
            normal_pci(pci.bus_id, g.pci);
        g.numa_node = numa_node_of(g.pci);
        ret[n++] = g;
    }
    return n;
}

static int by_pci(const void *a, const void *b)
{
    return strcmp(((const struct gpu *)a)->pci, ((const struct gpu *)b)->pci);
}

/* Read the driver's file "0000:3b:00.0/information", which has lines "Model: ..." and "GPU UUID: ...". */
static void read_information(struct gpu *g)
{
    char path[PATH_MAX], line[160];
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus/%s/information", machine_root(), g->pci);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (!value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = '\0';
        if (strncmp(line, "Model", 5) == 0)
            snprintf(g->name, sizeof g->name, "%.95s", value);
        else if (strncmp(line, "GPU UUID", 8) == 0)
            snprintf(g->uuid, sizeof g->uuid, "%.95s", value);
    }
    if (f)
        fclose(f);
}

/* Find GPUs from /proc/driver/nvidia/gpus alone. */
static int gpus_listed(struct gpu ret[GPUS_MAX])
{
    char path[PATH_MAX];
    int n = 0;
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", machine_root());
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d)) && n < GPUS_MAX;) {
        if (e->d_name[0] == '.')
            continue;
        struct gpu g = {.numa_node = -1};
        normal_pci(e->d_name, g.pci);
        read_information(&g);
        g.numa_node = numa_node_of(g.pci);
        ret[n++] = g;
    }
    if (d)
        closedir(d);
    qsort(ret, (size_t)n, sizeof *ret, by_pci);
    return n;
}

int gpus_find(struct gpu ret[GPUS_MAX])
{
    const struct nvml_lib *l = nvml_lib(NULL);
    return l ? find_by_nvml(l, ret) : gpus_listed(ret);
}

/* The GPU that this word names, -1: none. */
static int named(const struct gpu *gpus, int n, const char *word)
{
    char *end;
    if (isdigit((unsigned char)word[0])) {
        const long i = strtol(word, &end, 10);
        return !*end && i < n ? (int)i : -1;
    }
    if (strncmp(word, "GPU-", 4) != 0)
        return -1;
    int found = -1;
    for (int i = 0; i < n; i++)
        if (strncasecmp(gpus[i].uuid, word, strlen(word)) == 0) {
            if (found >= 0)
                return -1; /* the beginning of two */
            found = i;
        }
    return found;
}

int gpus_visible(struct gpu *gpus, int n, const char *visible)
{
    struct gpu chosen[GPUS_MAX];
    bool taken[GPUS_MAX] = {false};
    int count = 0;
    if (!visible)
        return n;
    while (count < GPUS_MAX) {
        char word[NVML_TEXT];
        visible += strspn(visible, " ");
        const size_t len = strcspn(visible, ",");
        snprintf(word, sizeof word, "%.*s", (int)(len < sizeof word ? len : sizeof word - 1), visible);
        for (size_t k = strlen(word); k && word[k - 1] == ' '; k--)
            word[k - 1] = '\0';
        const int i = named(gpus, n, word);
        if (strncmp(word, "MIG-", 4) == 0 && n > 0 && count == 0) {
            struct gpu part = {.numa_node = -1}; /* only the driver knows which GPU it is a part of */
            snprintf(part.uuid, sizeof part.uuid, "%s", word);
            chosen[count++] = part;
            break;
        } else if (i < 0 || taken[i]) {
            break;
        } else {
            taken[i] = true;
            chosen[count++] = gpus[i];
        }
        visible += len;
        if (*visible++ != ',')
            break;
    }
    memcpy(gpus, chosen, (size_t)count * sizeof *chosen);
    return count;
}

int gpus_usable(struct gpu ret[GPUS_MAX])
{
    return gpus_visible(ret, gpus_find(ret), getenv("CUDA_VISIBLE_DEVICES"));
}
