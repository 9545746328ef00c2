/* Threads for work that the kernel may hold up: a disk or a file server that does not answer. */
#ifndef CRUN_COMMON_APART_H
#define CRUN_COMMON_APART_H

#include <stdbool.h>
#include <stddef.h>

/* Start a detached thread that takes no signal. stack_bytes 0: as much as is usual. 0 or an errno, as of
 * pthread_create(3). */
int apart_start(void *(*run)(void *arg), void *arg, size_t stack_bytes);

/* Close all descriptors but these n (above 2, in any order). /dev/null becomes 0, 1 and 2, so that no file gets a
 * number that people read. */
void apart_close(const int *fds, int n);

/* The same in a table of its own that such a thread has from now on. Whatever others wait for (sockets, pipes,
 * consoles) then ends with the process, although this thread may be left in the kernel. False: the kernel refuses, and
 * the table stays that of the process. */
bool apart_keep(const int *fds, int n);

#endif
