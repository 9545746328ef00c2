/* Random numbers as a function of where they are used: Philox (Random123) keyed by the seed and a purpose, counted by
 * three numbers.
 *
 * A stream is (seed, purpose, a, b, c): say, the crops of sample b in pass a, shown for the c-th time in it. Streams
 * are independent, cost nothing to begin, and are the same on every machine; nothing here calls libm. */
#ifndef CRUN_WORKER_DATA_RNG_H
#define CRUN_WORKER_DATA_RNG_H

#include <stdint.h>

#include <Random123/philox.h>

#define RNG_PURPOSES(X) /* the values are part of every result: never renumber */                                      \
    X(RNG_ORDER, 1)     /* order of an epoch: a = epoch */                                                             \
    X(RNG_AUGMENT, 2)   /* crop and flip: a = pass, b = sample, c = repetition */                                      \
    X(RNG_SHAPES, 3)    /* drawn pictures: a = index */                                                                \
    X(RNG_NULL, 4)      /* noise: a = sample */                                                                        \
    X(RNG_RECORDS, 5)   /* order of the records of a new data base */                                                  \
    X(RNG_GENERATE, 6)  /* a token that is drawn: a = its place */                                                     \
    X(RNG_POLICY, 7)    /* operations on a picture: as RNG_AUGMENT, c = repetition */                                  \
    X(RNG_ERASE, 8)     /* the box that is erased: the same */                                                         \
    X(RNG_MIX, 9)       /* how pictures are mixed: a = epoch, b = step, c = group */                                   \
    X(RNG_SPLIT, 20)    /* what is held out: a = hash of the sample's name */                                          \
    X(RNG_BALANCE, 21)  /* samples by classes: a = pass */

enum rng_purpose {
#define X(name, value) name = value,
    RNG_PURPOSES(X)
#undef X
};

struct rng {
    philox4x64_key_t key;
    philox4x64_ctr_t ctr, out;
    unsigned used; /* of out */
};

static inline struct rng rng_stream_of(uint64_t seed, enum rng_purpose purpose, uint64_t a, uint64_t b, uint64_t c)
{
    struct rng r = {.key = {{seed, (uint64_t)purpose}}, .ctr = {{0, c, a, b}}, .used = 4};
    return r;
}

static inline struct rng rng_stream(uint64_t seed, enum rng_purpose purpose, uint64_t a, uint64_t b)
{
    return rng_stream_of(seed, purpose, a, b, 0);
}

static inline uint64_t rng_u64(struct rng *r)
{
    if (r->used == 4) {
        r->out = philox4x64(r->ctr, r->key);
        r->ctr.v[0]++;
        r->used = 0;
    }
    return r->out.v[r->used++];
}

/* Uniform in 0..n-1, n >= 1, without bias: the high word of a product, and another draw in the few cases that would
 * favour some. */
static inline uint64_t rng_below(struct rng *r, uint64_t n)
{
    __extension__ typedef unsigned __int128 u128;
    u128 m = (u128)rng_u64(r) * n;
    if ((uint64_t)m < n) {
        uint64_t threshold = (0 - n) % n;
        while ((uint64_t)m < threshold)
            m = (u128)rng_u64(r) * n;
    }
    return (uint64_t)(m >> 64);
}

/* Uniform in [0, 1), a multiple of 2^-53. */
static inline double rng_unit(struct rng *r)
{
    return (double)(rng_u64(r) >> 11) * 0x1p-53;
}

static inline double rng_range(struct rng *r, double lo, double hi)
{
    return lo + (hi - lo) * rng_unit(r);
}

#endif
