/* Computes which samples a rank has in a step: order, pass and place. */
#include "worker/data/loader/sampler.h"

#include <errno.h>

#include "common/base/err.h"
#include "worker/data/image/rng.h"

/* Positions of a pass. */
static uint64_t pass_length(const struct sampler *s)
{
    const uint64_t w = s->world > 0 ? (uint64_t)s->world : 1;
    if (s->kind != SAMPLER_DISTRIBUTED)
        return s->n;
    return s->drop_last ? s->n / w * w : (s->n + w - 1) / w * w;
}

void sampler_clip(struct sampler *s)
{
    const int shards = s->kind != SAMPLER_SHARDED ? 1 : s->shards ? s->shards : s->world;
    const size_t pass = (size_t)pass_length(s), most = s->epoch_size > pass ? s->epoch_size : pass;
    if (s->batch > most && most > 0)
        s->batch = shards > 1 && most >= (size_t)shards ? most / (size_t)shards * (size_t)shards : most;
}

static int check_repetitions(const struct sampler *s, struct err *e)
{
    if (s->mix_group && s->kind != SAMPLER_GLOBAL)
        return err_set(
            e, ERR_USAGE,
            "--mixup and --cutmix mix positions in a row: they need --sampler global, whose shares are in a row");
    if (s->repetitions > 1 && s->kind == SAMPLER_SHARDED)
        return err_set(e, ERR_USAGE,
                       "--repeated-augmentation %d: --sampler sharded shows records in their own order; use another",
                       s->repetitions);
    if ((uint64_t)s->repetitions * s->n >= UINT32_MAX)
        return err_set(e, ERR_USAGE, "--repeated-augmentation %d: %zu samples have more repetitions than 32 bits count",
                       s->repetitions, s->n);
    return 0;
}

int sampler_check(struct sampler *s, struct err *e)
{
    if (s->n < 1 || s->n > UINT32_MAX)
        return err_set(e, -EINVAL, "an order of %zu samples: must be 1 to 4294967295", s->n);
    if (s->batch < 1)
        return err_set(e, -EINVAL, "batches of 0 samples");
    if (s->world < 1 || s->rank < 0 || s->rank >= s->world)
        return err_set(e, -EINVAL, "rank %d of a world of %d", s->rank, s->world);
    s->shards = s->shards ? s->shards : s->world;
    s->repetitions = s->repetitions ? s->repetitions : 1;
    TRY(check_repetitions(s, e));
    if (s->kind != SAMPLER_SHARDED)
        return s->kind == SAMPLER_DISTRIBUTED && s->drop_last && s->n < (size_t)s->world
                   ? err_set(e, ERR_USAGE, "--drop-last: %zu samples leave nothing for %d ranks", s->n, s->world)
                   : 0;
    if (s->shards < 1 || s->world % s->shards)
        return err_set(e, ERR_USAGE, "--sampler sharded: %d ranks cannot be spread evenly over %d nodes", s->world,
                       s->shards);
    if (s->n < (size_t)s->shards)
        return err_set(e, ERR_USAGE, "--sampler sharded: %zu records leave some of %d shards without any", s->n,
                       s->shards);
    if (s->batch % (size_t)s->shards)
        return err_set(e, ERR_USAGE, "--sampler sharded: a global batch of %zu is no multiple of the %d shards",
                       s->batch, s->shards);
    return 0;
}

static uint64_t epoch_length(const struct sampler *s)
{
    uint64_t size = s->epoch_size ? s->epoch_size : pass_length(s);
    if (s->epoch_size || s->kind == SAMPLER_SHARDED)
        size = size < s->batch ? s->batch : size / s->batch * s->batch;
    return size;
}

int64_t sampler_steps(const struct sampler *s)
{
    return (int64_t)((epoch_length(s) + s->batch - 1) / s->batch);
}

int64_t sampler_images(const struct sampler *s)
{
    return (int64_t)epoch_length(s);
}

size_t sampler_share(size_t batch, int world)
{
    return (batch + (size_t)world - 1) / (size_t)world;
}

/* Positions of a full step that are cut into parts, and the ranks that each part is spread over. */
static size_t positions(const struct sampler *s, size_t *ret_ranks)
{
    const bool sharded = s->kind == SAMPLER_SHARDED;
    *ret_ranks = (size_t)(sharded ? s->world / s->shards : s->world);
    return sharded ? s->batch / (size_t)s->shards : s->batch;
}

/* Positions of a full part. */
static size_t cut(const struct sampler *s)
{
    size_t ranks, n = positions(s, &ranks), parts = s->parts > 1 ? (size_t)s->parts : 1;
    n = (n + parts - 1) / parts;
    return n < ranks ? ranks : n;
}

int sampler_parts(const struct sampler *s)
{
    size_t ranks;
    return (int)((positions(s, &ranks) + cut(s) - 1) / cut(s));
}

size_t sampler_part_rows(const struct sampler *s)
{
    size_t ranks;
    const size_t n = positions(s, &ranks), full = cut(s);
    return sampler_share(full < n ? full : n, (int)ranks);
}

/* Of positions in a row, in each of the two groups that may lie in them in part, those that go round or begin. */
size_t sampler_part_others(const struct sampler *s)
{
    const size_t rows = sampler_part_rows(s), most = 2 * (size_t)(s->repetitions ? s->repetitions : 1);
    return !s->mix_group || s->world * sampler_parts(s) == 1 ? 0 : rows < most ? rows : most;
}

size_t sampler_rows(const struct sampler *s)
{
    return (sampler_part_rows(s) + sampler_part_others(s)) * (size_t)sampler_parts(s);
}

struct slice {
    uint64_t first;
    size_t count, stride;
};

