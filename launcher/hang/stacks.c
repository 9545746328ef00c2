#include "launcher/hang/stacks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "launcher/hang/stacks_dw.h"

#define THREADS_MAX 512
#define FILE_MAX_BYTES (8u << 20)
#define STOP_MS 500 /* for all threads; one that hangs in the kernel does not stop */
#define TOP_FRAMES 12

struct thread {
    pid_t tid;
    bool seized, held; /* under ptrace; and stopped by it */
    int signo;         /* that ptrace kept from it, 0: none */
};

struct job {
    const struct stacks_request *r;
    struct thread threads[THREADS_MAX];
    int n;
    struct buf out;
    char refused[512]; /* why there are no call stacks, "": there are */
};

/* --- /proc */

/* Up to cap - 1 bytes of a file of the process or thread; "" if it cannot be read. NULs become spaces. */
static char *slurp(pid_t pid, pid_t tid, const char *name, char *out, size_t cap)
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

/* Text behind "name:" in a status file, up to the end of its line; NULL if there is none. */
static const char *field(const char *status, const char *name)
{
    for (const char *line = status; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        const size_t n = strlen(name);
        if (strncmp(line, name, n) == 0 && line[n] == ':')
            return line + n + 1 + strspn(line + n + 1, " \t");
    }
    return NULL;
}

bool stacks_look(pid_t pid, bool *ret_stopped, bool *ret_traced)
{
    char status[4096];
    slurp(pid, 0, "status", status, sizeof status);
    const char *state = field(status, "State"), *tracer = field(status, "TracerPid"),
               *core = field(status, "CoreDumping");
    if (!state)
        return false;
    *ret_traced = (tracer && atoi(tracer) != 0) || (core && *core == '1');
    *ret_stopped = *state == 'T' && !*ret_traced;
    return true;
}

static int list_threads(struct job *j)
{
    char path[64];
    struct dirent *d;
    snprintf(path, sizeof path, "/proc/%d/task", (int)j->r->pid);
    DIR *dir = opendir(path);
    if (!dir)
        return -errno;
    while (j->n < THREADS_MAX && (d = readdir(dir)))
        if (d->d_name[0] != '.')
            j->threads[j->n++].tid = (pid_t)atoi(d->d_name);
    closedir(dir);
    return 0;
}

/* What the kernel says of it; before ptrace changes it. */
static int describe(struct job *j, const struct thread *t)
{
    char status[4096], text[2048];
    const pid_t pid = j->r->pid;
    slurp(pid, t->tid, "status", status, sizeof status);
    const char *state = field(status, "State"), *name = field(status, "Name");
    TRY(buf_printf(&j->out, "\nthread %d (%.*s): state %.*s", (int)t->tid, name ? (int)strcspn(name, "\n") : 1,
                   name ? name : "?", state ? (int)strcspn(state, "\n") : 1, state ? state : "?"));
    TRY(buf_printf(&j->out, ", waits in %s", slurp(pid, t->tid, "wchan", text, sizeof text)[0] ? text : "?"));
    TRY(buf_printf(&j->out, ", system call %s\n", slurp(pid, t->tid, "syscall", text, sizeof text)[0] ? text : "?"));
    slurp(pid, t->tid, "stack", text, sizeof text);
    for (char *line = text, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        TRY(buf_printf(&j->out, "  kernel %.*s\n", (int)(end - line), line));
        end += *end == '\n';
    }
    return 0;
}

/* --- ptrace */

/* The end of its first thread is the end of the process: crun's loop must hear of that, so it is looked at, not
 * taken. */
static bool has_stopped(const struct job *j, struct thread *t)
{
    siginfo_t info = {0};
    if (t->held || !t->seized)
        return true;
    const int rc = waitid(P_PID, (id_t)t->tid, &info, WSTOPPED | WEXITED | WNOHANG | WNOWAIT | __WALL);
    if (rc == 0 && info.si_pid == 0)
        return false;
    t->held = rc == 0 && (info.si_code == CLD_TRAPPED || info.si_code == CLD_STOPPED);
    t->seized = t->held; /* or it ended */
    if (t->held)
        t->signo = info.si_status >> 8 ? 0 : info.si_status;
    if (t->held || t->tid != j->r->pid)
        waitid(P_PID, (id_t)t->tid, &info, (t->held ? WSTOPPED : WEXITED) | WNOHANG | __WALL);
    return true;
}

