/* Reads network interfaces, and ports of RDMA adapters, from /sys (of HWLOC_FSROOT, if set). */
#include <dirent.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/file.h"
#include "launcher/place/gpus.h"
#include "launcher/tools/doctor/facts.h"

#define PATH_CAP 512

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b); /* the name stands first in both structs */
}

/* Is this a name that container engines and bridges make up? The same name on another host is another link. */
static bool is_drawn(const char *name)
{
    static const char *const beginnings[] = {"lo",  "veth", "docker",  "br-", "virbr",
                                             "cni", "cali", "flannel", "tun", "tap"};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (strncmp(name, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    return false;
}

static void read_nic(int fd, const char *name, struct facts_nic *nic)
{
    struct ifreq r = {0};
    snprintf(nic->name, sizeof nic->name, "%s", name);
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
    nic->up = ioctl(fd, SIOCGIFFLAGS, &r) == 0 && (r.ifr_flags & IFF_UP) && (r.ifr_flags & IFF_RUNNING);
    nic->mtu = ioctl(fd, SIOCGIFMTU, &r) == 0 ? r.ifr_mtu : -1;
    nic->compare = !is_drawn(name);
}

/* Read the interfaces of this network namespace; /sys would show those of the one in which it was mounted. */
static void read_nics(struct facts *f)
{
    struct if_nameindex *all = if_nameindex();
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    for (const struct if_nameindex *at = all; at && at->if_name && f->n_nics < FACTS_NICS_MAX; at++)
        if (fd >= 0 && strlen(at->if_name) < IFNAMSIZ)
            read_nic(fd, at->if_name, &f->nics[f->n_nics++]);
    if (fd >= 0)
        close(fd);
    if_freenameindex(all);
    qsort(f->nics, (size_t)f->n_nics, sizeof *f->nics, by_name);
}

/* folder: ".../infiniband/mlx5_0/ports". */
static void read_ports(const char *folder, const char *device, struct facts *f)
{
    char state[32];
    DIR *d = opendir(folder);
    for (const struct dirent *at; d && f->n_hcas < FACTS_HCAS_MAX && (at = readdir(d));) {
        if (at->d_name[0] == '.' || file_read_line(state, sizeof state, "%s/%s/state", folder, at->d_name) <= 0)
            continue;
        struct facts_hca *hca = &f->hcas[f->n_hcas++];
        snprintf(hca->name, sizeof hca->name, "%.40s:%.16s", device, at->d_name);
        hca->active = strstr(state, "ACTIVE") != NULL; /* "4: ACTIVE" */
    }
    if (d)
        closedir(d);
}

static void read_hcas(struct facts *f)
{
    char folder[PATH_CAP / 2], ports[PATH_CAP];
    snprintf(folder, sizeof folder, "%s/sys/class/infiniband", machine_root());
    DIR *d = opendir(folder);
    for (const struct dirent *at; d && (at = readdir(d));) {
        if (at->d_name[0] == '.')
            continue;
        snprintf(ports, sizeof ports, "%s/%.200s/ports", folder, at->d_name);
        read_ports(ports, at->d_name, f);
    }
    if (d)
        closedir(d);
    qsort(f->hcas, (size_t)f->n_hcas, sizeof *f->hcas, by_name);
}

void facts_read_net(struct facts *f)
{
    read_nics(f);
    read_hcas(f);
}
