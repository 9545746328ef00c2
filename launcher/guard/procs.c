#include "launcher/guard/procs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"

/* From one field to the n-th after it; "" where there are not so many. */
static const char *skip_fields(const char *at, int n)
{
    for (; n > 0 && *at; n--) {
        at += strcspn(at, " ");
        at += *at == ' ';
    }
    return at;
}

/* utime stime cutime cstime */
static int64_t cpu_time(const char *times)
{
    long long v[4] = {0};
    if (sscanf(times, "%lld %lld %lld %lld", &v[0], &v[1], &v[2], &v[3]) != 4)
        return 0;
    return (v[0] + v[1] + v[2] + v[3]) * (INT64_C(1000000000) / sysconf(_SC_CLK_TCK));
}

/* /proc/PID/stat: "PID (name) state ppid ..."; the name may hold spaces and parentheses, so look for the last one. From
 * the state on, its times begin at the 12th field, the number of threads is the 18th, the signal of its end the
 * 36th. */
bool proc_read(pid_t pid, struct proc *ret)
{
    char line[768];
    *ret = (struct proc){.pid = pid, .state = '?', .name = "?"};
    if (file_read_text(line, sizeof line, "/proc/%d/stat", (int)pid) < 0)
        return false;
    const char *open = strchr(line, '('), *shut = strrchr(line, ')');
    if (!open || !shut)
        return false;
    const char *state = shut + 1 + (shut[1] == ' ');
    int parent = 0;
    if (sscanf(state, "%c %d", &ret->state, &parent) != 2)
        return false;
    const char *times = skip_fields(state, 11), *threads = skip_fields(times, 6),
               *end_signal = skip_fields(threads, 18);
    ret->parent = (pid_t)parent;
    ret->cpu_ns = cpu_time(times);
    ret->threads = atoi(threads);
    ret->is_silent = *end_signal == '0';
    snprintf(ret->name, sizeof ret->name, "%.*s", (int)(shut - open - 1), open + 1);
    return true;
}

/* A debugger holds each thread that it watches, though it is dead. */
static bool all_threads_are_dead(pid_t pid)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    bool dead = d;
    for (struct dirent *e; dead && (e = readdir(d));)
        if (e->d_name[0] != '.') { /* /proc has threads, too, though it does not list them */
            const char state = proc_state((pid_t)atoi(e->d_name));
            dead = state == 'Z' || state == 'X' || state == '?';
        }
    if (d)
        closedir(d);
    return dead;
}

bool proc_is_dead(const struct proc *p)
{
    return p->state == 'Z' && (p->threads <= 1 || all_threads_are_dead(p->pid));
}

/* NULL: no memory. */
static struct proc *add(struct procs *ps)
{
    if (ps->n == ps->cap) {
        const size_t cap = ps->cap ? 2 * ps->cap : 128;
        struct proc *v = realloc(ps->v, cap * sizeof *v);
        if (!v)
            return NULL;
        ps->v = v;
        ps->cap = cap;
    }
    return &ps->v[ps->n++];
}

void procs_free(struct procs *ps)
{
    free(ps->v);
    *ps = (struct procs){0};
}

/* --- down a tree */

