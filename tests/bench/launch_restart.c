/* kill -9 of one of eight workers: from the signal to the first instruction of the last of the eight new ones. One job,
 * killed again and again (--restart-backoff 0, for crun would wait from the second of a row of short rounds); between
 * two kills a pause that is drawn, so that no timer of a launcher beats with us. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/bench/launch.h"

#define WORKERS 8
#define KILLS_MAX 1000
#define TURNS 5

static void pause_ms(int least, int most)
{
    const int ms = least + rand() % (most - least + 1);
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* Workers of the job are starting. */
static void kills(double *ms, int n, int least_ms, int most_ms)
{
    struct launch_stamp now[WORKERS];
    launch_read(now, WORKERS);
    for (int i = 0; i < n; i++) {
        pause_ms(least_ms, most_ms);
        const pid_t victim = (pid_t)now[rand() % WORKERS].pid;
        const int64_t begin = launch_now_ns();
        if (kill(victim, SIGKILL) < 0)
            launch_die("worker %d is gone", (int)victim);
        ms[i] = (double)(launch_read(now, WORKERS) - begin) / 1e6;
    }
}

static void print_row(const char *name, double *ms, int n)
{
    const double p50 = launch_percentile(ms, n, 50), p99 = launch_percentile(ms, n, 99);
    printf("  %-22s p50 %8.2f ms, p99 %8.2f ms, worst %8.2f ms of %d\n", name, p50, p99, ms[n - 1], n);
    fflush(stdout);
}

static void one_agent(const struct launch_options *o, const char *crun, double *ms, int n)
{
    const char *const argv[] = {crun,
                                "--standalone",
                                "--nproc_per_node",
                                "8",
                                "--max-restarts",
                                "1000000",
                                "--restart-backoff",
                                "0",
                                o->worker,
                                "stay",
                                NULL};
    const pid_t pid = launch_start(argv);
    kills(ms, n, 10, 40);
    launch_stop(pid);
}

/* In turns with the crun before, where there is one. Returns the median. */
static double restarts_of_one(const struct launch_options *o, double *ms, int n)
{
    static double before[KILLS_MAX];
    for (int turn = 0, at = 0; turn < TURNS; turn++) {
        const int more = (n - at) / (TURNS - turn);
        if (o->before)
            one_agent(o, o->before, before + at, more);
        one_agent(o, o->crun, ms + at, more);
        at += more;
    }
    if (o->before)
        print_row("crun before", before, n);
    print_row("crun", ms, n);
    return launch_percentile(ms, n, 50);
}

static void two_agents(const struct launch_options *o, double *ms, int n)
{
    char endpoint[32];
    pid_t pids[2];
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", launch_free_port());
    const char *const argv[] = {
        o->crun,     "--nnodes", "2",          "--nproc_per_node", "4",       "--rdzv_endpoint",   endpoint,
        "--rdzv_id", "bench",    "--insecure", "--max-restarts",   "1000000", "--restart-backoff", "0",
        o->worker,   "stay",     NULL};
    for (int i = 0; i < 2; i++)
        pids[i] = launch_start(argv);
    kills(ms, n, 105, 145); /* a rendezvous takes 100 joins of a node in 10 s */
    for (int i = 0; i < 2; i++)
        kill(pids[i], SIGTERM);
    for (int i = 0; i < 2; i++)
        launch_wait(pids[i], false);
}

static void torchrun(const struct launch_options *o, double *ms, int n)
{
    const char *const argv[] = {
        o->torchrun, "--standalone", "--no-python", "--nproc_per_node", "8", "--max-restarts", "1000",
        o->worker,   "stay",         NULL};
    const pid_t pid = launch_start(argv);
    kills(ms, n, 100, 300);
    printf("  torchrun's launcher alone, with 8 idle workers: RSS %.1f MB\n",
           (double)launch_status(pid, "VmRSS:") / 1024);
    launch_stop(pid);
}

void launch_bench_restart(const struct launch_options *o)
{
    static double ms[KILLS_MAX];
    const int n = launch_runs(o, 300);
    printf("kill -9 of one of 8 workers, to the first instruction of the last of 8 new ones:\n");
    const double alone = restarts_of_one(o, ms, n);
    launch_expect("restart of 8 workers, p50, ms", alone, 5.5);
    launch_expect("restart of 8 workers, p99, ms", launch_percentile(ms, n, 99), 50);
    two_agents(o, ms, n / 3);
    print_row("crun, two agents", ms, n / 3);
    launch_expect("restart of 8 workers of two agents, p50, ms", launch_percentile(ms, n / 3, 50), 25);
    if (!o->torchrun)
        return;
    torchrun(o, ms, 3);
    print_row("torchrun", ms, 3);
    printf("  torchrun / crun at p50: %.0f x\n", launch_percentile(ms, 3, 50) / alone);
}
