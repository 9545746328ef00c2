/* Reads the processes below one, and facts of single processes, from /proc (procs.h). */
#include "launcher/guard/procs.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/file.h"

#define FILE_MAX (8 << 20)

/* Fields of a line of /proc/PID/stat, from the state on. */
enum {
    STAT_STATE,
    STAT_PARENT,
    STAT_GROUP,
    STAT_SESSION,
    STAT_TIMES = 11, /* utime stime cutime cstime */
    STAT_THREADS = 17,
    STAT_STARTED = 19,
    STAT_END_SIGNAL = 35,
    STAT_FIELDS
};

/* Parse the numbers by hand, because reading every process of a big host consists of little else. False: too few
 * numbers. */
static bool read_fields(const char *at, int64_t v[STAT_FIELDS])
{
    for (int i = STAT_PARENT; i < STAT_FIELDS; i++) {
        while (*at && *at != ' ')
            at++;
        at += *at == ' ';
        const bool is_negative = *at == '-';
        at += is_negative;
        if (*at < '0' || *at > '9')
            return false;
        uint64_t n = 0; /* some are addresses, and fill it */
        while (*at >= '0' && *at <= '9')
            n = 10 * n + (uint64_t)(*at++ - '0');
        v[i] = is_negative ? -(int64_t)n : (int64_t)n;
    }
    return true;
}

static int64_t cpu_time(const int64_t times[4])
{
    return (times[0] + times[1] + times[2] + times[3]) * (INT64_C(1000000000) / sysconf(_SC_CLK_TCK));
}

/* Parse "PID (name) state ppid ...". The name may contain spaces and parentheses, so find the last one. */
static bool parse_stat(const char *line, size_t n, struct proc *ret)
{
    const char *open = memchr(line, '(', n), *shut = memrchr(line, ')', n);
    int64_t v[STAT_FIELDS];
    if (!open || !shut || shut[1] != ' ' || !read_fields(shut + 2, v))
        return false;
    const size_t named = (size_t)(shut - open - 1), kept = sizeof ret->name - 1;
    ret->state = shut[2];
    ret->parent = (pid_t)v[STAT_PARENT];
    ret->group = (pid_t)v[STAT_GROUP];
    ret->session = (pid_t)v[STAT_SESSION];
    ret->started = v[STAT_STARTED];
    ret->cpu_ns = cpu_time(v + STAT_TIMES);
    ret->threads = (int)v[STAT_THREADS];
    ret->is_silent = v[STAT_END_SIGNAL] == 0;
    memcpy(ret->name, open + 1, named < kept ? named : kept);
    ret->name[named < kept ? named : kept] = '\0';
    return true;
}

/* Read a stat file; path: relative to folder. */
static bool read_stat(int folder, const char *path, pid_t pid, struct proc *ret)
{
    char line[1280]; /* more than 52 numbers of 64 bits and a name need */
    *ret = (struct proc){.pid = pid, .state = '?', .name = "?"};
    const int fd = openat(folder, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    line[n > 0 ? n : 0] = '\0';
    return n > 0 && parse_stat(line, (size_t)n, ret);
}

bool proc_read(pid_t pid, struct proc *ret)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    return read_stat(AT_FDCWD, path, pid, ret);
}

/* The first thread of a process that is alive; false: there is none. */
static bool find_living_thread(pid_t pid, struct proc *ret)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    bool found = !d;
    for (struct dirent *e; !found && d && (e = readdir(d));)
        if (e->d_name[0] != '.') /* /proc/TID exists for threads, too, though /proc does not list them */
            found = proc_read((pid_t)atoi(e->d_name), ret) && ret->state != 'Z' && ret->state != 'X';
    if (d)
        closedir(d);
    return found;
}

/* Is the process dead, with all its threads? A debugger keeps each thread that it traces as a zombie. */
bool proc_is_dead(const struct proc *p)
{
    struct proc thread;
    return p->state == 'Z' && (p->threads <= 1 || !find_living_thread(p->pid, &thread));
}

struct proc proc_living(const struct proc *p)
{
    struct proc thread = *p;
    return p->state == 'Z' && find_living_thread(p->pid, &thread) ? thread : *p;
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

/* Add the pids in such a file; read(2) may cut it anywhere. */
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

static void add_children_at(struct procs *ps, int folder, const char *path)
{
    const int fd = openat(folder, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    add_pids(ps, fd);
    close(fd);
}

/* Add the children of all threads of a process. */
static void add_children(struct procs *ps, pid_t of)
{
    char path[32], name[280];
    snprintf(path, sizeof path, "/proc/%d/task", (int)of);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "%s/children", e->d_name);
        add_children_at(ps, dirfd(d), name);
    }
    if (d)
        closedir(d);
}

