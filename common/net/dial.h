/* Makes a TCP connection within a deadline; another thread can abort it. */
#ifndef CRUN_COMMON_DIAL_H
#define CRUN_COMMON_DIAL_H

#include <stdint.h>

struct err;

/* Connect to host:port: try its addresses in turn, each for a share of the time. *ret_fd: non-blocking,
 * close-on-exec, TCP_NODELAY, with keep-alive. deadline: clock_ms(). -ECONNREFUSED and the like, -ETIMEDOUT,
 * -ECANCELED when abort_fd becomes readable (-1: none), and whatever resolve() says. */
int dial(const char *host, const char *port, int64_t deadline, int abort_fd, int *ret_fd, struct err *e);

#endif
