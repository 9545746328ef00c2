/* Tables of positions (OP_POSITION) of a model that was trained on pictures of another size: what it learned of a
 * position is resampled as a picture is. Pure. */
#ifndef CRUN_WORKER_SNAPSHOT_POSITIONS_H
#define CRUN_WORKER_SNAPSHOT_POSITIONS_H

#include <stdbool.h>

#include "worker/ckpt/safetensors.h"

struct program;

/* A table (1, extra + h * w, channels): `extra` positions that are no place in a picture (a class token) come first. */
struct positions {
    int extra;
    int from_h, from_w, to_h, to_w;
    int64_t channels;
};

/* Is `want` a table of positions of the whole model p (its values, averages or moments), and `have` one of another
 * size, of a square picture, which can be made into it? */
bool positions_fit(const struct program *p, const struct ckpt_tensor *want, const struct ckpt_tensor *have,
                   struct positions *ret);

/* cubic: as torchvision's interpolate_embeddings() (bicubic, corners on corners); else linearly, which makes no
 * negative number of positive ones (second moments). from, to: of type real, DT_F32 or DT_F64. */
void positions_resample(const struct positions *g, bool cubic, enum dtype real, const void *from, void *to);

#endif
