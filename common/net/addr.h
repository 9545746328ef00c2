/* The room common/net: from the name of a host to bytes that come and go, for clients; servers have rendezvousd/net.
 * resolve.h looks a name up in a thread, dial.h connects, tls_stream.h wraps the connection if TLS is wanted (OpenSSL
 * by ssl_lib.h), and resp_conn.h or tcpstore_conn.h speak on it: requests of common/store and of the homes of
 * common/rdzv go through these. redis_link.h reads redis:// URLs and finds the primary behind Sentinel. Each call has a
 * deadline, and another thread can abort it.
 *
 * IP addresses as one form for both versions: 16 bytes, IPv4 as ::ffff:a.b.c.d; and hosts with their ports as text.
 * Pure. */
#ifndef CRUN_COMMON_ADDR_H
#define CRUN_COMMON_ADDR_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ADDR_BYTES 16

/* Read "10.0.0.7" or "fe80::1%eth0" (the scope, which only its own host knows, is left out). False: not an address. */
bool addr_read(const char *text, uint8_t ret[ADDR_BYTES]);
/* The address of a socket. False, and zeroes: it is of another family. */
bool addr_of(const struct sockaddr *sa, uint8_t ret[ADDR_BYTES]);
int addr_port_of(const struct sockaddr *sa); /* 0: of another family */
/* "10.0.0.7", "fe80::1". ret has INET6_ADDRSTRLEN bytes; returned. */
char *addr_text(const uint8_t ip[ADDR_BYTES], char *ret);
bool addr_is_v4(const uint8_t ip[ADDR_BYTES]);

bool addr_is_loopback(const uint8_t ip[ADDR_BYTES]); /* 127.0.0.0/8, ::1 */
/* The same for an address or a host name; of the names only "localhost" is one. */
bool addr_host_is_loopback(const char *host);

/* Host and port as parts of a text, neither copied nor terminated. */
struct host_port {
    const char *host, *port; /* host: without its brackets; port NULL: there is none */
    size_t host_len, port_len;
    bool bare_v6; /* an IPv6 address without brackets, which has no port */
};

/* Split the first n bytes: "host", "host:port", "[v6]", "[v6]:port" or a bare IPv6 address. False: no host, or its
 * brackets are not one pair around it. The characters of host and port are not checked. */
bool addr_split(const char *text, size_t n, struct host_port *ret);

/* Returns 1 to 65535; -1: not a port. */
int addr_port(const char *text, size_t n);

#endif
