/* A descriptor watched by the loop, allocated separately: libuv finishes closing a handle one turn later, when its
 * owner may have begun the next round already. */
#ifndef CRUN_LAUNCHER_WATCH_H
#define CRUN_LAUNCHER_WATCH_H

#include <stdbool.h>
#include <uv.h>

struct err;
struct watch;

/* Call fn(arg) whenever fd is ready for `events` (UV_READABLE, UV_WRITABLE; errors and hang-ups, too) while the
 * watch is on. fd becomes non-blocking; the caller closes it. The watch starts switched off. */
int watch_open(struct watch **ret, uv_loop_t *loop, int fd, int events, void (*fn)(void *arg), void *arg,
               struct err *e);
void watch_set(struct watch *w, bool on);
void watch_close(struct watch *w); /* NULL allowed; fn is not called afterwards, and fd may be closed */

#endif
