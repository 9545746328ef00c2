/* The rungs that a GPU run climbs, each a run of this program with one thing more than the one before: the first that
 * fails names the fault. The output of each is kept in a folder.
 *
 *   rung -> a process of its own, with a deadline -> exit status, last loss -> compared with the plain rung's
 *   the first that fails -> once more with --cuda-check, so that the kernel is named */
#ifndef CRUN_WORKER_GPU_LADDER_H
#define CRUN_WORKER_GPU_LADDER_H

#include <stdbool.h>
#include <stdint.h>

struct err;

struct gpu_ladder {
    const char *out;        /* folder for logs: made */
    const char *self;       /* this program */
    int64_t deadline_ms;    /* of all rungs together; clock_ms() */
    int gpus, steps, batch; /* that can be used here; of each run */
    const char *arch;
    int image_size;
};

/* *ret_failed: NULL, or the name of the rung that failed; why says how. Prints a line a rung. < 0: the ladder itself
 * could not be climbed. */
int gpu_ladder_climb(const struct gpu_ladder *l, const char **ret_failed, struct err *why, struct err *e);

#endif
