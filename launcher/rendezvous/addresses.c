/* Lists this machine's addresses and asks whether a host name is this machine's. See addresses.h. */
#include "launcher/rendezvous/addresses.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

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

bool addresses_own_name_is_loopback(int timeout_ms, char name[256], char ret[INET6_ADDRSTRLEN])
{
    struct addrinfo *found;
    uint8_t ip[ADDR_BYTES];
    name[0] = name[255] = 0;
    if (gethostname(name, 255) < 0 || resolve(name, "1", clock_ms() + timeout_ms, -1, &found, NULL) < 0)
        return false;
    const bool is = addr_of(found->ai_addr, ip) && addr_is_loopback(ip);
    freeaddrinfo(found);
    if (is)
        addr_text(ip, ret);
    return is;
}

/* --- asked again: a look-up in a thread of its own (resolve.h), waited for a moment, then watched by the loop */

struct own_host {
    struct lookup *lookup;
    uv_poll_t poll;
    void (*answered)(void *arg, bool own);
    void *arg;
};

static bool is_own(struct addrinfo *found)
{
    const bool own = addresses_are_own(found);
    freeaddrinfo(found);
    return own;
}

static bool take(struct lookup *l, const char *host)
{
    struct addrinfo *found;
    return resolve_take(l, host, &found, NULL) == 0 && is_own(found);
}

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

static void finish(struct own_host *o)
{
    uv_poll_stop(&o->poll);
    uv_close((uv_handle_t *)&o->poll, on_closed);
}

static void on_answer(uv_poll_t *p, int status, int events)
{
    struct own_host *o = p->data;
    (void)status;
    (void)events;
    const bool own = take(o->lookup, "");
    finish(o);
    o->answered(o->arg, own);
}

static bool is_name_of_this_machine(const char *host)
{
    char own[256] = "";
    gethostname(own, sizeof own - 1);
    return strcasecmp(host, own) == 0 || strcasecmp(host, "localhost") == 0;
}

enum own_host_answer own_host_ask(struct own_host **ret, uv_loop_t *loop, const char *host,
                                  void (*answered)(void *arg, bool own), void *arg)
{
    struct addrinfo *found;
    struct lookup *lookup;
    if (is_name_of_this_machine(host))
        return OWN_HOST_YES;
    const int rc = resolve_start(host, "1", &found, &lookup, NULL);
    if (rc == 1)
        return is_own(found) ? OWN_HOST_YES : OWN_HOST_NO;
    if (rc < 0)
        return OWN_HOST_NO;
    if (wait_fd(resolve_fd(lookup), POLLIN, clock_ms() + OWN_HOST_MS, -1, NULL) == 0)
        return take(lookup, host) ? OWN_HOST_YES : OWN_HOST_NO;
    struct own_host *o = calloc(1, sizeof *o);
    if (!o || uv_poll_init(loop, &o->poll, resolve_fd(lookup)) < 0) {
        free(o);
        resolve_abandon(lookup);
        return OWN_HOST_NO;
    }
    o->lookup = lookup;
    o->answered = answered;
    o->arg = arg;
    o->poll.data = o;
    uv_poll_start(&o->poll, UV_READABLE, on_answer);
    *ret = o;
    return OWN_HOST_ASKED;
}

void own_host_close(struct own_host *o)
{
    if (!o)
        return;
    resolve_abandon(o->lookup);
    finish(o);
}
