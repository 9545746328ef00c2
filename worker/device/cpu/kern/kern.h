/* The cpu device's own kernels: everything that is not a convolution or a product. One table per instruction
 * set; its files (kern_set.h) are compiled once for each, and kern_select() takes the best that the processor has.
 *
 * Own batch normalisation, because samples of weight 0 must not count, statistics are summed over ranks between the
 * passes, and ReLU and the residual sum ride along. Sums are taken in fp32 over short runs of pixels and in double from
 * there on; work is cut into fixed pieces whose results are combined in a fixed order, so results depend on the number
 * of threads only. Arrays per channel are padded to whole groups (layout.h); lanes beyond the last channel come out as
 * 0. */
#ifndef CRUN_WORKER_DEVICE_CPU_KERN_H
#define CRUN_WORKER_DEVICE_CPU_KERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/device/cpu/kern/layout.h"
#include "worker/device/drop.h"
#include "worker/device/fuse.h"
#include "worker/device/update_rule.h"
#include "worker/precision/dtype.h"
#include "worker/program/program.h"

/* How activations are kept: fp32, bf16, or fp32 rounded to bf16 or fp16 at every store (emulation). */
enum store { STORE_F32, STORE_BF16, STORE_ROUNDED, STORE_ROUNDED_F16, STORES };

static inline bool store_rounds(enum store s)
{
    return s == STORE_ROUNDED || s == STORE_ROUNDED_F16;
}

/* What a store leaves of f. */
static inline float store_value(enum store s, float f)
{
    if (s == STORE_F32)
        return f;
    return s == STORE_ROUNDED_F16 ? f32_from_f16(f16_from_f32(f)) : f32_from_bf16(bf16_from_f32(f));
}

/* Per channel sum and sum of squares of x over samples of weight 1. partial: kern_partial(view, threads) doubles. */
struct bn_stats_job {
    struct view v;
    const void *x;
    const float *weights;  /* (n) */
    double *sum, *squares; /* per channel */
    double *partial;
};

/* y = (x - mean) * scale + beta [+ add] [then ReLU] */
struct bn_apply_job {
    struct view v;
    const void *x, *add; /* add: NULL or like x */
    void *y;
    const float *mean, *scale, *beta;
    bool relu;
    bool past; /* write past the caches: y is aligned to 64 bytes, and so are its groups and pixels to their lanes */
};

/* dz = (dy [+ dy2]) where y > 0; where there is no y but a beta, where (x - mean) * scale + beta > 0, which is the same
 * without reading it; everywhere if there is neither. Sums of dz and of dz * (x - mean) over samples of weight 1; dz is
 * stored if not NULL. */
struct bn_bwd_sums_job {
    struct view v;
    const void *x, *dy, *dy2, *y;
    void *dz;
    const float *weights, *mean, *scale, *beta;
    double *sum, *sum_x;
    double *partial;
    bool past; /* dz, as above */
};

/* dx = scale * (dz - k1 - (x - mean) * k2); 0 in samples of weight 0, which moved nothing. */
struct bn_bwd_apply_job {
    struct view v;
    const void *x, *dy, *dy2, *y; /* dz is formed as above; where it was stored it comes in as dy */
    void *dx;
    const float *weights, *mean, *scale, *beta, *k1, *k2;
    bool past; /* dx, as above */
};

/* index: which element of the window won, 0..kh*kw-1; one byte per output element, (n, groups, oh * ow, lanes) */
struct pool_job {
    struct view vx, vy;
    const void *x; /* forward */
    void *y;
    uint8_t *index;
    const void *dy; /* backward */
    void *dx;
    float *plane; /* backward: threads * hw * lanes floats */
    int kh, kw, sh, sw, ph, pw;
};

/* Rows of c values side by side: the channels of positions. Arrays of sums, (c), are padded as kern_sums() has it. */

/* y = (x - mean of the row) / sqrt(variance + eps) * gamma [+ beta]; rms: x / sqrt(mean of squares + eps) * gamma */
struct norm_job {
    size_t rows;
    int c;
    bool rms;
    float eps;
    const void *x;
    void *y;
    const float *gamma, *beta; /* beta: NULL or (c) */
};

/* dx, if it is not NULL; dgamma, dbeta (c): sums over rows. partial: kern_sums(c, threads) doubles, runs: as many
 * floats. */
