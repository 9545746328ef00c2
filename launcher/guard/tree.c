/* Kills, stops and signals the process tree below this process (tree.h). */
#include "launcher/guard/tree.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/crun/crun_page.h"
#include "launcher/guard/procs.h"

#define PIDS_FIRST 32768 /* the kernel's default pid_max */
#define PIDS_MAX 4194304 /* upper bound of pid_max */

/* Helpers of this process that have an exit signal all the same (tree_set_beside). */
static pid_t beside[TREE_BESIDE_MAX];

static bool is_beside(pid_t pid)
{
    for (int i = 0; i < TREE_BESIDE_MAX; i++)
        if (pid > 0 && beside[i] == pid)
            return true;
    return false;
}

bool tree_set_beside(pid_t before, pid_t after)
{
    for (int i = 0; i < TREE_BESIDE_MAX; i++)
        if (beside[i] == before) {
            beside[i] = after;
            return true;
        }
    return false;
}

/* Is each child of this process a helper? By /proc, which costs more than waitid(2). */
static bool has_helpers_alone(void)
{
    struct procs ps;
    bool alone = procs_below(&ps, getpid());
    for (size_t i = 0; i < ps.n; i++)
        alone = alone && (ps.v[i].parent != getpid() || ps.v[i].is_silent || is_beside(ps.v[i].pid));
    procs_free(&ps);
    return alone;
}

/* Does a process belong to the tree: alive, not spared, and not a helper that the root has started beside the tree? */
static bool is_of_tree(const struct proc *p, pid_t root, pid_t spared)
{
    return !proc_is_dead(p) && p->pid != spared && !(p->parent == root && (p->is_silent || is_beside(p->pid)));
}

bool tree_empty(void)
{
    siginfo_t info;
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0)
        return errno == ECHILD;
    for (int i = 0; i < TREE_BESIDE_MAX; i++)
        if (beside[i])
            return has_helpers_alone();
    return false;
}

bool tree_has_proc(void)
{
    return access("/proc/self/stat", R_OK) == 0;
}

/* Without /proc: find children with pids from low to high by waitid(2). As a subreaper we get their children, too,
 * once they are dead. */
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

/* Most pids are small; trying all possible ones takes about a second. */
static void find_all_children(void (*found)(void *arg, pid_t pid), void *arg)
{
    if (!tree_empty() && find_children(2, PIDS_FIRST, found, arg) == 0)
        find_children(PIDS_FIRST, PIDS_MAX, found, arg);
}

static void kill_child(void *arg, pid_t pid)
{
    *(int *)arg += kill(pid, SIGKILL) == 0;
}

static int tree_kill_but(pid_t root, pid_t spared)
{
    struct procs ps;
    int killed = 0;
    if (!procs_below(&ps, root) && root == getpid())
        find_all_children(kill_child, &killed);
    for (size_t i = 0; i < ps.n; i++)
        if (is_of_tree(&ps.v[i], root, spared) && kill(ps.v[i].pid, SIGKILL) == 0)
            killed++;
    procs_free(&ps);
    return killed;
}

int tree_kill_below(pid_t root)
{
    return tree_kill_but(root, 0);
}

int tree_kill(void)
{
    return tree_kill_below(getpid());
}

static bool is_among(pid_t pid, const pid_t *v, int n)
{
    for (int i = 0; i < n; i++)
        if (v[i] == pid)
            return true;
    return false;
}

/* Mark what is below the kept processes. Parents do not always come before children, so repeat until nothing
 * changes. */
static void mark_kept(struct procs *ps, const pid_t *kept, int n)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < ps->n; i++) {
            struct proc *p = &ps->v[i];
            bool below = is_among(p->pid, kept, n);
            for (size_t k = 0; p->pid > 0 && !below && k < ps->n; k++)
                below = ps->v[k].pid == -p->parent; /* marked ones have theirs negated */
            if (p->pid > 0 && below) {
                p->pid = -p->pid;
                more = true;
            }
        }
    }
}

/* A process with the memory of a worker that is dead (common/crun/crun_memory.c). It has no files, and runs nothing. */
static bool is_only_memory(const struct proc *p)
{
    return strcmp(p->name, CRUN_MEMORY_NAME) == 0;
}

int tree_others(const pid_t *kept, int n, bool end)
{
    struct procs ps;
    int others = 0;
    if (!procs_below(&ps, getpid()))
        return -1;
    mark_kept(&ps, kept, n);
    for (size_t i = 0; i < ps.n; i++) {
        const struct proc *p = &ps.v[i];
        if (p->pid < 0 || !is_of_tree(p, getpid(), 0) || (p->state == '?' && kill(p->pid, 0) < 0))
            continue;
        others += !is_only_memory(p);
        if (end)
            kill(p->pid, SIGKILL);
    }
    procs_free(&ps);
    return others;
}

