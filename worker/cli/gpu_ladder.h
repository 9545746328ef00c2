/* The rungs that a GPU run climbs, each a run of this program with one thing more than the one before: the first that
 * fails names the fault. The output of each is kept in a folder.
 *
 *   rung -> a process of its own, with a deadline -> exit status, last loss -> compared with the plain rung's
 *   the first that fails -> once more with --cuda-check, so that the kernel is named
 *   no time left for a rung, or for its end -> neither good nor bad: the climb ends there
 * Who climbs takes the rung's process along when it is killed (PDEATHSIG). */
#ifndef CRUN_WORKER_GPU_LADDER_H
#define CRUN_WORKER_GPU_LADDER_H

#include <stdbool.h>
#include <stdint.h>

struct err;

struct gpu_ladder {
    const char *out;        /* folder for logs: made */
    const char *self;       /* this program */
    int64_t deadline_ms;    /* of all rungs together; clock_ms() */
    int64_t rung_ms;        /* that a rung may take: one that takes longer fails */
    int gpus, steps, batch; /* that can be used here; of each run */
    const char *arch;
    int image_size;
};

/* Where the climb ended. */
struct gpu_ladder_end {
    const char *rung; /* NULL: all hold; else its name, and why says how it failed */
    bool no_time;     /* it did not fail: the time of all rungs ended before it did */
};

/* Prints a line a rung. Blocks until *l's deadlines at most. < 0: the ladder itself could not be climbed. */
int gpu_ladder_climb(const struct gpu_ladder *l, struct gpu_ladder_end *ret, struct err *why, struct err *e);

#endif
