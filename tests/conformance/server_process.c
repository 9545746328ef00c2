#include "tests/conformance/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"

enum { MAX_ARGS = 32, START_MS = 10000, TRIES = 5 };

static int loopback_socket(int port, struct sockaddr_in *a)
{
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static int free_port(void)
{
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    int fd = loopback_socket(0, &a);
    if (bind(fd, (struct sockaddr *)&a, n) < 0 || getsockname(fd, (struct sockaddr *)&a, &n) < 0)
        perror("free port");
    close(fd);
    return ntohs(a.sin_port);
}

static pid_t spawn(char *const argv[], int port)
{
    char text[16], *v[MAX_ARGS + 1] = {0};
    snprintf(text, sizeof text, "%d", port);
    for (int i = 0; argv[i] && i < MAX_ARGS; i++)
        v[i] = strcmp(argv[i], "PORT") == 0 ? text : argv[i];
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);
    execvp(v[0], v);
    _exit(127);
}

/* Does it listen? A foreign server has no way to tell us when; its end we hear of. */
static bool accepts(pid_t pid, int port)
{
    struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    bool connected = false;
    for (int64_t deadline = clock_deadline(START_MS); !connected && clock_left(deadline) > 0;) {
        struct sockaddr_in a;
        int fd = loopback_socket(port, &a);
        connected = connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
        close(fd);
        if (!connected && poll(&ended, 1, 10) > 0)
            break;
    }
    if (connected && poll(&ended, 1, 50) > 0)
        connected = false; /* somebody else's port */
    close(ended.fd);
    return connected;
}

bool server_process_start(struct server_process *p, char *const argv[])
{
    for (int i = 0; i < TRIES; i++) {
        int port = p->port ? p->port : free_port();
        pid_t pid = spawn(argv, port);
        if (accepts(pid, port)) {
            *p = (struct server_process){.pid = pid, .port = port};
            return true;
        }
        int status = 0;
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
            return false;
    }
    return false;
}

void server_process_stop(struct server_process *p)
{
    if (p->pid == 0)
        return;
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    p->pid = 0;
}
