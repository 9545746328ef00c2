/* Shows where the time of a restart went, in a line for people. Pure. */
#ifndef CRUN_LAUNCHER_TIMELINE_H
#define CRUN_LAUNCHER_TIMELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/rdzv/machine/rdzv.h"

/* Monotonic ns; 0: has not happened. */
struct timeline {
    int64_t woken;             /* the kernel notified crun of the death */
    int64_t detected;          /* the cause is known, and the rendezvous has been told: detect = detected - woken */
    int64_t gone;              /* no process of the old round is left: stop = gone - detected */
    int64_t round;             /* the next round is agreed: rendezvous = round - gone */
    int64_t spawned;           /* every worker has executed its program: spawn = spawned - round */
    int64_t met;               /* PyTorch's ranks have met at the store (round_note_met()): ranks met = met - spawned */
    int64_t first_step;        /* the first worker finished a step: first step = first_step - spawned */
    int kept;                  /* number of this node's workers that went on in the same process */
    int restart, max_restarts; /* max_restarts -1: only restarts within a window count, so "3/2" would mislead */
    char cause[RDZV_TEXT_MAX + 1]; /* "rank 1 killed by SIGKILL" */
    bool pending;                  /* its line is not printed yet */
};

#define TIMELINE_TEXT_MAX (RDZV_TEXT_MAX + 256) /* with the terminating NUL; enough for every text */

/* "restart 1/3 (rank 1 killed by SIGKILL), kept 3 workers: detect 0.2 ms, stop 3.1 ms, ..."; "ranks met" and "first
 * step" only if known. Returns out. */
char *timeline_text(const struct timeline *t, char *out, size_t cap);

#endif
