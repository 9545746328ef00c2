/* libcrun: a process that stays ends at once when it is killed, however much memory it has.
 *
 * The kernel closes the files of a killed process, and tells its parent, only after it has taken back its memory. That
 * takes some 60 ms a gigabyte of small pages, and several times that on a busy machine; until then the other ranks wait
 * for a peer that is dead. But memory that two processes share is taken back when the second one ends. So
 * libcrun_share_memory() makes a second process with the same memory (clone(CLONE_VM), as vfork() does). It has no
 * files, blocks all signals, sleeps, and is killed by the kernel when the first one ends.
 *
 * The second process runs on a small stack, but with the thread-local variables of its maker, so it may only make
 * system calls that cannot fail: a failure would set errno. */
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/crun/crun_page.h"
#include "common/crun/crun_self.h"

enum { CLOSE_S = 2 }; /* for the second process to close its files: on a busy machine it runs late */

static _Alignas(16) char stack[16 << 10];
static pid_t maker;
static _Atomic uint32_t closed; /* it has no files any more */

static int sleep_till_killed(void *unused)
{
    (void)unused;
    syscall(SYS_prctl, PR_SET_NAME, CRUN_MEMORY_NAME, 0, 0, 0);
    syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    syscall(SYS_close_range, 0u, ~0u, 0u);
    atomic_store(&closed, 1);
    syscall(SYS_futex, &closed, FUTEX_WAKE, 1, NULL, NULL, 0);
    while (syscall(SYS_getppid) == maker) /* else it ended before the kernel knew that it is to tell us */
        syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
    syscall(SYS_exit_group, 0);
    return 0;
}

/* The memory of a GPU is given back with the process memory that it is mapped to: whoever takes the place of the dead
 * process needs it at once. */
static bool has_gpus(void)
{
    return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/kfd", F_OK) == 0;
}

void libcrun_share_memory(void)
{
    sigset_t all, before;
    if (maker == getpid() || has_gpus() || syscall(SYS_close_range, ~0u, ~0u, 0u) != 0) /* Linux before 5.9 */
        return;
    maker = getpid();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_store(&closed, 0); /* a fork()ed child's is its parent's */
    const pid_t pid = clone(sleep_till_killed, stack + sizeof stack, CLONE_VM, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    const struct timespec longest = {.tv_sec = CLOSE_S};
    if (pid > 0) /* else this process ends as others do */
        syscall(SYS_futex, &closed, FUTEX_WAIT, 0, &longest, NULL, 0);
}