struct norm_bwd_job {
    size_t rows;
    int c;
    bool rms;
    float eps;
    const void *x, *dy;
    void *dx;
    const float *gamma;
    double *dgamma, *dbeta, *partial;
    float *runs;
};

/* One of several things that are done to each value while it is in a register: value = ... */
struct link {
    enum link_kind {
        LINK_RELU,      /* max(value, 0) */
        LINK_RELU_BWD,  /* value where `with` > 0, else 0 */
        LINK_ACT,       /* act(value) */
        LINK_ACT_BWD,   /* value * act'(with) */
        LINK_ADD,       /* value + with */
        LINK_MUL,       /* value * with */
        LINK_SCALE,     /* value * by, of the channel */
        LINK_SHIFT,     /* value + by */
        LINK_SCALE_BWD, /* the same; the sums of value * with over rows go to `sums` */
        LINK_DROP,      /* value * factor of the sample; or (factor NULL) of the elements that stay, else 0 (drop.h) */
    } kind;
    enum op_act act;
    const void *with;       /* like x */
    const float *by;        /* (c) */
    const float *factor;    /* (samples) */
    const uint32_t *sample; /* (samples): their numbers */
    const float *rows;      /* (samples, SAMPLE_N): their numbers as they have come over a group; NULL: they did not */
    size_t samples;
    size_t first, whole; /* DROP: x has channels from `first` on, of `whole` ones; whole 0: all */
    uint64_t layer;
    struct drop_key key; /* of the layer in this step */
    uint32_t bound;
    float kept;
};

enum { CHAIN_MAX = FUSE_CHAIN_MAX };

/* y = links[n - 1](... links[0](x)), every value rounded as a store would. Rows of c, the last one may be shorter. */
struct chain_job {
    size_t count, c;
    size_t positions; /* rows of a sample */
    const void *x;
    void *y; /* NULL: nobody wants it */
    int n;
    struct link links[CHAIN_MAX];
    double *sums, *partial; /* of SCALE_BWD: (c); as in norm_bwd_job */
    float *runs;
};

/* Rows of scores, the first one of query `first`; one thread. Row r has n of them, of which (causal) first + r + 1
 * count. p: their softmax, scores * scale before; 0 where they do not count. */
struct softmax_job {
    int rows, n, first;
    bool causal;
    size_t stride; /* values from row to row of all that follows */
    float scale;
    float *scores; /* changed */
    void *p;
    float *lse;      /* (rows): log of the sum of e^(scores * scale); read by the backward pass */
    const float *dp; /* backward: gradient of p */
    void *ds;        /* backward: of scores */
};

/* Sums over rows, (c). */
struct columns_job {
    size_t rows;
    int c;
    const void *x;
    double *sums, *partial;
    float *runs;
};

/* A convolution in groups of channels, NHWC: a depthwise one, and those of groups that are too narrow for a product of
 * matrices. Written channel k reads channels [k / made * read, + read) of x. By data it is the same: dx is made of dy,
 * spread by the stride, with the window turned around. */
struct groups_job {
    int n, h, w, c;    /* x, what is read */
    int oh, ow, k;     /* y, what is written */
    int read, made;    /* channels of a group: of x, of y */
    int kh, kw;        /* window */
    int step;          /* stride over x */
    int spread;        /* pixels of x lie so far apart, with zeros between them */
    int top, left;     /* padding */
    const void *x;     /* (n, h, w, c) */
    void *y;           /* (n, oh, ow, k) */
    const float *from; /* weights (k, read, kh, kw); by data those of the forward convolution, (c, made, kh, kw) */
    bool turned;       /* by data */
    enum store rounds; /* what weights are rounded to before they are used */
    float *weights;    /* groups_weights() floats: room for them, one vector of channels after another */
    const float *bias; /* (k) or NULL */
    float *scratch;    /* groups_scratch() floats */
};

/* Sums over the batch: dw (k, read, kh, kw) and db (k), x and dy as x and y of the forward convolution. */
struct groups_param_job {
    struct groups_job of;  /* forward, without what it writes, weights and bias */
    const void *dy;        /* (n, oh, ow, k) */
    float *dw, *db;        /* db: NULL where there is no bias */
    bool add;              /* to what is there */
    enum store round_sums; /* what each sum is rounded to first */
    double *partial;       /* groups_partial() doubles */
};