int tree_pause(const pid_t *spared, int n, bool go_on)
{
    struct procs ps;
    int ran = 0;
    if (!procs_below(&ps, getpid()))
        return -1;
    mark_kept(&ps, spared, n);
    for (size_t i = 0; i < ps.n; i++) {
        const struct proc *p = &ps.v[go_on ? ps.n - 1 - i : i];
        if (p->pid < 0 || !is_of_tree(p, getpid(), 0))
            continue;
        const char state = proc_living(p).state;
        ran += state == 'R' || state == 'S' || state == 'D';
        if (go_on || (state != 'T' && state != 't')) /* t: a debugger holds it */
            kill(p->pid, go_on ? SIGCONT : SIGSTOP);
    }
    procs_free(&ps);
    return ran;
}

/* Is signo in the mask called `name` in /proc/PID/status? */
static bool is_in_mask(pid_t pid, const char *name, int signo)
{
    char text[PROC_FIELD_MAX];
    return proc_field(pid, name, text) && strtoull(text, NULL, 16) >> (signo - 1) & 1;
}

bool tree_is_ready_for(pid_t pid, int signo)
{
    return is_in_mask(pid, "SigCgt", signo) || is_in_mask(pid, "SigBlk", signo);
}

bool tree_has_pending(pid_t pid, int signo)
{
    return is_in_mask(pid, "ShdPnd", signo);
}

void tree_signal(pid_t pid, bool group, int signo)
{
    struct procs ps;
    procs_below(&ps, getpid());
    for (size_t i = 0; i < ps.n; i++)
        if ((group ? getpgid(ps.v[i].pid) : ps.v[i].pid) == pid && tree_is_ready_for(ps.v[i].pid, signo))
            kill(ps.v[i].pid, signo);
    procs_free(&ps);
}

/* Does a process that was sent SIGKILL sleep in the kernel? A disk blocks it, perhaps (S) while it closes its files
 * at its end. */
static bool is_in_kernel(const struct proc *p)
{
    const char state = proc_living(p).state;
    return state == 'D' || state == 'S';
}

/* The processes alive below root, except `spared`. */
struct left {
    bool is_known; /* there is a /proc */
    int alive, in_kernel;
};

static struct left look_below(pid_t root, pid_t spared)
{
    struct procs ps;
    struct left l = {.is_known = procs_below(&ps, root)};
    for (size_t i = 0; i < ps.n; i++) {
        const struct proc *p = &ps.v[i];
        if (!is_of_tree(p, root, spared) || (p->state == '?' && kill(p->pid, 0) < 0))
            continue;
        l.alive++;
        l.in_kernel += is_in_kernel(p);
    }
    procs_free(&ps);
    return l;
}

bool tree_is_dead(void)
{
    siginfo_t info = {0};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0)
        return false;
    const struct left l = look_below(getpid(), 0);
    return l.is_known && l.alive == 0;
}

bool tree_kill_all(int64_t timeout_ms)
{
    return tree_kill_or_leave(timeout_ms, timeout_ms);
}

bool tree_kill_or_leave(int64_t timeout_ms, int64_t stuck_ms)
{
    const int64_t end = clock_ms() + timeout_ms;
    const struct timespec pause = {.tv_nsec = TREE_RESCAN_MS * 1000000L};
    int64_t moved = clock_ms(), alive = moved;
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    for (;;) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        if (tree_empty())
            return true;
        const struct left l = look_below(getpid(), 0);
        const int64_t now = clock_ms();
        moved = l.alive == l.in_kernel && l.alive ? moved : now;
        alive = !l.is_known || l.alive ? now : alive;
        if (now - alive >= TREE_DEAD_MS) /* a debugger holds them and does not reap them */
            return true;
        if (now >= end || now - moved >= stuck_ms)
            return false;
        tree_kill();
        sigtimedwait(&chld, NULL, &pause);
    }
}

bool tree_end_below(pid_t root, pid_t spared, int64_t timeout_ms)
{
    const int64_t end = clock_ms() + timeout_ms;
    const struct timespec pause = {.tv_nsec = TREE_RESCAN_MS * 1000000L};
    for (int looks = 0; looks < 2;) { /* one look may miss a process that changes its parent meanwhile */
        tree_kill_but(root, spared);
        looks = look_below(root, spared).alive == 0 ? looks + 1 : 0;
        if (clock_ms() >= end)
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
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
    if (!procs_below(&ps, getpid()))
        find_all_children(name_child, &(struct text){out, 0, cap});
    for (size_t i = 0; i < ps.n && len < cap; i++) {
        const struct proc *p = &ps.v[i];
        char one[TREE_ONE_MAX];
        if (!is_of_tree(p, getpid(), 0) || (p->state == '?' && kill(p->pid, 0) < 0 && errno == ESRCH))
            continue;
        tree_describe_one(p->pid, one, sizeof one);
        len += (size_t)snprintf(out + len, cap - len, "%s%s", len ? ", " : "", one);
    }
    procs_free(&ps);
}

void tree_describe_one(pid_t pid, char *out, size_t cap)
{
    char where[PROC_WAIT_MAX];
    struct proc p;
    proc_read(pid, &p);
    p = proc_living(&p);
    snprintf(out, cap, "%d (%s, state %c%s)", (int)pid, p.name, p.state, proc_wait_text(p.pid, where));
}
