/* Host names with a deadline: getaddrinfo(3) has none, so it runs in a thread of its own that may be left behind. */
#ifndef CRUN_COMMON_RESOLVE_H
#define CRUN_COMMON_RESOLVE_H

#include <netdb.h>
#include <stdint.h>

struct err;

/* TCP addresses of host:port; *ret is freed with freeaddrinfo(). Numeric hosts are answered at once. deadline: clock_ms().
 * -ETIMEDOUT; -ECANCELED when abort_fd becomes readable (-1: none); -ENOENT for a name that is not known;
 * -EAGAIN if the name service does not answer. */
int resolve(const char *host, const char *port, int64_t deadline, int abort_fd, struct addrinfo **ret, struct err *e);

/* Wait for events (poll(2)) on fd, or only for the time if fd is -1. 0; -ETIMEDOUT; -ECANCELED when abort_fd becomes readable. */
int wait_fd(int fd, short events, int64_t deadline, int abort_fd, struct err *e);

#endif
