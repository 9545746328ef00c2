#include "launcher/guardian.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/exitcode.h"
#include "launcher/console.h"
#include "launcher/ending.h"
#include "launcher/tree.h"

/* A SIGKILLed process is gone in milliseconds, one with gigabytes to free in a second; longer means it cannot be killed. */
#define KILL_BOUND_MS 30000

/* With descriptor 0, 1 or 2 closed, the first files we open would take their numbers and receive output meant for people. */
static int fill_standard_fds(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd)
            return -errno;
    return 0;
}

/* Block what we wait for. A signal that was ignored when crun started (nohup, a background job) stays ignored. */
static void take_signals(struct guardian_link *l, sigset_t *waited)
{
    static const int signals[] = {
#define X(s) s,
        GUARDIAN_SIGNALS(X)
#undef X
    };
    sigemptyset(&l->handled);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction old;
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaddset(&l->handled, signals[i]);
    }
    signal(SIGCHLD, SIG_DFL); /* inherited SIG_IGN would let children vanish unseen */
    *waited = l->handled;
    sigaddset(waited, SIGCHLD);
    sigprocmask(SIG_BLOCK, waited, &l->worker_mask);
    sigaction(SIGPIPE, NULL, &l->worker_pipe);
    signal(SIGPIPE, SIG_IGN); /* a console that went away is an error of write(2), for both halves */
    sigaction(SIGTTOU, NULL, &l->worker_ttou);
}

void guardian_remove_scratch(char *path)
{
    if (!path[0])
        return;
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(path);
    path[0] = '\0';
}

/* The agent holds some descriptors for every worker; the usual limit of 1024 is for programs that use select(2). */
static void raise_open_files(struct guardian_link *l)
{
    getrlimit(RLIMIT_NOFILE, &l->worker_nofile);
    struct rlimit most = l->worker_nofile;
    most.rlim_cur = most.rlim_max;
    setrlimit(RLIMIT_NOFILE, &most);
}

static int agent_process(struct guardian_link *l, int agent_end, int guardian_end,
                         int (*agent)(const struct guardian_link *, int, char **), int argc, char **argv)
{
    close(guardian_end);
    l->guardian_fd = agent_end;
    setpgid(0, 0);            /* Ctrl-C reaches the guardian only, which forwards it once */
    signal(SIGTTOU, SIG_IGN); /* a background group may still write to its terminal */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    raise_open_files(l);
    return agent(l, argc, argv);
}

/* Until the agent has ended: reap everybody, forward the rest. */
static struct ending watch(pid_t agent, const sigset_t *waited)
{
    for (;;) {
        siginfo_t info;
        int signo = sigwaitinfo(waited, &info);
        if (signo > 0 && signo != SIGCHLD)
            kill(agent, signo);
        if (signo != SIGCHLD)
            continue;
        for (;;) {
            siginfo_t child = {0};
            if (waitid(P_ALL, 0, &child, WEXITED | WNOHANG) < 0 || child.si_pid == 0)
                break;
            if (child.si_pid == agent)
                return ending_of(&child);
        }
    }
}

/* First the deeds, then the words: nothing that a console does may keep workers alive. */
static int finish(struct ending e, pid_t agent, struct guardian_link *l)
{
    char text[256];
    const bool all = tree_kill_all(KILL_BOUND_MS);
    guardian_remove_scratch(l->scratch_dir);
    if (e.signaled)
        console_try("crun: its agent (pid %d) was %s; the workers were ended\n", (int)agent,
                    ending_text(e, text, sizeof text));
    if (!all) {
        tree_describe(text, sizeof text);
        console_try("crun: still there %d s after SIGKILL: %s\n", KILL_BOUND_MS / 1000, text);
    }
    return ending_code(e);
}

int guardian_run(int (*agent)(const struct guardian_link *, int, char **), int argc, char **argv)
{
    static struct guardian_link l;
    sigset_t waited;
    int ends[2];

    if (fill_standard_fds() < 0 || pipe2(ends, O_CLOEXEC) < 0)
        return EXIT_UNAVAILABLE;
    l.scratch_dir = mmap(NULL, GUARDIAN_PATH_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (l.scratch_dir == MAP_FAILED)
        return EXIT_UNAVAILABLE;
    take_signals(&l, &waited);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t pid = fork();
    if (pid < 0) {
        console_try("crun: cannot start a process: %s\n", strerror(errno));
        return EXIT_UNAVAILABLE;
    }
    if (pid == 0)
        return agent_process(&l, ends[0], ends[1], agent, argc, argv);
    close(ends[0]);
    return finish(watch(pid, &waited), pid, &l);
}
