/* Makes a node's report to the rendezvous for its status page (RDZV.REPORT, reference/protocol.md): progress of its
 * workers, duration of their steps, load of the host. Group rank 0 adds what its first worker reports for the whole
 * job. Pure: it reads pages that others write. */
#ifndef CRUN_LAUNCHER_NODE_REPORT_H
#define CRUN_LAUNCHER_NODE_REPORT_H

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct crun_page;
struct gauges_gpus;
struct gauges_host;

#define NODE_REPORT_RANKS 256 /* workers of a node in a report; further ones are left out */

/* A worker in the report before. */
struct node_report_seen {
    uint64_t step;
    int64_t at_ns, wait_ns;
};

/* Zeroed: nothing was reported yet. */
struct node_report {
    uint64_t round;
    struct node_report_seen seen[NODE_REPORT_RANKS];
};

struct node_report_view {
    uint64_t round;
    int rank_base, workers;
    bool leads;                                            /* group rank 0 */
    struct crun_page *(*page)(const void *arg, int local); /* NULL: none */
    const void *arg;
    const struct gauges_host *host; /* NULL: not known */
    const struct gauges_gpus *gpus; /* NULL: none, or not known */
    const char *logs;               /* folder of the log files, "": none */
    const char *ras;                /* where the workers' NCCL RAS listens: "127.71.12.1-8:28028", "": not known */
};

/* Append the fields; nothing if there is nothing to report. -ENOMEM. */
int node_report_write(struct node_report *r, const struct node_report_view *v, struct buf *out);

/* Pause before the next report: all nodes of a job together send about a hundred a second at most. steps: the
 * workers report steps. */
int64_t node_report_pause_ms(int nodes, int64_t heartbeat_ms, bool steps);

#endif
