/* Starts the demo's crun, reads what it prints, and kills its rank 1. */
#include "worker/demo/job.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/file.h"

enum { FROM_CRUN, SIGNALS, FOLDER, WATCHED };
enum { EVENTS_MAX = 16 << 20 };

struct job {
    const struct job_options *o;
    struct job_result *result;
    pid_t crun;
    int fds[WATCHED];
    int output;         /* run/output */
    struct buf line;    /* of crun, so far */
    struct buf metrics; /* not yet looked at */
    int metrics_fd;     /* -1: not there yet */
    bool killed;
    sigset_t mask; /* of signals, as it was */
};

/* --- what crun prints */

static void keep_from(char *out, size_t cap, const char *line, const char *mark)
{
    const char *at = strstr(line, mark);
    if (at && !out[0])
        snprintf(out, cap, "%s", at);
}

static void note_line(struct job *j, const char *line)
{
    static const char accuracy[] = " * Acc@1 ";
    const char *at;
    keep_from(j->result->restart, sizeof j->result->restart, line, "restart 1/");
    keep_from(j->result->goes_on, sizeof j->result->goes_on, line, "goes on from step ");
    keep_from(j->result->goes_on, sizeof j->result->goes_on, line, "resumed from step "); /* no rank was held in time */
    if ((at = strstr(line, accuracy)))
        j->result->accuracy = strtod(at + sizeof accuracy - 1, NULL);
}

/* false: crun has closed it. */
static bool take_output(struct job *j)
{
    char bytes[16384];
    const ssize_t n = read(j->fds[FROM_CRUN], bytes, sizeof bytes);
    if (n <= 0)
        return n < 0 && errno == EINTR;
    fwrite(bytes, 1, (size_t)n, stdout);
    fflush(stdout);
    if (file_write_all(j->output, bytes, (size_t)n) < 0 || buf_add(&j->line, bytes, (size_t)n) < 0)
        return true; /* shown all the same */
    for (char *end; (end = memchr(j->line.data, '\n', j->line.len));) {
        *end = '\0';
        note_line(j, j->line.data);
        buf_consume(&j->line, (size_t)(end + 1 - j->line.data));
    }
    return true;
}

/* --- the kill */

/* Who is rank 1 now, by crun's log of events; 0: not known. */
static pid_t second_rank(const struct job *j)
{
    char path[PATH_MAX];
    struct buf text = {.max = EVENTS_MAX};
    pid_t pid = 0;
    snprintf(path, sizeof path, "%s/events.jsonl", j->o->run);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && file_read_all(fd, &text) == 0 && text.data)
        for (char *save = NULL, *line = strtok_r(text.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
            cJSON *event = cJSON_Parse(line);
            const char *kind = cJSON_GetStringValue(cJSON_GetObjectItem(event, "event"));
            const cJSON *rank = cJSON_GetObjectItem(event, "rank"), *its = cJSON_GetObjectItem(event, "pid");
            if (kind && strcmp(kind, "worker_started") == 0 && cJSON_IsNumber(rank) && rank->valueint == 1 &&
                cJSON_IsNumber(its))
                pid = its->valueint;
            cJSON_Delete(event);
        }
    if (fd >= 0)
        close(fd);
    buf_free(&text);
    return pid;
}

static void kill_second_rank(struct job *j, long long step)
{
    const pid_t pid = second_rank(j);
    if (pid <= 0 || kill(pid, SIGKILL) < 0)
        return; /* at a later step, then */
    j->killed = true;
    printf("== kill -9 %d (rank 1) after step %lld of %lld\n", (int)pid, step, (long long)j->o->steps_in_all);
    fflush(stdout);
}

/* Look at the steps that have been written since. */
static void look_at_steps(struct job *j)
{
    char path[PATH_MAX], bytes[16384];
    snprintf(path, sizeof path, "%s/metrics.jsonl", j->o->run);
    if (j->metrics_fd < 0)
        j->metrics_fd = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t n; j->metrics_fd >= 0 && (n = read(j->metrics_fd, bytes, sizeof bytes)) > 0;)
        if (buf_add(&j->metrics, bytes, (size_t)n) < 0)
            return;
    for (char *end; j->metrics.len && (end = memchr(j->metrics.data, '\n', j->metrics.len));) {
        long long step = 0;
        if (!j->killed && sscanf(j->metrics.data, "{\"step\":%lld", &step) == 1 && step >= j->o->kill_at)
            kill_second_rank(j, step);
        buf_consume(&j->metrics, (size_t)(end + 1 - j->metrics.data));
    }
}

