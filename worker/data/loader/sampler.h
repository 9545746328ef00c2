/* Which samples make up a step: pure functions, cheap enough to be asked for every batch.
 *
 * An endless stream of samples runs through the set pass after pass; an epoch is the next `epoch_size` of it (the set's
 * own number: a pass) and step k the epoch's positions kB .. (k+1)B - 1, the last step being short where B does not
 * divide it. Of a step's m positions:
 *   - global: rank r of W takes the r-th W-th, [floor(rm/W), floor((r+1)m/W)): the union is the same for every W;
 *   - distributed (torch.utils.data.DistributedSampler): a pass is padded by its own head to a multiple of W
 *     (drop_last: cut down to one), and rank r takes every position p of the pass with p mod W = r. The permutation is
 *     ours, not torch's: same distribution, other numbers;
 *   - sharded (Caffe2's DBReader): shard s of S reads records s, s + S, s + 2S ... and begins again at s when the set
 *     ends; each of the shard's W/S ranks takes an equal part of its B/S of the step. An epoch is a multiple of B.
 *     Shuffled, it is once and for all: shards end a pass at different times, and must not meet.
 * With R repetitions a pass has the same number of positions, and position p of it shows picture floor(p / R) of its
 * order, for the (p mod R)-th time: the first n / R pictures, R times each in a row (torchvision's and timm's
 * RASampler).
 * Where a step goes through the model in parts (micro-batches), its positions, or its shard's, are cut into parts
 * first, all of a size but for a last short one, and each part is spread over the ranks as above: a part is the
 * same samples whatever the number of ranks. */
#ifndef CRUN_WORKER_SAMPLER_H
#define CRUN_WORKER_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/choice.h"

struct err;

/* Who takes which sample of an epoch. */
#define SAMPLERS(X)                                                                                                    \
    X(SAMPLER_GLOBAL, "global")                                                                                        \
    X(SAMPLER_DISTRIBUTED, "distributed")                                                                              \
    X(SAMPLER_SHARDED, "sharded")
enum sampler_kind { SAMPLERS(CHOICE_ID) };

struct sampler {
    enum sampler_kind kind;
    size_t n, batch; /* samples of the set, of a global batch; both >= 1 */
    int rank, world;
    int shards;               /* sharded: a divisor of world; shard s are ranks s * world / shards onwards. 0: world */
    bool shuffle;             /* each pass in an order of its own; else that of the set */
    bool drop_last;           /* distributed */
    int mixed;                /* shuffle: tar files whose samples are mixed with one another; 0: all samples are */
    int sets;                 /* mixed > 0: tar files of the set, and ... */
    const uint32_t *set_ends; /* ... samples up to the end of each, which rise; borrowed */
    bool balanced;            /* shuffle: each position draws a class, and then one of its samples ... */
    int classes;              /* ... of which these many have some, */
    const uint32_t *class_ends, *by_class; /* samples up to the end of each in by_class (n); borrowed */
    size_t epoch_size; /* rounded down to a multiple of batch, but at least one batch. 0: the set's own number */
    int parts;         /* of a step, at most: a full part has a sample for each rank; 0: 1 */
    int repetitions;   /* R; 0: 1 */
    size_t mix_group;  /* global: positions of a step that are mixed with one another (mix.h); 0: nothing is */
    uint64_t seed;
};

/* No step holds more than there is: a batch that is larger than a pass, and than epoch_size, becomes as large as these
 * (sharded: and a multiple of the shards). Before sampler_check(). */
void sampler_clip(struct sampler *s);

/* Fills in the defaults. ERR_USAGE names the option that asks for what cannot be; -EINVAL. */
int sampler_check(struct sampler *s, struct err *e);

int64_t sampler_steps(const struct sampler *s);    /* of an epoch */
int64_t sampler_images(const struct sampler *s);   /* of an epoch, over all ranks, repeated ones included */
int sampler_parts(const struct sampler *s);        /* of a step, >= 1; the last ones of a short step may be empty */
size_t sampler_part_rows(const struct sampler *s); /* most samples a rank has in a part */
/* Most samples of others that those are mixed with: a rank has positions in a row, so that few partners lie outside. */
size_t sampler_part_others(const struct sampler *s);
size_t sampler_rows(const struct sampler *s); /* of all parts, others behind each: what a batch in memory takes */

/* Samples of this rank in a part of a step. */
size_t sampler_count(const struct sampler *s, int64_t epoch, int64_t step, int part);

/* Sample i (< sampler_count) of this rank: the place in the order of a pass. */
struct place {
    uint64_t pass;
    uint32_t at, repetition;
};
struct place sampler_place(const struct sampler *s, int64_t epoch, int64_t step, int part, size_t i);

/* Of the global sampler: the positions of a step; which of them sample i of this rank has; what each shows. */
size_t sampler_length(const struct sampler *s, int64_t step);
size_t sampler_position(const struct sampler *s, int64_t epoch, int64_t step, int part, size_t i);
struct place sampler_at(const struct sampler *s, int64_t epoch, int64_t step, size_t position);

/* The order of a pass: a permutation of 0..n-1 (Fisher-Yates on Philox) into out; without shuffle the identity;
 * balanced: n draws with replacement, as torch's WeightedRandomSampler makes with weights 1 / samples of the class.
 * With mixed > 0 the tar files are permuted, then the samples of each `mixed` of them in a row: a pass reads few files
 * at a time. */
void sampler_order(const struct sampler *s, uint64_t pass, uint32_t *out);

/* Largest share of a rank: ceil(batch / world). */
size_t sampler_share(size_t batch, int world);

#endif
