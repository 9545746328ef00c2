/* Keeps files open in the queue of a socket, so that nobody waits for their disk (aside.h). */
#include "launcher/stdio/aside.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/fds.h"

/* Uses only what the kernel has in memory: fstat(2), isatty(3) and even poll(2) may ask the disk, and wait for it. */
bool aside_is_file(int fd, struct statx *ret)
{
    *ret = (struct statx){0};
    return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, ret) == 0 &&
           S_ISREG(ret->stx_mode);
}

int aside_put(const int *fds, int n)
{
    const struct iovec byte = {"", 1};
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    const ssize_t rc = fds_send(ends[0], &byte, 1, fds, n);
    close(ends[0]);
    if (rc < 0)
        close(ends[1]);
    return rc < 0 ? (int)rc : ends[1];
}

int aside_take(int socket, int *ret_fds, int n)
{
    char byte;
    int came;
    const struct iovec part = {&byte, 1};
    const ssize_t rc = fds_receive(socket, &part, 1, MSG_PEEK, ret_fds, n, &came);
    return rc < 0 ? (int)rc : came == n ? 0 : -EMFILE;
}

void aside_be_null(int fd, int flags)
{
    const int null = open("/dev/null", flags | O_CLOEXEC);
    if (null < 0)
        return;
    dup2(null, fd);
    close(null);
}
