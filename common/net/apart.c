/* Starts threads for work that may block, and gives them a descriptor table of their own (apart.h). */
#include "common/net/apart.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/sanitizer.h"

int apart_start(void *(*run)(void *arg), void *arg, size_t stack_bytes)
{
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, before;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (stack_bytes > 0)
        pthread_attr_setstacksize(&attr, stack_bytes);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&thread, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

static void close_all(int first, int last)
{
    struct rlimit most;
#ifdef SYS_close_range
    if (first > last || syscall(SYS_close_range, first, last, 0) == 0)
        return;
#endif
    getrlimit(RLIMIT_NOFILE, &most); /* before Linux 5.9 */
    for (int fd = first; fd <= last && (rlim_t)fd < most.rlim_cur; fd++)
        close(fd);
}

/* The smallest descriptor to be kept that is at least `first`; INT_MAX: there is none. */
static int next_kept(const int *fds, int n, int first)
{
    int next = INT_MAX;
    for (int i = 0; i < n; i++)
        if (fds[i] >= first && fds[i] < next)
            next = fds[i];
    return next;
}

void apart_close(const int *fds, int n)
{
    for (int first = 0, next; first < INT_MAX; first = next == INT_MAX ? next : next + 1) {
        next = next_kept(fds, n, first);
        close_all(first, next == INT_MAX ? next : next - 1);
    }
    while (open("/dev/null", O_RDWR | O_CLOEXEC) < STDERR_FILENO)
        ;
}

bool apart_keep(const int *fds, int n)
{
    if (HAS_THREAD_SANITIZER || unshare(CLONE_FILES) < 0)
        return false;
    apart_close(fds, n);
    return true;
}
