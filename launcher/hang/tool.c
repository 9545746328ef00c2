/* Runs a program with a time limit, and collects its output (tool.h). */
#include "launcher/hang/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"

#define CANCEL_MS 50 /* ms between two looks at `cancel` */
#define LAST_MS 1000 /* ms from closing its outputs to its end */

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

/* Our environment without the variable that makes eu-stack ask other hosts for debug information. NULL: no memory. */
static char **environment(void)
{
    size_t n = 0;
    while (environ[n])
        n++;
    char **env = calloc(n + 1, sizeof *env);
    for (size_t i = 0, k = 0; env && i < n; i++)
        if (strncmp(environ[i], "DEBUGINFOD_URLS=", 16) != 0)
            env[k++] = environ[i];
    return env;
}

/* Start it in a process group of its own, with no signal blocked or ignored (the agent blocks some). */
static int start(char *const *argv, int out_fd, pid_t *ret_pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, all;
    char **env = environment();
    if (!env)
        return -ENOMEM;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, out_fd, 1);
    posix_spawn_file_actions_adddup2(&files, out_fd, 2);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    const int why = posix_spawnp(ret_pid, argv[0], &files, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    free(env);
    return -why;
}

/* Read until nobody holds the other end any more. */
static int collect(int fd, int ms, const atomic_bool *cancel, struct buf *out)
{
    const int64_t deadline = clock_deadline(ms);
    char piece[4096];
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const int left = clock_left(deadline);
        if (atomic_load(cancel))
            return -ECANCELED;
        if (left == 0)
            return -ETIMEDOUT;
        if (poll(&p, 1, left < CANCEL_MS ? left : CANCEL_MS) <= 0)
            continue;
        const ssize_t n = read(fd, piece, sizeof piece);
        if (n == 0)
            return 0;
        if (n > 0)
            TRY(buf_add(out, piece, (size_t)n));
        else if (errno != EINTR)
            return -errno;
    }
}

/* Give it `ms` to end by itself. True: it was killed. The agent's loop reaps all children, and may be first. */
static bool end(pid_t pid, int process, int ms)
{
    struct pollfd p = {.fd = process, .events = POLLIN};
    siginfo_t info;
    bool killed = false;
    if (process < 0 || poll(&p, 1, ms) <= 0)
        killed = kill(-pid, SIGKILL) == 0;
    if (process >= 0) {
        if (killed) /* the kernel may hold it for longer */
            poll(&p, 1, LAST_MS);
        waitid((idtype_t)P_PIDFD, (id_t)process, &info, WEXITED | WNOHANG);
        close(process);
    }
    return killed;
}

int tool_run(char *const *argv, int ms, const atomic_bool *cancel, struct buf *out, struct err *e)
{
    int pipes[2];
    pid_t pid;
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return err_errno(e, errno, "pipe");
    int rc = start(argv, pipes[1], &pid);
    close(pipes[1]);
    if (rc == 0) {
        /* -1: it has ended and was reaped (its group is gone, too), or no descriptor is left */
        const int process = (int)syscall(SYS_pidfd_open, pid, 0);
        rc = collect(pipes[0], ms, cancel, out);
        if (end(pid, process, rc == 0 ? LAST_MS : 0) && rc == 0)
            rc = -ETIMEDOUT;
    }
    close(pipes[0]);
    if (rc == -ETIMEDOUT)
        return err_set(e, rc, "%s did not end within %d ms", argv[0], ms);
    if (rc == -E2BIG)
        return err_set(e, rc, "%s prints more than %zu bytes", argv[0], out->max);
    return rc < 0 ? err_errno(e, -rc, "%s", argv[0]) : 0;
}
