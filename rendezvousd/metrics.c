/* See metrics.h. One table per source of figures: name, type, help, value. */
#include "rendezvousd/metrics.h"
#include "common/buf.h"
#include "common/clock.h"
#include "rendezvousd/gate.h"
#include "rendezvousd/jobs.h"
#include "rendezvousd/server.h"
#include <dirent.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static int figure(struct buf *out, const char *name, const char *type, const char *help, double value)
{
    return buf_printf(out, "# HELP rendezvousd_%s %s\n# TYPE rendezvousd_%s %s\nrendezvousd_%s %.17g\n", name, help,
                      name, type, name, value);
}

#define GAUGE "gauge"
#define COUNTER "counter"

#define SERVER_METRICS(X)                                                                                              \
    X("connections", GAUGE, "Connections that are open.", st.clients)                                                  \
    X("connections_total", COUNTER, "Connections ever accepted.", st.connections)                                      \
    X("connections_refused_total", COUNTER, "Connections refused as they came.", st.refused)                           \
    X("commands_total", COUNTER, "Requests executed.", st.commands)                                                    \
    X("keys", GAUGE, "Keys in the default key-space.", st.keys)                                                        \
    X("memory_bytes", GAUGE, "Bytes taken by keys, values, waiters and buffers.", st.memory_bytes)                     \
    X("waiters", GAUGE, "Clients blocked until keys exist.", st.waiters)

#define GATE_METRICS(X)                                                                                                \
    X("peers_refused_total", COUNTER, "Peers refused for what they are or could not prove.", st.refused)               \
    X("authentications_total", COUNTER, "Proofs and passwords accepted.", st.authenticated)                            \
    X("unauthenticated_connections", GAUGE, "Connections that have yet to authenticate.", st.unauthenticated)

#define JOBS_METRICS(X)                                                                                                \
    X("jobs", GAUGE, "Jobs that are not over.", st.jobs)                                                               \
    X("jobs_running", GAUGE, "Jobs whose workers run.", st.running)                                                    \
    X("nodes", GAUGE, "Nodes of jobs that are not over.", st.nodes)                                                    \
    X("jobs_finished_total", COUNTER, "Jobs that came to an end.", st.finished)                                        \
    X("joins_total", COUNTER, "JOIN requests accepted.", st.joins)                                                     \
    X("rounds_total", COUNTER, "Rounds begun.", st.rounds)                                                             \
    X("restarts_total", COUNTER, "Restarts used up.", st.restarts)                                                     \
    X("fenced_total", COUNTER, "Requests refused because they were of an older round.", st.fences)                     \
    X("damaged_logs", GAUGE, "Job logs that were damaged when the daemon started, and set aside.", st.damaged)

static int of_server(struct buf *out, const struct server *s)
{
    struct server_stats st;
    int rc = 0;
    server_stats(s, &st);
#define X(name, type, help, value) rc = rc < 0 ? rc : figure(out, name, type, help, (double)(value));
    SERVER_METRICS(X)
#undef X
    return rc;
}

static int of_gate(struct buf *out, const struct gate *g)
{
    struct gate_stats st;
    int rc = 0;
    gate_stats(g, &st);
#define X(name, type, help, value) rc = rc < 0 ? rc : figure(out, name, type, help, (double)(value));
    GATE_METRICS(X)
#undef X
    return rc;
}

static int of_jobs(struct buf *out, const struct jobs *j)
{
    struct jobs_stats st;
    int rc = 0;
    jobs_stats(j, &st);
#define X(name, type, help, value) rc = rc < 0 ? rc : figure(out, name, type, help, (double)(value));
    JOBS_METRICS(X)
#undef X
    return rc;
}

static double resident_bytes(void)
{
    long pages = 0, all;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%ld %ld", &all, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

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
    struct rusage u;
    struct rlimit files = {0};
    getrusage(RUSAGE_SELF, &u);
    getrlimit(RLIMIT_NOFILE, &files);
    double cpu =
        (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    return buf_printf(
        out,
        "# HELP process_cpu_seconds_total Processor time used.\n# TYPE process_cpu_seconds_total counter\n"
        "process_cpu_seconds_total %.6f\n"
        "# HELP process_resident_memory_bytes Memory in use.\n# TYPE process_resident_memory_bytes gauge\n"
        "process_resident_memory_bytes %.17g\n"
        "# HELP process_open_fds Open descriptors.\n# TYPE process_open_fds gauge\nprocess_open_fds %d\n"
        "# HELP process_max_fds Most descriptors allowed.\n# TYPE process_max_fds gauge\nprocess_max_fds %.17g\n"
        "# HELP rendezvousd_build_info Version.\n# TYPE rendezvousd_build_info gauge\n"
        "rendezvousd_build_info{version=\"" CRUN_VERSION "\"} 1\n",
        cpu, resident_bytes(), open_files(), (double)files.rlim_cur);
}

int metrics_write(struct buf *out, const struct server *s, const struct gate *g, const struct jobs *j)
{
    int rc = of_server(out, s);
    if (rc == 0 && g)
        rc = of_gate(out, g);
    if (rc == 0 && j)
        rc = of_jobs(out, j);
    return rc < 0 ? rc : of_process(out);
}
