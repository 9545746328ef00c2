/* Network adapters near a GPU: those with the least on the PCI path between, as sysfs shows it. */
#ifndef CRUN_LAUNCHER_NEAR_H
#define CRUN_LAUNCHER_NEAR_H

#include <stddef.h>

#include "launcher/place/gpus.h"
#include "launcher/place/pci.h"

#define NEAR_BYTES 256

/* Variables that are set for workers, in the syntax of NCCL_IB_HCA and NCCL_SOCKET_IFNAME. */
#define NEAR_LISTS(X)                                                                                                  \
    X(hcas, "CRUN_NEAR_HCAS", "infiniband")                                                                            \
    X(nics, "CRUN_NEAR_NICS", "net")

struct near_adapters {
#define X(field, variable, class)                                                                                      \
    char field[NEAR_BYTES]; /* "CRUN_NEAR_HCAS=mlx5_0,mlx5_1", "" if there is none */                                  \
    enum pci_distance field##_distance;
    NEAR_LISTS(X)
#undef X
};

/* For each of n GPUs. Adapters that are down, and those without a PCI device, do not count; a member of a bond or
 * bridge goes by the name of that. root: before "/sys", "" for this machine. */
void near_find(const struct gpu *gpus, int n, const char *root, struct near_adapters *ret);

/* For people: "mlx5_0, mlx5_1 (PIX), ens1 (NODE)"; "" if there is none; returns out. */
char *near_text(const struct near_adapters *a, char *out, size_t cap);

#endif
