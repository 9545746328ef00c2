/* Descriptors that travel over a Unix socket beside bytes (SCM_RIGHTS). Neither call waits. Any thread. */
#ifndef CRUN_COMMON_FDS_H
#define CRUN_COMMON_FDS_H

#include <sys/socket.h>
#include <sys/types.h>

#define FDS_MAX 253 /* of one message: the kernel's SCM_MAX_FD */

/* The bytes sent, at least one of which must be given, or a negative errno. The descriptors stay the caller's. */
ssize_t fds_send(int socket, const struct iovec *parts, size_t n_parts, const int *fds, int n_fds);

/* The bytes received, 0 at the end, or a negative errno. flags: 0 or MSG_PEEK, with which the same descriptors come
 * again the next time. *ret_n descriptors, close-on-exec, are the caller's from then on; what comes beyond `max` is
 * closed. */
ssize_t fds_receive(int socket, const struct iovec *parts, size_t n_parts, int flags, int *ret_fds, int max,
                    int *ret_n);

#endif
