/* How the pictures of a batch are erased and mixed, for hosts and kernels alike. */
#ifndef CRUN_WORKER_DEVICE_BATCH_MIX_H
#define CRUN_WORKER_DEVICE_BATCH_MIX_H

#include <stdint.h>

struct batch_box { /* pixels x0 <= x < x1, y0 <= y < y1 of a picture; none where x0 == x1 */
    int16_t x0, y0, x1, y1;
};

/* What becomes of a picture once it is numbers (OP_INPUT): first `erase` of it, and of its partner, becomes 0; then it
 * is keep * itself + (1 - keep) * its partner, but in `box` its partner alone. Zeros: it stays as it is. Its target has
 * 1 - share of its label, and share of the other one. */
struct batch_mix {
    int32_t partner; /* rows from this one to the partner's; 0: it has none, and nothing below but `erase` counts */
    int32_t second;  /* the other label; anything where share is 0 */
    float share;     /* 0 to 1/2: a row's label is that with more of the target */
    float keep;
    struct batch_box box, erase;
};

#endif
