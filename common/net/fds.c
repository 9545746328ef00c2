/* Sends and receives descriptors over a Unix socket (fds.h). */
#include "common/net/fds.h"
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
};

ssize_t fds_send(int socket, const struct iovec *parts, size_t n_parts, const int *fds, int n_fds)
{
    union control control;
    struct msghdr m = {.msg_iov = (struct iovec *)parts, .msg_iovlen = n_parts};
    const size_t bytes = (size_t)n_fds * sizeof *fds;
    ssize_t n;
    if (n_fds > FDS_MAX)
        return -EINVAL;
    if (n_fds > 0) {
        memset(&control, 0, CMSG_SPACE(bytes));
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(bytes);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(bytes);
        memcpy(CMSG_DATA(c), fds, bytes);
    }
    do
        n = sendmsg(socket, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

ssize_t fds_receive(int socket, const struct iovec *parts, size_t n_parts, int flags, int *ret_fds, int max, int *ret_n)
{
    union control control;
    struct msghdr m = {.msg_iov = (struct iovec *)parts,
                       .msg_iovlen = n_parts,
                       .msg_control = &control,
                       .msg_controllen = CMSG_LEN((size_t)max * sizeof(int))}; /* not a descriptor more */
    ssize_t n;
    *ret_n = 0;
    if (max > FDS_MAX)
        return -EINVAL;
    do
        n = recvmsg(socket, &m, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        *ret_n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(ret_fds, CMSG_DATA(c), (size_t)*ret_n * sizeof(int));
    }
    return n;
}
