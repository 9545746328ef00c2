/* Collects the call stacks of a process from /proc, and from py-spy or eu-stack (stacks.h). */
#include "launcher/hang/stacks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "launcher/guard/procs.h"
#include "launcher/hang/tool.h"

#define THREADS_MAX 512
#define TOOL_MS 4000
#define TOOL_BYTES (1u << 20)
#define TOP_FRAMES 12

/* The tools that print call stacks, the best first. */
static const struct walker {
    const char *name, *args[3]; /* the process id follows */
    const char *stopped;        /* and this, if the process is stopped: it cannot be stopped again, and waits */
    const char *thread;         /* begins a thread in what it prints */
    bool python;                /* only for Python programs */
} walkers[] = {
    {"py-spy", {"dump", "--pid"}, "--nonblocking", "Thread ", true},
    {"eu-stack", {"-m", "-p"}, NULL, "TID ", false},
};

/* --- /proc */

/* Read up to cap - 1 bytes of a /proc file of the process or thread; "" if that fails. NULs become spaces. */
static char *read_proc(pid_t pid, pid_t tid, const char *name, char *out, size_t cap)
{
    int n = tid ? file_read_text(out, cap, "/proc/%d/task/%d/%s", (int)pid, (int)tid, name)
                : file_read_text(out, cap, "/proc/%d/%s", (int)pid, name);
    n = n > 0 ? n : 0;
    for (int i = 0; i < n; i++)
        out[i] = out[i] ? out[i] : ' ';
    while (n > 0 && (out[n - 1] == '\n' || out[n - 1] == ' '))
        n--;
    out[n] = '\0';
    return out;
}

/* Is the process stopped, and does a debugger trace it? From its status file. */
bool stacks_look(pid_t pid, bool *ret_stopped, bool *ret_traced)
{
    char state[PROC_FIELD_MAX], tracer[PROC_FIELD_MAX], core[PROC_FIELD_MAX];
    if (!proc_field(pid, "State", state))
        return false;
    proc_field(pid, "TracerPid", tracer);
    proc_field(pid, "CoreDumping", core);
    *ret_traced = atoi(tracer) != 0 || atoi(core) == 1;
    *ret_stopped = state[0] == 'T' && !*ret_traced;
    return true;
}

static int list_threads(pid_t pid, pid_t *tids)
{
    char path[64];
    struct dirent *d;
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    if (!dir)
        return -errno;
    while (n < THREADS_MAX && (d = readdir(dir)))
        if (d->d_name[0] != '.')
            tids[n++] = (pid_t)atoi(d->d_name);
    closedir(dir);
    return n;
}

static int add_thread(struct buf *out, pid_t pid, pid_t tid)
{
    char state[PROC_FIELD_MAX], name[PROC_FIELD_MAX], text[2048];
    const bool known = proc_field(tid, "State", state) && proc_field(tid, "Name", name); /* of a thread, too */
    TRY(buf_printf(out, "\nthread %d (%s): state %s", (int)tid, known ? name : "?", known ? state : "?"));
    TRY(buf_printf(out, ", waits in %s", read_proc(pid, tid, "wchan", text, sizeof text)[0] ? text : "?"));
    TRY(buf_printf(out, ", system call %s\n", read_proc(pid, tid, "syscall", text, sizeof text)[0] ? text : "?"));
    read_proc(pid, tid, "stack", text, sizeof text);
    for (char *line = text, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        TRY(buf_printf(out, "  kernel %.*s\n", (int)(end - line), line));
        end += *end == '\n';
    }
    return 0;
}

static int add_threads(struct buf *out, const struct stacks_request *r)
{
    char command[1024], time[CLOCK_ISO_LEN];
    pid_t tids[THREADS_MAX];
    const int n = list_threads(r->pid, tids);
    TRY(n);
    TRY(buf_printf(out, "%s\ntime %s, pid %d, %d threads: %s\n", r->head, clock_iso(time, sizeof time), (int)r->pid, n,
                   read_proc(r->pid, 0, "cmdline", command, sizeof command)));
    for (int i = 0; i < n; i++)
        TRY(add_thread(out, r->pid, tids[i]));
    return 0;
}

/* --- tools */

static bool is_python(pid_t pid)
{
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/%d/exe", (int)pid);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    const char *slash = strrchr(path, '/');
    return slash && strncmp(slash + 1, "python", 6) == 0;
}

