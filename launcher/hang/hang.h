/* Decides whether a worker hangs. Pure: pages and a clock in, a verdict out; hang_watch.c owns timer and /proc.
 *
 * It judges workers that report to libcrun: a finished step, or the beginning of a phase. If none does, and a time was
 * given, quiet.h judges instead.
 *   - a step may take 3 x p99 + 1 s of the steps so far, once 32 are known, and the first 8 of each round are over.
 *     After that time (*eager*) the processes are looked at: a stopped one (SIGSTOP, a stop of the terminal) hangs.
 *     Others get the *patient* time: at least twice the longest step so far, at least what the tail of the distribution
 *     predicts (HANG_TAIL), and at least 60 s until 5,000 steps have shown the tail. So no job ends because its steps
 *     vary;
 *   - start-up and the other phases may take 3 x the longest one so far + 1 s (patient: 60 s at least); the first one
 *     600 s;
 *   - while one worker is in such a phase, those that wait for it in a step are not judged;
 *   - while one is paused, or has a debugger, none is judged; time before an excuse (crun itself was stopped) does not
 *     count.
 * A worker that keeps the state of the job (crun_keeps()) is blamed last. Before the first step it has twice the
 * time if the job has several nodes: workers without state may be on another one. If the round after such a verdict
 * brings no step either, the next verdict spares nobody. A node cannot see that another node writes a checkpoint:
 * with several nodes a step's patient time is at least 60 s. */
#ifndef CRUN_LAUNCHER_HANG_H
#define CRUN_LAUNCHER_HANG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/crun/crun_page.h"

struct err;

#define HANG_FACTOR 3
#define HANG_FLOOR_NS INT64_C(1000000000)
#define HANG_STEPS_MIN 32                     /* of each worker, before they are trusted */
#define HANG_WARMUP 8                         /* of each worker in each round */
#define HANG_UNKNOWN_NS INT64_C(600000000000) /* for a phase that was never seen; NCCL's own time-out */
#define HANG_PHASE_NS INT64_C(60000000000)
#define HANG_TAIL 8 /* applications of the factor from one step to a ten times rarer one, as last measured */

struct hang_options {
    bool off;
    int64_t fixed_ns; /* --hang-timeout SECONDS: time for a step, and the minimum for phases; 0: auto */
    bool several_nodes;
    int64_t witness_ns; /* ask NCCL's RAS after so long without a sign of life (witness/witness.h); 0: never */
};

/* Parse "auto", "off" or seconds into a struct hang_options. */
int hang_parse(const char *text, void *field, struct err *e);
/* Parse "off", "ras" or "ras:SECONDS" into an int64_t of ns. */
int hang_parse_witness(const char *text, void *field, struct err *e);

struct hang_worker {
    int rank;
    pid_t pid;
    bool gone;              /* ended: ignored */
    struct crun_page *page; /* read only */
    bool stopped, traced;   /* of /proc; looked at by hang_judge() only */
};

struct hang_budget {
    int64_t eager_ns, patient_ns; /* time for a stopped process; time for others; INT64_MAX: no limit */
};

struct hang {
    struct hang_options o;
    int64_t round_ns, excused_ns;
    bool spared; /* the last verdict spared workers with state, and no step came since: this time spare none */
    int64_t longest_ns[CRUN_PAGE_PHASES], longest_start_ns; /* of earlier rounds */
    uint32_t steps[CRUN_PAGE_BUCKETS];                      /* of earlier rounds */
};

struct hang_verdict {
    int rank;        /* the worker to blame; if none stands out, the first that waits */
    bool all;        /* none stands out */
    bool spares;     /* end all workers, except those that keep a state (crun_keeps()) */
    char where[64];  /* "at step 104" */
    char cause[128]; /* "rank 2 hung at step 104" */
    char text[512];  /* for people: who waits where since when */
};

void hang_init(struct hang *h, const struct hang_options *o);
void hang_begin_round(struct hang *h, int64_t now_ns);
void hang_end_round(struct hang *h, const struct hang_worker *w, int n); /* keep the measured times */
void hang_excuse(struct hang *h, int64_t now_ns);                        /* time before now_ns does not count */

/* The time allowed for the phase that this worker is in. */
struct hang_budget hang_budget(const struct hang *h, const struct hang_worker *w, int n, uint32_t phase);

bool hang_tells(const struct hang_worker *w, int n); /* some worker does */

bool hang_due(const struct hang *h, int64_t now_ns, const struct hang_worker *w, int n); /* look at the processes now */
/* True: a worker hangs; *ret says which. */
bool hang_judge(struct hang *h, int64_t now_ns, const struct hang_worker *w, int n, struct hang_verdict *ret);
int64_t hang_next(const struct hang *h, int64_t now_ns, const struct hang_worker *w, int n); /* when to ask again */

#endif
