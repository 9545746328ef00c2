#include "launcher/rendezvous/addresses.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/addr.h"
#include "common/net/resolve.h"

static bool link_local(const struct sockaddr *a)
{
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

/* An address that peers could dial, as text. */
static bool usable(const struct ifaddrs *i, char out[INET6_ADDRSTRLEN])
{
    uint8_t ip[ADDR_BYTES];
    return i->ifa_addr && (i->ifa_flags & IFF_UP) && addr_of(i->ifa_addr, ip) && !link_local(i->ifa_addr) &&
           addr_text(ip, out);
}

static void append(char *list, size_t cap, const char *item)
{
    const size_t n = strlen(list);
    if (n + 1 + strlen(item) < cap)
        snprintf(list + n, cap - n, "%s%s", n ? "," : "", item);
}

int addresses_all(char *ret, size_t cap, struct err *e)
{
    struct ifaddrs *all;
    char text[INET6_ADDRSTRLEN];
    if (getifaddrs(&all) < 0)
        return err_errno(e, errno, "the addresses of this machine");
    ret[0] = 0;
    for (unsigned loopback = 0; loopback < 2; loopback++)
        for (const struct ifaddrs *i = all; i; i = i->ifa_next)
            if (!(i->ifa_flags & IFF_LOOPBACK) == !loopback && usable(i, text))
                append(ret, cap, text);
    freeifaddrs(all);
    return 0;
}

static int no_interface(const struct ifaddrs *all, const char *name, struct err *e)
{
    char names[256] = "", text[INET6_ADDRSTRLEN];
    for (const struct ifaddrs *i = all; i; i = i->ifa_next)
        if (usable(i, text) && !strstr(names, i->ifa_name))
            append(names, sizeof names, i->ifa_name);
    return err_set(e, ERR_USAGE, "--iface '%s': no such interface with an address, there are %s", name, names);
}

int addresses_of_interface(const char *name, char *ret, size_t cap, struct err *e)
{
    struct ifaddrs *all;
    bool found = false;
    if (getifaddrs(&all) < 0)
        return err_errno(e, errno, "the addresses of this machine");
    for (int v6 = 0; v6 < 2 && !found; v6++)
        for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next)
            found =
                strcmp(i->ifa_name, name) == 0 && usable(i, ret) && i->ifa_addr->sa_family == (v6 ? AF_INET6 : AF_INET);
    int rc = found ? 0 : no_interface(all, name, e);
    freeifaddrs(all);
    return rc;
}

bool addresses_are_own(const struct addrinfo *found)
{
    struct ifaddrs *all;
    uint8_t asked[ADDR_BYTES], one[ADDR_BYTES];
    bool own = false;
    if (getifaddrs(&all) < 0)
        return false;
    for (const struct addrinfo *f = found; f && !own; f = f->ai_next) {
        addr_of(f->ai_addr, asked);
        own = addr_is_loopback(asked); /* whether listed or not */
        for (const struct ifaddrs *i = all; i && !own; i = i->ifa_next)
            own = i->ifa_addr && addr_of(i->ifa_addr, one) && memcmp(one, asked, ADDR_BYTES) == 0;
    }
    freeifaddrs(all);
    return own;
}

bool addresses_own(const char *host, int timeout_ms)
{
    struct addrinfo *found;
    if (resolve(host, "1", clock_ms() + timeout_ms, -1, &found, NULL) < 0)
        return false;
    const bool own = addresses_are_own(found);
    freeaddrinfo(found);
    return own;
}
