/* A mark on a TCP port. It outlives the process that set it by a minute, however that process ends: rendezvousd marks
 * its port, so that no crun hosts a job there while the daemon is killed and started again.
 *
 * The mark is a connection of the process with itself, between two addresses of 127.77.0.0/16, both at that port. When
 * the process ends, the kernel keeps one side of it for 60 s (TIME_WAIT). So a mark belongs to a network namespace, as
 * the port does, and nobody has to clean up. Any user can set a mark, as any user can take the port. */
#ifndef CRUN_COMMON_PORT_MARK_H
#define CRUN_COMMON_PORT_MARK_H

#include <stdbool.h>

/* Set a mark on `port`, which stays until a minute after the end of this process; two descriptors stay open. Call it
 * before listening on the port: a listener on all addresses would occupy the mark's addresses. 0 or -errno
 * (-EADDRINUSE: somebody listens there). */
int port_mark(int port);

/* Has a process of this network namespace, running or ended within a minute, marked `port`? False, too, if the
 * kernel cannot tell (no inet_diag). Does not block. */
bool port_is_marked(int port);

#endif
