#include "launcher/place/near.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"

#define ADAPTERS_MAX 128
#define FOLDER_MAX (PATH_MAX + 80)
#define FILE_MAX (FOLDER_MAX + 80)

struct adapter {
    char name[64];
    char path[PATH_MAX];
    int numa_node;
};

/* The PCI device behind an adapter; a virtio one lies a folder below its own. False: it has none. */
static bool pci_device(const char *link, char out[PATH_MAX])
{
    unsigned a, b, c, d;
    if (!realpath(link, out))
        return false;
    for (char *slash; (slash = strrchr(out, '/')); *slash = '\0')
        if (sscanf(slash, "/%x:%x:%x.%x", &a, &b, &c, &d) == 4)
            return true;
    return false;
}

/* An RDMA adapter with ports of which none is active. */
static bool ports_down(const char *folder)
{
    char ports[FOLDER_MAX + 8];
    bool down = false;
    snprintf(ports, sizeof ports, "%s/ports", folder);
    DIR *d = opendir(ports);
    for (struct dirent *e; d && (e = readdir(d));) {
        const int state = e->d_name[0] == '.' ? -1 : file_read_int(-1, "%s/%s/state", ports, e->d_name);
        if (state < 0)
            continue;
        down = state != 4; /* "4: ACTIVE" */
        if (!down)
            break;
    }
    if (d)
        closedir(d);
    return down;
}

static bool link_down(const char *folder)
{
    char state[32];
    return file_read_line(state, sizeof state, "%s/operstate", folder) > 0 && strcmp(state, "up") != 0 &&
           strcmp(state, "unknown") != 0;
}

/* What has the address: the bond or bridge that an interface belongs to. */
static void name_of(const char *folder, const char *own, char out[64])
{
    char link[FILE_MAX], master[PATH_MAX];
    snprintf(link, sizeof link, "%s/master", folder);
    const ssize_t n = readlink(link, master, sizeof master - 1);
    master[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(master, '/');
    snprintf(out, 64, "%.63s", n > 0 ? slash ? slash + 1 : master : own);
}

static int by_version(const struct dirent **a, const struct dirent **b)
{
    return strverscmp((*a)->d_name, (*b)->d_name);
}

static int find_adapters(const char *root, const char *class, struct adapter *ret)
{
    char folder[PATH_MAX], one[FOLDER_MAX], device[FILE_MAX];
    struct dirent **names = NULL;
    int found = 0;
    snprintf(folder, sizeof folder, "%s/sys/class/%s", root, class);
    const int n = scandir(folder, &names, NULL, by_version);
    for (int i = 0; i < n; i++) {
        struct adapter *a = &ret[found];
        snprintf(one, sizeof one, "%s/%.60s", folder, names[i]->d_name);
        snprintf(device, sizeof device, "%s/device", one);
        if (names[i]->d_name[0] != '.' && found < ADAPTERS_MAX && !ports_down(one) && !link_down(one) &&
            pci_device(device, a->path)) {
            name_of(one, names[i]->d_name, a->name);
            a->numa_node = file_read_int(-1, "%s/numa_node", a->path);
            found++;
        }
        free(names[i]);
    }
    free(names);
    return found;
}

static bool listed(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list; *p; p += strcspn(p, ",=") + (p[strcspn(p, ",=")] != '\0'))
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0'))
            return true;
    return false;
}

/* The nearest ones, behind the variable's name. */
static void list_nearest(const char *variable, const struct adapter *all, int n, const char *path, int node,
                         char out[NEAR_BYTES], enum pci_distance *ret)
{
    out[0] = '\0';
    *ret = PCI_SYS;
    for (int i = 0; i < n; i++) {
        const enum pci_distance d = pci_distance(path, node, all[i].path, all[i].numa_node);
        *ret = d > *ret ? d : *ret;
    }
    for (int i = 0; i < n; i++) {
        const size_t used = strlen(out);
        if (pci_distance(path, node, all[i].path, all[i].numa_node) != *ret || listed(out, all[i].name) ||
            used + strlen(variable) + strlen(all[i].name) + 2 > NEAR_BYTES)
            continue;
        snprintf(out + used, NEAR_BYTES - used, "%s%s%s", used ? "," : variable, used ? "" : "=", all[i].name);
    }
}

void near_find(const struct gpu *gpus, int n, const char *root, struct near_adapters *ret)
{
    struct adapter *all = n > 0 ? malloc(ADAPTERS_MAX * sizeof *all) : NULL;
    char path[PATH_MAX], link[PATH_MAX];
    for (int i = 0; i < n; i++)
        ret[i] = (struct near_adapters){0};
    if (!all)
        return;
#define X(field, variable, class)                                                                                      \
    const int field = find_adapters(root, class, all);                                                                 \
    for (int i = 0; i < n; i++) {                                                                                      \
        snprintf(link, sizeof link, "%s/sys/bus/pci/devices/%s", root, gpus[i].pci);                                   \
        if (gpus[i].pci[0] && pci_device(link, path))                                                                  \
            list_nearest(variable, all, field, path, file_read_int(-1, "%s/numa_node", path), ret[i].field,            \
                         &ret[i].field##_distance);                                                                    \
    }
    NEAR_LISTS(X)
#undef X
    free(all);
}

static void add_text(char *out, size_t cap, const char *list, enum pci_distance d)
{
    const char *p = strchr(list, '=');
    size_t used = strlen(out);
    if (!p)
        return;
    if (used)
        used += (size_t)snprintf(out + used, cap - used, ", ");
    for (p++; *p && used + 3 < cap; p++) {
        out[used++] = *p;
        if (*p == ',')
            out[used++] = ' ';
        out[used] = '\0';
    }
    if (used < cap)
        snprintf(out + used, cap - used, " (%s)", pci_distance_name(d));
}

char *near_text(const struct near_adapters *a, char *out, size_t cap)
{
    out[0] = '\0';
#define X(field, variable, class) add_text(out, cap, a->field, a->field##_distance);
    NEAR_LISTS(X)
#undef X
    return out;
}
