/* Records, and changes for crun, the descriptors, signals and limits that it was started with (inherited.h). */
#include "launcher/guard/inherited.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "launcher/guard/guardian.h"

/* If descriptor 0, 1 or 2 is closed, the first file that we open would take its number, and receive output meant for
 * people. */
int inherited_fill_fds(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd)
            return -errno;
    return 0;
}

static bool was_ignored(int signo)
{
    struct sigaction old;
    return sigaction(signo, NULL, &old) == 0 && old.sa_handler == SIG_IGN;
}

/* Block what we wait for. */
void inherited_block_signals(struct guardian_link *l, sigset_t *waited)
{
    static const int signals[] = {
#define X(s) s,
        GUARDIAN_SIGNALS(X)
#undef X
    };
    sigemptyset(&l->ignored);
    for (int s = 1; s < 32; s++)
        if (was_ignored(s))
            sigaddset(&l->ignored, s);
    sigemptyset(waited);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (!sigismember(&l->ignored, signals[i]))
            sigaddset(waited, signals[i]);
    signal(SIGCHLD, SIG_DFL); /* inherited SIG_IGN would let children vanish unseen */
    sigaddset(waited, SIGCHLD);
    sigprocmask(SIG_BLOCK, waited, &l->worker_mask);
    sigaction(SIGPIPE, NULL, &l->worker_pipe);
    signal(SIGPIPE, SIG_IGN); /* for both processes: a console that went away is an error of write(2) */
    sigaction(SIGTTOU, NULL, &l->worker_ttou);
}

/* The agent holds some descriptors for every worker, so raise the limit; the usual 1024 is for programs that use
 * select(2). */
void inherited_raise_files(struct guardian_link *l)
{
    getrlimit(RLIMIT_NOFILE, &l->worker_nofile);
    struct rlimit most = l->worker_nofile;
    most.rlim_cur = most.rlim_max;
    setrlimit(RLIMIT_NOFILE, &most);
}

void inherited_look_at_terminal(struct inherited_terminal *ret)
{
    ret->is_there = tcgetattr(STDIN_FILENO, &ret->was) == 0;
}

void inherited_give_back_terminal(const struct inherited_terminal *t)
{
    struct termios now;
    if (t->is_there && tcgetpgrp(STDIN_FILENO) == getpgrp() && tcgetattr(STDIN_FILENO, &now) == 0 &&
        memcmp(&now, &t->was, sizeof now) != 0)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &t->was);
}
