/* Where buffers of a plan lie: two that live at the same time do not overlap. Pure; cpu and cuda plans use it. */
#ifndef CRUN_WORKER_DEVICE_LIVENESS_H
#define CRUN_WORKER_DEVICE_LIVENESS_H

#include <stdbool.h>
#include <stddef.h>

struct err;

struct live_buffer {
    size_t bytes;
    int first, last; /* steps that touch it */
    bool keep;       /* its memory belongs to nobody else */
    size_t offset;   /* result */
};

/* Largest first, each at the lowest offset, a multiple of `align`, where nobody lives at the same time. *ret_bytes: of
 * all together. -ENOMEM. */
int liveness_place(struct live_buffer *v, int n, size_t align, size_t *ret_bytes, struct err *e);

#endif
