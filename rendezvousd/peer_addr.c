/* See peer_addr.h. */
#include "rendezvousd/peer_addr.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

static void from_v4(const struct in_addr *in, uint8_t ret[16])
{
    memcpy(ret, mapped, sizeof mapped);
    memcpy(ret + sizeof mapped, in, 4);
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
    if (sa.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)&sa;
        from_v4(&in->sin_addr, ret->ip);
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
    static const uint8_t v6[16] = {[15] = 1};
    return (memcmp(a->ip, mapped, sizeof mapped) == 0 && a->ip[12] == 127) || memcmp(a->ip, v6, 16) == 0;
}

static bool parse(const char *p, size_t n, uint8_t ret[16])
{
    char text[INET6_ADDRSTRLEN];
    struct in_addr in;
    if (n >= sizeof text)
        return false;
    memcpy(text, p, n);
    text[n] = 0;
    text[strcspn(text, "%")] = 0; /* a scope belongs to one host only */
    if (inet_pton(AF_INET, text, &in) == 1) {
        from_v4(&in, ret);
        return true;
    }
    return inet_pton(AF_INET6, text, ret) == 1;
}

bool peer_addr_in_list(const struct peer_addr *a, const char *list)
{
    uint8_t one[16];
    for (const char *p = list; p && *p;) {
        size_t n = strcspn(p, ",");
        if (parse(p, n, one) && memcmp(one, a->ip, 16) == 0)
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}
