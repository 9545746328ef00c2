/* The distance of two PCI devices, in nvidia-smi's terms. */
#ifndef CRUN_LAUNCHER_PCI_H
#define CRUN_LAUNCHER_PCI_H

/* The legend, from far to near. */
#define PCI_DISTANCES(X)                                                                                               \
    X(PCI_SYS, "SYS", "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)") \
    X(PCI_NODE, "NODE",                                                                                                \
      "Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node")           \
    X(PCI_PHB, "PHB", "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)")                  \
    X(PCI_PXB, "PXB", "Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)")         \
    X(PCI_PIX, "PIX", "Connection traversing at most a single PCIe bridge")

enum pci_distance {
#define X(id, name, text) id,
    PCI_DISTANCES(X)
#undef X
};

const char *pci_distance_name(enum pci_distance d);

/* a, b: folders of the devices below /sys/devices ("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"); a_node,
 * b_node: their NUMA nodes (-1: not known; two unknown ones count as the same). Pure. */
enum pci_distance pci_distance(const char *a, int a_node, const char *b, int b_node);

#endif
