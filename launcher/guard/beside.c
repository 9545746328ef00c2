#include "launcher/guard/beside.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "launcher/guard/tree.h"

int beside_start(struct beside *b, int (*run)(int fd, void *arg), void *arg)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    const pid_t pid = (pid_t)syscall(SYS_clone, 0, 0, 0, 0, 0);
    if (pid == 0) {
        close(ends[0]);
        _exit(run(ends[1], arg));
    }
    const int why = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return -why;
    }
    *b = (struct beside){pid, ends[0]};
    tree_spare(pid);
    return 0;
}

static void forget(struct beside *b)
{
    close(b->fd);
    waitid(P_PID, (id_t)b->pid, &(siginfo_t){0}, WEXITED | __WALL);
    tree_spare(0);
    *b = (struct beside){0, -1};
}

bool beside_is_gone(struct beside *b)
{
    char byte;
    const ssize_t n = recv(b->fd, &byte, 1, MSG_DONTWAIT);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return false;
    forget(b);
    return true;
}

static bool wait_gone(struct beside *b, int ms)
{
    const int64_t deadline = clock_deadline(ms);
    struct pollfd p = {.fd = b->fd, .events = POLLIN};
    int n;
    do
        n = poll(&p, 1, clock_left(deadline));
    while ((n < 0 && errno == EINTR) || (n > 0 && !beside_is_gone(b)));
    return n > 0;
}

bool beside_end(struct beside *b, int wait_ms, char *out, int cap)
{
    if (b->fd < 0)
        return true;
    const ssize_t told = send(b->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (told >= 0 && wait_gone(b, wait_ms))
        return true;
    kill(b->pid, SIGKILL);
    if (wait_gone(b, BESIDE_KILL_MS))
        return true;
    tree_describe_one(b->pid, out, (size_t)cap);
    return false;
}