/* Those of a process with one thread. */
static void add_only_children(struct procs *ps, pid_t of)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)of, (int)of);
    add_children_at(ps, AT_FDCWD, path);
}

/* Level by level. */
static void walk(struct procs *ps, pid_t root)
{
    add_children(ps, root);
    for (size_t i = 0; i < ps->n; i++) {
        const pid_t pid = ps->v[i].pid;
        if (proc_read(pid, &ps->v[i]) && ps->v[i].threads == 1)
            add_only_children(ps, pid);
        else
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
    char path[32];
    for (struct dirent *e; (e = readdir(d));) {
        struct proc p, *to;
        if (!isdigit((unsigned char)e->d_name[0]))
            continue;
        snprintf(path, sizeof path, "%.16s/stat", e->d_name);
        if (!read_stat(dirfd(d), path, (pid_t)atoi(e->d_name), &p))
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

/* Walk up the parents until one is known, and mark all on the way like it. A torn snapshot may contain a circle. */
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
    for (size_t i = 0; kin && i < ps->n; i++) {
        const bool is_sibling = i > 0 && ps->v[i].parent == ps->v[i - 1].parent && ps->v[i - 1].pid != root;
        if (kin[i] == UNKNOWN && is_sibling && ps->v[i].pid != root)
            kin[i] = kin[i - 1];
        else if (kin[i] == UNKNOWN)
            trace(ps, kin, i, root);
    }
    for (size_t i = 0; kin && i < ps->n; i++)
        if (kin[i] == BELOW)
            ps->v[kept++] = ps->v[i];
    ps->n = kept;
    free(kin);
}

bool procs_all(struct procs *ret)
{
    *ret = (struct procs){0};
    DIR *d = opendir("/proc");
    if (!d)
        return false;
    read_all(ret, d);
    closedir(d);
    return ret->n > 0;
}

bool procs_below(struct procs *ret, pid_t root)
{
    *ret = (struct procs){0};
    if (access("/proc/thread-self/children", R_OK) == 0) {
        walk(ret, root);
        return true;
    }
    const bool any = procs_all(ret);
    if (any)
        keep_below(ret, root);
    return any;
}

/* --- one of them */

uid_t proc_uid(pid_t pid)
{
    char path[32];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d", (int)pid);
    return stat(path, &st) == 0 ? st.st_uid : (uid_t)-1;
}

struct buf proc_file(pid_t pid, const char *name)
{
    char path[48];
    struct buf b;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    buf_init(&b, FILE_MAX);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return b;
    if (file_read_all(fd, &b) < 0)
        b.len = 0;
    close(fd);
    return b;
}

bool proc_field(pid_t pid, const char *name, char out[PROC_FIELD_MAX])
{
    const size_t n = strlen(name);
    struct buf b = proc_file(pid, "status");
    bool found = false;
    out[0] = '\0';
    for (const char *at = b.data, *end = at + b.len; at < end && !found;) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        const size_t len = (size_t)((line_end ? line_end : end) - at);
        found = len > n && memcmp(at, name, n) == 0 && at[n] == ':';
        for (size_t from = n + 1; found && !out[0]; from++)
            if (at[from] != ' ' && at[from] != '\t')
                snprintf(out, PROC_FIELD_MAX, "%.*s", (int)(len - from), at + from);
        at += len + 1;
    }
    buf_free(&b);
    return found;
}

const char *proc_variable(const struct buf *environment, const char *name)
{
    const size_t n = strlen(name);
    for (size_t at = 0; at < environment->len; at += strlen(environment->data + at) + 1)
        if (strncmp(environment->data + at, name, n) == 0 && environment->data[at + n] == '=')
            return environment->data + at + n + 1;
    return NULL;
}

bool proc_carries(pid_t pid, const char *variable)
{
    struct buf b = proc_file(pid, "environ");
    bool found = false;
    for (size_t at = 0; at < b.len && !found; at += strlen(b.data + at) + 1)
        found = strcmp(b.data + at, variable) == 0;
    buf_free(&b);
    return found;
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
