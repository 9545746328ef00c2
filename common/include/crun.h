/* SPDX-License-Identifier: Apache-2.0 */
/* libcrun: what a worker started by crun can ask and report. Plain C, no dependencies, usable through ctypes.
 *
 * Every call works without crun too: rank 0 of 1, no store, never a stop. Thread-safe unless stated. Functions
 * return 0 or a negative errno. After a fork() only one of the two processes may go on using libcrun. */
#ifndef CRUN_H
#define CRUN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why the launcher wants this process to end; set before SIGTERM is sent (docs/design/architecture.md, "Stops have
 * reasons"). */
#define CRUN_STOP_REASONS(X)                                                                                           \
    X(CRUN_STOP_NONE, 0, "none")       /* go on */                                                                     \
    X(CRUN_STOP_FAILURE, 1, "failure") /* a peer died: abort collectives, save nothing, exit within a second */        \
    X(CRUN_STOP_RESIZE, 2, "resize")   /* all ranks healthy: agree on a step, save, exit 75 */                         \
    X(CRUN_STOP_DRAIN, 3, "drain")     /* like RESIZE, but the job will not go on by itself */                         \
    X(CRUN_STOP_ABORT, 4, "abort")     /* the user wants it gone: exit now */                                          \
    X(CRUN_STOP_HOLD, 5, "hold") /* only after crun_stay(), and without a signal: let go of the round, do not exit */

enum crun_stop_reason {
#define X(name, value, text) name = value,
    CRUN_STOP_REASONS(X)
#undef X
};

/* What a worker is doing, for --hang-timeout. Each has a time of its own that it may take (docs/guide/hangs.md). */
#define CRUN_PHASES(X)                                                                                                 \
    X(CRUN_PHASE_STEP, 0, "step")             /* at work: crun_progress() is called after each step */                 \
    X(CRUN_PHASE_CHECKPOINT, 1, "checkpoint") /* writes or reads one, or waits for the rank that does */               \
    X(CRUN_PHASE_EVALUATION, 2, "evaluation")                                                                          \
    X(CRUN_PHASE_CLOSING, 3, "closing")   /* no step will follow */                                                    \
    X(CRUN_PHASE_PAUSED, 4, "paused")     /* waits for a person or another job: may take for ever */                   \
    X(CRUN_PHASE_STARTING, 5, "starting") /* steps will be reported; ends by itself with the first one */

enum crun_phase {
#define X(name, value, text) name = value,
    CRUN_PHASES(X)
#undef X
};

struct crun_info {
    /* rank: -1 of a warm spare, which has no local_rank either */
    int rank, world_size, local_rank, local_world_size, group_rank, group_world_size;
    int round;          /* grows with every rendezvous; 0 without crun */
    int restart_count;  /* of the job */
    const char *run_id; /* "" without crun; valid until crun_finish() */
    const char *store;  /* "resp://host:port", or ""; valid until crun_finish() or the next crun_next_round() */
};

/* Read the environment and map the shared page. Call once, before other threads use the rest. */
int crun_init(struct crun_info *ret);
void crun_finish(void);

/* Heartbeat: this worker finished step `step`. A few stores to shared memory, no system call; the first one of a
 * process also wakes the launcher. From one thread at a time. */
void crun_progress(uint64_t step);

/* This worker enters a phase. Every rank that will wait for another one's checkpoint should say so too. Same thread as
 * crun_progress(). */
void crun_phase(enum crun_phase phase);
const char *crun_phase_name(enum crun_phase phase);

/* For status pages: throughput and loss of the whole job at a recent step. Rank 0 reports them; two stores. */
void crun_metrics(double images_per_s, double loss);

/* Figures for status pages. The first five are the whole job's: rank 0 reports them. */
#define CRUN_FIGURES(X)                                                                                                \
    X(CRUN_FIGURE_LOSS, 0, "loss")                   /* of a recent step */                                            \
    X(CRUN_FIGURE_IMAGES_PER_S, 1, "images_per_s")   /* samples, or tokens, a second, of all ranks */                  \
    X(CRUN_FIGURE_ACCURACY, 2, "accuracy")           /* of a recent step: 0 to 1 */                                    \
    X(CRUN_FIGURE_EVAL_ACCURACY, 3, "eval_accuracy") /* of the latest evaluation: 0 to 1 */                            \
    X(CRUN_FIGURE_TOTAL_STEPS, 4, "total_steps")     /* the step with which the run will end */                        \
    X(CRUN_FIGURE_WAIT_S, 5, "wait_s")               /* of the step that is reported as finished next: how long     \
                                                          this rank waited for others. Every rank reports its own */

