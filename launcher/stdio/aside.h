/* A file put aside: open, and nobody waits for its disk.
 *
 * A process that ends, or closes a descriptor, flushes the file (close(2)), and waits where the disk hangs. A
 * descriptor in the queue of a socket is let go of without a flush. Whoever works with the file takes a duplicate, and
 * so does the process after it. */
#ifndef CRUN_LAUNCHER_ASIDE_H
#define CRUN_LAUNCHER_ASIDE_H

#include <stdbool.h>
#include <sys/stat.h>

#define ASIDE_MAX 2

/* Is it a regular file? Waits for no disk; *ret: which one it is (stx_ino, stx_dev_*). */
bool aside_is_file(int fd, struct statx *ret);

/* Up to ASIDE_MAX descriptors, which stay open here. The socket, the caller's, or -errno. */
int aside_put(const int *fds, int n);
/* Duplicates of these, the caller's. 0; -errno: there was no room for all of them, and the process is to end. */
int aside_take(int socket, int *ret_fds, int n);

/* The descriptor becomes /dev/null, opened with these flags. */
void aside_be_null(int fd, int flags);

#endif
