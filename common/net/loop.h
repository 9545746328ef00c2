/* A libuv loop that outlives a moment without memory.
 *
 * libuv calls abort() in two places that a busy machine reaches: its table of watched descriptors cannot grow, and
 * epoll_ctl(2) refuses a new descriptor (fs.epoll.max_user_watches). loop_open() gives the table a reserve that it can
 * grow into, up to the process's limit of open files; loop_can_watch() asks epoll first. */
#ifndef CRUN_COMMON_LOOP_H
#define CRUN_COMMON_LOOP_H

#include <uv.h>

struct err;

/* uv_loop_init(). -ENOMEM and others with a sentence in *e. The first call changes libuv's allocator for the whole
 * process, so it comes before any other use of libuv, and one thread makes it. */
int loop_open(uv_loop_t *loop, struct err *e);

/* Put fd among those that the loop's epoll watches, for nothing as yet; libuv, which finds it there, only changes what
 * it is watched for. 0 or a negative errno: -ENOSPC, this user watches as many as it may. Loop thread only. */
int loop_can_watch(const uv_loop_t *loop, int fd);

#endif
