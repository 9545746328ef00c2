/* Erasing and mixing of pictures on host devices (struct batch_mix). */
#ifndef CRUN_WORKER_DEVICE_MIX_H
#define CRUN_WORKER_DEVICE_MIX_H

#include <stdbool.h>

#include "worker/device/device.h"

static inline bool mix_within(const struct batch_box *b, int x, int y)
{
    return x >= b->x0 && x < b->x1 && y >= b->y0 && y < b->y1;
}

/* Does row m differ from what its bytes say? */
static inline bool mix_changes(const struct batch_mix *m)
{
    return m && (m->partner != 0 || m->erase.x0 < m->erase.x1);
}

/* Pixel (x, y) of row m, of a value of its own and one of its partner's. */
static inline double mix_value(const struct batch_mix *m, int x, int y, double own, double other)
{
    own = mix_within(&m->erase, x, y) ? 0 : own;
    if (m->partner == 0)
        return own;
    other = mix_within(&m[m->partner].erase, x, y) ? 0 : other;
    return mix_within(&m->box, x, y) ? other : (double)m->keep * own + (1 - (double)m->keep) * other;
}

/* The second label of row r and its part of the target. *ret_second -1, 0: there is none. */
static inline double mix_second(const struct batch *b, size_t r, int *ret_second)
{
    const double share = b->mix ? (double)b->mix[r].share : 0;
    *ret_second = share > 0 ? b->mix[r].second : -1;
    return share;
}

#endif
