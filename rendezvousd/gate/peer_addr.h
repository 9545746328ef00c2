/* The address of a connection's other end, in one form for both IP versions. */
#ifndef CRUN_RENDEZVOUSD_PEER_ADDR_H
#define CRUN_RENDEZVOUSD_PEER_ADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define PEER_TEXT_MAX 64

struct peer_addr {
    uint8_t ip[16]; /* IPv4 as ::ffff:a.b.c.d */
    uint16_t port;
    bool known, mapped;       /* mapped: IPv4 by a socket of IPv6 */
    char text[PEER_TEXT_MAX]; /* of peer_addr_text(); "": not yet asked for */
    char host[INET6_ADDRSTRLEN];
};

/* Read the peer's address when a connection is accepted: after a reset the kernel does not know it any more. Zeroes
 * if the peer is gone already. */
void peer_addr_read(const uv_tcp_t *tcp, struct peer_addr *ret);
/* The same for a known address; zeroes for another address family. */
void peer_addr_of(const struct sockaddr_storage *sa, struct peer_addr *ret);
/* "10.0.0.7:41234", "[fe80::1]:41234"; "?" if not known. The text is made when first needed, which is rare. */
const char *peer_addr_text(struct peer_addr *a);
/* "10.0.0.7", also for ::ffff:10.0.0.7; "fe80::1"; "" if not known. Made when first needed, too. */
const char *peer_addr_host(struct peer_addr *a);
bool peer_addr_is_loopback(const struct peer_addr *a);

/* A set of addresses, of any size, for look-up. */
struct peer_list {
    size_t n;
    uint8_t v[][16]; /* in order */
};

/* Parse addresses separated by commas; other words are ignored. The caller frees the list with free(3). NULL: no
 * memory. */
struct peer_list *peer_list_read(const char *text);
bool peer_list_has(const struct peer_list *l, const struct peer_addr *a);

#endif
