/* Which user holds the other end of a TCP connection within this host, over whichever of its addresses. */
#ifndef CRUN_RENDEZVOUSD_PEER_UID_H
#define CRUN_RENDEZVOUSD_PEER_UID_H

#include <sys/types.h>

struct err;

/* fd: our end of an accepted connection. Asks the kernel whose the other end is (NETLINK_SOCK_DIAG), and before that,
 * unless the peer's address is the own one or of the loopback, whether it is one of this host (NETLINK_ROUTE): some
 * microseconds each. *asker: the socket by which it is asked; -1 at first, then kept for the next question until
 * peer_uid_close().
 * -EREMOTE: the peer is on another host. -ENOENT: its socket is gone. */
int peer_uid(int *asker, int fd, uid_t *ret, struct err *e);
void peer_uid_close(int *asker);

#endif