/* Share i of n of m positions in a row. */
static struct slice share(uint64_t begin, size_t m, int i, int n)
{
    const size_t first = m * (size_t)i / (size_t)n, end = m * ((size_t)i + 1) / (size_t)n;
    return (struct slice){.first = begin + first, .count = end - first, .stride = 1};
}

/* This rank's positions of a part of a step: in the stream of all, or (sharded) of its shard. */
static struct slice slice_of(const struct sampler *s, int64_t epoch, int64_t step, int part)
{
    const bool sharded = s->kind == SAMPLER_SHARDED;
    const uint64_t length = epoch_length(s), before = (uint64_t)step * s->batch, w = (uint64_t)s->world;
    const size_t shards = sharded ? (size_t)s->shards : 1; /* each takes as much of a step as the others */
    size_t m = (length - before < s->batch ? (size_t)(length - before) : s->batch) / shards;
    const size_t full = cut(s), from = (size_t)part * full < m ? (size_t)part * full : m;
    const uint64_t begin = ((uint64_t)epoch * length + before) / shards + from;
    m = m - from < full ? m - from : full;
    if (s->kind == SAMPLER_GLOBAL)
        return share(begin, m, s->rank, s->world);
    if (sharded) {
        const int ranks = s->world / s->shards;
        return share(begin, m, s->rank % ranks, ranks);
    }
    const uint64_t skip =
        ((uint64_t)s->rank + w - begin % w) % w; /* a pass is a multiple of w: so is where it begins */
    return (struct slice){.first = begin + skip, .count = m > skip ? (size_t)((m - skip + w - 1) / w) : 0, .stride = w};
}

size_t sampler_count(const struct sampler *s, int64_t epoch, int64_t step, int part)
{
    return slice_of(s, epoch, step, part).count;
}

/* Position p of the stream of all passes. */
static struct place place_at(const struct sampler *s, uint64_t p)
{
    const uint64_t length = pass_length(s), repetitions = s->repetitions ? (uint64_t)s->repetitions : 1;
    return (struct place){.pass = p / length,
                          .at = (uint32_t)(p % length / repetitions % s->n),
                          .repetition = (uint32_t)(p % length % repetitions)};
}

size_t sampler_length(const struct sampler *s, int64_t step)
{
    const uint64_t left = epoch_length(s) - (uint64_t)step * s->batch;
    return left < s->batch ? (size_t)left : s->batch;
}

static uint64_t begin_of(const struct sampler *s, int64_t epoch, int64_t step)
{
    return (uint64_t)epoch * epoch_length(s) + (uint64_t)step * s->batch;
}

size_t sampler_position(const struct sampler *s, int64_t epoch, int64_t step, int part, size_t i)
{
    return (size_t)(slice_of(s, epoch, step, part).first - begin_of(s, epoch, step)) + i;
}

struct place sampler_at(const struct sampler *s, int64_t epoch, int64_t step, size_t position)
{
    return place_at(s, begin_of(s, epoch, step) + position);
}

struct place sampler_place(const struct sampler *s, int64_t epoch, int64_t step, int part, size_t i)
{
    const struct slice sl = slice_of(s, epoch, step, part);
    const uint64_t p = sl.first + i * sl.stride;
    if (s->kind == SAMPLER_SHARDED) {
        const uint64_t shards = (uint64_t)s->shards, shard = (uint64_t)(s->rank / (s->world / s->shards));
        const uint64_t mine = (s->n - shard + shards - 1) / shards;
        return (struct place){.pass = p / mine, .at = (uint32_t)(shard + p % mine * shards)};
    }
    return place_at(s, p);
}

static void permute(uint32_t *v, size_t n, struct rng *r)
{
    for (size_t i = n; i > 1; i--) {
        size_t j = (size_t)rng_below(r, i);
        uint32_t swap = v[i - 1];
        v[i - 1] = v[j];
        v[j] = swap;
    }
}

/* The order of the tar files stands at the end of out. None is empty, so samples reach the place of a file's number
 * only after it was read. */
static void order_by_sets(const struct sampler *s, uint32_t *out, struct rng *r)
{
    uint32_t *sets = out + s->n - (size_t)s->sets;
    size_t at = 0;
    for (int i = 0; i < s->sets; i++)
        sets[i] = (uint32_t)i;
    permute(sets, (size_t)s->sets, r);
    for (int i = 0; i < s->sets;) {
        const size_t first = at;
        for (int left = s->mixed; left > 0 && i < s->sets; left--, i++) {
            const uint32_t set = sets[i], end = s->set_ends[set];
            for (uint32_t id = set ? s->set_ends[set - 1] : 0; id < end; id++)
                out[at++] = id;
        }
        permute(out + first, at - first, r);
    }
}

/* Draws are of another stream than permutations are. */
static void draw_balanced(const struct sampler *s, uint64_t pass, uint32_t *out)
{
    struct rng r = rng_stream(s->seed, RNG_BALANCE, pass, 0);
    for (size_t i = 0; i < s->n; i++) {
        const size_t c = (size_t)rng_below(&r, (uint64_t)s->classes);
        const uint32_t first = c ? s->class_ends[c - 1] : 0;
        out[i] = s->by_class[first + rng_below(&r, s->class_ends[c] - first)];
    }
}

void sampler_order(const struct sampler *s, uint64_t pass, uint32_t *out)
{
    struct rng r = rng_stream(s->seed, RNG_ORDER, s->kind == SAMPLER_SHARDED ? 0 : pass, 0);
    if (s->balanced) {
        draw_balanced(s, pass, out);
        return;
    }
    if (s->shuffle && s->mixed > 0) {
        order_by_sets(s, out, &r);
        return;
    }
    for (size_t i = 0; i < s->n; i++)
        out[i] = (uint32_t)i;
    if (s->shuffle)
        permute(out, s->n, &r);
}
