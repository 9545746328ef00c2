/* Computes the addresses at which NCCL's RAS of each worker listens (ras_addr.h). */
#include "launcher/witness/ras_addr.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/addr.h"

#define HOSTS 254 /* of a block 127.x.y: not .0, not .255 */

bool ras_is_off(void)
{
    const char *enable = getenv("NCCL_RAS_ENABLE");
    char *end = NULL;
    return enable && strtol(enable, &end, 0) == 0 && end != enable;
}

bool ras_gives_addresses(void)
{
    return !getenv(RAS_VARIABLE) && !ras_is_off();
}

const char *ras_typed_badly(void)
{
    const char *typed = getenv(RAS_VARIABLE);
    struct host_port p;
    const bool is_one =
        typed && addr_split(typed, strlen(typed), &p) && p.host_len > 0 && p.port && addr_port(p.port, p.port_len) >= 0;
    return is_one ? NULL : typed;
}

static uint32_t block_of(pid_t crun, int local)
{
    /* spreads neighbouring pids: each may use several address blocks */
    const uint32_t scattered = (uint32_t)crun * 2654435761u;
    return (scattered >> 17) + (uint32_t)(local / HOSTS);
}

char *ras_address(pid_t crun, int local, char out[RAS_ADDRESS_MAX])
{
    const uint32_t block = block_of(crun, local);
    snprintf(out, RAS_ADDRESS_MAX, "127.%u.%u.%d:%d", 64 + (block >> 8) % 128, block & 255, 1 + local % HOSTS,
             RAS_PORT);
    return out;
}

void ras_list(pid_t crun, int workers, char out[RAS_ADDRESS_MAX])
{
    const uint32_t block = block_of(crun, 0);
    if (workers < 2)
        ras_address(crun, 0, out);
    else
        snprintf(out, RAS_ADDRESS_MAX, "127.%u.%u.1-%d:%d", 64 + (block >> 8) % 128, block & 255,
                 workers < HOSTS ? workers : HOSTS, RAS_PORT);
}

char *ras_hosts(char out[RAS_HOSTS_MAX])
{
    struct ifaddrs *all = NULL;
    size_t n = 0;
    snprintf(out, RAS_HOSTS_MAX, "-");
    if (getifaddrs(&all) < 0)
        return out;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        uint8_t ip[ADDR_BYTES];
        char text[INET6_ADDRSTRLEN];
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || !addr_of(i->ifa_addr, ip) || addr_is_loopback(ip) ||
            n + sizeof text + 1 > RAS_HOSTS_MAX)
            continue;
        n += (size_t)snprintf(out + n, RAS_HOSTS_MAX - n, "%s%s", n ? "," : "", addr_text(ip, text));
    }
    freeifaddrs(all);
    return out;
}
