/* How an activation lies in memory. All layouts of the cpu device are one family, (N, ceil(C / b), H, W, b): b = 1 is
 * plain NCHW, 8 and 16 are oneDNN's nChw8c and nChw16c (channels padded with zeros), b = C is NHWC.
 *
 * Kernels see it as groups of at most 16 adjacent channels ("lanes"): element (n, channel group g, pixel p, lane l) is
 * at n * sn + g * sg + p * sp + l. Blocks wider than 16 only exist as NHWC. */
#ifndef CRUN_WORKER_DEVICE_CPU_LAYOUT_H
#define CRUN_WORKER_DEVICE_CPU_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

enum { LAYOUT_ANY = 0, LAYOUT_PLAIN = 1, LANES_MAX = 16 };

struct layout {
    int n, c, h, w;
    int b; /* channels in a block; LAYOUT_ANY only in questions to oneDNN */
};

/* The same, unfolded for kernels. */
struct view {
    int n, groups, lanes; /* every group has `lanes` lanes in memory, except the last one of an NHWC tensor */
    int last_lanes;
    int c, h, w, hw;
    size_t sn, sg, sp;
};

static inline int layout_blocks(const struct layout *l)
{
    return (l->c + l->b - 1) / l->b;
}

static inline size_t layout_count(const struct layout *l)
{
    return (size_t)l->n * layout_blocks(l) * l->b * l->h * l->w;
}

static inline size_t layout_offset(const struct layout *l, int n, int c, int pixel)
{
    size_t hw = (size_t)l->h * l->w;
    return (((size_t)n * layout_blocks(l) + c / l->b) * hw + pixel) * l->b + c % l->b;
}

/* Same bytes in memory: blocks of a 1x1 map that need no padding are plain, too. */
static inline bool layout_same(const struct layout *a, const struct layout *b)
{
    if (a->b == b->b)
        return true;
    return a->h * a->w == 1 && a->c % a->b == 0 && b->c % b->b == 0;
}

static inline struct view layout_view(const struct layout *l)
{
    bool wide = l->b > LANES_MAX;
    struct view v = {.n = l->n, .c = l->c, .h = l->h, .w = l->w, .hw = l->h * l->w};
    v.sn = (size_t)layout_blocks(l) * l->b * v.hw;
    v.lanes = wide ? LANES_MAX : l->b;
    v.groups = wide ? (l->c + LANES_MAX - 1) / LANES_MAX : layout_blocks(l);
    v.last_lanes = wide ? l->c - LANES_MAX * (v.groups - 1) : v.lanes;
    v.sg = wide ? LANES_MAX : (size_t)l->b * v.hw;
    v.sp = (size_t)l->b;
    return v;
}

/* Plain NCHW: each group is one channel, whose pixels are adjacent. */
static inline bool view_is_plain(const struct view *v)
{
    return v->lanes == 1 && v->sp == 1;
}

/* NHWC of more than one group: the groups of a pixel are adjacent, and not the pixels of a group. */
static inline bool view_is_nhwc(const struct view *v)
{
    return v->sp > (size_t)v->lanes;
}

/* Per-channel vectors of a tensor are padded to whole groups. */
static inline int view_channels(const struct view *v)
{
    return v->groups * v->lanes;
}

#endif
