/* Threads for work that the kernel may block: a disk or a file server that does not answer. */
#ifndef CRUN_COMMON_APART_H
#define CRUN_COMMON_APART_H

#include <stdbool.h>
#include <stddef.h>

/* Start a detached thread that blocks all signals. stack_bytes 0: the usual size. Returns 0 or an errno, as
 * pthread_create(3). */
int apart_start(void *(*run)(void *arg), void *arg, size_t stack_bytes);

/* Close all descriptors but these n (above 2, in any order). 0, 1 and 2 become /dev/null, so that no file that is
 * opened later gets the number of a standard stream. */
void apart_close(const int *fds, int n);

/* The same, in a descriptor table that this thread alone has from now on. So sockets, pipes and consoles that others
 * wait for close when the process ends, although this thread may still be blocked in the kernel. False: the kernel
 * refuses, and the thread keeps the process's table. */
bool apart_keep(const int *fds, int n);

#endif