/* --- the loop */

static void forward_signal(struct job *j)
{
    struct signalfd_siginfo s;
    if (read(j->fds[SIGNALS], &s, sizeof s) == sizeof s)
        kill(j->crun, (int)s.ssi_signo);
}

static void drop_events(int fd)
{
    char events[4096];
    while (read(fd, events, sizeof events) > 0)
        continue;
}

static void watch(struct job *j)
{
    for (;;) {
        struct pollfd p[WATCHED];
        for (int i = 0; i < WATCHED; i++)
            p[i] = (struct pollfd){.fd = j->fds[i], .events = POLLIN};
        if (poll(p, WATCHED, -1) < 0 && errno != EINTR) /* until crun ends, and crun's waits have deadlines */
            return;
        if (p[SIGNALS].revents)
            forward_signal(j);
        if (p[FOLDER].revents) {
            drop_events(j->fds[FOLDER]);
            look_at_steps(j);
        }
        if (p[FROM_CRUN].revents && !take_output(j))
            return;
    }
}

static void become_crun(const struct job *j, int out, pid_t parent)
{
    sigprocmask(SIG_SETMASK, &j->mask, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    dup2(out, 1);
    dup2(out, 2);
    unsetenv("OMP_WAIT_POLICY"); /* main() set them for this one process; each rank sees for itself */
    unsetenv("GOMP_SPINCOUNT");
    execv(j->o->argv[0], j->o->argv);
    fprintf(stderr, "trainer demo: %s cannot be run: %s\n", j->o->argv[0], strerror(errno));
    _exit(126);
}

static int start(struct job *j, struct err *e)
{
    int out[2];
    const pid_t self = getpid();
    if (pipe2(out, O_CLOEXEC) < 0)
        return err_errno(e, errno, "make a pipe");
    j->fds[FROM_CRUN] = out[0];
    fflush(stdout);
    j->crun = fork();
    if (j->crun == 0)
        become_crun(j, out[1], self);
    close(out[1]);
    return j->crun < 0 ? err_errno(e, errno, "start %s", j->o->argv[0]) : 0;
}

static int open_all(struct job *j, struct err *e)
{
    char path[PATH_MAX];
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGINT);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGHUP);
    sigprocmask(SIG_BLOCK, &stops, &j->mask);
    j->fds[SIGNALS] = signalfd(-1, &stops, SFD_CLOEXEC);
    j->fds[FOLDER] = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (j->fds[SIGNALS] < 0 || j->fds[FOLDER] < 0 || inotify_add_watch(j->fds[FOLDER], j->o->run, IN_MODIFY) < 0)
        return err_errno(e, errno, "watch %s", j->o->run);
    snprintf(path, sizeof path, "%s/output", j->o->run);
    j->output = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    return j->output < 0 ? err_set(e, ERR_OUTPUT, "create %s: %s", path, strerror(errno)) : start(j, e);
}

static void close_all(struct job *j)
{
    for (int i = 0; i < WATCHED; i++)
        if (j->fds[i] >= 0)
            close(j->fds[i]);
    if (j->output >= 0)
        close(j->output);
    if (j->metrics_fd >= 0)
        close(j->metrics_fd);
    buf_free(&j->line);
    buf_free(&j->metrics);
    sigprocmask(SIG_SETMASK, &j->mask, NULL);
}

int job_run(const struct job_options *o, struct job_result *ret, struct err *e)
{
    struct job j = {.o = o, .result = ret, .fds = {-1, -1, -1}, .output = -1, .metrics_fd = -1};
    int status = 0;
    *ret = (struct job_result){.accuracy = -1};
    int rc = open_all(&j, e);
    if (rc == 0) {
        watch(&j);
        while (waitpid(j.crun, &status, 0) < 0 && errno == EINTR)
            continue;
        ret->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    close_all(&j);
    return rc;
}
