#include "launcher/guard/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"

#define PIDS_FIRST 32768 /* the kernel's own choice of pid_max */
#define PIDS_MAX 4194304 /* and its bound */

struct proc {
    pid_t pid, parent;
    bool ours;
    char state;
    char name[20];
};

struct procs {
    struct proc *v;
    size_t n, cap;
};

/* /proc/PID/stat: "PID (name) state ppid ..."; the name may hold spaces and parentheses, so look for the last one. */
static bool read_proc(int dir, const char *pid_text, struct proc *p)
{
    char path[32], line[512];
    snprintf(path, sizeof path, "%.16s/stat", pid_text);
    int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0)
        return false;
    line[n] = '\0';
    char *open = strchr(line, '('), *shut = strrchr(line, ')');
    if (!open || !shut)
        return false;
    int parent;
    if (sscanf(shut + 1, " %c %d", &p->state, &parent) != 2)
        return false;
    p->pid = (pid_t)atoi(pid_text);
    p->parent = (pid_t)parent;
    p->ours = false;
    snprintf(p->name, sizeof p->name, "%.*s", (int)(shut - open - 1), open + 1);
    return true;
}

static void procs_read(struct procs *ps)
{
    memset(ps, 0, sizeof *ps);
    DIR *d = opendir("/proc");
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        if (ps->n == ps->cap) {
            size_t cap = ps->cap ? 2 * ps->cap : 128;
            struct proc *v = realloc(ps->v, cap * sizeof *v);
            if (!v)
                break;
            ps->v = v;
            ps->cap = cap;
        }
        if (read_proc(dirfd(d), e->d_name, &ps->v[ps->n]))
            ps->n++;
    }
    closedir(d);
}

/* Mark all descendants of self: repeat until a pass finds none (a tree is a few levels deep). */
static void procs_mark(struct procs *ps, pid_t self)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < ps->n; i++) {
            struct proc *p = &ps->v[i];
            if (p->ours)
                continue;
            p->ours = p->parent == self;
            for (size_t j = 0; j < ps->n && !p->ours; j++)
                p->ours = ps->v[j].ours && ps->v[j].pid == p->parent;
            more = more || p->ours;
        }
    }
}

bool tree_empty(void)
{
    siginfo_t info;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD;
}

bool tree_has_proc(void)
{
    return access("/proc/self/stat", R_OK) == 0;
}

/* Without /proc: waitid(2) knows our children, and as a subreaper we get theirs once they are dead. Pids of that range,
 * from low to high. */
static int find_children(pid_t low, pid_t high, void (*found)(void *arg, pid_t pid), void *arg)
{
    int n = 0;
    for (pid_t pid = low; pid < high; pid++) {
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
            continue;
        n++;
        if (info.si_pid == 0) /* it lives */
            found(arg, pid);
    }
    return n;
}

/* Mostly pids are small; all there may be take about a second. */
static void find_all_children(void (*found)(void *arg, pid_t pid), void *arg)
{
    if (!tree_empty() && find_children(2, PIDS_FIRST, found, arg) == 0)
        find_children(PIDS_FIRST, PIDS_MAX, found, arg);
}

static void kill_child(void *arg, pid_t pid)
{
    *(int *)arg += kill(pid, SIGKILL) == 0;
}

int tree_kill_below(pid_t root)
{
    struct procs ps;
    int killed = 0;
    procs_read(&ps);
    if (ps.n == 0 && root == getpid())
        find_all_children(kill_child, &killed);
    procs_mark(&ps, root);
    for (size_t i = 0; i < ps.n; i++)
        if (ps.v[i].ours && ps.v[i].state != 'Z' && kill(ps.v[i].pid, SIGKILL) == 0)
            killed++;
    free(ps.v);
    return killed;
}

int tree_kill(void)
{
    return tree_kill_below(getpid());
}

/* The mask behind such a name in /proc/PID/status. */
static uint64_t mask_of(const char *status, const char *name)
{
    const char *at = strstr(status, name);
    return at ? strtoull(at + strlen(name), NULL, 16) : 0;
}

static bool is_ready_for(pid_t pid, int signo)
{
    char text[4096];
    file_read_text(text, sizeof text, "/proc/%d/status", (int)pid);
    return (mask_of(text, "\nSigCgt:") | mask_of(text, "\nSigBlk:")) >> (signo - 1) & 1;
}

void tree_signal(pid_t pid, bool group, int signo)
{
    struct procs ps;
    procs_read(&ps);
    for (size_t i = 0; i < ps.n; i++)
        if ((group ? getpgid(ps.v[i].pid) : ps.v[i].pid) == pid && is_ready_for(ps.v[i].pid, signo))
            kill(ps.v[i].pid, signo);
    free(ps.v);
}

bool tree_kill_all(int64_t timeout_ms)
{
    const int64_t end = clock_ms() + timeout_ms;
    const struct timespec pause = {.tv_nsec = TREE_RESCAN_MS * 1000000L};
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    for (;;) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        if (tree_empty())
            return true;
        if (clock_ms() >= end)
            return false;
        tree_kill();
        sigtimedwait(&chld, NULL, &pause);
    }
}

/* Where in the kernel it waits; "" where that is not told (privileges, kernel options). */
static const char *wait_channel(pid_t pid, char out[64])
{
    file_read_text(out, 64, "/proc/%d/wchan", (int)pid);
    return strcmp(out, "0") == 0 ? "" : out;
}

struct text {
    char *out;
    size_t len, cap;
};

static void name_child(void *arg, pid_t pid)
{
    struct text *t = arg;
    if (t->len < t->cap)
        t->len += (size_t)snprintf(t->out + t->len, t->cap - t->len, "%s%d", t->len ? ", " : "", (int)pid);
}

void tree_describe(char *out, size_t cap)
{
    struct procs ps;
    size_t len = 0;
    out[0] = '\0';
    procs_read(&ps);
    if (ps.n == 0)
        find_all_children(name_child, &(struct text){out, 0, cap});
    procs_mark(&ps, getpid());
    for (size_t i = 0; i < ps.n && len < cap; i++) {
        const struct proc *p = &ps.v[i];
        char where[64];
        if (!p->ours || p->state == 'Z')
            continue;
        wait_channel(p->pid, where);
        len += (size_t)snprintf(out + len, cap - len, "%s%d (%s, state %c%s%s)", len ? ", " : "", (int)p->pid, p->name,
                                p->state, where[0] ? " in " : "", where);
    }
    free(ps.v);
}
