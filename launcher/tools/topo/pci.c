/* The distance of two PCI devices, from their paths in sysfs (pci.h). */
#include "launcher/tools/topo/pci.h"

#include <stdbool.h>
#include <string.h>

static const char *const names[] = {
#define X(id, name, text) name,
    PCI_DISTANCES(X)
#undef X
};

const char *pci_distance_name(enum pci_distance d)
{
    return names[d];
}

/* Length of the next part of a path, with its slash. */
static size_t part(const char *p)
{
    return *p ? 1 + strcspn(p + 1, "/") : 0;
}

static int parts(const char *p)
{
    int n = 0;
    for (; *p; p += part(p))
        n++;
    return n;
}

/* Skip "/sys/devices": what follows is host bridge, bridges, device. */
static const char *below_devices(const char *p)
{
    const char *root = strstr(p, "/pci");
    return root ? root : p;
}

enum pci_distance pci_distance(const char *a, int a_node, const char *b, int b_node)
{
    const char *p = below_devices(a), *q = below_devices(b);
    int shared = 0;
    for (size_t n; (n = part(p)) && n == part(q) && memcmp(p, q, n) == 0; p += n, q += n)
        shared++;
    if (shared == 0)
        return a_node == b_node ? PCI_NODE : PCI_SYS;
    if (shared == 1)
        return PCI_PHB;
    /* A switch consists of two bridges, one up and one down. Devices below the same down bridge, and functions of
     * one device, have nothing between them. */
    return parts(p) <= 2 && parts(q) <= 2 ? PCI_PIX : PCI_PXB;
}
