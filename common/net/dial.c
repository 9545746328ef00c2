/* Connects to a host within a deadline (dial.h). */
#include "common/net/dial.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/net/resolve.h"

static int connect_one(const struct addrinfo *a, int64_t deadline, int abort_fd, int *ret_fd, struct err *e)
{
    int one = 1, why = 0;
    socklen_t len = sizeof why;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0)
        return err_errno(e, errno, "socket");
    int rc = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : -errno;
    if (rc == -EINPROGRESS) {
        rc = wait_fd(fd, POLLOUT, deadline, abort_fd, e);
        if (rc == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len) == 0 && why)
            rc = err_errno(e, why, "connect");
    } else if (rc < 0)
        err_errno(e, -rc, "connect");
    if (rc < 0) {
        close(fd);
        return rc;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    *ret_fd = fd;
    return 0;
}

/* The deadline of one address: its share of the time that is left, so that an address that never answers leaves time
 * for the others. */
static int64_t share(const struct addrinfo *a, int64_t deadline)
{
    int addresses = 0;
    for (; a; a = a->ai_next)
        addresses++;
    return addresses == 1 ? deadline : clock_deadline(clock_left(deadline) / addresses);
}

int dial(const char *host, const char *port, int64_t deadline, int abort_fd, int *ret_fd, struct err *e)
{
    struct addrinfo *list;
    TRY(resolve(host, port, deadline, abort_fd, &list, e));
    int rc = -ENOENT;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        rc = connect_one(a, share(a, deadline), abort_fd, ret_fd, e);
        if (rc == 0 || rc == -ECANCELED)
            break;
    }
    freeaddrinfo(list);
    return rc;
}
