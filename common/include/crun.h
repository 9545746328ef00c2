/* SPDX-License-Identifier: Apache-2.0 */
/* libcrun: what a worker started by crun can ask and report. Plain C, no dependencies, usable through ctypes.
 *
 * Every call works without crun too: rank 0 of 1, no store, never a stop. Thread-safe unless stated.
 * Functions return 0 or a negative errno. A process that fork()s: only one of the two goes on with it. */
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
    X(CRUN_STOP_DRAIN, 3, "drain")     /* the same, and the job will not go on by itself */                            \
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

/* What else they show; the first five are the whole job's, and rank 0 reports them. */
#define CRUN_FIGURES(X)                                                                                                \
    X(CRUN_FIGURE_LOSS, 0, "loss")                   /* of a recent step */                                            \
    X(CRUN_FIGURE_IMAGES_PER_S, 1, "images_per_s")   /* samples, or tokens, a second, of all ranks */                  \
    X(CRUN_FIGURE_ACCURACY, 2, "accuracy")           /* of a recent step: 0 to 1 */                                    \
    X(CRUN_FIGURE_EVAL_ACCURACY, 3, "eval_accuracy") /* of the latest evaluation: 0 to 1 */                            \
    X(CRUN_FIGURE_TOTAL_STEPS, 4, "total_steps")     /* the step that will be the last one */                          \
    X(CRUN_FIGURE_WAIT_S, 5, "wait_s")               /* of the step that is reported as finished next: how long     \
                                                          this rank waited for others. Every rank reports its own */

enum crun_figure {
#define X(name, value, text) name = value,
    CRUN_FIGURES(X)
#undef X
};

/* Some stores, no system call; what is no finite number, and a wait that is no time, is left out. Same thread as
 * crun_progress(). */
void crun_figure(enum crun_figure which, double value);

/* What a step is made of, for the launcher, which looks for the rank that the others wait for
 * (docs/guide/stragglers.md). */
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

/* How long a small message to another rank and back took lately: over the quickest of the links that were tried, and
 * over the slowest. Same thread as crun_progress(). */
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
 *             one), writes nothing any more that another process may write after it, and calls crun_next_round()
 *   crun      starts a process in place of each that is dead, and publishes the next round
 *   process   crun_next_round() returns: rank, world and store are new; opens communicators again and goes on
 *
 * It has --hold-timeout (2 s) to come to crun_next_round(): then it is killed and replaced, as one that is dead.
 * Between the two nothing of the job may be touched: until the new round arrives, another process may have its rank.
 * A wish that it should end may come at any time, also while it is held; then with a signal, as always.
 *
 * A warm spare (crun --warm-spares) is a process that is held from its start: its rank is -1. It opens what needs no
 * rank, calls crun_stay() and crun_next_round(), and from then on is as any other; until then its stdout and stderr are
 * those of the node's first worker. */

/* From now on hold this process. 0; -ENOTSUP: whoever started it does not hold anybody, all is as without. */
int crun_stay(void);

/* As crun_stay(); and when nodes join, this process is held, too, instead of stopped with CRUN_STOP_RESIZE, where all
 * workers of its node have called this. For one that can go on in a larger world with what it has, unsaved. */
int crun_stay_growing(void);

/* Descriptor that is readable while crun_stop_reason() is not none; for poll(2) alone: not to be read or closed. -1:
 * crun_stay() was not called, or returned -ENOTSUP. */
int crun_wake_fd(void);

/* A file in memory that the workers of this node share, empty when crun starts. It stays, with what is in it, until
 * crun ends: what the workers of a round wrote, those of the next one find, whether or not they are the same processes.
 * For mmap(2) and fallocate(2); not to be closed, and not to be made shorter, as others may have it mapped. -1: no
 * crun has started this process, or an older one. */
int crun_node_memory(void);

/* The state after step `step` is in this process' memory, for ranks that start anew; negative: there is none now.
 * Before the first step of a round crun takes a rank without state for the one that hangs, so that the state is not
 * lost; and says so if it is. A store to shared memory; any thread. */
void crun_keeps(int64_t step);

/* This process has done its part of the job and takes part in no further round. If one of the processes dies once all
 * have called this or ended well, the job fails, but does not begin anew. */
void crun_done(void);

/* Wait until this process is to let go of its round: 0. After a call to another rank has failed: if the peer is dead,
 * crun says so within a moment. -ETIMEDOUT; -ECANCELED: it is to end instead, crun_stop_reason() says why; -ENOTSUP as
 * crun_stay(); -EINVAL: not a time of up to 30 days. Any thread, any number of them. */
int crun_wait_hold(double timeout_s);

/* It has let go of the round: say so, and wait for the next one. 0: *ret is of that; steps count from here as those
 * of a process that has just begun (CRUN_PHASE_STARTING), and its error record of an earlier round is removed.
 * -ETIMEDOUT: still held; -ECANCELED: it is to end, and no round was published before; -EAGAIN: it is not held;
 * -ENOTSUP as crun_stay(); -EINVAL: not a time of up to 30 days. No other thread uses the store, or calls
 * crun_progress(), meanwhile. */
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
 * launcher without such a store: -ENOTCONN. Each call blocks; any thread. timeout_s: at most so many seconds,
 * -ETIMEDOUT after them. -ECANCELED: crun_stay() was called, and a reason to stop is there. -EIO: the connection
 * broke (the round is over), -EPROTO: the store refused, -EINVAL: an empty key, one above 4096 bytes, or not a time. */

#define CRUN_VALUE_MAX (8 << 20) /* bytes of a value; PyTorch's own store takes as much */

/* -EMSGSIZE: more than CRUN_VALUE_MAX bytes. Waits 30 s at most, as do add and delete. */
int crun_set(const char *key, const void *value, size_t bytes);
/* Waits until the key exists. At most `capacity` bytes are copied; *ret_bytes is the length of the value: more than
 * capacity if cut. */
int crun_get(const char *key, void *out, size_t capacity, size_t *ret_bytes, double timeout_s);
int crun_add(const char *key, int64_t delta,
             int64_t *ret_sum);   /* a key that is not there counts as 0; ret_sum may be NULL */
int crun_delete(const char *key); /* 1: it was there, 0: it was not */

/* Wait until all ranks have called it with this name as often as this one. Alone (a world of 1): 0 at once. A rank that
 * timed out is counted as come: end the program rather than try again. */
int crun_barrier(const char *name, double timeout_s);

#ifdef __cplusplus
}
#endif
#endif
