/* Starts a doctor-agent on each host, and exchanges requests and answers with it (doctor_host.h). */
#include "launcher/tools/doctor/doctor_host.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/base/file.h"
#include "common/job/exitcode.h"
#include "launcher/base/program_file.h"
#include "launcher/tools/doctor/doctor_agent.h"

#define LAST_READS 64 /* a pipe holds 16 of them */
#define END_MS 2000

static int64_t wall_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* --- beginnings and ends */

static void become(const struct remote_shell *s, const struct host *h, const char *rsh, const int fds[3])
{
    char *local[] = {(char *)s->crun, (char *)DOCTOR_COMMAND, NULL}, *far[REMOTE_RSH_WORDS + 3];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < 3; i++)
        dup2(fds[i], i);
    signal(SIGPIPE, SIG_DFL);
    remote_shell_words(s, h, far);
    if (rsh)
        execv(rsh, far);
    else
        execv("/proc/self/exe", local);
    _exit(EXIT_CANNOT_EXEC);
}

/* Start the agent of a host. rsh: path of the program that reaches it, NULL: it is this machine. */
static int start(struct doctor_host *h, const struct remote_shell *s, const char *rsh, struct err *e)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    bool ok = pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0;
    h->pid = ok ? fork() : -1;
    if (h->pid == 0)
        become(s, h->host, rsh, (int[3]){in[0], out[1], err[1]});
    const int why = errno;
    close_fd(&in[0]);
    close_fd(&out[1]);
    close_fd(&err[1]);
    h->in = in[1];
    h->out = out[0];
    h->err = err[0];
    if (h->pid < 0)
        return err_start(e, why, "cannot start a process for host %s", h->host->name);
    return 0;
}

int doctor_hosts_open(struct doctor_host **ret, const struct hosts *hosts, const struct remote_shell *shell,
                      struct err *e)
{
    char *rsh = NULL;
    int rc = 0;
    bool *local = calloc((size_t)hosts->n, sizeof *local);
    *ret = calloc((size_t)hosts->n, sizeof **ret);
    if (!*ret || !local) {
        free(*ret);
        free(local);
        *ret = NULL;
        return err_errno(e, ENOMEM, "hosts");
    }
    remote_find_local(hosts->v, hosts->n, -1, local);
    for (int i = 0; i < hosts->n; i++) {
        struct doctor_host *h = &(*ret)[i];
        h->host = &hosts->v[i];
        h->address = host_address(h->host);
        h->in = h->out = h->err = h->end = -1;
        buf_init(&h->partial, DOCTOR_LINE_MAX);
    }
    for (int i = 0; i < hosts->n && rc == 0; i++) {
        if (!local[i] && !rsh && (rc = program_file_find(shell->rsh[0], &rsh, e)) < 0)
            err_wrap(e, "--rsh");
        else
            rc = start(&(*ret)[i], shell, local[i] ? NULL : rsh, e);
    }
    free(rsh);
    free(local);
    if (rc < 0) {
        doctor_hosts_close(*ret, hosts->n);
        *ret = NULL;
    }
    return rc;
}

static void drop(struct doctor_host *h)
{
    close_fd(&h->in);
    close_fd(&h->out);
    close_fd(&h->err);
    close_fd(&h->end);
    if (h->pid > 0) {
        kill(h->pid, SIGKILL);
        waitpid(h->pid, NULL, 0);
    }
    h->pid = 0;
    h->gone = true;
    h->waits = false;
}

void doctor_hosts_close(struct doctor_host *v, int n)
{
    const int64_t deadline = clock_deadline(END_MS);
    for (int i = 0; v && i < n; i++)
        close_fd(&v[i].in); /* ends it */
    for (int i = 0; v && i < n; i++) {
        struct pollfd p = {.fd = v[i].out, .events = POLLIN};
        if (v[i].out >= 0)
            poll(&p, 1, clock_left(deadline));
        drop(&v[i]);
        buf_free(&v[i].partial);
        cJSON_Delete(v[i].answer);
    }
    free(v);
}

/* --- asking */

cJSON *doctor_request(const char *word)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "do", word);
    return o;
}

void doctor_host_ask(struct doctor_host *h, cJSON *request)
{
    char *text = cJSON_PrintUnformatted(request);
    cJSON_Delete(request);
    cJSON_Delete(h->answer);
    h->answer = NULL;
    if (text && !h->gone) {
        h->asked_us = wall_us();
        file_write_all(h->in, text, strlen(text)); /* if the agent is gone, the end of its output shows that */
        file_write_all(h->in, "\n", 1);
        h->waits = true;
    }
    free(text);
}

