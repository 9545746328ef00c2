/* Tells systemd, or s6, that the daemon is ready or stopping, and takes its sockets (sd_notify.h). */
#include "rendezvousd/daemon/sd_notify.h"
#include "common/base/err.h"
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int sd_notify_say(const char *text, struct err *e)
{
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    if (!name || !name[0])
        return 0;
    size_t n = strlen(name);
    if ((name[0] != '/' && name[0] != '@') || n >= sizeof sa.sun_path)
        return err_set(e, -EINVAL, "NOTIFY_SOCKET '%.200s': expected a path, or a name that begins with '@'", name);
    memcpy(sa.sun_path, name, n);
    if (name[0] == '@')
        sa.sun_path[0] = 0; /* the abstract name-space */
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(e, errno, "NOTIFY_SOCKET '%s' does not take '%s'", name, text);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    ssize_t sent = sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&sa, len);
    int rc = sent < 0 ? err_errno(e, errno, "NOTIFY_SOCKET '%s' does not take '%s'", name, text) : 0;
    close(fd);
    return rc;
}

int sd_listen_fds(void)
{
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    const long fds = pid && n && strtol(pid, NULL, 10) == (long)getpid() ? strtol(n, NULL, 10) : 0;
    return fds > 0 && fds < 64 ? (int)fds : 0;
}

int ready_fd_say(int fd, struct err *e)
{
    ssize_t n = write(fd, "\n", 1);
    int rc = n == 1 ? 0 : err_errno(e, errno, "--ready-fd %d cannot be written", fd);
    close(fd);
    return rc;
}
