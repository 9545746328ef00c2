/* Starts and ends the process that writes the state directory (state_process.h). */
#include "rendezvousd/state/state_process.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/rdzv/homes/home_process.h"
#include "rendezvousd/state/state_writer.h"

#define MODULE "state"
#define REAP_MS 20 /* ms for the kernel to finish a process's end, unless a disk blocks it */

/* Has the process ended, within most_ms? */
static bool reap(pid_t pid, int64_t most_ms)
{
    struct pollfd f = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    if (f.fd >= 0) {
        poll(&f, 1, clock_left(clock_deadline(most_ms)));
        close(f.fd);
    }
    return waitpid(pid, NULL, WNOHANG) != 0;
}

static int start(struct state_process *p)
{
    const int fd = home_process_start(dir_serve, "rendezvousd-log", &p->pid);
    if (fd < 0)
        return fd;
    p->fd = fd;
    return 0;
}

void state_process_end(struct state_process *p, int64_t most_ms)
{
    if (p->fd < 0)
        return;
    close(p->fd);
    p->fd = -1;
    reap(p->pid, most_ms);
}

static void tell_end(const struct state_process *p)
{
    log_error(MODULE, "the process that writes the state directory (pid %d) has ended", (int)p->pid);
}

void state_process_broke(struct state_process *p)
{
    if (p->fd < 0 || !reap(p->pid, REAP_MS))
        return;
    tell_end(p);
    close(p->fd);
    p->fd = -1;
}

static int ask(struct state_process *p, const char *path, int door)
{
    if (p->fd < 0)
        TRY(start(p));
    return home_process_ask(p->fd, 0, path, "", door);
}

int state_process_door(struct state_process *p, const char *path)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
        return -errno;
    int rc = ask(p, path, ends[1]);
    if (rc == -EPIPE || rc == -ECONNRESET) {
        tell_end(p);
        state_process_end(p, REAP_MS);
        rc = ask(p, path, ends[1]);
    }
    close(ends[1]);
    if (rc < 0)
        close(ends[0]);
    return rc < 0 ? rc : ends[0];
}
