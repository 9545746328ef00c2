/* The network addresses of this machine. */
#ifndef CRUN_LAUNCHER_ADDRESSES_H
#define CRUN_LAUNCHER_ADDRESSES_H

#include <stdbool.h>
#include <stddef.h>

struct err;

/* All addresses of interfaces that are up, link-local ones left out, loopback last; separated by commas, as many as fit
 * into cap. */
int addresses_all(char *ret, size_t cap, struct err *e);

/* An address of interface `name`: IPv4 before IPv6, link-local never. ERR_USAGE names the interfaces there are. */
int addresses_of_interface(const char *name, char *ret, size_t cap, struct err *e);

/* Whether one of these addresses is one of this machine's; all of 127/8 is. */
struct addrinfo;
bool addresses_are_own(const struct addrinfo *found);

/* The same of a host's addresses. Asks the name service, at most timeout_ms. False if the name is unknown. */
bool addresses_own(const char *host, int timeout_ms);

#endif
