/* The address of a connection's other end, as one form for both IP versions. */
#ifndef CRUN_RENDEZVOUSD_PEER_ADDR_H
#define CRUN_RENDEZVOUSD_PEER_ADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define PEER_TEXT_MAX 64

struct peer_addr {
    uint8_t ip[16];              /* IPv4 as ::ffff:a.b.c.d */
    char text[PEER_TEXT_MAX];    /* "10.0.0.7:41234", "[fe80::1]:41234"; "?" if it is not known */
    char host[INET6_ADDRSTRLEN]; /* as peer_addr_host() says it; "" if it is not known */
};

/* "10.0.0.7", also where it came as ::ffff:10.0.0.7; "fe80::1"; "" of another family. */
void peer_addr_host(const struct sockaddr_storage *sa, char *out, size_t cap);

/* Asked once, when it is accepted: after a reset the kernel does not know it any more. Zeroes, "?" and "" where the
 * peer is gone already. */
void peer_addr_read(const uv_tcp_t *tcp, struct peer_addr *ret);
bool peer_addr_is_loopback(const struct peer_addr *a);
/* list: addresses separated by commas, NULL: none. What is no address matches nothing. */
bool peer_addr_in_list(const struct peer_addr *a, const char *list);

#endif
