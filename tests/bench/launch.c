#include "tests/bench/launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define STAMP_MS 30000
#define BOUNDS_MAX 64

static int fifo_fd = -1;
static struct launch_bound bounds[BOUNDS_MAX];
static int n_bounds;

void launch_die(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fflush(stdout);
    fputs("bench_launch: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

int launch_runs(const struct launch_options *o, int runs)
{
    const int n = (int)(runs * o->effort + 0.5);
    return n < 3 ? 3 : n;
}

void launch_expect(const char *name, double value, double aim)
{
    if (n_bounds == BOUNDS_MAX)
        launch_die("more than %d figures", BOUNDS_MAX);
    bounds[n_bounds++] = (struct launch_bound){strdup(name), value, aim};
}

int launch_verdict(void)
{
    int missed = 0;
    printf("\naims:\n");
    for (int i = 0; i < n_bounds; i++) {
        const bool holds = bounds[i].value <= bounds[i].aim;
        printf("  %-62s %9.2f  aim %7.2f  %s\n", bounds[i].name, bounds[i].value, bounds[i].aim,
               holds ? "ok" : "MISSED");
        missed += !holds;
    }
    return missed;
}

/* --- processes */

void launch_open_fifo(const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/stamps", dir);
    if (mkfifo(path, 0600) < 0 || setenv("BENCH_FIFO", path, 1) < 0)
        launch_die("%s: %s", path, strerror(errno));
    fifo_fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK); /* no end of file between two workers */
    if (fifo_fd < 0)
        launch_die("%s: %s", path, strerror(errno));
}

pid_t launch_start(const char *const *argv)
{
    const pid_t pid = fork();
    if (pid < 0)
        launch_die("fork: %s", strerror(errno));
    if (pid == 0) {
        const int null = open("/dev/null", O_RDWR);
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    return pid;
}

void launch_wait(pid_t pid, bool must_succeed)
{
    int status;
    if (waitpid(pid, &status, 0) != pid)
        launch_die("waitpid: %s", strerror(errno));
    if (must_succeed && (!WIFEXITED(status) || WEXITSTATUS(status) != 0))
        launch_die("a launcher failed (wait status %#x)", (unsigned)status);
}

void launch_stop(pid_t pid)
{
    kill(pid, SIGTERM);
    launch_wait(pid, false);
}

int64_t launch_read(struct launch_stamp *out, int n)
{
    const int64_t end = launch_now_ns() + STAMP_MS * INT64_C(1000000);
    int64_t last = 0;
    for (int i = 0; i < n;) {
        const ssize_t got = read(fifo_fd, &out[i], sizeof out[i]);
        if (got == sizeof out[i]) {
            last = out[i].ns > last ? out[i].ns : last;
            i++;
            continue;
        }
        struct pollfd p = {.fd = fifo_fd, .events = POLLIN};
        const int64_t left = (end - launch_now_ns()) / 1000000;
        if (left <= 0 || poll(&p, 1, (int)left) == 0)
            launch_die("%d of %d workers did not start within %d s", n - i, n, STAMP_MS / 1000);
    }
    return last;
}

int launch_free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        launch_die("no free port");
    close(fd);
    return ntohs(a.sin_port);
}

/* --- /proc */

/* A number behind `name` at the beginning of a line; -1: none. */
static long number_in(const char *path, const char *name)
{
    char line[256];
    long value = -1;
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0)
            value = strtol(line + strlen(name), NULL, 10);
    if (f)
        fclose(f);
    return value;
}

int launch_children_of(pid_t pid, pid_t *out, int cap)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "r");
    while (f && n < cap && fscanf(f, "%d", &out[n]) == 1)
        n++;
    if (f)
        fclose(f);
    return n;
}

pid_t launch_child_of(pid_t pid)
{
    pid_t child;
    if (launch_children_of(pid, &child, 1) != 1)
        launch_die("process %d has no child", (int)pid);
    return child;
}

long launch_status(pid_t pid, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    return number_in(path, name);
}

long launch_pss_kb(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    return number_in(path, "Pss:");
}

long launch_switches(pid_t pid)
{
    char path[320];
    long sum = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    if (!d)
        launch_die("process %d is gone", (int)pid);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/status", (int)pid, e->d_name);
        const long n = number_in(path, "voluntary_ctxt_switches:");
        sum += n > 0 ? n : 0;
    }
    closedir(d);
    return sum;
}

/* --- statistics */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double launch_percentile(double *v, int n, double p)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    const int at = (int)(p / 100 * n);
    return v[at < n ? at : n - 1];
}
