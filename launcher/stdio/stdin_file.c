/* A file as standard input, copied into a pipe by a thread (stdin_file.h). */
#include "launcher/stdio/stdin_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/net/apart.h"
#include "launcher/stdio/aside.h"

#define BYTES (64u << 10) /* of one read: what a pipe holds */
#define STACK_BYTES (BYTES + (64u << 10))

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

/* Write bytes of the file into the pipe. False: nobody reads it. */
static bool pass_on(int file, int pipe, const char *data, size_t n)
{
    while (n > 0) {
        struct pollfd p = {.fd = pipe, .events = POLLOUT};
        poll(&p, 1, -1);
        const ssize_t written = write(pipe, data, n);
        if (written < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (written <= 0)
            continue;
        lseek(file, written, SEEK_CUR);
        data += written;
        n -= (size_t)written;
    }
    return true;
}

/* Copy all. Returns the errno that ended it early; 0: end of file. */
static int pass_all(int kept)
{
    char bytes[BYTES];
    int fds[2];
    ssize_t n;
    const int rc = aside_take(kept, fds, 2);
    if (rc < 0)
        return -rc;
    do
        n = pread(fds[0], bytes, sizeof bytes, lseek(fds[0], 0, SEEK_CUR));
    while (n > 0 && pass_on(fds[0], fds[1], bytes, (size_t)n));
    const int why = n < 0 ? errno : 0;
    close(fds[1]);
    close(fds[0]);
    return why;
}

static struct {
    int kept, done_fd;
} input;

static void *run_thread(void *arg)
{
    const int kept[] = {input.kept, input.done_fd};
    (void)arg;
    apart_keep(kept, 2);
    eventfd_write(input.done_fd, 1 + (eventfd_t)pass_all(input.kept));
    return NULL;
}

int stdin_file_start(int kept, int done_fd)
{
    input.kept = kept;
    input.done_fd = done_fd;
    return -apart_start(run_thread, NULL, STACK_BYTES);
}
