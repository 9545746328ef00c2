/* A libuv loop that survives a short lack of memory.
 *
 * libuv calls abort() in two cases that occur on a busy machine: its table of watched descriptors cannot grow, and
 * epoll_ctl(2) refuses a new descriptor (fs.epoll.max_user_watches). loop_open() gives the table a reserve that it
 * can grow into, up to the process's limit of open files; loop_can_watch() asks epoll first. */
#ifndef CRUN_COMMON_LOOP_H
#define CRUN_COMMON_LOOP_H

#include <uv.h>

struct err;

/* uv_loop_init(). -ENOMEM and others with a sentence in *e. The first call changes libuv's allocator for the whole
 * process, so it comes before any other use of libuv, and one thread makes it. */
int loop_open(uv_loop_t *loop, struct err *e);

/* Register fd with the loop's epoll, for no events yet; libuv finds it there and only changes its events. 0 or a
 * negative errno: -ENOSPC, this user watches as many descriptors as it may. Loop thread only. */
int loop_can_watch(const uv_loop_t *loop, int fd);

#endif
