/* libcrun: what a worker started by crun can ask and tell. Plain C, no dependencies, usable through ctypes.
 *
 * Every call works without crun too: rank 0 of 1, no store, never a stop. Thread-safe unless stated.
 * Functions return 0 or a negative errno. */
#ifndef CRUN_H
#define CRUN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why the launcher wants this process to end; set before SIGTERM is sent (docs/architecture.md, "Stops"). */
#define CRUN_STOP_REASONS(X)                                                                                           \
    X(CRUN_STOP_NONE, 0, "none")       /* go on */                                                                     \
    X(CRUN_STOP_FAILURE, 1, "failure") /* a peer died: abort collectives, save nothing, exit within a second */        \
    X(CRUN_STOP_RESIZE, 2, "resize")   /* all ranks healthy: agree on a step, save, exit 75 */                         \
    X(CRUN_STOP_DRAIN, 3, "drain")     /* the same, and the job will not go on by itself */                            \
    X(CRUN_STOP_ABORT, 4, "abort")     /* the user wants it gone: exit now */

enum crun_stop_reason {
#define X(name, value, text) name = value,
    CRUN_STOP_REASONS(X)
#undef X
};

struct crun_info {
    int rank, world_size, local_rank, local_world_size, group_rank, group_world_size;
    int round;          /* grows with every rendezvous; 0 without crun */
    int restart_count;  /* of the job */
    const char *run_id; /* "" without crun; valid until crun_finish() */
    const char *store;  /* "resp://host:port", or "" */
};

/* Read the environment and map the shared page. Call once, before other threads use the rest. */
int crun_init(struct crun_info *ret);
void crun_finish(void);

/* Heartbeat: this worker finished step `step`. One shared-memory store; the first one of a process also wakes the launcher. */
void crun_progress(uint64_t step);

/* For status pages: throughput and loss of the whole job at a recent step. Rank 0 tells; two stores. */
void crun_metrics(double images_per_s, double loss);

/* What the launcher wants; reading it costs one load. */
enum crun_stop_reason crun_stop_reason(void);
const char *crun_stop_reason_name(enum crun_stop_reason r);

/* Leave a failure record (TORCHELASTIC_ERROR_FILE and the page) that the launcher puts into its report. Call before exiting
 * with an error. Async-signal-safe except for the file. */
void crun_record_error(int code, const char *message);

#ifdef __cplusplus
}
#endif
#endif
