/* How long crun takes to start eight workers that do nothing, beside the floor: the same eight processes by bare fork and exec.
 *
 *     bench_spawn CRUN [runs]
 *
 * Runs of both kinds take turns, so that a busy machine disturbs both alike; medians are compared. Then the peak memory of guardian and agent, as a
 * worker sees it. `bench_spawn --look` is that worker. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"

#define WORKERS 8
#define RUNS_MAX 1000

static pid_t start(const char *const *argv)
{
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, STDERR_FILENO);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    return pid;
}

static int finish(pid_t pid)
{
    int status;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static double run_floor(void)
{
    const char *const argv[] = {"/bin/true", NULL};
    pid_t pids[WORKERS];
    int64_t begin = clock_ns();
    for (int i = 0; i < WORKERS; i++)
        pids[i] = start(argv);
    for (int i = 0; i < WORKERS; i++)
        if (finish(pids[i]) != 0)
            exit(1);
    return (double)(clock_ns() - begin) / 1e6;
}

static double run_crun(const char *crun)
{
    const char *const argv[] = {crun, "--standalone", "--nproc_per_node", "8", "/bin/true", NULL};
    int64_t begin = clock_ns();
    if (finish(start(argv)) != 0)
        exit(1);
    return (double)(clock_ns() - begin) / 1e6;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    return (v[n / 2] + v[(n - 1) / 2]) / 2;
}

/* A line of /proc/PID/status as a number. */
static long status_of(long pid, const char *name)
{
    char path[64], line[256];
    long value = -1;
    snprintf(path, sizeof path, "/proc/%ld/status", pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0)
            value = strtol(line + strlen(name), NULL, 10);
    if (f)
        fclose(f);
    return value;
}

static int look(void)
{
    long agent = getppid(), guardian = status_of(agent, "PPid:");
    if (strcmp(getenv("LOCAL_RANK"), "7") == 0)
        printf("guardian %ld kB, agent %ld kB: peak RSS of both %.2f MB\n", status_of(guardian, "VmHWM:"),
               status_of(agent, "VmHWM:"), (double)(status_of(guardian, "VmHWM:") + status_of(agent, "VmHWM:")) / 1024);
    return 0;
}

int main(int argc, char **argv)
{
    static double floor_ms[RUNS_MAX], crun_ms[RUNS_MAX];
    char self[4096] = "";
    if (argc == 2 && strcmp(argv[1], "--look") == 0)
        return look();
    int runs = argc > 2 ? atoi(argv[2]) : 40;
    if (argc < 2 || runs < 1 || runs > RUNS_MAX || readlink("/proc/self/exe", self, sizeof self - 1) < 0) {
        fprintf(stderr, "usage: bench_spawn CRUN [runs]\n");
        return 2;
    }
    for (int i = 0; i < runs; i++) {
        floor_ms[i] = run_floor();
        crun_ms[i] = run_crun(argv[1]);
    }
    double low = median(floor_ms, runs), ours = median(crun_ms, runs);
    printf("%d x /bin/true, median of %d interleaved runs: floor %.2f ms, crun %.2f ms: +%.2f ms, ratio %.2f\n",
           WORKERS, runs, low, ours, ours - low, ours / low);
    printf("fastest: floor %.2f ms, crun %.2f ms: +%.2f ms\n", floor_ms[0], crun_ms[0], crun_ms[0] - floor_ms[0]);
    fflush(stdout);
    const char *const watched[] = {argv[1], "--log-prefix=off", "--nproc_per_node", "8", self, "--look", NULL};
    return finish(start(watched));
}
