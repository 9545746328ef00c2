/* Looks up host names within a deadline. getaddrinfo(3) has none, so it runs in a thread of its own, which is left
 * behind if it takes too long. */
#ifndef CRUN_COMMON_RESOLVE_H
#define CRUN_COMMON_RESOLVE_H

#include <netdb.h>
#include <stdint.h>

struct err;

/* TCP addresses of host:port; *ret is freed with freeaddrinfo(). A numeric host needs no look-up. deadline:
 * clock_ms(). -ETIMEDOUT; -ECANCELED when abort_fd becomes readable (-1: none); -ENOENT for a name that is not
 * known; -EAGAIN if the name service does not answer. */
int resolve(const char *host, const char *port, int64_t deadline, int abort_fd, struct addrinfo **ret, struct err *e);

/* The same for an event loop. 1: *ret is there already (host is numeric); 0: *ret_lookup is under way. */
struct lookup;
int resolve_start(const char *host, const char *port, struct addrinfo **ret, struct lookup **ret_lookup, struct err *e);
int resolve_fd(const struct lookup *l); /* readable when the answer is there */
/* call when readable; l is freed */
int resolve_take(struct lookup *l, const char *host, struct addrinfo **ret, struct err *e);
void resolve_abandon(struct lookup *l); /* NULL allowed; never waits */

/* Wait for events (poll(2)) on fd; if fd is -1, only for the time. 0; -ETIMEDOUT; -ECANCELED when abort_fd becomes
 * readable. */
int wait_fd(int fd, short events, int64_t deadline, int abort_fd, struct err *e);

#endif
