#include "launcher/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/err.h"
#include "launcher/binding.h"

static _Noreturn void fail(const struct spawn_request *r, int error)
{
    struct spawn_failure f = {r->tag, error};
    ssize_t ignored = write(r->status_fd, &f, sizeof f); /* far below PIPE_BUF: whole or not at all */
    (void)ignored;
    _exit(127);
}

/* Between fork and exec: system calls only. */
static _Noreturn void child(const struct spawn_request *r, pid_t parent)
{
    setpgid(0, r->group);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before we asked to be told */
        _exit(127);
    for (int i = 0; i < 3; i++)
        if (dup2(r->stdio[i], i) < 0)
            _exit(127);
    for (int i = 0; i < r->n_keep; i++)
        fcntl(r->keep[i], F_SETFD, 0);
    sigaction(SIGPIPE, r->on_pipe, NULL);
    sigaction(SIGTTOU, r->on_ttou, NULL);
    setrlimit(RLIMIT_NOFILE, r->nofile);
    sigprocmask(SIG_SETMASK, r->mask, NULL);
    const int bound = r->binding ? binding_apply(r->binding) : 0;
    if (bound < 0)
        fail(r, bound);
    execve(r->path, r->argv, r->envp);
    fail(r, errno);
}

/* Old kernels and some seccomp filters know no clone3. */
static pid_t fork_pidfd(int *ret_pidfd)
{
    pid_t pid = fork();
    if (pid > 0)
        *ret_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return pid;
}

/* Fails on kernels before 5.7, for want of permission, and where the tree is used in some way of its own (threaded groups). */
static pid_t clone_into(const struct clone_args *plain, int cgroup_fd)
{
    struct clone_args args = *plain;
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = (uint64_t)cgroup_fd;
    return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

int spawn(const struct spawn_request *r, pid_t *ret_pid, int *ret_pidfd, struct err *e)
{
    const pid_t self = getpid();
    int pidfd = -1;
    struct clone_args args = {.flags = CLONE_PIDFD, .pidfd = (uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    pid_t pid = -1;
    if (r->cgroup_fd >= 0)
        pid = clone_into(&args, r->cgroup_fd);
    if (pid < 0 && r->cgroup_fd >= 0 && r->cgroup_must)
        return err_errno(e, errno, "cannot start a process in a cgroup (--cgroup on)");
    if (pid < 0)
        pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid < 0 && (errno == ENOSYS || errno == EPERM))
        pid = fork_pidfd(&pidfd);
    if (pid == 0)
        child(r, self);
    if (pid < 0)
        return err_errno(e, errno, "cannot start a process");
    if (pidfd < 0) {
        int error = errno;
        kill(pid, SIGKILL); /* reaped with the orphans */
        return err_errno(e, error, "cannot watch process %d", (int)pid);
    }
    setpgid(pid, r->group ? r->group : pid); /* whoever comes first: a signal to the group must find it */
    *ret_pid = pid;
    *ret_pidfd = pidfd;
    return 0;
}
