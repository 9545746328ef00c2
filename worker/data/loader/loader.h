/* Loader threads that keep a ring of ready batches ahead of training.
 *
 *   sampler.h: (epoch, step, rank) -> ids -> threads: dataset's read() -> input.h: decode, crop, flip -> a row of a
 *   slot, and behind them others' pictures that ours are mixed with (mixing.h) -> loader_next(): rows, pictures (n, H,
 *   W, C) u8, labels (n), weights (n), or tokens (n, T) i32, labels (n, T) -> training -> loader_done(): the slot is
 *   free
 *
 * Results depend on the sampler, epoch and step only, never on the number of threads or on timing. A sample that cannot
 * be decoded gets weight 0 and zero pixels, is counted, and is told once (left_out.h) when its batch is taken; with
 * strict it fails loader_next(), and so does a window of tokens that cannot be used. */
#ifndef CRUN_WORKER_LOADER_H
#define CRUN_WORKER_LOADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/data/augment/mix.h"
#include "worker/data/loader/input.h"
#include "worker/data/loader/sampler.h"
#include "worker/device/device.h"

struct dataset;
struct decoded_cache;
struct err;
struct left_out;
struct loader;

#define LOADER_TIMEOUT_MS 600000

struct loader_options {
    struct sampler sampler; /* n is the set's */
    struct input_options input;
    struct mix_options mix; /* with sampler.mix_group its group */
    int threads;            /* >= 1 */
    int prefetch;           /* ready batches ahead; 0: 4 */
    bool strict;
    const char *batch_log; /* batch_log.h: where batches are recorded as they are taken; NULL: nowhere */
    int64_t timeout_ms;    /* of loader_next(), while the process is not stopped; 0: LOADER_TIMEOUT_MS */
    /* Pictures are decoded into page-locked memory of it, as far as there is some, so that a batch need not be copied
     * (struct batch); borrowed until loader_destroy(). NULL, or one without streams: plain memory. */
    struct device *device;
    struct decoded_cache *cache; /* of this set's pictures, borrowed until loader_destroy(); NULL: none */
};

struct loader_batch {
    /* Part p of the sampler's from row p * (sampler_part_rows() + sampler_part_others()) on, padded with weight 0;
     * pictures of others are padding, too. samples: of repetition r the id + r * the set's size. */
    struct batch b;
    int slot;
    int64_t epoch, step; /* step within the epoch */
    size_t rows;         /* of b, padding included */
    size_t count;        /* samples of this rank */
    size_t bad;          /* of them, weight 0 */
};

int loader_create(struct loader **ret, struct dataset *d, const struct loader_options *o, struct err *e);
/* Wakes a blocked loader_next(), joins the threads; one that is stuck in a read for seconds is left behind, and so is
 * the data set, which dataset_close() then keeps. NULL allowed. */
void loader_destroy(struct loader *l);

/* (Re)start at a step of an epoch; the last batch is that of the last step of epoch end_epoch - 1. What was prefetched
 * is dropped; hand borrowed batches back first. */
int loader_seek(struct loader *l, int64_t epoch, int64_t step, int64_t end_epoch, struct err *e);

/* The next batch, in order; rolls over to the next epoch by itself. Blocks until it is ready. -ENODATA at the end;
 * -ETIMEDOUT; ERR_DATA (strict) names the file, any other code is that of a file that cannot be read at all (with or
 * without strict); -ECANCELED while loader_destroy() runs. After an error the same call fails again until a seek. *ret
 * is borrowed until loader_done(). */
int loader_next(struct loader *l, struct loader_batch *ret, struct err *e);
void loader_done(struct loader *l, const struct loader_batch *b);

/* What was left out of the batches that were taken; for the thread that calls loader_next(). */
struct left_out *loader_left_out(struct loader *l);

size_t loader_bytes(const struct loader_options *o); /* of the pictures of the ring that it would have */

struct loader_stats {
    uint64_t images, bad;
    int64_t wait_ns; /* time loader_next() blocked */
};
void loader_stats(const struct loader *l, struct loader_stats *ret);

#endif
