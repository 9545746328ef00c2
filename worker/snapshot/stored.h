/* Tensors that lie in files, read piece by piece: a checkpoint, whose sums are verified, or weights from elsewhere. */
#ifndef CRUN_WORKER_SNAPSHOT_STORED_H
#define CRUN_WORKER_SNAPSHOT_STORED_H

#include <stddef.h>
#include <stdint.h>

#include "worker/snapshot/slices.h"

struct ckpt;
struct err;
struct weights;

struct stored {
    /* n elements of a tensor of `slices` from element `at` on, as its type. Each tensor that is read at all is read
     * from its beginning to its end, in order. */
    int (*read)(struct stored *s, size_t tensor, int64_t at, size_t n, void *dst, struct err *e);
    const struct slices *slices; /* borrowed */
    struct ckpt *ckpt;           /* borrowed: one of them */
    struct weights *weights;
    uint32_t crc; /* of the tensor so far */
    void *whole;  /* of weights: the tensor that is being read, as elements of the state */
};

struct stored stored_checkpoint(struct ckpt *c, const struct slices *s);
/* Floating-point tensors of any type, as the state's. */
struct stored stored_weights(struct weights *w, const struct slices *s);
void stored_finish(struct stored *s);

#endif
