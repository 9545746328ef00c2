/* IP addresses as one form for both versions: 16 bytes, IPv4 as ::ffff:a.b.c.d. Pure. */
#ifndef CRUN_COMMON_ADDR_H
#define CRUN_COMMON_ADDR_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#define ADDR_BYTES 16

/* "10.0.0.7", "fe80::1%eth0" (the scope belongs to one host only and is left out). False: it is no address. */
bool addr_read(const char *text, uint8_t ret[ADDR_BYTES]);
void addr_from_v4(const struct in_addr *in, uint8_t ret[ADDR_BYTES]);

bool addr_is_loopback(const uint8_t ip[ADDR_BYTES]); /* 127.0.0.0/8, ::1 */
/* The same of an address or a host's name, of which "localhost" alone is one. */
bool addr_host_is_loopback(const char *host);

#endif
