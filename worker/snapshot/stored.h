/* Tensors that lie in files, read piece by piece: a checkpoint, whose sums are verified, or weights from elsewhere.
 * Tables of positions of another picture size are resampled (positions.h). */
#ifndef CRUN_WORKER_SNAPSHOT_STORED_H
#define CRUN_WORKER_SNAPSHOT_STORED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/snapshot/slices.h"

struct ckpt;
struct positions;
struct err;
struct weights;

struct stored {
    /* n elements of a tensor of `slices` from element `at` on, as its type. Each tensor that is read at all is read
     * from its beginning to its end, in order. */
    int (*read)(struct stored *s, size_t tensor, int64_t at, size_t n, void *dst, struct err *e);
    const struct slices *slices; /* borrowed */
    struct ckpt *ckpt;           /* borrowed: one of them */
    struct weights *weights;
    const char *path; /* of weights */
    uint32_t crc;     /* of the tensor so far */
    void *whole;      /* the tensor that is being read, as elements of the state; NULL: it comes as it is stored */
};

/* Is a tensor of `slices` a table that is made of this one, which is stored under its name? */
bool stored_is_resampled(const struct slices *s, size_t tensor, const struct ckpt_tensor *have, struct positions *ret);
/* Has the checkpoint the tensor, or a table that it is made of? Errors as of ckpt_has(). */
int stored_check(struct ckpt *c, const struct slices *s, size_t tensor, struct err *e);
/* Has the checkpoint all moments? It has none of what was frozen when it was saved. */
bool stored_has_moments(struct ckpt *c, const struct slices *s);

struct stored stored_checkpoint(struct ckpt *c, const struct slices *s);
/* Floating-point tensors of any type, as the state's. path, borrowed: of w. ERR_CORRUPT: one that is read is not
 * finite. */
struct stored stored_weights(struct weights *w, const struct slices *s, const char *path);
void stored_finish(struct stored *s);

#endif
