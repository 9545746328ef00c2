/* A file put aside: it is open, but no process waits for its disk.
 *
 * A process that ends, or closes a descriptor, flushes the file (close(2)), and is blocked if the disk hangs. A
 * descriptor in the queue of a socket is released without a flush. A thread that works with the file takes a
 * duplicate from the queue. */
#ifndef CRUN_LAUNCHER_ASIDE_H
#define CRUN_LAUNCHER_ASIDE_H

#include <stdbool.h>
#include <sys/stat.h>

#define ASIDE_MAX 2

/* Is it a regular file? Does not wait for a disk; *ret identifies the file (stx_ino, stx_dev_*). */
bool aside_is_file(int fd, struct statx *ret);

/* Put up to ASIDE_MAX descriptors aside; they stay open here, too. Returns the socket, which the caller closes, or
 * -errno. */
int aside_put(const int *fds, int n);
/* Get duplicates of the descriptors, which the caller closes. 0; -errno: not all of them fitted, and the process
 * must end. */
int aside_take(int socket, int *ret_fds, int n);

/* Make the descriptor /dev/null, opened with these flags. */
void aside_be_null(int fd, int flags);

#endif