enum crun_figure {
#define X(name, value, text) name = value,
    CRUN_FIGURES(X)
#undef X
};

/* Report a figure. A few stores, no system call. A value that is not finite, and a wait below 0, is ignored. Same
 * thread as crun_progress(). */
void crun_figure(enum crun_figure which, double value);

/* Any other figure of the whole job, by a name and a unit of yours: ("tokens", "tokens/s", 3.1e5). Rank 0 reports
 * them; the same thread as crun_progress(). name: 1 to 31 of letters, digits and _./-; unit: up to 15 of these and
 * %^*(), the one of the name's first call counts; a value that is no finite number is left out. -EINVAL: another name
 * or unit; -ENOSPC: a ninth name. */
int crun_metric(const char *name, const char *unit, double value);

/* Parts of a step, for the launcher, which looks for the rank that the others wait for (docs/guide/stragglers.md). */
#define CRUN_PARTS(X)                                                                                                  \
    X(CRUN_PART_DATA, 0, "data") /* this rank waits for its next batch */                                              \
    X(CRUN_PART_FORWARD, 1, "forward")                                                                                 \
    X(CRUN_PART_BACKWARD, 2, "backward")                                                                               \
    X(CRUN_PART_WAIT, 3, "wait") /* this rank waits for others, in collectives; CRUN_FIGURE_WAIT_S reports the same */ \
    X(CRUN_PART_UPDATE, 4, "update")

enum crun_part {
#define X(name, value, text) name = value,
    CRUN_PARTS(X)
#undef X
};
const char *crun_part_name(enum crun_part part);

/* Time spent on a part of the step that is reported as finished next; several calls in a step add up. A few stores, no
 * system call. Every rank reports its own; one that reports one part reports the others, too. A value that is not
 * finite, or below 0, is ignored. Same thread as crun_progress(). */
void crun_spent(enum crun_part part, double seconds);

/* Report how long a small message to another rank and back took lately: over the fastest and the slowest of the
 * links that were tried. Same thread as crun_progress(). */
void crun_links(double best_s, double worst_s);

/* What the launcher wants; reading it costs one load. Async-signal-safe. */
enum crun_stop_reason crun_stop_reason(void);
const char *crun_stop_reason_name(enum crun_stop_reason r);

/* --- a process that outlives its round
 *
 * When a worker of a round dies, crun ends the others and starts all of them again. A process that has called
 * crun_stay() is held instead, unless crun runs with --recovery restart:
 *
 *   crun      the reason becomes CRUN_STOP_HOLD, crun_wake_fd() readable; no signal is sent
 *   process   ends its calls to other ranks (closes its communicators, from another thread if this one is blocked in
 *             one), stops writing anything that another process may write after it, and calls crun_next_round()
 *   crun      starts a process in place of each that is dead, and publishes the next round
 *   process   crun_next_round() returns: rank, world and store are new; opens communicators again and goes on
 *
 * The process has --hold-timeout (2 s) to reach crun_next_round(); after that it is killed and replaced like a dead
 * one. From then until the next round it must not touch anything of the job: another process may have its rank. A
 * request to stop may come at any time, also while it is held, and comes with a signal as always.
 *
 * A warm spare (crun --warm-spares) is a process that is held from its start: its rank is -1. It opens what needs no
 * rank, calls crun_stay() and crun_next_round(), and is a worker like any other from then on. Until then its stdout
 * and stderr are those of the node's first worker. */

/* Let crun hold this process from now on. 0; -ENOTSUP: the launcher holds no processes; nothing has changed. It makes a
 * process that shares this one's memory until this one ends, also beyond exec(), so that a death is seen at once. Call
 * it from a thread that lives as long as the process. */
int crun_stay(void);

/* As crun_stay(); besides, when nodes join, this process is held instead of stopped with CRUN_STOP_RESIZE, if all
 * workers of its node have called this function. For a program that can go on in a larger world with its unsaved
 * state. */
