#include "launcher/stdio/aside.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* From what the kernel knows already: to ask the disk may mean to wait for it, as fstat(2), isatty(3) and even poll(2)
 * do. */
bool aside_is_file(int fd, struct statx *ret)
{
    *ret = (struct statx){0};
    return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, ret) == 0 &&
           S_ISREG(ret->stx_mode);
}

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(ASIDE_MAX * sizeof(int))];
};

int aside_put(const int *fds, int n)
{
    const size_t size = (size_t)n * sizeof *fds;
    union control control = {0};
    struct iovec iov = {"", 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE(size)};
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(size);
    memcpy(CMSG_DATA(c), fds, size);
    const int rc = sendmsg(ends[0], &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
    close(ends[0]);
    if (rc < 0)
        close(ends[1]);
    return rc < 0 ? rc : ends[1];
}

int aside_take(int socket, int *ret_fds, int n)
{
    const size_t size = (size_t)n * sizeof *ret_fds;
    union control control;
    char byte;
    struct iovec iov = {&byte, 1};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.bytes};
    if (recvmsg(socket, &m, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
        return -errno;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(size))
        return -EMFILE;
    memcpy(ret_fds, CMSG_DATA(c), size);
    return 0;
}

void aside_be_null(int fd, int flags)
{
    const int null = open("/dev/null", flags | O_CLOEXEC);
    if (null < 0)
        return;
    dup2(null, fd);
    close(null);
}
