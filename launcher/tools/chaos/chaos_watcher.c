/* The watcher: undoes open faults if `crun chaos` dies (chaos_watcher.h). */
#include "launcher/tools/chaos/chaos_watcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/err.h"
#include "launcher/guard/title.h"
#include "launcher/tools/chaos/chaos_means.h"
#include "launcher/tools/chaos/chaos_plan.h"
#include "launcher/tools/chaos/chaos_table.h"

/* In the watcher: drop files that fill disks, which belong to the other process alone. */
static void let_files_go(struct chaos_table *t, bool close_them)
{
    for (struct chaos_open *o = t->v; o < t->v + atomic_load(&t->n); o++)
        if (atomic_load(&o->deed) == CHAOS_FILL + 1) {
            if (close_them && o->fd >= 0)
                close(o->fd);
            else if (!close_them)
                o->fd = -1;
        }
}

static _Noreturn void watch(int life_fd, struct chaos_table *t, const struct chaos_means *m)
{
    char byte;
    setsid(); /* so that signals of the terminal do not reach it */
    title_set("chaos-undo", getppid());
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    let_files_go(t, true);
    while (read(life_fd, &byte, 1) < 0 && errno == EINTR)
        ;
    let_files_go(t, false);
    chaos_table_end(t, m);
    _exit(0);
}

int chaos_watcher_start(struct chaos_watcher *w, struct chaos_table *t, const struct chaos_means *m, struct err *e)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return err_errno(e, errno, "a process that ends all faults");
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        watch(ends[1], t, m);
    }
    const int why = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return err_errno(e, why, "a process that ends all faults");
    }
    *w = (struct chaos_watcher){.pid = pid, .pid_fd = (int)syscall(SYS_pidfd_open, pid, 0), .life_fd = ends[0]};
    return 0;
}

void chaos_watcher_end(struct chaos_watcher *w)
{
    struct pollfd ended = {.fd = w->pid_fd, .events = POLLIN};
    close(w->life_fd);
    if (w->pid_fd >= 0 && poll(&ended, 1, CHAOS_WATCHER_MS) == 0)
        kill(w->pid, SIGKILL); /* somebody has stopped it; no fault is open any more */
    if (w->pid_fd >= 0)
        close(w->pid_fd);
    while (waitpid(w->pid, NULL, 0) < 0 && errno == EINTR)
        ;
}
