/* Tells by the ranks' records whether NCCL can connect them, and passes its unique id on. */
#include "worker/comm/nccl/nccl_peers.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"

void nccl_peer_write(const struct nccl_peer *p, char out[NCCL_RECORD_BYTES])
{
    snprintf(out, NCCL_RECORD_BYTES, "%d %s %s %s %s", p->version, p->host, p->hostid, p->gpu, p->id);
}

int nccl_peer_read(struct nccl_peer *ret, const char *text, int rank, struct err *e)
{
    *ret = (struct nccl_peer){0};
    if (sscanf(text, "%d %127s %63s %63s %256s", &ret->version, ret->host, ret->hostid, ret->gpu, ret->id) != 5)
        return err_set(e, -EPROTO, "the NCCL record of rank %d is '%.60s': expected version, host, id, GPU and key",
                       rank, text);
    return 0;
}

static int mismatch(int a, int version_a, int b, int version_b, struct err *e)
{
    return err_set(e, ERR_MISMATCH,
                   "rank %d has NCCL %d.%d.%d, rank %d has NCCL %d.%d.%d: all ranks need the same libnccl.so.2", a,
                   version_a / 10000, version_a % 10000 / 100, version_a % 100, b, version_b / 10000,
                   version_b % 10000 / 100, version_b % 100);
}

static bool same_gpu(const struct nccl_peer *a, const struct nccl_peer *b)
{
    return strcmp(a->host, b->host) == 0 && strcmp(a->hostid, b->hostid) == 0 && strcmp(a->gpu, b->gpu) == 0;
}

int nccl_peers_check(const struct nccl_peer *peers, int world, struct err *e)
{
    for (int r = 1; r < world; r++)
        if (peers[r].version != peers[0].version)
            return mismatch(0, peers[0].version, r, peers[r].version, e);
    for (int b = 1; b < world; b++)
        for (int a = 0; a < b; a++)
            if (same_gpu(&peers[a], &peers[b]))
                return err_set(e, -EBUSY,
                               "ranks %d and %d are on the same GPU (%s), which NCCL refuses: give every rank its own "
                               "(--gpus, CUDA_VISIBLE_DEVICES), or --comm gloo",
                               a, b, peers[a].gpu);
    return 0;
}

void nccl_id_write(const void *id, char out[2 * NCCL_ID_BYTES + 1])
{
    const uint8_t *p = id;
    for (int i = 0; i < NCCL_ID_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", p[i]);
}

int nccl_id_read(void *id, const char *text, struct err *e)
{
    uint8_t *p = id;
    unsigned v;
    if (strlen(text) != 2 * NCCL_ID_BYTES || strspn(text, "0123456789abcdef") != 2 * NCCL_ID_BYTES)
        return err_set(e, -EPROTO, "the NCCL key of rank 0 is '%.60s': expected %d hexadecimal digits", text,
                       2 * NCCL_ID_BYTES);
    for (int i = 0; i < NCCL_ID_BYTES; i++) {
        sscanf(text + 2 * i, "%2x", &v);
        p[i] = (uint8_t)v;
    }
    return 0;
}

static bool begins(const char *name, const char *prefix, size_t n, bool exact)
{
    return strncmp(name, prefix, n) == 0 && (!exact || name[n] == '\0');
}

bool nccl_interface_allowed(const char *setting, const char *name)
{
    if (!setting || !*setting)
        return strncmp(name, "lo", 2) != 0 && strncmp(name, "docker", 6) != 0;
    bool without = *setting == '^', exact = false, listed = false;
    setting += without;
    exact = *setting == '=';
    setting += exact;
    for (const char *at = setting; *at;) {
        const size_t n = strcspn(at, ",");
        const char *port = memchr(at, ':', n); /* NAME:PORT */
        const size_t len = port ? (size_t)(port - at) : n;
        listed = listed || (len > 0 && begins(name, at, len, exact));
        at += n + (at[n] == ',');
    }
    return listed != without;
}

int nccl_interfaces_check(const char *setting, struct err *e)
{
    struct ifaddrs *all = NULL;
    char list[256] = "";
    bool found = false;
    if (!setting || !*setting || getifaddrs(&all) < 0)
        return 0; /* NCCL falls back to loopback where there is nothing else */
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        if (!i->ifa_addr || (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
            continue;
        found = found || ((i->ifa_flags & IFF_UP) && nccl_interface_allowed(setting, i->ifa_name));
        if (!strstr(list, i->ifa_name) && strlen(list) + strlen(i->ifa_name) + 3 < sizeof list)
            sprintf(list + strlen(list), "%s%s", *list ? ", " : "", i->ifa_name);
    }
    freeifaddrs(all);
    return found ? 0
                 : err_set(e, -ENODEV,
                           "NCCL_SOCKET_IFNAME is '%s': no interface of this machine that is up and has an "
                           "address (%s) is meant by it",
                           setting, list);
}
