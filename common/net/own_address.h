/* The address under which others can reach this machine, if the user names none. */
#ifndef CRUN_COMMON_OWN_ADDRESS_H
#define CRUN_COMMON_OWN_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>

/* The first address of an interface that is up, neither loopback nor link-local; IPv4 before IPv6. Numeric. False:
 * there is none, and ret is left as it is. */
bool own_address(char ret[INET6_ADDRSTRLEN]);

#endif
