/* Which rows of a batch are erased, and mixed with which: struct batch_mix of each, from mix.h and the sampler.
 *
 *   a batch begins -> mixing_begin() of each part: partners' rows, other ranks' among them, boxes -> all rows are there
 *   -> mixing_end(): who cannot be mixed is not; labels
 * A partner that another rank has as a sample of its own is loaded here once more: a rank's positions lie in a row, so
 * these are at most as many as twice the repetitions, and no rank waits for another one's pictures. Pure. */
#ifndef CRUN_WORKER_DATA_MIXING_H
#define CRUN_WORKER_DATA_MIXING_H

#include <stddef.h>
#include <stdint.h>

#include "worker/data/augment/mix.h"
#include "worker/data/loader/input.h"
#include "worker/data/loader/sampler.h"
#include "worker/device/batch_mix.h"

struct mixing { /* borrowed */
    const struct sampler *sampler;
    const struct mix_options *mix;
    const struct input_options *input;
    int64_t epoch, step;
};

/* What another rank's position shows. */
typedef struct showing mixing_ask(void *ctx, struct place p);

/* Rows of a part: n of ours, and room for others from row sampler_part_rows() on. showing: what ours show; gets what
 * the others do. out: (sampler_part_rows() + sampler_part_others()). Returns how many others there are. */
size_t mixing_begin(const struct mixing *m, int part, size_t n, struct showing *showing, mixing_ask *ask, void *ctx,
                    struct batch_mix *out);

/* All parts, of `rows` rows. found: their samples' labels, -1 of those that cannot be used. labels: of each row,
 * becomes that with more of its target. least: as in mix.h. */
void mixing_end(struct batch_mix *mix, const int32_t *found, size_t rows, double least, int32_t *labels);

#endif
