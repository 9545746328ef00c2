/* The port of rank 0's store, for ranks on its host whose environment does not set one: answered on a socket in the
 * abstract name-space. Its name goes with its owner, so no start finds what another left behind. */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/args/args.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/job/slurm.h"
#include "common/net/resolve.h"
#include "worker/meet/meet_impl.h"

enum { PAUSE_MS = 20, ANSWER_MS = 5000 };

static const char *lookup(const char *name)
{
    const char *v = getenv(name);
    return v ? v : "";
}

/* When our parent was started: its id alone comes again. */
static unsigned long long parents_start(void)
{
    char path[64], text[1024];
    unsigned long long start = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)getppid());
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *after_name = strrchr(text, ')');
    if (after_name)
        sscanf(after_name, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &start);
    return start;
}

/* What all ranks of one start have in common, and no other start: the step's or the name-space's id, or the process
 * that started them. */
static socklen_t meeting_point(struct sockaddr_un *sa)
{
    char key[80];
    const char *space = lookup("PMIX_NAMESPACE"), *step = lookup("SLURM_STEP_ID");
    if (*space)
        snprintf(key, sizeof key, "pmix-%.60s", space);
    else if (*step)
        snprintf(key, sizeof key, "slurm-%.20s.%.20s.%.10s", lookup("SLURM_JOB_ID"), step,
                 lookup("SLURM_RESTART_COUNT"));
    else
        snprintf(key, sizeof key, "parent-%d-%llu", (int)getppid(), parents_start());
    *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int n = snprintf(sa->sun_path + 1, sizeof sa->sun_path - 1, "crun-%u-%s", (unsigned)geteuid(), key);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int meet_port_listen(int *ret_fd, struct err *e)
{
    struct sockaddr_un sa;
    const socklen_t n = meeting_point(&sa);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_errno(e, errno, "socket");
    if (bind(fd, (struct sockaddr *)&sa, n) < 0 || listen(fd, SOMAXCONN) < 0) {
        const int rc = err_errno(e, errno, "meeting point '%s' of the ranks on this host", sa.sun_path + 1);
        close(fd);
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

static bool is_ours(int fd)
{
    struct ucred peer;
    socklen_t n = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) == 0 && peer.uid == geteuid();
}

void meet_port_answer(int fd, int port)
{
    char text[8];
    const int n = snprintf(text, sizeof text, "%d\n", port);
    const int asker = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    if (asker < 0)
        return;
    if (is_ours(asker))
        (void)!send(asker, text, (size_t)n, MSG_NOSIGNAL); /* a few bytes: they fit */
    close(asker);
}

/* 1, or 0 if nobody listens yet. */
static int ask_rank_0(int *ret_port, int64_t deadline, struct err *e)
{
    struct sockaddr_un sa;
    const socklen_t n = meeting_point(&sa);
    char text[8] = "";
    int64_t port;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(e, errno, "socket");
    int rc = connect(fd, (struct sockaddr *)&sa, n) < 0 ? 0 : 1;
    if (rc == 1 && !is_ours(fd))
        rc = err_set(e, -EPERM, "another user has taken the meeting point '%s' of the ranks on this host",
                     sa.sun_path + 1);
    if (rc == 1)
        rc = wait_fd(fd, POLLIN, deadline, -1, e) == 0 && recv(fd, text, sizeof text - 1, 0) > 0;
    close(fd);
    text[strcspn(text, "\n")] = 0;
    if (rc != 1 || parse_i64(text, "", 1, 65535, &port, NULL) < 0)
        return rc < 0 ? rc : 0;
    *ret_port = (int)port;
    return 1;
}

int meet_port_ask(int *ret_port, int64_t deadline, struct err *e)
{
    for (;;) {
        const int rc = ask_rank_0(ret_port, deadline, e);
        if (rc != 0)
            return rc < 0 ? rc : 0;
        if (clock_left(deadline) == 0)
            return err_set(e, -ETIMEDOUT,
                           "rank 0 did not come to the meeting point of the ranks on this host: start all ranks by one "
                           "mpirun or srun, or set MASTER_ADDR and MASTER_PORT");
        wait_fd(-1, 0, clock_deadline(PAUSE_MS), -1,
                NULL); /* between two dials, as wherever a server may not be up yet */
    }
}

/* --- Slurm */

bool meet_slurm(char *ret_host, size_t cap, int *ret_port)
{
    const char *nodes = lookup("SLURM_STEP_NODELIST"), *job = lookup("SLURM_JOB_ID"), *step = lookup("SLURM_STEP_ID");
    char id[64];
    if (!*job || !*step || !slurm_first_host(*nodes ? nodes : lookup("SLURM_JOB_NODELIST"), ret_host, cap))
        return false;
    snprintf(id, sizeof id, "%.30s.%.30s", job, step);
    *ret_port = slurm_port(id);
    return true;
}
