/* Writes /metrics (metrics.h): for each source of figures a table of name, type, help and value. */
#include "rendezvousd/daemon/metrics.h"
#include "common/http/metrics_text.h"
#include "rendezvousd/daemon/metrics_jobs.h"
#include "rendezvousd/history/history.h"
#include "rendezvousd/jobs/jobs.h"
#include "rendezvousd/net/gate.h"
#include "rendezvousd/net/server.h"
#include <dirent.h>
#include <stdio.h>
#include <sys/resource.h>

#define SERVER_METRICS(X)                                                                                              \
    X("connections", METRICS_GAUGE, "Connections that are open.", st.clients)                                          \
    X("connections_total", METRICS_COUNTER, "Connections ever accepted.", st.connections)                              \
    X("connections_refused_total", METRICS_COUNTER, "Connections refused as they came.", st.refused)                   \
    X("commands_total", METRICS_COUNTER, "Requests executed.", st.commands)                                            \
    X("keys", METRICS_GAUGE, "Keys in the default key-space.", st.keys)                                                \
    X("memory_bytes", METRICS_GAUGE, "Bytes taken by keys, values, waiters and buffers.", st.memory_bytes)             \
    X("waiters", METRICS_GAUGE, "Clients blocked until keys exist.", st.waiters)

#define GATE_METRICS(X)                                                                                                \
    X("peers_refused_total", METRICS_COUNTER, "Peers refused for what they are or could not prove.", st.refused)       \
    X("authentications_total", METRICS_COUNTER, "Proofs and passwords accepted.", st.authenticated)                    \
    X("unauthenticated_connections", METRICS_GAUGE, "Connections that have yet to authenticate.", st.unauthenticated)

#define JOBS_METRICS(X)                                                                                                \
    X("jobs", METRICS_GAUGE, "Jobs that are not over.", st.jobs)                                                       \
    X("jobs_running", METRICS_GAUGE, "Jobs whose workers run.", st.running)                                            \
    X("nodes", METRICS_GAUGE, "Nodes of jobs that are not over.", st.nodes)                                            \
    X("jobs_finished_total", METRICS_COUNTER, "Jobs that came to an end.", st.finished)                                \
    X("jobs_failed_total", METRICS_COUNTER, "Of them, those that failed.", st.failed)                                  \
    X("joins_total", METRICS_COUNTER, "JOIN requests accepted.", st.joins)                                             \
    X("rounds_total", METRICS_COUNTER, "Rounds begun.", st.rounds)                                                     \
    X("restarts_total", METRICS_COUNTER, "Restarts used up.", st.restarts)                                             \
    X("fenced_total", METRICS_COUNTER, "Requests refused because they were of an older round.", st.fences)             \
    X("damaged_logs", METRICS_GAUGE, "Job logs that were set aside: damaged, or of a job with a fault.", st.damaged)   \
    X("jobs_without_log", METRICS_GAUGE, "Jobs that would be lost with the daemon: their logs cannot be written.",     \
      st.unlogged)

#define X(name, type, help, value) metrics_figure(m, name, type, help, (double)(value));

/* Two figures: a histogram, and the longest. */
static void times(struct metrics_text *m, const char *name, const char *longest, const char *help,
                  const struct times *t)
{
    char text[64];
    uint64_t n = 0;
    metrics_head(m, name, METRICS_HISTOGRAM, help);
    for (int i = 0; i <= TIMES_BOUNDS; i++) {
        n += t->counts[i];
        snprintf(text, sizeof text, "%s_bucket", name);
        char le[32];
        if (i < TIMES_BOUNDS)
            snprintf(le, sizeof le, "{le=\"%g\"}", times_bounds_s[i]);
        metrics_value(m, text, i < TIMES_BOUNDS ? le : "{le=\"+Inf\"}", (double)n);
    }
    snprintf(text, sizeof text, "%s_sum", name);
    metrics_value(m, text, NULL, t->sum_s);
    snprintf(text, sizeof text, "%s_count", name);
    metrics_value(m, text, NULL, (double)n);
    metrics_figure(m, longest, METRICS_GAUGE, "The longest of them so far.", t->longest_s);
}

static void of_server(struct metrics_text *m, const struct server *s)
{
    struct server_stats st;
    server_stats(s, &st);
    SERVER_METRICS(X)
    times(m, "loop_seconds", "loop_longest_seconds",
          "How long the loop was away from the network: so long a request may have waited.", &st.turns);
    times(m, "command_seconds", "command_longest_seconds", "Time to execute a request; a sample.", &st.requests);
}

static void of_gate(struct metrics_text *m, const struct gate *g)
{
    struct gate_stats st;
    gate_stats(g, &st);
    GATE_METRICS(X)
}

static void of_jobs(struct metrics_text *m, const struct jobs *j)
{
    struct jobs_stats st;
    jobs_stats(j, &st);
    JOBS_METRICS(X)
}

#undef X

static int open_files(void)
{
    int n = -1; /* the folder's own descriptor */
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return 0;
    for (const struct dirent *de; (de = readdir(d));)
        n += de->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The names that Prometheus gives every process. */
static int of_process(struct buf *out)
{
    struct metrics_text m = {.out = out, .prefix = "process_"};
    struct rusage u;
    struct rlimit files = {0};
    getrusage(RUSAGE_SELF, &u);
    getrlimit(RLIMIT_NOFILE, &files);
    double cpu =
        (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    metrics_figure(&m, "cpu_seconds_total", METRICS_COUNTER, "Processor time used.", cpu);
    metrics_figure(&m, "resident_memory_bytes", METRICS_GAUGE, "Memory in use.", metrics_resident_bytes());
    metrics_figure(&m, "open_fds", METRICS_GAUGE, "Open descriptors.", open_files());
    metrics_figure(&m, "max_fds", METRICS_GAUGE, "Most descriptors allowed.", (double)files.rlim_cur);
    return m.rc;
}

int metrics_write(struct buf *out, const struct server *s, const struct gate *g, const struct jobs *j,
                  const struct history *h, const struct history_reader *who)
{
    struct metrics_text m = {.out = out, .prefix = "rendezvousd_"};
    of_server(&m, s);
    of_gate(&m, g);
    of_jobs(&m, j);
    metrics_figure(&m, "leads", METRICS_GAUGE, "1 while it serves; 0 while it stands by for another one.",
                   server_leads(s));
    metrics_figure(&m, "history_jobs", METRICS_GAUGE, "Finished jobs that are remembered.",
                   (double)history_finished(h));
    metrics_of_each_job(&m, h, who);
    metrics_head(&m, "build_info", METRICS_GAUGE, "Version.");
    metrics_value(&m, "build_info", "{version=\"" CRUN_VERSION "\"}", 1);
    return m.rc < 0 ? m.rc : of_process(out);
}