/* ptrace tells of stops by waitpid() only, which knows no deadline: looked at each millisecond. */
static void hold(struct job *j)
{
    const int64_t deadline = clock_ms() + STOP_MS;
    for (int i = 0; i < j->n; i++) {
        struct thread *t = &j->threads[i];
        t->seized = ptrace(PTRACE_SEIZE, t->tid, NULL, NULL) == 0;
        if (!t->seized && errno != ESRCH && !j->refused[0])
            snprintf(j->refused, sizeof j->refused, "ptrace: %s", strerror(errno));
        if (t->seized)
            ptrace(PTRACE_INTERRUPT, t->tid, NULL, NULL);
    }
    for (bool all = false, last = false; !all && !last;) {
        last = clock_ms() >= deadline || atomic_load(j->r->cancel); /* we may have stood still: look once in any case */
        all = true;
        for (int i = 0; i < j->n; i++)
            all = has_stopped(j, &j->threads[i]) && all;
        if (!all && !last)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* One that stops after this last look is let go when the calling thread ends. */
static void let_go(struct job *j)
{
    for (int i = 0; i < j->n; i++)
        if (has_stopped(j, &j->threads[i]) && j->threads[i].held)
            ptrace(PTRACE_DETACH, j->threads[i].tid, NULL, (void *)(intptr_t)j->threads[i].signo);
}

/* --- the file */

static void keep_top(const struct job *j, const char *frames)
{
    const char *end = frames;
    for (int i = 0; i < TOP_FRAMES && *end; i++)
        end += strcspn(end, "\n") + (end[strcspn(end, "\n")] == '\n');
    if (j->r->top)
        snprintf(j->r->top, j->r->top_cap, "%.*s", (int)(end - frames), frames);
}

static int walk(struct job *j, struct stacks_dw *dw, const struct thread *t, const char *kernel)
{
    struct err e = {0};
    TRY(buf_addstr(&j->out, kernel));
    const size_t at = j->out.len;
    if (!t->held)
        return buf_addstr(&j->out, "  (no call stack: it does not stop)\n");
    if (stacks_dw_thread(dw, t->tid, j->r->cancel, &j->out, &e) < 0)
        return buf_printf(&j->out, "  (no call stack: %s)\n", e.text);
    if (t->tid == j->r->pid)
        keep_top(j, j->out.data + at);
    return 0;
}

/* kernel[i]: what describe() said of thread i. */
static int walk_all(struct job *j, char **kernel)
{
    struct stacks_dw *dw = NULL;
    struct err e = {0};
    int rc = 0;
    hold(j);
    if (!j->refused[0] && stacks_dw_open(&dw, j->r->pid, &e) < 0)
        snprintf(j->refused, sizeof j->refused, "%s", e.text);
    if (j->refused[0])
        rc = buf_printf(&j->out, "(no call stacks: %s)\n", j->refused);
    for (int i = 0; rc == 0 && i < j->n; i++)
        rc = dw ? walk(j, dw, &j->threads[i], kernel[i]) : buf_addstr(&j->out, kernel[i]);
    stacks_dw_close(dw);
    let_go(j);
    return rc;
}

static int describe_all(struct job *j)
{
    char *kernel[THREADS_MAX], command[1024], time[CLOCK_ISO_LEN];
    int rc = 0, told = 0;
    struct buf whole = j->out;
    for (; rc == 0 && told < j->n; told++) { /* before ptrace changes it */
        buf_init(&j->out, FILE_MAX_BYTES);
        rc = describe(j, &j->threads[told]);
        kernel[told] = j->out.data ? j->out.data : strdup("");
    }
    j->out = whole;
    if (rc == 0)
        rc = buf_printf(&j->out, "%s\ntime %s, pid %d, %d threads: %s\n", j->r->head, clock_iso(time, sizeof time),
                        (int)j->r->pid, j->n, slurp(j->r->pid, 0, "cmdline", command, sizeof command));
    if (rc == 0)
        rc = walk_all(j, kernel);
    for (int i = 0; i < told; i++)
        free(kernel[i]);
    return rc;
}

static int write_out(const struct job *j, struct err *e)
{
    FILE *f = fopen(j->r->path, "we");
    if (!f)
        return err_errno(e, errno, "%s", j->r->path);
    const bool whole = fwrite(j->out.data, 1, j->out.len, f) == j->out.len;
    const int why = errno;
    return fclose(f) == 0 && whole ? 0 : err_errno(e, why, "%s", j->r->path);
}

int stacks_save(const struct stacks_request *r, struct err *e)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return err_errno(e, ENOMEM, "call stacks");
    j->r = r;
    buf_init(&j->out, FILE_MAX_BYTES);
    int rc = list_threads(j);
    if (rc == 0)
        rc = describe_all(j);
    if (rc < 0)
        err_errno(e, -rc, "threads of process %d", (int)r->pid);
    else
        rc = write_out(j, e);
    buf_free(&j->out);
    free(j);
    return rc;
}
