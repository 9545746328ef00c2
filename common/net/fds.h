/* Passes descriptors over a Unix socket, together with bytes (SCM_RIGHTS). Neither call blocks. Any thread. */
#ifndef CRUN_COMMON_FDS_H
#define CRUN_COMMON_FDS_H

#include <sys/socket.h>
#include <sys/types.h>

#define FDS_MAX 253 /* per message; the kernel's SCM_MAX_FD */

/* Send. Returns the number of bytes sent, or a negative errno; at least one byte must be given. The caller keeps its
 * descriptors. */
ssize_t fds_send(int socket, const struct iovec *parts, size_t n_parts, const int *fds, int n_fds);

/* Receive. Returns the number of bytes, 0 at the end, or a negative errno. flags: 0, or MSG_PEEK, after which the
 * next call gets the same descriptors again. *ret_n descriptors, close-on-exec, belong to the caller from then on;
 * those beyond `max` are closed. */
ssize_t fds_receive(int socket, const struct iovec *parts, size_t n_parts, int flags, int *ret_fds, int max,
                    int *ret_n);

#endif
