/* See peer_addr.h. */
#include "rendezvousd/gate/peer_addr.h"
#include "common/net/addr.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

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
    ret->known = addr_of((const struct sockaddr *)sa, ret->ip);
    ret->mapped = sa->ss_family == AF_INET6 && addr_is_v4(ret->ip);
    ret->port = (uint16_t)addr_port_of((const struct sockaddr *)sa);
}

const char *peer_addr_text(struct peer_addr *a)
{
    char ip[INET6_ADDRSTRLEN];
    if (a->text[0])
        return a->text;
    if (a->known)
        snprintf(a->text, sizeof a->text,
                 a->mapped           ? "[::ffff:%s]:%u"
                 : addr_is_v4(a->ip) ? "%s:%u"
                                     : "[%s]:%u",
                 addr_text(a->ip, ip), (unsigned)a->port);
    else
        strcpy(a->text, "?");
    return a->text;
}

const char *peer_addr_host(struct peer_addr *a)
{
    return a->host[0] || !a->known ? a->host : addr_text(a->ip, a->host);
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
