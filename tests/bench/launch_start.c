/* Start of 8, 64 and 256 workers that do nothing: from the start of the launcher to the first instruction of the last
 * worker, and to the launcher's end. The floor is a loop of fork and exec. Kinds take turns, so that a busy machine
 * disturbs all alike. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/launch.h"

#define WORKERS_MAX 256
#define RUNS_MAX 200

enum { FLOOR, BEFORE, CRUN, HYDRA, TORCHRUN, KINDS };

static const char *const names[KINDS] = {"floor", "before", "crun", "hydra", "torchrun"};

struct timing {
    double up_ms, end_ms;
};

static struct timing run_floor(const struct launch_options *o, int workers)
{
    static struct launch_stamp stamps[WORKERS_MAX];
    static pid_t pids[WORKERS_MAX];
    const char *const argv[] = {o->worker, "exit", NULL};
    const int64_t begin = launch_now_ns();
    for (int i = 0; i < workers; i++)
        pids[i] = launch_start(argv);
    for (int i = 0; i < workers; i++)
        launch_wait(pids[i], true);
    const int64_t end = launch_now_ns(), up = launch_read(stamps, workers);
    return (struct timing){(double)(up - begin) / 1e6, (double)(end - begin) / 1e6};
}

static struct timing run_launcher(const struct launch_options *o, int kind, int workers)
{
    static struct launch_stamp stamps[WORKERS_MAX];
    char n[16];
    snprintf(n, sizeof n, "%d", workers);
    const char *const crun[] = {
        kind == BEFORE ? o->before : o->crun, "--standalone", "--nproc_per_node", n, o->worker, "exit", NULL};
    const char *const hydra[] = {o->hydra, "-n", n, o->worker, "exit", NULL};
    const char *const torchrun[] = {o->torchrun, "--standalone", "--no-python", "--nproc_per_node",
                                    n,           o->worker,      "exit",        NULL};
    const int64_t begin = launch_now_ns();
    launch_wait(launch_start(kind == HYDRA ? hydra : kind == TORCHRUN ? torchrun : crun), true);
    const int64_t end = launch_now_ns(), up = launch_read(stamps, workers);
    return (struct timing){(double)(up - begin) / 1e6, (double)(end - begin) / 1e6};
}

static bool has(const struct launch_options *o, int kind)
{
    const char *const programs[KINDS] = {"", o->before, o->crun, o->hydra, o->torchrun};
    return programs[kind] != NULL;
}

static void print_row(const char *name, double up, double end, const double *floor, double crun_end, int runs)
{
    printf("  %-9s last worker runs %8.2f ms, all over %8.2f ms: floor %+8.2f ms, %6.2f x the floor, %6.2f x crun "
           "(median of %d)\n",
           name, up, end, end - *floor, end / *floor, end / crun_end, runs);
}

/* Run by run, for both of a run were disturbed alike. In the order of the runs. */
static double compare(const char *what, const double *before, const double *now, int runs)
{
    static double more[RUNS_MAX];
    for (int i = 0; i < runs; i++)
        more[i] = now[i] - before[i];
    const double median = launch_percentile(more, runs, 50);
    printf("  %s: crun %+.2f ms to the one before, half of all between %+.2f and %+.2f ms (median of %d pairs)\n", what,
           median, launch_percentile(more, runs, 25), launch_percentile(more, runs, 75), runs);
    return median;
}

struct aims {
    double floor_ms, before_ms; /* above it */
};

static void start_of(const struct launch_options *o, int workers, int runs, struct aims aims)
{
    static double up[KINDS][RUNS_MAX], end[KINDS][RUNS_MAX];
    double median_up[KINDS], median_end[KINDS];
    char name[80];
    int n[KINDS] = {0};
    for (int i = 0; i < runs; i++)
        for (int k = 0; k < KINDS; k++) {
            if (!has(o, k) || (k == TORCHRUN && (workers > 8 || i >= 3))) /* seconds each */
                continue;
            const struct timing t = k == FLOOR ? run_floor(o, workers) : run_launcher(o, k, workers);
            up[k][n[k]] = t.up_ms;
            end[k][n[k]++] = t.end_ms;
        }
    printf("start of %d workers:\n", workers);
    if (o->before) {
        snprintf(name, sizeof name, "start of %d workers, last one runs: ms above the crun before", workers);
        launch_expect(name, compare("last worker runs", up[BEFORE], up[CRUN], runs), aims.before_ms);
        snprintf(name, sizeof name, "start of %d workers, all over: ms above the crun before", workers);
        launch_expect(name, compare("all over        ", end[BEFORE], end[CRUN], runs), aims.before_ms);
    }
    for (int k = 0; k < KINDS; k++)
        if (n[k]) {
            median_up[k] = launch_percentile(up[k], n[k], 50);
            median_end[k] = launch_percentile(end[k], n[k], 50);
        }
    for (int k = 0; k < KINDS; k++)
        if (n[k])
            print_row(names[k], median_up[k], median_end[k], &median_end[FLOOR], median_end[CRUN], n[k]);
    printf("  fastest   floor %.2f ms, crun %.2f ms: floor %+.2f ms\n", end[FLOOR][0], end[CRUN][0],
           end[CRUN][0] - end[FLOOR][0]);
    fflush(stdout);
    snprintf(name, sizeof name, "start of %d workers, all over: ms above the floor", workers);
    launch_expect(name, median_end[CRUN] - median_end[FLOOR], aims.floor_ms);
}

void launch_bench_start(const struct launch_options *o)
{
    start_of(o, 8, launch_runs(o, 40), (struct aims){5, 0.5});
    start_of(o, 64, launch_runs(o, 20), (struct aims){20, 1});
    start_of(o, 256, launch_runs(o, 12), (struct aims){35, 5});
}
