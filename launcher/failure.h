/* The failure report: who failed first, and what people want to know about it. Pure. */
#ifndef CRUN_LAUNCHER_FAILURE_H
#define CRUN_LAUNCHER_FAILURE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "launcher/ending.h"
#include "launcher/lines.h"

struct failure_worker {
    int rank, local_rank;
    pid_t pid;
    bool ended;
    bool told_to_stop; /* it ended after we had sent it a signal: a consequence, not a failure */
    unsigned order;    /* 1, 2, ... in the order in which the kernel reported the deaths */
    int64_t ended_ns;  /* monotonic */
    struct ending ending;
};

/* Index of the first culprit, -1 if nobody failed by itself. */
int failure_first(const struct failure_worker *w, int n);

struct failure_job {
    const char *run_id, *host, *program;
    uint64_t round;
    int restarts, max_restarts;
    const char *message;           /* error record of the culprit, NULL if it left none */
    const char *message_from;      /* where it stood: a path, or "shared page" */
    const struct lines_tail *tail; /* of its stderr */
};

#define FAILURE_TAIL_LINES 20

/* The report as text with newlines. */
int failure_render(const struct failure_job *j, const struct failure_worker *w, int n, struct buf *out);

#endif
