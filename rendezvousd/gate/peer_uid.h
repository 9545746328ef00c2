/* Which user holds the other end of a loopback TCP connection. */
#ifndef CRUN_RENDEZVOUSD_PEER_UID_H
#define CRUN_RENDEZVOUSD_PEER_UID_H

#include <sys/types.h>

struct err;

/* fd: our end of an accepted connection. Asks the kernel (NETLINK_SOCK_DIAG), some microseconds.
 * -EREMOTE: the peer is on another host. -ENOENT: its socket is gone. */
int peer_uid(int fd, uid_t *ret, struct err *e);

#endif
