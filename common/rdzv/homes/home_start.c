/* A home process (home_process.h) forked by a program that has connections and listeners: they are not to live on in
 * it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/net/apart.h"
#include "common/rdzv/homes/home_process.h"

/* Without /proc, apart_close() does it, later. */
static void close_sockets_but(int kept)
{
    DIR *open_fds = opendir("/proc/self/fd");
    for (const struct dirent *d; open_fds && (d = readdir(open_fds));) {
        const int fd = atoi(d->d_name);
        int type;
        socklen_t n = sizeof type;
        if (fd > STDERR_FILENO && fd != kept && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0)
            close(fd);
    }
    if (open_fds)
        closedir(open_fds);
}

/* Nobody waits for the end of anything because this process still has it. Files are closed last: on a disk that hangs,
 * close(2) does not return. */
static int keep_only(int fd)
{
    const int kept = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (kept < 0)
        _exit(1);
    for (int i = 0; i <= STDERR_FILENO; i++)
        close(i);
    close_sockets_but(kept);
    apart_close(&kept, 1);
    return kept;
}

/* Returns the descriptor under its new number. */
static int be_apart(int fd, const char *name, const sigset_t *mask)
{
    static const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGXFSZ};
    const int kept = keep_only(fd);
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    sigprocmask(SIG_SETMASK, mask, NULL);
    prctl(PR_SET_NAME, name);
    return kept;
}

int home_process_run(int caller_fd, home_service *service)
{
    static struct home_threads h; /* which threads see to their end */
    struct pollfd caller = {.fd = caller_fd, .events = POLLIN};
    eventfd_t n;
    if (home_threads_open(&h, service) < 0)
        return 1;
    do
        poll(&caller, 1, -1);
    while (!caller.revents || home_threads_take(&h, caller_fd));
    for (struct pollfd gone = {.fd = h.gone_fd, .events = POLLIN}; atomic_load(&h.n) > 0; eventfd_read(h.gone_fd, &n))
        poll(&gone, 1, -1);
    return 0;
}

int home_process_start(home_service *service, const char *name, pid_t *ret_pid)
{
    int ends[2];
    sigset_t all, mask;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &mask); /* the caller's handlers are none of its */
    const pid_t pid = fork();
    if (pid == 0) {
        const int caller_fd = be_apart(ends[1], name, &mask);
        _exit(home_process_run(caller_fd, service));
    }
    const int why = errno;
    sigprocmask(SIG_SETMASK, &mask, NULL);
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return -why;
    }
    *ret_pid = pid;
    return ends[0];
}
