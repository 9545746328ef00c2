/* See peer_addr.h. */
#include "rendezvousd/gate/peer_addr.h"
#include "common/net/addr.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

void sockaddr_host(const struct sockaddr_storage *sa, char *out, size_t cap)
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
    struct sockaddr_storage sa = {0};
    int n = sizeof sa;
    if (uv_tcp_getpeername(tcp, (struct sockaddr *)&sa, &n) < 0)
        sa.ss_family = AF_UNSPEC;
    peer_addr_of(&sa, ret);
}

void peer_addr_of(const struct sockaddr_storage *sa, struct peer_addr *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->v4 = sa->ss_family == AF_INET;
    ret->known = ret->v4 || sa->ss_family == AF_INET6;
    if (ret->v4) {
        const struct sockaddr_in *in = (const void *)sa;
        addr_from_v4(&in->sin_addr, ret->ip);
        ret->port = ntohs(in->sin_port);
    } else if (ret->known) {
        const struct sockaddr_in6 *in6 = (const void *)sa;
        memcpy(ret->ip, &in6->sin6_addr, 16);
        ret->port = ntohs(in6->sin6_port);
    }
}

const char *peer_addr_text(struct peer_addr *a)
{
    char ip[INET6_ADDRSTRLEN] = "";
    if (a->text[0])
        return a->text;
    if (a->v4)
        uv_inet_ntop(AF_INET, a->ip + 12, ip, sizeof ip);
    else if (a->known)
        uv_inet_ntop(AF_INET6, a->ip, ip, sizeof ip);
    if (a->known)
        snprintf(a->text, sizeof a->text, a->v4 ? "%s:%u" : "[%s]:%u", ip, (unsigned)a->port);
    else
        strcpy(a->text, "?");
    return a->text;
}

const char *peer_addr_host(struct peer_addr *a)
{
    const bool mapped = IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)a->ip);
    if (!a->host[0] && a->known)
        uv_inet_ntop(mapped ? AF_INET : AF_INET6, a->ip + (mapped ? 12 : 0), a->host, sizeof a->host);
    return a->host;
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
