/* Which user holds the other end of a TCP connection within this host, over whichever of its addresses. */
#ifndef CRUN_RENDEZVOUSD_PEER_UID_H
#define CRUN_RENDEZVOUSD_PEER_UID_H

#include <sys/types.h>

struct err;

/* fd: our end of an accepted connection. Asks the kernel who owns the other end (NETLINK_SOCK_DIAG; where there is no
 * such protocol, /proc/net/tcp). Before that, unless the peer's address is our own or a loopback one, asks whether it
 * belongs to this host (NETLINK_ROUTE). Some microseconds each. *asker: the netlink socket; -1 at first, then kept for
 * the next question until peer_uid_close(). -EREMOTE: the peer is on another host. -ENOENT: its socket is gone. */
int peer_uid(int *asker, int fd, uid_t *ret, struct err *e);
void peer_uid_close(int *asker);

#endif
