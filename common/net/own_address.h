/* By which address others may reach this machine, where nothing says it. */
#ifndef CRUN_COMMON_OWN_ADDRESS_H
#define CRUN_COMMON_OWN_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>

/* The first of an interface that is up, neither loopback nor of the link alone; IPv4 before IPv6. Numeric. False:
 * there is none, and ret is left as it is. */
bool own_address(char ret[INET6_ADDRSTRLEN]);

#endif
