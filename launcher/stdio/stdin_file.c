#include "launcher/stdio/stdin_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher/stdio/aside.h"

#define BYTES (64u << 10) /* of one read: what a pipe holds */

int stdin_file_open(void)
{
    struct statx in;
    int ends[2];
    if (!aside_is_file(STDIN_FILENO, &in) || pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    const int fds[] = {STDIN_FILENO, ends[1]};
    const int kept = fcntl(ends[1], F_SETFL, O_NONBLOCK) < 0 ? -1 : aside_put(fds, 2);
    if (kept >= 0)
        dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    close(ends[1]);
    return kept < 0 ? -1 : kept;
}

/* What was read at the file's place. False: nobody reads it, or the guardian ends this process. */
static bool pass_on(int file, int pipe, const char *data, size_t n, int guardian_fd)
{
    while (n > 0) {
        struct pollfd p[2] = {{.fd = pipe, .events = POLLOUT}, {.fd = guardian_fd, .events = POLLIN}};
        poll(p, 2, -1);
        const ssize_t written = p[1].revents ? -1 : write(pipe, data, n);
        if (p[1].revents || (written < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (written <= 0)
            continue;
        lseek(file, written, SEEK_CUR);
        data += written;
        n -= (size_t)written;
    }
    return true;
}

int stdin_file_run(int kept, int guardian_fd)
{
    static char bytes[BYTES];
    int fds[2];
    ssize_t n;
    aside_be_null(STDOUT_FILENO, O_WRONLY); /* whoever reads what crun prints does not wait for the disk */
    aside_be_null(STDERR_FILENO, O_WRONLY);
    if (aside_take(kept, fds, 2) < 0)
        return 1;
    do
        n = pread(fds[0], bytes, sizeof bytes, lseek(fds[0], 0, SEEK_CUR));
    while (n > 0 && pass_on(fds[0], fds[1], bytes, (size_t)n, guardian_fd));
    const char why = n < 0 ? (char)errno : 0;
    send(guardian_fd, &why, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    return 0;
}