/* The pids of such a file, which a read(2) may cut anywhere. */
static void add_pids(struct procs *ps, int fd)
{
    char text[4096];
    ssize_t n;
    pid_t pid = 0;
    while ((n = read(fd, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (isdigit((unsigned char)text[i])) {
                pid = 10 * pid + (text[i] - '0');
                continue;
            }
            struct proc *p = pid > 0 ? add(ps) : NULL;
            if (p)
                p->pid = pid;
            pid = 0;
        }
}

/* The children of all threads of a process. */
static void add_children(struct procs *ps, pid_t of)
{
    char path[32], name[280];
    snprintf(path, sizeof path, "/proc/%d/task", (int)of);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/children", e->d_name);
        const int fd = openat(dirfd(d), name, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        add_pids(ps, fd);
        close(fd);
    }
    if (d)
        closedir(d);
}

/* Level by level. */
static void walk(struct procs *ps, pid_t root)
{
    add_children(ps, root);
    for (size_t i = 0; i < ps->n; i++) {
        const pid_t pid = ps->v[i].pid;
        proc_read(pid, &ps->v[i]);
        add_children(ps, pid);
    }
}

/* --- over all processes */

static int by_pid(const void *a, const void *b)
{
    return ((const struct proc *)a)->pid - ((const struct proc *)b)->pid;
}

static void read_all(struct procs *ps, DIR *d)
{
    bool sorted = true; /* as the kernel lists them */
    for (struct dirent *e; (e = readdir(d));) {
        struct proc p, *to;
        if (!isdigit((unsigned char)e->d_name[0]) || !proc_read((pid_t)atoi(e->d_name), &p))
            continue;
        sorted = sorted && (ps->n == 0 || ps->v[ps->n - 1].pid < p.pid);
        if (!(to = add(ps)))
            break;
        *to = p;
    }
    if (!sorted)
        qsort(ps->v, ps->n, sizeof *ps->v, by_pid);
}

enum kin { UNKNOWN, BELOW, ELSEWHERE };

static size_t find(const struct procs *ps, pid_t pid)
{
    const struct proc key = {.pid = pid}, *p = bsearch(&key, ps->v, ps->n, sizeof key, by_pid);
    return p ? (size_t)(p - ps->v) : ps->n;
}

/* Up from there until somebody is known, who then is known for all on the way. A torn snapshot may hold a circle. */
static void trace(const struct procs *ps, enum kin *kin, size_t from, pid_t root)
{
    enum kin found = ELSEWHERE;
    size_t at = from;
    for (size_t steps = 0; at < ps->n && steps <= ps->n && ps->v[at].pid != root; steps++) {
        if (kin[at] != UNKNOWN || ps->v[at].parent == root) {
            found = kin[at] != UNKNOWN ? kin[at] : BELOW;
            break;
        }
        at = find(ps, ps->v[at].parent);
    }
    for (at = from; at < ps->n && kin[at] == UNKNOWN; at = find(ps, ps->v[at].parent)) {
        kin[at] = found;
        if (ps->v[at].parent == root)
            break;
    }
}

static void keep_below(struct procs *ps, pid_t root)
{
    enum kin *kin = calloc(ps->n, sizeof *kin);
    size_t kept = 0;
    for (size_t i = 0; kin && i < ps->n; i++)
        if (kin[i] == UNKNOWN)
            trace(ps, kin, i, root);
    for (size_t i = 0; kin && i < ps->n; i++)
        if (kin[i] == BELOW)
            ps->v[kept++] = ps->v[i];
    ps->n = kept;
    free(kin);
}

bool procs_below(struct procs *ret, pid_t root)
{
    *ret = (struct procs){0};
    if (access("/proc/thread-self/children", R_OK) == 0) {
        walk(ret, root);
        return true;
    }
    DIR *d = opendir("/proc");
    if (!d)
        return false;
    read_all(ret, d);
    closedir(d);
    const bool any = ret->n > 0;
    if (any)
        keep_below(ret, root);
    return any;
}

/* --- what it waits for */

char proc_state(pid_t pid)
{
    struct proc p;
    proc_read(pid, &p);
    return p.state;
}

char *proc_wait_text(pid_t pid, char out[PROC_WAIT_MAX])
{
    char text[64];
    int number;
    out[0] = '\0';
    file_read_text(text, sizeof text, "/proc/%d/wchan", (int)pid);
    if (text[0] && strcmp(text, "0") != 0)
        snprintf(out, PROC_WAIT_MAX, " in %s", text);
    else if (file_read_text(text, sizeof text, "/proc/%d/syscall", (int)pid) > 0 && sscanf(text, "%d", &number) == 1 &&
             number >= 0)
        snprintf(out, PROC_WAIT_MAX, " in system call %d", number);
    return out;
}
