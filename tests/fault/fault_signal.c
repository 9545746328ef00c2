/* A signal in a rare moment, for LD_PRELOAD: a process that
 *
 *   FAULT_SIGNAL_MKDIR=n     has just made the temporary folder
 *   FAULT_SIGNAL_UNWATCH=n   has just ceased to watch its signals
 *   FAULT_SIGNAL_SWEEP=n     is about to look for all that is below it, the first of all, which makes the file
 *                            FAULT_SIGNAL_FIRST
 *   FAULT_SIGNAL_SOCKETPAIR=n  makes its first pair of sockets, as crun does before anything else
 *
 * gets signal n then. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void get(const char *variable)
{
    const char *signo = getenv(variable);
    if (signo)
        raise(atoi(signo));
}

int mkdir(const char *path, mode_t mode)
{
    int (*real)(const char *, mode_t);
    const char *folder = getenv("TMPDIR");
    const size_t n = folder ? strlen(folder) : 0;
    *(void **)&real = dlsym(RTLD_NEXT, "mkdir");
    const int rc = real(path, mode);
    if (rc == 0 && n > 0 && strncmp(path, folder, n) == 0 && strncmp(path + n, "/crun-", 6) == 0)
        get("FAULT_SIGNAL_MKDIR");
    return rc;
}

int access(const char *path, int mode)
{
    int (*real)(const char *, int);
    const char *first = getenv("FAULT_SIGNAL_FIRST");
    *(void **)&real = dlsym(RTLD_NEXT, "access");
    if (first && strcmp(path, "/proc/thread-self/children") == 0) {
        const int fd = open(first, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
        if (fd >= 0) {
            close(fd);
            get("FAULT_SIGNAL_SWEEP");
        }
    }
    return real(path, mode);
}

static bool is_signalfd(int fd)
{
    char link[32], name[64] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, name, sizeof name - 1) > 0 && strcmp(name, "anon_inode:[signalfd]") == 0;
}

/* libuv takes it out once before, after it has tried whether it can be watched, and also when it is not in there. What
 * it puts in is no sign of anything: newer ones do that through io_uring. */
int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
    static int taken_out;
    int (*real)(int, int, int, struct epoll_event *);
    *(void **)&real = dlsym(RTLD_NEXT, "epoll_ctl");
    const int rc = real(epoll, op, fd, event);
    if (rc == 0 && op == EPOLL_CTL_DEL && is_signalfd(fd) && ++taken_out == 2)
        get("FAULT_SIGNAL_UNWATCH");
    return rc;
}

int socketpair(int domain, int type, int protocol, int ends[2])
{
    static int calls;
    int (*real)(int, int, int, int[2]);
    *(void **)&real = dlsym(RTLD_NEXT, "socketpair");
    if (calls++ == 0)
        get("FAULT_SIGNAL_SOCKETPAIR");
    return real(domain, type, protocol, ends);
}
