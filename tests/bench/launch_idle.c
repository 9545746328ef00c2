/* What an idle job costs: how often guardian and agent wake, and the memory of crun's processes, with 64 workers that
 * wait, and with 8. Alone, and as two agents of a job, where each gives the rendezvous a sign of life a second and the
 * first hosts it. Hosting costs nothing by itself: a guest asks once a heartbeat, or a little more often, each time a
 * wake-up to take the request and one to answer it. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/bench/launch.h"

#define WORKERS 64
#define SETTLE_S 2

struct halves {
    pid_t guardian, agent;
    long guardian_woke, agent_woke;
};

static struct halves halves_of(pid_t guardian)
{
    const pid_t agent = launch_child_of(guardian);
    return (struct halves){guardian, agent, launch_switches(guardian), launch_switches(agent)};
}

/* Prints wake-ups a heartbeat; returns those of both halves. */
static double print_wakes(const char *name, const struct halves *was, double seconds)
{
    const struct halves now = halves_of(was->guardian);
    const double beats = seconds + 1; /* that many may fall into the window */
    const double guardian = (double)(now.guardian_woke - was->guardian_woke) / beats;
    const double agent = (double)(now.agent_woke - was->agent_woke) / beats;
    printf("  %-28s wake-ups a heartbeat: guardian %.2f, agent %.2f\n", name, guardian, agent);
    return guardian + agent;
}

struct memory { /* MB */
    double halves_rss, rss, pss;
};

/* Of the guardian and the processes that it started, the agent first: all that crun is. Prints them. */
static struct memory print_memory(pid_t guardian)
{
    pid_t own[16] = {guardian};
    const int n = 1 + launch_children_of(guardian, own + 1, 15);
    long rss = 0, pss = 0;
    for (int i = 0; i < n; i++) {
        rss += launch_status(own[i], "VmRSS:");
        pss += launch_pss_kb(own[i]);
    }
    const long halves = launch_status(own[0], "VmRSS:") + launch_status(own[1], "VmRSS:");
    const struct memory m = {(double)halves / 1024, (double)rss / 1024, (double)pss / 1024};
    printf("  memory of crun's %d processes:  %.2f MB (RSS), %.2f MB (PSS); guardian and agent %.2f MB (RSS)\n", n,
           m.rss, m.pss, m.halves_rss);
    return m;
}

struct idle {
    double wakes;
    struct memory memory;
};

/* A job of so many workers that wait, settled. */
static pid_t start_alone(const struct launch_options *o, const char *crun, int workers)
{
    static struct launch_stamp stamps[WORKERS];
    char n[16];
    snprintf(n, sizeof n, "%d", workers);
    const char *const argv[] = {crun, "--standalone", "--nproc_per_node", n, o->worker, "stay", NULL};
    const pid_t pid = launch_start(argv);
    launch_read(stamps, workers);
    sleep(SETTLE_S);
    return pid;
}

static struct idle alone(const struct launch_options *o, const char *name, const char *crun, int seconds)
{
    const pid_t pid = start_alone(o, crun, WORKERS);
    const struct halves was = halves_of(pid);
    sleep((unsigned)seconds);
    struct idle i = {.wakes = print_wakes(name, &was, seconds)};
    i.memory = print_memory(pid);
    launch_stop(pid);
    return i;
}

static void alone_and_before(const struct launch_options *o, int seconds)
{
    if (o->before)
        alone(o, "alone, crun before", o->before, seconds);
    const struct idle i = alone(o, "alone", o->crun, seconds);
    launch_expect("idle, 64 workers alone: wake-ups of both halves a second", i.wakes, 2);
    launch_expect("idle, 64 workers alone: RSS of both halves, MB", i.memory.halves_rss, 8);
    launch_expect("idle, 64 workers alone: RSS of all of crun, MB", i.memory.rss, 10);
    launch_expect("idle, 64 workers alone: PSS of all of crun, MB", i.memory.pss, 4);
}

static void eight_workers(const struct launch_options *o)
{
    const pid_t pid = start_alone(o, o->crun, 8);
    printf("  with 8 workers instead of %d:\n", WORKERS);
    const struct memory m = print_memory(pid);
    launch_expect("idle, 8 workers alone: RSS of all of crun, MB", m.rss, 10);
    launch_expect("idle, 8 workers alone: PSS of all of crun, MB", m.pss, 4);
    launch_stop(pid);
}

static void two_agents(const struct launch_options *o, int seconds)
{
    static struct launch_stamp stamps[2 * WORKERS];
    char endpoint[32];
    pid_t pids[2];
    struct halves was[2];
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", launch_free_port());
    const char *const argv[] = {o->crun,  "--nnodes",  "2",     "--nproc_per_node", "64",      "--rdzv_endpoint",
                                endpoint, "--rdzv_id", "bench", "--insecure",       o->worker, "stay",
                                NULL};
    for (int i = 0; i < 2; i++)
        pids[i] = launch_start(argv);
    launch_read(stamps, 2 * WORKERS);
    sleep(SETTLE_S);
    for (int i = 0; i < 2; i++)
        was[i] = halves_of(pids[i]);
    sleep((unsigned)seconds);
    double woke[2];
    for (int i = 0; i < 2; i++)
        woke[i] = print_wakes("one of two agents", &was[i], seconds);
    launch_expect("idle, one of two agents: wake-ups a heartbeat (guest)", woke[0] < woke[1] ? woke[0] : woke[1], 2);
    launch_expect("idle, one of two agents: wake-ups a heartbeat (host)", woke[0] < woke[1] ? woke[1] : woke[0], 2);
    print_memory(pids[0]);
    for (int i = 0; i < 2; i++)
        kill(pids[i], SIGTERM);
    for (int i = 0; i < 2; i++)
        launch_wait(pids[i], false);
}

void launch_bench_idle(const struct launch_options *o)
{
    const int seconds = launch_runs(o, 20);
    printf("idle for %d s, a heartbeat a second where there is one:\n", seconds);
    alone_and_before(o, seconds);
    eight_workers(o);
    two_agents(o, seconds);
    fflush(stdout);
}
