/* Parts of bench_launch: jobs of launch_worker, told by their stamps. Everything fails the benchmark with a sentence
 * (launch_die). */
#ifndef CRUN_TESTS_BENCH_LAUNCH_H
#define CRUN_TESTS_BENCH_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

struct launch_stamp { /* one write(2) to the FIFO: whole */
    int64_t ns;       /* CLOCK_MONOTONIC */
    int64_t pid;
};

static inline int64_t launch_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

struct launch_options {
    const char *crun, *worker;
    const char *hydra, *torchrun; /* NULL: not here */
    const char *before;           /* an older crun, NULL: none */
    double effort;                /* 1: enough for the figures that are recorded; less: a look */
};

struct launch_bound { /* a figure and its aim, ms or what the name says */
    const char *name;
    double value, aim;
};

_Noreturn void launch_die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int launch_runs(const struct launch_options *o, int runs); /* with this effort; at least 3 */

/* Note a figure for the verdict at the end. */
void launch_expect(const char *name, double value, double aim);
/* Print all of them. Returns how many miss their aims. */
int launch_verdict(void);

/* --- processes: all output goes to /dev/null */
void launch_open_fifo(const char *dir);
pid_t launch_start(const char *const *argv); /* NULL-terminated, argv[0] with its path */
void launch_wait(pid_t pid, bool must_succeed);
void launch_stop(pid_t pid); /* SIGTERM, then wait */
/* The next n stamps; dies after half a minute. Returns the latest ns. */
int64_t launch_read(struct launch_stamp *out, int n);

int launch_free_port(void); /* of 127.0.0.1, free a moment ago */

/* --- /proc */
pid_t launch_child_of(pid_t pid);                       /* the only one, or the first */
int launch_children_of(pid_t pid, pid_t *out, int cap); /* how many; cap at most */
long launch_status(pid_t pid, const char *name);        /* a number of /proc/PID/status, "VmRSS:"; -1 */
long launch_pss_kb(pid_t pid);                          /* -1 */
long launch_switches(pid_t pid); /* voluntary context switches of all threads: how often they slept and woke */

/* --- statistics; sort v */
double launch_percentile(double *v, int n, double p);

/* --- sections */
void launch_bench_start(const struct launch_options *o);
void launch_bench_restart(const struct launch_options *o);
void launch_bench_idle(const struct launch_options *o);

#endif