/* --- answers */

static void take_line(struct doctor_host *h, const char *line)
{
    if (strncmp(line, DOCTOR_MARK, strlen(DOCTOR_MARK)) != 0 || !h->waits)
        return;
    h->answered_us = wall_us();
    h->answer = cJSON_ParseWithLength(line + strlen(DOCTOR_MARK), strlen(line + strlen(DOCTOR_MARK)));
    h->heard = true;
    h->waits = false;
}

/* Read its standard error, and keep the last line. */
static void read_err(struct doctor_host *h)
{
    char text[4096], *rest = NULL;
    const ssize_t n = read(h->err, text, sizeof text - 1);
    if (n <= 0) {
        close_fd(&h->err);
        return;
    }
    text[n] = '\0';
    for (char *line = strtok_r(text, "\r\n", &rest); line; line = strtok_r(NULL, "\r\n", &rest))
        snprintf(h->last, sizeof h->last, "%.255s", line);
}

/* Read what is there now, without waiting for the end: an ssh in the background may keep that pipe open. */
static void read_last_words(struct doctor_host *h)
{
    struct pollfd more = {.fd = h->err, .events = POLLIN};
    for (int i = 0; i < LAST_READS && h->err >= 0 && poll(&more, 1, 0) > 0; i++)
        read_err(h);
}

static void say_ended(struct doctor_host *h)
{
    int status = 0;
    if (h->pid > 0)
        waitpid(h->pid, &status, 0);
    h->pid = 0;
    read_last_words(h);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    snprintf(h->why, sizeof h->why, "%s exit code %d%s%s",
             h->heard ? "crun there ended with" : "nothing began there:", code, h->last[0] ? ": " : "", h->last);
    drop(h);
}

static void read_out(struct doctor_host *h)
{
    char text[16384];
    const ssize_t n = read(h->out, text, sizeof text);
    if (n <= 0 || buf_add(&h->partial, text, (size_t)n) < 0) {
        close_fd(&h->out);
        h->end = (int)syscall(SYS_pidfd_open, h->pid, 0); /* that may be long before it ends */
        if (h->end < 0)                                   /* an old kernel */
            say_ended(h);
        return;
    }
    for (char *end; h->partial.len > 0 && (end = memchr(h->partial.data, '\n', h->partial.len));) {
        *end = '\0';
        take_line(h, h->partial.data);
        buf_consume(&h->partial, (size_t)(end - h->partial.data) + 1);
    }
}

static int fill(const struct doctor_host *v, int n, struct pollfd *p)
{
    int waiting = 0;
    for (int i = 0; i < n; i++) {
        p[2 * i] = (struct pollfd){.fd = !v[i].waits ? -1 : v[i].out < 0 ? v[i].end : v[i].out, .events = POLLIN};
        p[2 * i + 1] = (struct pollfd){.fd = v[i].waits ? v[i].err : -1, .events = POLLIN};
        waiting += v[i].waits;
    }
    return waiting;
}

static void give_up(struct doctor_host *h, int64_t timeout_ms)
{
    snprintf(h->why, sizeof h->why, "%s within %lld s%s%s",
             h->heard ? "crun there did not answer" : "nothing began there", (long long)(timeout_ms / 1000),
             h->last[0] ? ": " : "", h->last);
    drop(h);
}

void doctor_hosts_wait(struct doctor_host *v, int n, int64_t timeout_ms)
{
    const int64_t deadline = clock_deadline(timeout_ms);
    struct pollfd *p = calloc(2 * (size_t)n, sizeof *p);
    while (p && fill(v, n, p) > 0 && clock_left(deadline) > 0) {
        if (poll(p, 2 * (nfds_t)n, clock_left(deadline)) <= 0)
            continue;
        for (int i = 0; i < n; i++) {
            if (v[i].err >= 0 && p[2 * i + 1].revents)
                read_err(&v[i]);
            if (p[2 * i].revents && v[i].out < 0)
                say_ended(&v[i]);
            else if (p[2 * i].revents)
                read_out(&v[i]);
        }
    }
    for (int i = 0; i < n; i++)
        if (v[i].waits)
            give_up(&v[i], timeout_ms);
    free(p);
}
