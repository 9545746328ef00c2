/* Reads a peer's address, and looks addresses up in a list (peer_addr.h). */
#include "rendezvousd/gate/peer_addr.h"
#include "common/net/addr.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
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

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, ADDR_BYTES);
}

struct peer_list *peer_list_read(const char *text)
{
    size_t most = 1;
    for (const char *p = text; (p = strchr(p, ',')); p++)
        most++;
    struct peer_list *l = malloc(sizeof *l + most * sizeof *l->v);
    if (!l)
        return NULL;
    l->n = 0;
    for (const char *p = text; *p;) {
        const size_t n = strcspn(p, ",");
        l->n += parse(p, n, l->v[l->n]);
        p += n + (p[n] == ',');
    }
    qsort(l->v, l->n, sizeof *l->v, compare);
    return l;
}

bool peer_list_has(const struct peer_list *l, const struct peer_addr *a)
{
    return l && bsearch(a->ip, l->v, l->n, sizeof *l->v, compare);
}
