/* Finds an address under which others reach this machine (own_address.h). */
#include "common/net/own_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <stdint.h>

#include "common/net/addr.h"

static bool is_usable(const struct ifaddrs *i, int family, uint8_t ip[ADDR_BYTES])
{
    return i->ifa_addr && i->ifa_addr->sa_family == family && (i->ifa_flags & IFF_UP) &&
           !(i->ifa_flags & IFF_LOOPBACK) && addr_of(i->ifa_addr, ip) &&
           !(family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)i->ifa_addr)->sin6_addr));
}

bool own_address(char ret[INET6_ADDRSTRLEN])
{
    static const int families[] = {AF_INET, AF_INET6};
    struct ifaddrs *all;
    uint8_t ip[ADDR_BYTES];
    bool found = false;
    if (getifaddrs(&all) < 0)
        return false;
    for (int f = 0; f < 2 && !found; f++)
        for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next)
            if ((found = is_usable(i, families[f], ip)))
                addr_text(ip, ret);
    freeifaddrs(all);
    return found;
}
