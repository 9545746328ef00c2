/* Starts one process with clone3 and exec (spawn.h). */
#include "launcher/workers/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/sanitizer.h"
#include "launcher/guard/roster.h"
#include "launcher/place/binding.h"

static _Noreturn void fail(const struct spawn_request *r, int error)
{
    struct spawn_failure f = {r->tag, error};
    ssize_t ignored = write(r->status_fd, &f, sizeof f); /* far below PIPE_BUF, so written whole or not at all */
    (void)ignored;
    _exit(127);
}

/* Between fork and exec: system calls only. */
static _Noreturn void child(const struct spawn_request *r, pid_t parent)
{
    if (r->group)
        setpgid(0, r->group);
    else
        setsid(); /* no controlling terminal: a program that reads one gets an error, and does not stop unnoticed */
    roster_enter(r->roster);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* the parent died before we asked for the signal */
        _exit(127);
    prctl(PR_SET_PTRACER, parent); /* if Yama restricts ptrace: programs of the agent may read our call stacks */
    for (int i = 0; i < 3; i++)
        if (dup2(r->stdio[i], i) < 0)
            _exit(127);
    if (r->terminal)
        ioctl(STDIN_FILENO, TIOCSCTTY, 0);
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

#define CHILD_STACK_BYTES (32 << 10) /* of the caller's own */

struct child_arg {
    const struct spawn_request *r;
    pid_t parent;
};

#if defined(__x86_64__) && !HAS_ADDRESS_SANITIZER && !HAS_THREAD_SANITIZER
#define CAN_BORROW 1
static _Noreturn void child_entry(const struct child_arg *a)
{
    child(a->r, a->parent);
}

/* clone3 whose child calls child_entry(a) on the stack in *args. The child must never return into this frame, in
 * which the parent goes on. */
static long clone3_borrowed(const struct clone_args *args, const struct child_arg *a)
{
    long rc;
    register const struct child_arg *arg __asm__("r8") = a;
    register void (*entry)(const struct child_arg *) __asm__("r9") = child_entry;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t" /* the end of its call stack */
                     "mov %%r8, %%rdi\n\t"
                     "call *%%r9\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(rc)
                     : "a"(SYS_clone3), "D"(args), "S"(sizeof *args), "r"(arg), "r"(entry)
                     : "rcx", "r11", "cc", "memory");
    return rc;
}
#else
#define CAN_BORROW 0
static long clone3_borrowed(const struct clone_args *args, const struct child_arg *a)
{
    return -ENOSYS;
}
#endif

/* Like vfork(2), with a stack of its own: the child borrows our memory, and we wait until it has exec'ed or ended.
 * Copying the page tables of an agent with hundreds of workers would take longer than the rest of a start. No signal
 * handler of ours may run in the child: its signals are blocked until the last moment. */
static pid_t clone_borrowed(const struct clone_args *args, const struct spawn_request *r, pid_t self)
{
    char stack[CHILD_STACK_BYTES] __attribute__((aligned(64)));
    struct clone_args a = *args;
    struct child_arg arg = {r, self};
    sigset_t all, before;
    a.flags |= CLONE_VM | CLONE_VFORK;
    a.stack = (uintptr_t)stack;
    a.stack_size = sizeof stack;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    const long rc = clone3_borrowed(&a, &arg);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (rc < 0)
        errno = (int)-rc;
    return rc < 0 ? -1 : (pid_t)rc;
}

static pid_t clone_child(const struct clone_args *args, const struct spawn_request *r, pid_t self)
{
    if (CAN_BORROW)
        return clone_borrowed(args, r, self);
    const pid_t pid = (pid_t)syscall(SYS_clone3, args, sizeof *args);
    if (pid == 0)
        child(r, self);
    return pid;
}

/* For old kernels and seccomp filters without clone3. */
static pid_t fork_pidfd(int *ret_pidfd)
{
    pid_t pid = fork();
    if (pid > 0)
        *ret_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return pid;
}

/* Clone into a cgroup. Fails on kernels before 5.7, without permission, and if the tree has threaded groups. */
static pid_t clone_into(const struct clone_args *plain, const struct spawn_request *r, pid_t self)
{
    struct clone_args args = *plain;
    args.flags |= CLONE_INTO_CGROUP;
    args.cgroup = (uint64_t)r->cgroup_fd;
    return clone_child(&args, r, self);
}

int spawn(const struct spawn_request *r, pid_t *ret_pid, int *ret_pidfd, struct err *e)
{
    const pid_t self = getpid();
    int pidfd = -1;
    struct clone_args args = {.flags = CLONE_PIDFD, .pidfd = (uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    pid_t pid = -1;
    roster_begin(r->roster, r->group);
    if (r->cgroup_fd >= 0)
        pid = clone_into(&args, r, self);
    if (pid < 0 && r->cgroup_fd >= 0 && r->cgroup_must)
        return err_start(e, errno, "cannot start a process in a cgroup (--cgroup on)");
    if (pid < 0)
        pid = clone_child(&args, r, self);
    if (pid < 0 && (errno == ENOSYS || errno == EPERM))
        pid = fork_pidfd(&pidfd);
    if (pid == 0)
        child(r, self);
    if (pid < 0)
        return err_start(e, errno, "cannot start a process");
    if (pidfd < 0) {
        int error = errno;
        kill(pid, SIGKILL); /* reaped with the orphans */
        return err_errno(e, error, "cannot watch process %d", (int)pid);
    }
    if (r->group)
        setpgid(pid, r->group); /* parent and child both do it, so that a signal finds the group */
    *ret_pid = pid;
    *ret_pidfd = pidfd;
    return 0;
}
