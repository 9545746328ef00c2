/* mixup and CutMix, of groups of positions of a step: which pictures are mixed with which, and how. Functions of (seed,
 * epoch, step, group), so that all ranks know of all pictures. Pure.
 *
 * Groups are `group` positions in a row of the whole step, the last one what is left. The partner of a position is the
 * one `repetitions` before it in its group, round and round: so no picture meets a repetition of itself, as long as the
 * group shows several. */
#ifndef CRUN_WORKER_DATA_MIX_H
#define CRUN_WORKER_DATA_MIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mix_options {
    double mixup, cutmix; /* of the Beta distributions; 0: not that kind, both 0: nothing is mixed */
    double least;         /* 0 to below 1/2: a label with no more of the target than this has none of it */
    size_t group;         /* positions, >= 1 */
};

static inline bool mix_is_on(const struct mix_options *o)
{
    return o->mixup > 0 || o->cutmix > 0;
}

struct mix {        /* of a group */
    double keep;    /* of the picture, the rest is its partner: mixup's lambda; CutMix 1 */
    double share;   /* of the partner's label in the target */
    int16_t box[4]; /* x0, y0, x1, y1: pixels that are all the partner's; mixup: none, all 0 */
};

/* Of pictures of `size` pixels square. With both kinds each has probability 1/2. */
struct mix mix_draw(const struct mix_options *o, uint64_t seed, int64_t epoch, int64_t step, size_t group, int size);

/* The position whose picture that of `position` is mixed with, in a step of `length` positions; its own: with none. */
size_t mix_partner(size_t group, size_t repetitions, size_t position, size_t length);

/* Beta(a, a), a > 0. */
struct rng;
double mix_beta(double a, struct rng *r);

#endif
