/* The points of test_exact.c: a world (ranks as threads), a tensor group and what it splits, ZeRO, micro-batches, mixed
 * precision, synchronised statistics, an optimizer, a reduction of losses, smoothing, stages of a pipeline, their
 * schedule, recomputed activations. They are drawn by a seed; until
 * all pairs of values that go together have been had, the one of some candidates is taken that has most new pairs. */
#ifndef CRUN_TESTS_EXACT_POINTS_H
#define CRUN_TESTS_EXACT_POINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/pipeline/pipeline.h"

enum { EXACT_BATCH = 24, EXACT_RANKS_MAX = 8 };

enum axis { WORLD, TENSOR, SPLIT, ZERO, PARTS, HALF, SYNC, RULE, LOSS, SMOOTH, STAGES, SCHEDULE, RECOMPUTE, AXES };
enum half { FULL, BF16_O1, BF16_O2, FP16_O2 };

struct point {
    int at[AXES]; /* which value of each axis */
};

int point_world(const struct point *p);
int point_tensor(const struct point *p);
int point_parts(const struct point *p);
struct pipeline point_pipeline(const struct point *p);
/* Batch statistics of each rank's own samples are the reference's only if all ranks have equally many of them. */
bool point_own_statistics(const struct point *p);
void point_describe(const struct point *p, char *out, size_t cap);

/* seed: the generator's state, which moves on. */
struct point point_drawn(uint64_t *seed); /* any, whatever pairs it has */
struct point point_next(uint64_t *seed);
/* Any point of several stages with this level of ZeRO, whatever pairs it has. */
struct point point_staged(uint64_t *seed, int zero);
int point_pairs_left(void); /* pairs of values that no point has had yet */

#endif
