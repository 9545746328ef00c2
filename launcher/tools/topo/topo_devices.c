/* Finds GPUs and network adapters, and the distances between them (topo_devices.h). */
#include "launcher/tools/topo/topo_devices.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "launcher/tools/topo/pci.h"

/* --- finding */

static void resolve(char out[TOPO_PATH_MAX], const char *sys, const char *rest, const char *name, const char *tail)
{
    char link[TOPO_PATH_MAX], *real;
    snprintf(link, sizeof link, "%s%s%s%s", sys, rest, name, tail);
    real = realpath(link, NULL);
    snprintf(out, TOPO_PATH_MAX, "%s", real ? real : "");
    free(real);
}

static int by_version(const struct dirent **a, const struct dirent **b)
{
    return strverscmp((*a)->d_name, (*b)->d_name);
}

/* Find the adapters that RDMA can use; nvidia-smi lists the same. */
static void find_nics(struct topo_devices *d, const char *sys)
{
    char folder[TOPO_PATH_MAX];
    struct dirent **names = NULL;
    snprintf(folder, sizeof folder, "%s/class/infiniband", sys);
    const int n = scandir(folder, &names, NULL, by_version);
    for (int i = 0, k = 0; i < n; i++) {
        if (names[i]->d_name[0] != '.' && k < TOPO_NICS_MAX) {
            struct topo_device *v = &d->v[d->n++];
            snprintf(v->label, sizeof v->label, "NIC%d", k++);
            snprintf(v->name, sizeof v->name, "%.95s", names[i]->d_name);
            resolve(v->path, sys, "/class/infiniband/", names[i]->d_name, "/device");
            v->numa_node = file_read_int(-1, "%s/numa_node", v->path);
        }
        free(names[i]);
    }
    free(names);
}

void topo_devices_find(struct topo_devices *d, const char *sys)
{
    memset(d, 0, sizeof *d);
    d->n_gpus = gpus_find(d->gpus);
    for (int i = 0; i < d->n_gpus; i++) {
        struct topo_device *v = &d->v[d->n++];
        v->gpu = &d->gpus[i];
        v->numa_node = d->gpus[i].numa_node;
        snprintf(v->label, sizeof v->label, "GPU%d", i);
        snprintf(v->name, sizeof v->name, "%s", d->gpus[i].name);
        resolve(v->path, sys, "/bus/pci/devices/", d->gpus[i].pci, "");
    }
    find_nics(d, sys);
}

/* --- distances */

static bool same_pci(const char *nvml, const char *sysfs)
{
    const size_t a = strlen(nvml), b = strlen(sysfs);
    return a >= b && b > 0 && strcasecmp(nvml + a - b, sysfs) == 0;
}

/* Count a's active NVLinks to b, and to devices that are not GPUs (a switch). */
static void count_links(const struct topo_devices *d, const struct gpu *a, const struct gpu *b, int *direct,
                        int *others)
{
    const struct nvml_lib *l = nvml_lib(NULL);
    *direct = *others = 0;
    for (unsigned i = 0; l && a->device && i < NVML_LINKS; i++) {
        int active = 0;
        struct nvml_pci remote = {0};
        if (l->nvmlDeviceGetNvLinkState(a->device, i, &active) != NVML_SUCCESS || !active)
            continue;
        bool gpu = false;
        if (l->nvmlDeviceGetNvLinkRemotePciInfo_v2(a->device, i, &remote) == NVML_SUCCESS)
            for (int k = 0; k < d->n_gpus; k++)
                gpu = gpu || same_pci(remote.bus_id, d->gpus[k].pci);
        *direct += gpu && same_pci(remote.bus_id, b->pci);
        *others += !gpu;
    }
}

static int nvlinks(const struct topo_devices *d, const struct gpu *a, const struct gpu *b)
{
    int direct, ours, theirs, unused;
    count_links(d, a, b, &direct, &ours);
    if (direct > 0)
        return direct;
    count_links(d, b, a, &unused, &theirs);
    return ours < theirs ? ours : theirs;
}

/* NVML's answer about two GPUs, which includes what a virtual machine hides. */
static const char *ancestor(const struct gpu *a, const struct gpu *b)
{
    static const struct {
        int level;
        enum pci_distance distance;
    } table[] = {{NVML_INTERNAL, PCI_PIX},   {NVML_SINGLE, PCI_PIX}, {NVML_MULTIPLE, PCI_PXB},
                 {NVML_HOSTBRIDGE, PCI_PHB}, {NVML_NODE, PCI_NODE},  {NVML_SYSTEM, PCI_SYS}};
    const struct nvml_lib *l = nvml_lib(NULL);
    int level;
    if (!l || !a->device || !b->device ||
        l->nvmlDeviceGetTopologyCommonAncestor(a->device, b->device, &level) != NVML_SUCCESS)
        return NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].level == level)
            return pci_distance_name(table[i].distance);
    return NULL;
}

char *topo_devices_relation(const struct topo_devices *d, int a, int b, char *out, size_t cap)
{
    const struct topo_device *x = &d->v[a], *y = &d->v[b];
    const int links = a != b && x->gpu && y->gpu ? nvlinks(d, x->gpu, y->gpu) : 0;
    const char *name = a == b ? "X" : x->gpu && y->gpu ? ancestor(x->gpu, y->gpu) : NULL;
    if (!name && x->path[0] && y->path[0])
        name = pci_distance_name(pci_distance(x->path, x->numa_node, y->path, y->numa_node));
    if (links > 0)
        snprintf(out, cap, "NV%d", links);
    else
        snprintf(out, cap, "%s", name ? name : "?");
    return out;
}

char *topo_devices_cpus(const struct topo_device *d, char *out, size_t cap)
{
    file_read_line(out, cap, "%s/local_cpulist", d->path);
    return out;
}