int crun_stay_growing(void);

/* A descriptor that is readable while crun_stop_reason() is not none. For poll(2) only: do not read or close it. -1:
 * crun_stay() was not called, or returned -ENOTSUP. */
int crun_wake_fd(void);

/* A file in memory that the workers of this node share, empty when crun starts. It keeps its content until crun
 * ends, so the workers of a round find what those of the round before wrote, even if they are other processes. For
 * mmap(2) and fallocate(2); do not close it, and do not make it shorter, because others may have it mapped. -1: this
 * process was not started by crun, or by an older one. */
int crun_node_memory(void);

/* Tell crun that the state after step `step` is in this process' memory, for ranks that start anew; negative: no
 * state now. Before the first step of a round crun takes a rank without state for the hung one, so that the state is
 * not lost, and prints it if the state is lost. A store to shared memory; any thread. */
void crun_keeps(int64_t step);

/* This process has done its part of the job and takes part in no further round. If a process dies after all have
 * called this or exited with 0, the job fails and is not restarted. */
void crun_done(void);

/* Wait until this process must let go of its round: 0. Call it after a call to another rank has failed: if the peer
 * is dead, crun says so soon. -ETIMEDOUT; -ECANCELED: the process must end instead, crun_stop_reason() says why;
 * -ENOTSUP as crun_stay(); -EINVAL: timeout_s is not from 0 to 30 days. Any number of threads may call it. */
int crun_wait_hold(double timeout_s);

/* Say that this process has let go of the round, and wait for the next one. 0: *ret describes it; steps count from
 * here as in a process that has just begun (CRUN_PHASE_STARTING), and the error record of an earlier round is
 * removed. -ETIMEDOUT: still held; -ECANCELED: the process must end, and no round was published before that;
 * -EAGAIN: it is not held; -ENOTSUP as crun_stay(); -EINVAL: timeout_s is not from 0 to 30 days. No other thread may
 * use the store, or call crun_progress(), meanwhile. */
int crun_next_round(struct crun_info *ret, double timeout_s);

/* Leave a failure record (TORCHELASTIC_ERROR_FILE and the page) that the launcher puts into its report. Call before
 * exiting with an error; the first one counts. Not for signal handlers: crun_catch_crashes() has one. */
void crun_record_error(int code, const char *message);

/* Install handlers of SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT that leave a failure record with the call stack and
 * print both to stderr (without the stack if it is damaged; in a process that the worker forked they only print), then
 * let the signal do what it would have done: the handler there was before, or death with a core dump. The calling
 * thread gets a signal stack of its own, so that its stack may overflow. Call after crun_init(); a second call does
 * nothing. */
int crun_catch_crashes(void);

/* The round's key-value store, shared by all ranks; the keys of an earlier round are gone. Without crun, or under a
 * launcher without such a store: -ENOTCONN. Each call blocks; any thread. timeout_s: -ETIMEDOUT after so many
 * seconds. -ECANCELED: crun_stay() was called, and crun wants this process to stop. -EIO: the connection broke (the
 * round is over), -EPROTO: the store refused, -EINVAL: an empty key, one above 4096 bytes, or not a time. */

#define CRUN_VALUE_MAX (8 << 20) /* bytes of a value; the same limit as PyTorch's own store */

/* -EMSGSIZE: more than CRUN_VALUE_MAX bytes. Waits 30 s at most, as do add and delete. */
int crun_set(const char *key, const void *value, size_t bytes);
/* Waits until the key exists. At most `capacity` bytes are copied; *ret_bytes is the length of the value: more than
 * capacity if cut. */
int crun_get(const char *key, void *out, size_t capacity, size_t *ret_bytes, double timeout_s);
int crun_add(const char *key, int64_t delta, int64_t *ret_sum); /* a missing key counts as 0; ret_sum may be NULL */
int crun_delete(const char *key);                               /* 1: it was there, 0: it was not */

/* Wait until all ranks have called crun_barrier() with this name as often as this rank. In a world of 1: 0 at once.
 * A rank that timed out has been counted: end the program instead of calling again. */
int crun_barrier(const char *name, double timeout_s);

#ifdef __cplusplus
}
#endif
#endif
