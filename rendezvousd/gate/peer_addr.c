/* See peer_addr.h. */
#include "rendezvousd/gate/peer_addr.h"
#include "common/net/addr.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

void peer_addr_host(const struct sockaddr_storage *sa, char *out, size_t cap)
{
    const struct sockaddr_in6 *v6 = (const void *)sa;
    out[0] = 0;
    if (sa->ss_family == AF_INET)
        uv_ip4_name((const void *)sa, out, cap);
    else if (sa->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
        uv_inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], out, cap);
    else if (sa->ss_family == AF_INET6)
        uv_ip6_name(v6, out, cap);
}

void peer_addr_read(const uv_tcp_t *tcp, struct peer_addr *ret)
{
    struct sockaddr_storage sa;
    char host[INET6_ADDRSTRLEN] = "";
    int n = sizeof sa;
    memset(ret, 0, sizeof *ret);
    strcpy(ret->text, "?");
    if (uv_tcp_getpeername(tcp, (struct sockaddr *)&sa, &n) < 0)
        return;
    peer_addr_host(&sa, ret->host, sizeof ret->host);
    if (sa.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)&sa;
        addr_from_v4(&in->sin_addr, ret->ip);
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        snprintf(ret->text, sizeof ret->text, "%s:%u", host, (unsigned)ntohs(in->sin_port));
    } else if (sa.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)&sa;
        memcpy(ret->ip, &in6->sin6_addr, 16);
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
        snprintf(ret->text, sizeof ret->text, "[%s]:%u", host, (unsigned)ntohs(in6->sin6_port));
    }
}

bool peer_addr_is_loopback(const struct peer_addr *a)
{
    return addr_is_loopback(a->ip);
}

static bool parse(const char *p, size_t n, uint8_t ret[ADDR_BYTES])
{
    char text[PEER_TEXT_MAX];
    if (n >= sizeof text)
        return false;
    memcpy(text, p, n);
    text[n] = 0;
    return addr_read(text, ret);
}

bool peer_addr_in_list(const struct peer_addr *a, const char *list)
{
    uint8_t one[ADDR_BYTES];
    for (const char *p = list; p && *p;) {
        size_t n = strcspn(p, ",");
        if (parse(p, n, one) && memcmp(one, a->ip, 16) == 0)
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}
