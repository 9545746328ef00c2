/* Whose a connection's end is, by /proc/net/tcp and tcp6: for kernels and emulators (qemu-user) without
 * NETLINK_SOCK_DIAG. A read of all connections of this network namespace: O(n). */
#ifndef CRUN_RENDEZVOUSD_PEER_UID_PROC_H
#define CRUN_RENDEZVOUSD_PEER_UID_PROC_H

#include <stdint.h>
#include <sys/types.h>

/* The socket whose own end is `peer` and whose other end is `own`. ip: ADDR_BYTES, IPv4 as ::ffff:a.b.c.d; ports in
 * host order. 0; -ENOENT: there is none, or it is closed already; or -errno. */
int peer_uid_proc(const uint8_t *peer_ip, uint16_t peer_port, const uint8_t *own_ip, uint16_t own_port, uid_t *ret);

#endif
