/* Is a worker hanging? Pure: pages and a clock in, a verdict out; hang_watch.c owns timer and /proc.
 *
 * Judged are workers that report to libcrun what they do: that they made a step, or entered a phase. Where none does,
 * and a time was given, quiet.h does.
 *   - a step may take 3 x p99 + 1 s of the steps so far, once 32 are known, and the first 8 of each round are over. At
 *     that moment the processes are looked at: one that is stopped (SIGSTOP, a stop of the terminal) hangs. One that is
 *     not gets the *patient* time: also twice the longest step so far, what the tail of the distribution tells
 *     (HANG_TAIL), and 60 s until 5,000 steps have shown the tail: no job may end by its own jitter;
 *   - start-up and the other phases may take 3 x the longest one so far + 1 s (patient: 60 s at least); the first one
 *     600 s;
 *   - while one worker is in such a phase, those that wait for it in a step are not judged;
 *   - while one is paused, or has a debugger, nobody is; time before an excuse (crun itself was stopped) does not
 *     count.
 * A worker that keeps the state of the job (crun_keeps()) is blamed last. Before the first step it has twice the time
 * where several nodes take part: those without state may be on another one. If no step comes in the round after such a
 * verdict, the next one treats all alike.
 * Where several nodes take part, one cannot see that another writes its checkpoint: a step's patient time is 60 s at
 * least. */
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
#define HANG_UNKNOWN_NS INT64_C(600000000000) /* for what was never seen; NCCL's own time-out */
#define HANG_PHASE_NS INT64_C(60000000000)
#define HANG_TAIL 8 /* the time that one step of 10^10 takes, if each factor of 10 costs what the last one did */

struct hang_options {
    bool off;
    int64_t fixed_ns; /* --hang-timeout SECONDS: a step's time, and the least of the others; 0: auto */
    bool several_nodes;
    int64_t witness_ns; /* NCCL's RAS is asked after so long without a sign (witness/witness.h); 0: it is not */
};

/* "auto", "off" or seconds into a struct hang_options. */
int hang_parse(const char *text, void *field, struct err *e);
/* "off", "ras" or "ras:SECONDS" into an int64_t of ns. */
int hang_parse_witness(const char *text, void *field, struct err *e);

struct hang_worker {
    int rank;
    pid_t pid;
    bool gone;              /* ended: not looked at */
    struct crun_page *page; /* read only */
    bool stopped, traced;   /* of /proc; looked at by hang_judge() only */
};

struct hang_budget {
    int64_t eager_ns, patient_ns; /* for a stopped process, for others; INT64_MAX: for ever */
};

struct hang {
    struct hang_options o;
    int64_t round_ns, excused_ns;
    bool spared; /* the last verdict let those with state live, and no step came since: this time nobody is spared */
    int64_t longest_ns[CRUN_PAGE_PHASES], longest_start_ns; /* of earlier rounds */
    uint32_t steps[CRUN_PAGE_BUCKETS];                      /* of earlier rounds */
};

struct hang_verdict {
    int rank;        /* whom to blame; the first that waits if nobody stands out */
    bool all;        /* nobody stands out */
    bool spares;     /* all: but for those that keep a state (crun_keeps()), which are to live */
    char where[64];  /* "at step 104" */
    char cause[128]; /* "rank 2 hung at step 104" */
    char text[512];  /* for people: who stands where since when */
};

void hang_init(struct hang *h, const struct hang_options *o);
void hang_begin_round(struct hang *h, int64_t now_ns);
void hang_end_round(struct hang *h, const struct hang_worker *w, int n); /* keep what it taught */
void hang_excuse(struct hang *h, int64_t now_ns);                        /* what was before does not count */

/* Time of the phase that this worker is in. */
struct hang_budget hang_budget(const struct hang *h, const struct hang_worker *w, int n, uint32_t phase);

bool hang_tells(const struct hang_worker *w, int n); /* some worker does */

bool hang_due(const struct hang *h, int64_t now_ns, const struct hang_worker *w, int n); /* look at the processes now */
/* True: a worker hangs; *ret says which. */
bool hang_judge(struct hang *h, int64_t now_ns, const struct hang_worker *w, int n, struct hang_verdict *ret);
int64_t hang_next(const struct hang *h, int64_t now_ns, const struct hang_worker *w, int n); /* when to ask again */

#endif
