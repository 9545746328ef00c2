/* What an idle job costs: how often guardian and agent wake, and their memory, with 64 workers that wait. Alone, and as
 * two agents of a job, where each gives the rendezvous a sign of life a second and the first hosts it. Hosting costs
 * nothing by itself: a guest asks once a heartbeat, or a little more often, each time a wake-up to take the request and
 * one to answer it. */
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

/* Of all processes that crun is: the guardian and those that it started. MB. */
static double pss_of_all(pid_t guardian)
{
    pid_t others[16];
    const int n = launch_children_of(guardian, others, 16);
    long kb = launch_pss_kb(guardian);
    for (int i = 0; i < n; i++)
        kb += launch_pss_kb(others[i]);
    printf("  PSS of crun's %d processes: %.2f MB\n", n + 1, (double)kb / 1024);
    return (double)kb / 1024;
}

static double print_memory(const struct halves *h)
{
    const long rss = launch_status(h->guardian, "VmRSS:") + launch_status(h->agent, "VmRSS:");
    printf("  RSS: guardian %ld kB, agent %ld kB, both %.2f MB; at most %.2f MB; PSS of both %.2f MB\n",
           launch_status(h->guardian, "VmRSS:"), launch_status(h->agent, "VmRSS:"), (double)rss / 1024,
           (double)(launch_status(h->guardian, "VmHWM:") + launch_status(h->agent, "VmHWM:")) / 1024,
           (double)(launch_pss_kb(h->guardian) + launch_pss_kb(h->agent)) / 1024);
    return (double)rss / 1024;
}

struct idle {
    double wakes, rss_mb, pss_mb;
};

static struct idle alone(const struct launch_options *o, const char *name, const char *crun, int seconds)
{
    static struct launch_stamp stamps[WORKERS];
    const char *const argv[] = {crun, "--standalone", "--nproc_per_node", "64", o->worker, "stay", NULL};
    const pid_t pid = launch_start(argv);
    launch_read(stamps, WORKERS);
    sleep(SETTLE_S);
    const struct halves was = halves_of(pid);
    sleep((unsigned)seconds);
    struct idle i = {.wakes = print_wakes(name, &was, seconds)};
    i.rss_mb = print_memory(&was);
    i.pss_mb = pss_of_all(pid);
    launch_stop(pid);
    return i;
}

static void alone_and_before(const struct launch_options *o, int seconds)
{
    if (o->before)
        alone(o, "alone, crun before", o->before, seconds);
    const struct idle i = alone(o, "alone", o->crun, seconds);
    launch_expect("idle, 64 workers alone: wake-ups of both halves a second", i.wakes, 2);
    launch_expect("idle, 64 workers alone: RSS of both halves, MB", i.rss_mb, 8);
    launch_expect("idle, 64 workers alone: PSS of all of crun, MB", i.pss_mb, 4);
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
    print_memory(&was[0]);
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
    two_agents(o, seconds);
    fflush(stdout);
}