static const char *next_line(const char *p)
{
    p += strcspn(p, "\n");
    return p + (*p == '\n');
}

/* The beginning of thread tid's frames; of the first thread's if tid is not in the text. NULL: there are none. */
static const char *frames_of(const char *text, const struct walker *w, pid_t tid)
{
    const size_t n = strlen(w->thread);
    const char *first = NULL;
    for (const char *p = text; *p; p = next_line(p)) {
        if (strncmp(p, w->thread, n) != 0 || !*next_line(p))
            continue;
        if (atoi(p + n) == tid)
            return next_line(p);
        first = first ? first : next_line(p);
    }
    return first;
}

static void keep_top(const struct stacks_request *r, const char *frames, const struct walker *w)
{
    const char *end = frames;
    for (int i = 0; i < TOP_FRAMES && *end && *end != '\n' && strncmp(end, w->thread, strlen(w->thread)) != 0; i++)
        end = next_line(end);
    size_t len = 0;
    for (const char *p = frames; r->top && p < end && len + 1 < r->top_cap; p = next_line(p))
        len += (size_t)snprintf(r->top + len, r->top_cap - len, "%s%.*s\n", *p == ' ' ? "" : "  ",
                                (int)strcspn(p, "\n"), p);
}

/* The line of a tool's complaint that says why: backtraces and hints may stand around it. */
static const char *line_of_error(const char *text)
{
    for (const char *p = text; *p; p = next_line(p))
        if (strncmp(p, "Error", 5) == 0)
            return p;
    return text;
}

/* Run one tool. 1: it printed stacks; 0: it did not; unless it is not installed, the text says why. */
static int run_walker(struct buf *out, const struct stacks_request *r, const struct walker *w, int64_t deadline)
{
    bool stopped = false, traced;
    stacks_look(r->pid, &stopped, &traced);
    char pid[16], *last = (char *)(stopped ? w->stopped : NULL);
    char *argv[] = {(char *)w->name, (char *)w->args[0], (char *)w->args[1], pid, last, NULL};
    struct buf text;
    struct err e = {0};
    snprintf(pid, sizeof pid, "%d", (int)r->pid);
    buf_init(&text, TOOL_BYTES);
    int rc = tool_run(argv, clock_left(deadline), r->cancel, &text, &e);
    if (rc < 0 && rc != -ENOENT)
        kill(r->pid, SIGCONT); /* if a tracer is killed while attaching, the kernel leaves the process stopped */
    const char *frames = text.data ? frames_of(text.data, w, r->pid) : NULL;
    if (frames) {
        keep_top(r, frames, w);
        rc = buf_printf(out, "\n%s:\n%s%s%s", w->name, text.data, rc < 0 ? "\nincomplete: " : "", rc < 0 ? e.text : "");
    } else if (rc != -ENOENT) {
        const char *why = rc < 0 ? e.text : text.data ? line_of_error(text.data) : "it says nothing";
        rc = buf_printf(out, "\n(no call stacks of %s: %.*s)\n", w->name, (int)strcspn(why, "\n"), why);
    }
    buf_free(&text);
    return frames ? rc < 0 ? rc : 1 : rc == -ENOENT ? 0 : rc;
}

static int add_stacks(struct buf *out, const struct stacks_request *r)
{
    const size_t before = out->len;
    const bool python = is_python(r->pid);
    const int64_t deadline = clock_deadline(TOOL_MS); /* of all tools together */
    int walked = 0;
    for (size_t i = 0; i < sizeof walkers / sizeof *walkers && walked == 0; i++)
        if (python || !walkers[i].python)
            walked = run_walker(out, r, &walkers[i], deadline);
    if (walked < 0 || out->len > before)
        return walked < 0 ? walked : 0;
    return buf_printf(out, "\n(no call stacks: %seu-stack (Debian: elfutils) is not on PATH)\n",
                      python ? "py-spy (pip install py-spy) or " : "");
}

int stacks_collect(const struct stacks_request *r, struct buf *out, struct err *e)
{
    buf_init(out, STACKS_BYTES);
    int rc = add_threads(out, r);
    if (rc == 0)
        rc = add_stacks(out, r);
    return rc < 0 ? err_errno(e, -rc, "threads of process %d", (int)r->pid) : 0;
}
