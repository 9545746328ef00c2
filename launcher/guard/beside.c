/* One helper process of the guardian: its start, its end, and the bytes that it sends (beside.h). */
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
#include "launcher/guard/procs.h"
#include "launcher/guard/tree.h"

#define REAP_MS 20 /* ms for the kernel to finish a process's end, unless a disk blocks it */

/* Make a child without an exit signal. Where qemu-user refuses that, make an ordinary one, and have tree.c spare it. */
static pid_t clone_silent(void)
{
    pid_t pid = (pid_t)syscall(SYS_clone, 0, 0, 0, 0, 0);
    if (pid >= 0 || errno != EINVAL)
        return pid;
    pid = fork();
    if (pid > 0 && !tree_set_beside(0, pid)) {
        kill(pid, SIGKILL);
        errno = EAGAIN;
        return -1;
    }
    return pid;
}

int beside_start(struct beside *b, int (*run)(int fd, void *arg), void *arg)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    const pid_t pid = clone_silent();
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
    b->pid = pid;
    b->fd = ends[0];
    b->is_done = b->stays = false;
    b->word = -1;
    return 0;
}

/* Has the process been reaped? looks: count it also if it is dead, and a debugger has yet to reap it. */
static bool is_reaped(pid_t pid, bool looks)
{
    siginfo_t info = {0};
    struct proc p;
    const bool gone = waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | __WALL) < 0 || info.si_pid == pid;
    if (gone)
        tree_set_beside(pid, 0);
    return gone || (looks && proc_read(pid, &p) && proc_is_dead(&p));
}

static void reap_lingering(struct beside *b, bool looks)
{
    int kept = 0;
    for (int i = 0; i < b->n_lingering; i++)
        if (!is_reaped(b->lingering[i], looks))
            b->lingering[kept++] = b->lingering[i];
    b->n_lingering = kept;
}

/* Wait until no helper lingers any more; false after `ms`. */
static bool wait_reaped(struct beside *b, int ms)
{
    const int64_t deadline = clock_deadline(ms);
    for (reap_lingering(b, false); b->n_lingering > 0 && clock_left(deadline) > 0; reap_lingering(b, true)) {
        struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, b->lingering[0], 0), .events = POLLIN};
        if (p.fd < 0)
            break;
        poll(&p, 1, clock_left(deadline));
        close(p.fd);
    }
    return b->n_lingering == 0;
}

/* The helper's socket is at its end: drop what is recorded of it. Any remaining thread is killed. */
static void forget(struct beside *b)
{
    close(b->fd);
    b->fd = -1;
    kill(b->pid, SIGKILL);
    reap_lingering(b, true);
    if (b->n_lingering < BESIDE_LINGER_MAX)
        b->lingering[b->n_lingering++] = b->pid;
    b->pid = 0;
    wait_reaped(b, REAP_MS);
}

bool beside_is_gone(struct beside *b)
{
    unsigned char byte;
    const ssize_t n = recv(b->fd, &byte, 1, MSG_DONTWAIT);
    if (n > 0 && byte < BESIDE_STAYS) {
        b->word = byte;
    } else if (n > 0) {
        b->is_done = true;
        b->stays = byte == BESIDE_STAYS;
    }
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return false;
    forget(b);
    return true;
}

/* Wait up to `ms` for the helper's end; with `stays`, BESIDE_STAYS counts as its end. */
static bool wait_for(struct beside *b, int ms, bool stays)
{
    const int64_t deadline = clock_deadline(ms);
    struct pollfd p = {.fd = b->fd, .events = POLLIN};
    int n = 1;
    while (b->fd >= 0 && n != 0 && !(stays && b->stays)) {
        n = poll(&p, 1, clock_left(deadline));
        if (n > 0)
            beside_is_gone(b);
    }
    return b->fd < 0 || (stays && b->stays);
}

bool beside_wait(struct beside *b, int ms)
{
    return wait_for(b, ms, false);
}

bool beside_tell(struct beside *b, char word)
{
    if (b->fd < 0)
        return false;
    const bool notified = send(b->fd, &word, 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
    kill(b->pid, SIGCONT); /* if it were stopped, what it has still to write would be lost */
    return notified;
}

enum beside_ending beside_end(struct beside *b, int wait_ms, bool stays, char *out, int cap)
{
    enum beside_ending ending = BESIDE_ENDED;
    if (b->fd >= 0) {
        const bool notified = beside_tell(b, BESIDE_END);
        if (!notified || !wait_for(b, wait_ms, stays)) { /* it ends already, or it does not */
            if (notified) {
                ending = BESIDE_KILLED;
                tree_describe_one(b->pid, out, (size_t)cap);
            }
            kill(b->pid, SIGKILL);
            if (!beside_wait(b, BESIDE_KILL_MS))
                forget(b);
        }
    }
    if (wait_reaped(b, BESIDE_KILL_MS))
        return ending;
    tree_describe_one(b->lingering[0], out, (size_t)cap);
    return BESIDE_LINGERS;
}