size_t groups_weights(const struct groups_job *j);
size_t groups_scratch(const struct groups_job *j, int threads);
size_t groups_partial(const struct groups_job *j, int threads);

struct input_job {
    struct layout l;
    const uint8_t *images; /* (n, h, w, c) */
    void *y;
    const float *mean, *std;     /* per channel */
    const struct batch_mix *mix; /* (n); NULL: nothing is erased or mixed */
};

struct kern {
    const char *name;
    void (*bn_stats)(const struct bn_stats_job *j, enum store t, int threads);
    void (*bn_apply)(const struct bn_apply_job *j, enum store t, int threads);
    void (*bn_bwd_sums)(const struct bn_bwd_sums_job *j, enum store t, int threads);
    void (*bn_bwd_apply)(const struct bn_bwd_apply_job *j, enum store t, int threads);
    void (*maxpool)(const struct pool_job *j, enum store t, int threads);
    void (*maxpool_bwd)(const struct pool_job *j, enum store t, int threads);
    void (*avgpool)(const struct pool_job *j, enum store t, int threads);     /* y is plain (n, c) */
    void (*avgpool_bwd)(const struct pool_job *j, enum store t, int threads); /* dy is plain (n, c) */
    void (*input)(const struct input_job *j, enum store t, int threads);
    /* y = a [+ b] [then ReLU]; any layout, the same for all, n elements with padding */
    void (*add)(const void *a, const void *b, void *y, bool relu, size_t n, enum store t, int threads);
    void (*groups)(const struct groups_job *j, enum store t, int threads);
    void (*groups_param)(const struct groups_param_job *j, enum store t, int threads);
    void (*norm)(const struct norm_job *j, enum store t, int threads);
    void (*norm_bwd)(const struct norm_bwd_job *j, enum store t, int threads);
    void (*chain)(const struct chain_job *j, enum store t, int threads);
    void (*softmax)(const struct softmax_job *j, enum store t);
    void (*softmax_bwd)(const struct softmax_job *j, enum store t);
    /* Rows of n floats, stored `stride` values apart; one thread. */
    void (*give_rows)(const float *from, void *to, size_t rows, int n, size_t stride, enum store t);
    void (*columns)(const struct columns_job *j, enum store t, int threads);
    void (*relu_bwd)(const void *y, const void *dy, void *dx, size_t n, enum store t, int threads);
    /* to[i] = what a store leaves of from[i]. past: past the caches; `to` is aligned to 64 bytes then */
    void (*give)(const float *from, void *to, size_t n, bool past, enum store t, int threads);
    void (*round)(float *x, size_t n, enum store t, int threads); /* in place: what a store leaves of it */
    void (*accumulate)(float *sum, const float *x, size_t n, int threads);
    void (*update)(const struct update *u, void *params, const void *grads, void *momentum, double count, int threads);
    double (*squares)(const float *x, size_t n, int threads); /* their sum */
    void (*blend)(float *stats, const float *sums, size_t n, float keep, float mul, int threads);
    float (*largest)(const float *x, int n); /* n >= 1; any of them if one is not a number */
    /* Of one row of logits z[0..n), of classes from `first` on (device/xent_parts.h): sums from its top; and
     * (e^(z - lse) - shift) * scale, without the label's share. Of all classes in double, of a part in float. */
    void (*xent_sums)(const float *z, int n, int first, const double *top, double *sums);
    void (*xent_gradient)(const float *z, int n, double lse, double shift, double scale, float *dz);
    void (*xent_sums_of_part)(const float *z, int n, int first, const float *top, float *sums);
    void (*xent_gradient_of_part)(const float *z, int n, float lse, float shift, float scale, float *dz);
};

/* The best table for this processor, no better than what oneDNN is allowed to use. Width of vectors in floats: 16
 * (AVX-512) or 8; bf16: with the processor's own conversions. */
const struct kern *kern_select(int lanes, bool bf16);
/* All tables that this processor can run, best first, NULL at the end: tests. */
const struct kern *const *kern_all(void);

/* Doubles, or floats, that sums over rows of c take beside their results: two sums a channel and a thread. */
static inline size_t kern_sums(int c, int threads)
{
    return (size_t)threads * 2 * (((size_t)c + LANES_MAX - 1) / LANES_MAX * LANES_MAX);
}

static inline size_t kern_partial(const struct view *v, int threads)
{
    return (size_t)threads * 2 * (size_t)view_channels(v);
}

#endif
