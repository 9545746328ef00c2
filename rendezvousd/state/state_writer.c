#include "rendezvousd/state/state_writer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/rdzv/homes/home_wire.h"
#include "rendezvousd/state/state_internal.h"

int dir_writer_put(struct buf *batch, const char *id, enum dir_op op, const struct buf *text)
{
    TRY(home_put_text(batch, id));
    TRY(home_put(batch, &op, sizeof op));
    return home_put(batch, text->data, text->len);
}

/* --- writing */

/* close(2), too, may complain. */
static int write_and_close(int fd, const char *text, size_t n)
{
    int rc = file_write_all(fd, text, n);
    if (rc == 0 && fdatasync(fd) < 0)
        rc = -errno;
    return close(fd) < 0 && rc == 0 ? -errno : rc;
}

static int append(int dir, const char *name, const char *text, size_t n)
{
    const int fd = openat(dir, name, O_WRONLY | O_APPEND | O_CLOEXEC);
    return fd < 0 ? -errno : write_and_close(fd, text, n);
}

int dir_renew(int dir, const char *name, const char *fresh, const char *text, size_t n)
{
    const int fd = openat(dir, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int rc = fd < 0 ? -errno : write_and_close(fd, text, n);
    if (rc == 0 && renameat(dir, fresh, dir, name) < 0)
        rc = -errno;
    if (rc == 0 && fsync(dir) < 0)
        rc = -errno;
    if (rc < 0)
        unlinkat(dir, fresh, 0);
    return rc;
}

static int remove_file(int dir, const char *name)
{
    if (unlinkat(dir, name, 0) < 0 && errno != ENOENT)
        return -errno;
    return fsync(dir) < 0 ? -errno : 0;
}

static int carry_out(int dir, const char *id, enum dir_op op, const char *text, size_t n)
{
    char name[DIR_ID_MAX + 8], fresh[DIR_ID_MAX + 8];
    snprintf(name, sizeof name, "%s.log", id);
    snprintf(fresh, sizeof fresh, "%s.new", id);
    return op == DIR_APPEND   ? append(dir, name, text, n)
           : op == DIR_RENEW  ? dir_renew(dir, name, fresh, text, n)
           : op == DIR_REMOVE ? remove_file(dir, name)
                              : 0;
}

static int write_batch(int dir, struct home_pieces in, struct buf *out)
{
    const char *id, *op, *text;
    size_t op_n, n;
    buf_clear(out);
    while (home_take_text(&in, &id) == 0 && home_take(&in, &op, &op_n) == 0 && home_take(&in, &text, &n) == 0) {
        enum dir_op what;
        memcpy(&what, op, sizeof what);
        const int32_t rc = carry_out(dir, id, what, text, n);
        TRY(buf_add(out, &rc, sizeof rc));
    }
    return 0;
}

/* --- the process */

enum { SOCKET_FD = 3, JOBS_FD, LOCK_FD, ABOVE_FD };

static void close_from(unsigned first)
{
    struct rlimit most;
    if (syscall(SYS_close_range, first, ~0u, 0) == 0)
        return;
    getrlimit(RLIMIT_NOFILE, &most); /* before Linux 5.9 */
    for (unsigned fd = first; fd < most.rlim_cur; fd++)
        close((int)fd);
}

/* Close the connections and listeners that the daemon had open. Without /proc, close_from() does it, later. */
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

/* Nobody waits for the end of anything because this process still has it. The daemon's other files in the directory
 * are closed last: on a disk that hangs, close(2) does not return. */
static void keep_only(int socket_fd, int jobs_fd, int lock_fd)
{
    const int up[] = {fcntl(socket_fd, F_DUPFD, ABOVE_FD), fcntl(jobs_fd, F_DUPFD, ABOVE_FD),
                      fcntl(lock_fd, F_DUPFD, ABOVE_FD)};
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    while (open("/dev/null", O_RDWR | O_CLOEXEC) < STDERR_FILENO)
        ;
    close_sockets_but(up[0]);
    for (int i = 0; i < 3; i++)
        if (up[i] < 0 || dup2(up[i], SOCKET_FD + i) < 0)
            close(SOCKET_FD + i);
    close_from(ABOVE_FD);
}

/* In the place of one that was killed; another daemon may have been faster. */
static int enter(const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/lock", dir);
    const int lock = open(path, O_RDWR | O_CLOEXEC);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) < 0)
        return -1;
    snprintf(path, sizeof path, "%s/jobs", dir);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void live(int jobs_fd, const sigset_t *mask)
{
    struct home_inbox in = {0};
    struct home_head head = {0};
    struct buf out = {0};
    static const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGXFSZ};
    for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
        signal(ignored[i], SIG_IGN);
    sigprocmask(SIG_SETMASK, mask, NULL);
    prctl(PR_SET_NAME, "rendezvousd-log");
    while (home_receive(SOCKET_FD, &in, INT64_MAX, -1) == 0) {
        head.number = in.head.number;
        if (write_batch(jobs_fd, home_pieces(&in), &out) < 0 || home_send(SOCKET_FD, &head, &out, INT64_MAX, -1) < 0)
            break;
    }
    buf_free(&in.body);
    buf_free(&out);
}

int dir_writer_start(const char *dir, int jobs_fd, int lock_fd, pid_t *ret_pid)
{
    int ends[2];
    sigset_t all, mask;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
        return -errno;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &mask); /* the daemon's handlers are none of its */
    const pid_t pid = fork();
    if (pid == 0) {
        keep_only(ends[1], jobs_fd, lock_fd);
        const int jobs = jobs_fd < 0 ? enter(dir) : JOBS_FD;
        if (jobs >= 0)
            live(jobs, &mask);
        _exit(jobs < 0);
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
