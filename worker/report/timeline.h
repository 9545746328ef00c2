/* What a run spends its time on, in the Chrome trace event format (JSON array form): for chrome://tracing, Perfetto,
 * Speedscope.
 *
 * A file a node: its ranks append whole records to it, each as a process of its own (pid = rank). Times are of
 * CLOCK_MONOTONIC, which the ranks of a node share. A closing bracket is not needed by the format; a run that ends in
 * good order writes it, what a killed one leaves lacks nothing else. Recording is limited to a window of steps and to
 * TIMELINE_EVENTS_MAX records a rank. */
#ifndef CRUN_WORKER_REPORT_TIMELINE_H
#define CRUN_WORKER_REPORT_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct timeline;

enum { TIMELINE_EVENTS_MAX = 1000000 };

#define TIMELINE_TRACKS(X)                                                                                             \
    X(TIMELINE_TRAINING, "training")                                                                                   \
    X(TIMELINE_COLLECTIVES, "collectives")                                                                             \
    X(TIMELINE_WRITER, "checkpoint writer")

enum timeline_track {
#define X(name, text) name,
    TIMELINE_TRACKS(X)
#undef X
        TIMELINE_NTRACKS
};

struct timeline_options {
    const char *path;
    int rank;
    bool create;          /* one rank of a node, before the others open it: a new file */
    int64_t first, count; /* steps of this process that are recorded, counted from 1 */
};

/* ERR_OUTPUT names the path. */
int timeline_open(struct timeline **ret, const struct timeline_options *o, struct err *e);
/* complete: write the closing bracket; one rank of a node, after the others closed theirs. NULL allowed. */
void timeline_close(struct timeline *t, bool complete);

/* Step number `step` of this process begins: decides whether to record from here on. What was recorded is written. */
void timeline_step(struct timeline *t, int64_t step);
bool timeline_recording(const struct timeline *t); /* NULL: false */

struct timeline_event {
    enum timeline_track track;
    const char *category, *name;
    const char *kernel, *shape; /* shown beside it; NULL: nothing */
    int64_t start_ns, end_ns;   /* by clock_ns() */
    bool always;                /* outside of the window, too */
};
/* Any thread. Events of a track must nest. Never fails: a timeline that cannot be written ends there. */
void timeline_put(struct timeline *t, const struct timeline_event *ev);
void timeline_flush(struct timeline *t);

#endif
