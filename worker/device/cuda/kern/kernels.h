/* The cuda device's own kernels: everything that is neither a convolution nor a matrix product. One argument struct a
 * kernel; kernel_launch() checks nothing but launch errors, the planner is trusted. All pointers are device memory.
 *
 * Activations are (N, H, W, C) or (N, C, H, W) of DT_F32, DT_F16 or DT_BF16; statistics, parameters and gradients in
 * the arenas are fp32, sums are taken in fp32 over short runs and combined in double or by Welford's rule (Chan et al.)
 * where they run long. Kernels that reduce do it in a fixed order: equal inputs give equal bits, whatever else runs. A
 * sample of weight 0 counts nowhere (program.h). */
#ifndef CRUN_WORKER_DEVICE_CUDA_KERNELS_H
#define CRUN_WORKER_DEVICE_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "worker/device/batch_mix.h"
#include "worker/device/update_rule.h"
#include "worker/precision/dtype.h"
#include "worker/program/act.h"

#ifdef __cplusplus
extern "C" {
#endif

struct view4 { /* an activation */
    int n, c, h, w;
    bool nhwc;
    enum dtype type;
};

/* images u8 (n, h, w, channels) -> y = (x / 255 - mean) / std, channels padded with zeros up to y.c. fold.h not 0: y
 * has pixels put together, and zeros around them (device/fold.h): the images' height and width, pixels before them. */
struct k_input_fold {
    int h, w, top, left;
};
struct k_input {
    struct view4 y;
    int channels;
    struct k_input_fold fold;
    const uint8_t *images;
    const struct batch_mix *mix; /* (n), of partners, too; NULL: nothing is erased or mixed */
    void *out;
    float mean[4], std[4];
};

/* Where blocks leave what they summed, for the last of them to add up. */
struct k_partial {
    double *values;     /* kernel_partial() elements */
    unsigned *counters; /* kernel_counters() elements: 0 before and after each launch */
};

/* Sums over samples of weight 1 per channel: sums[0..c) of x, [c..2c) of x * x, [2c] the elements a channel. */
struct k_bn_stats {
    struct view4 v;
    const void *x;
    const float *weights; /* (n) */
    double *sums;         /* (2c + 1) */
    struct k_partial partial;
};

/* Sums that a convolution made on the way (dnn.h) as KERNEL_BN_STATS and KERNEL_BN_BWD_SUMS would have: forward first =
 * sum, second = sum of squares, what samples of weight 0 added is taken out again; backward (invstd given) first =
 * dbias, second = dscale, to which such samples add nothing. */
struct k_bn_gather {
    struct view4 v;
    const void *x;
    const float *first, *second, *invstd, *weights;
    double *sums; /* (2c + 1) */
};

/* A batch norm's sums: `sums`, over all ranks if those were summed; or, where that is NULL, as a convolution of this
 * rank made them (see k_bn_gather) from `count` elements a channel, all of which count. */
struct k_bn_from {
    const double *sums;
    const float *first, *second, *invstd;
    double count;
};

/* From sums: mean, 1/std, and y = x * scale + shift; this step's statistics times their samples into the reduce
 * arena. */
struct k_bn_finalise {
    int c; /* as a part of another kernel, 0: none */
    struct k_bn_from from;
    const float *gamma, *beta;
    float *mean, *invstd, *scale, *shift; /* (c) each, kept for backward */
    void *half_scale, *half_shift;        /* (c) fp16, what prologues read; NULL: nobody wants them */
    float *stat_mean, *stat_var;          /* reduce arena, unbiased variance, both times weight_sum */
    const float *weights;                 /* (n): this rank's samples; NULL: all count */
    int n;
    float eps;
    bool accumulate; /* add to stat_* */
    bool again;      /* leave stat_* alone, which have it already */
};

/* Evaluation: scale and shift from running statistics. */
struct k_bn_fixed {
    int c;
    const float *gamma, *beta, *mean, *var;
    float *scale, *shift;
    float eps;
};

/* y = x * scale + shift [+ add, or add * add_scale + add_shift] [then ReLU]; scale NULL: 1, so that it adds a bias. y
 * may be x. own, other: scale and shift, add_scale and add_shift are made here, from sums, and stored. */
struct k_bn_apply {
    struct view4 v;
    const void *x, *add;
    const float *scale, *shift, *add_scale, *add_shift; /* add_*: NULL: as it is */
    struct k_bn_finalise own, other;
    void *y;
    uint8_t *mask; /* where y > 0, kernel_mask() bytes; NULL: nobody asks */
    bool relu;
};

/* Max pooling of relu(x * scale + shift), which is rounded as if it were stored, and is not: 3x3, stride 2, padding 1,
 * NHWC, channels in whole vectors (kernel_pools()). index: as k_pool's, 255 where the result is not above 0. */
struct k_bn_pool {
    struct view4 x, y;
    const void *in;
    const float *scale, *shift;
    struct k_bn_finalise own;
    void *out;
    uint8_t *index; /* NULL: nobody asks */
};

/* KERNEL_BN_APPLY, of whose result only the mean of each plane is kept, (n, c): NHWC, channels in whole vectors. The
 * values are rounded as if they were stored. a.y: NULL. */
struct k_bn_mean {
    struct k_bn_apply a;
    void *out;
};

/* The gradient that reaches a batch norm's output: dz = (dy [+ dy2]) where y > 0, as a mask or y itself says, or
 * everywhere; or, index given, that of k_bn_pool's result, whose view is `pooled`; or, mean, dy is (n, c), of the
 * planes' means (KERNEL_BN_BWD_SUMS alone). */
struct k_bn_gradient {
    const void *dy, *dy2, *y;
    const uint8_t *mask, *index;
    struct view4 pooled;
    bool mean;
};

/* sums[0..c) of dz, [c..2c) of dz * (x - mean), over samples of weight 1. dz stored if not NULL. x2: a second batch
 * norm that the same dz reaches: sums2 likewise. */
struct k_bn_bwd_sums {
    struct view4 v;
    const void *x, *x2;
    struct k_bn_gradient g;
    const float *mean, *mean2, *weights; /* weights NULL: all count */
    void *dz;
    double *sums, *sums2; /* (2c + 1): the last is the count */
    struct k_partial partial;
};

/* One batch norm's backward. dx = a * dz + b * x + k, the coefficients from all ranks' sums; 0 in samples of weight 0;
 * NULL: nobody wants it. Gradients of gamma and beta from this rank's sums (local). */
struct k_bn_bwd {
    const void *x; /* NULL: there is no such batch norm */
    struct k_bn_from local, from;
    const float *gamma, *mean, *invstd;
    float *dgamma, *dbeta;
    void *dx;
};
struct k_bn_bwd_apply {
    struct view4 v;
    struct k_bn_gradient g;
    struct k_bn_bwd own, twin; /* twin: the second that the same dz reaches */
    const float *weights;
};

struct k_eltwise { /* y = a [+ b] [then ReLU]; RELU_BWD: y = a > 0 ? b : 0 */
    size_t n;
    enum dtype type;
    const void *a, *b;
    void *y;
    bool relu;
};

struct
    k_pool { /* max: index (n, oh, ow, c) or (n, c, oh, ow), which element of the window won; average: the whole plane */
    struct view4 x, y;
    const void *in;
    void *out;
    uint8_t *index;
    int kh, kw, sh, sw, ph, pw;
};

/* --- operations on the channels of positions: rows of c values, (n, h, w, c) */

/* y = (x - mean) * inv * gamma + beta of each row; rms: without the mean. BWD: dx = inv * (g - mean of g - xhat * mean
 * of g * xhat), g = dy * gamma, and the gradients of gamma and beta; mean and deviation are made again. */
struct k_row_norm {
    unsigned rows;
    int c;
    enum dtype type;
    bool rms;
    float eps;
    const void *x, *dy;
    const float *gamma, *beta; /* (c); beta NULL: zeros */
    void *y;                   /* BWD: dx; NULL: nobody wants it */
    float *dgamma, *dbeta;     /* (c); dbeta NULL: nobody wants it */
    struct k_partial partial;  /* kernel_norm_partial(), kernel_norm_counters() */
};

/* The run's draws: seed and step of run_args (device/drop.h). */
struct k_draw {
    uint64_t seed, step;
};

/* One operation of a chain, on the value v that the one before has left. */
enum k_link_kind {
    LINK_ADD,      /* v + with */
    LINK_MUL,      /* v * with */
    LINK_RELU,     /* max(v, 0) */
    LINK_RELU_BWD, /* with > 0 ? v : 0 */
    LINK_ACT,      /* act(v) */
    LINK_ACT_BWD,  /* v * act'(with) */
    LINK_SCALE,    /* v * by of the channel */
    LINK_DROP      /* v * kept, or 0 */
};
struct k_link {
    enum k_link_kind kind;
    enum op_act act;
    const void *with; /* of the chain's type */
    const float *by;
    uint64_t layer; /* DROP: this and the rest */
    uint32_t bound;
    float kept;
    bool samples;      /* whole samples, not elements */
    int first, whole;  /* of rows of `whole` channels these are some, from `first` on; whole 0: they are all */
    const float *rows; /* (n / sample, SAMPLE_N): the samples' numbers as they come over a group; NULL: they do not */
};
enum { K_LINKS_MAX = 6 };

/* y = the links, one after another, of x. Each value is rounded as if it were stored. */
struct k_chain {
    size_t n, sample;         /* elements: in all, of a sample */
    int c;                    /* channels, where these lie side by side */
    enum dtype type, rounded; /* rounded: fp32 values are those of this half; else DT_F32 */
    const void *x;
    void *y;
    const struct k_draw *draw;
    const uint32_t *samples; /* (n / sample) their numbers in the data set */
    int nlinks;
    struct k_link links[K_LINKS_MAX];
};

/* dx = dy * by; sums[0..c) of dy * x over all rows. */
struct k_scale_bwd {
    struct view4 v;
    const void *x, *dy;
    const float *by;
    void *dx;     /* NULL: nobody wants it */
    double *sums; /* (2c + 1), of which the first c are written for the caller */
    struct k_partial partial;
};

/* out (n, to, c): position t is in (n, from, c) at t - shift; where there is no such position `outside` (c), NULL:
 * zeros; all that plus table (to, c), NULL: zeros. */
struct k_sequence {
    int n, from, to, shift, c;
    enum dtype type;
    const void *in;
    const float *outside, *table;
    void *out;
};

/* out (rows, c) = the sum over samples of positions [0, rows) of dy (n, t, c); rows from t on: zeros. */
struct k_table_gradient {
    int n, t, rows, c;
    enum dtype type;
    const void *dy;
    float *out;
};

/* A convolution in groups, NHWC: out (n, oh, ow, k) = filter (k, r, s, c / groups) over x (n, h, w, c), plus bias (k).
 * DATA: dx from y, the gradient of the result. WEIGHT: the gradient of the filter, of the type, and of the bias. */
struct k_group_conv {
    int n, c, h, w, k, r, s, oh, ow, groups;
    int stride[2], pad[2];
    enum dtype type;
    const void *x, *filter, *y;
    const float *bias; /* NULL: none */
    void *out;
    float *dbias;             /* NULL: nobody wants it */
    struct k_partial partial; /* WEIGHT: kernel_group_partial(), kernel_group_counters() */
};

/* Attention of x (n, t, (heads + 2 kv_heads) d) to y (n, t, heads d): OP_ATTENTION. lse, delta: (n, heads, t).
 * BWD_QUERIES reads y and dy, writes delta and the queries' part of dx; BWD_KEYS then reads it, and writes the rest.
 * */
struct k_attention {
    int n, t, heads, kv_heads, d; /* d: at most KERNEL_HEAD_MAX */
    float scale;                  /* 1 / sqrt(d) */
    bool causal, wide;            /* wide: the result is fp32, whatever the type */
    enum dtype type;
    const void *x, *y, *dy;
    void *out;    /* y; BWD: dx */
    float *lse;   /* logarithms of the sums of exp(score); forward NULL: nobody asks */
    float *delta; /* BWD */
};
#define KERNEL_HEAD_MAX 128

/* --- tokens: whole numbers in floats */

struct k_tokens {
    size_t n;
    const int32_t *in;
    float *out;
};

/* out (rows, c): of each token its row of a table (v, c) of the tokens from `first` on; zeros of all others. */
struct k_embed {
    size_t rows;
    int c, first, v;
    enum dtype type;
    const float *tokens, *table;
    void *out;
};

/* out (v, c) += the rows of dy (rows, c), each to the row of its token, if that is there. */
struct k_embed_bwd {
    unsigned rows;
    int c, first, v;
    enum dtype type;
    const float *tokens;
    const void *dy;
    float *out;
};

/* Of rows (n, t, heads d) channels j and j + d / 2 of the first `turned` heads become low cos - high sin and high cos +
 * low sin, by a row (cosines, sines) of the table (t, d); back: sines count the other way. The other heads are copied.
 */
struct k_rope {
    size_t rows;
    int t, heads, turned, d;
    bool back;
    enum dtype type;
    const float *table;
    const void *in;
    void *out;
};

/* The loss of rows of logits: what each adds to the metrics and, if dlogits is not NULL, its gradient times scale,
 * which may lie where the logits are. What lies behind the classes of a row counts nowhere. */
struct k_xent {
    int n, classes;
    size_t stride, grad_stride; /* elements from one row to the next: of logits, of dlogits */
    bool in_floats;             /* exponentials; their sums are double either way */
    enum dtype grad_type;
    const float *logits;
    const int32_t *labels;       /* -1: the row counts nowhere */
    const struct batch_mix *mix; /* (n): second labels; NULL: there are none */
    float smoothing;
    bool binary; /* binary, weights, total: loss_rule.h; weights is device memory */
    const float *weights;
    float total;
    const float *scale; /* loss scale; NULL: 1 */
    void *dlogits;
    float *samples; /* (n, 4): what each row adds to METRIC_LOSS, TOP1, TOP5, COUNT */
};

struct k_metrics { /* metrics (4) of the reduce arena = the sums of rows (n, 4), in a fixed order */
    int n;
    const float *samples;
    float *metrics;
    bool accumulate;
};

/* Channels [first, first + part) of rows of `whole` (PAD: of the result, zeros around them; SLICE: of what is read). */
struct k_columns {
    size_t rows, whole, part, first; /* elements */
    enum dtype from, to;
    const void *in;
    void *out;
};

/* An activation as plain rows (n, c, h, w), which go from one part of a model to another; back: to them, of `rows`. */
struct k_rows {
    struct view4 v;
    enum dtype rows;
    bool back;
    const void *in;
    void *out;
};

struct k_labels { /* labels of a batch, -1: it does not count -> (n, LABEL_N) */
    int n;
    const int32_t *labels;
    const struct batch_mix *mix; /* NULL: there are no second ones */
    float *out;
};

struct k_numbers { /* numbers of samples -> (n, SAMPLE_N) */
    int n;
    const uint32_t *numbers;
    float *out;
};

/* The loss over parts of the logits (program/split.h): rows (n) of `k` logits of the classes from `first` on, of
 * `classes` in all. What each kernel reads and writes is its op's (program.h); all but dlogits is fp32. TOP, SUMS and
 * BWD read the logits once each; dlogits may lie where they are. */
struct k_xent_part {
    int n, k, first, classes;
    size_t stride, grad_stride; /* elements from one row to the next: of logits, of dlogits */
    bool in_floats;             /* as k_xent's */
    const float *logits;        /* PARTS: none */
    const float *in;            /* TOP: labels; SUMS: tops; PARTS: sums; BWD: LSE_* */
    const float *tops;          /* PARTS: (n, TOP_N) */
    void *out;                  /* BWD: dlogits */
    enum dtype grad_type;       /* BWD */
    float smoothing;            /* SUMS: not 0: logits are summed, too; PARTS, BWD */
    bool binary;                /* SUMS, PARTS, BWD: as k_xent's; dlogits then lie elsewhere than logits */
    const float *weights;       /* of all classes */
    float total;
    const float *scale; /* BWD: loss scale */
    int mine, batch;    /* PARTS: rows [mine, mine + batch) are this rank's, and counted by it; they may begin before */
    float *samples;     /* PARTS: (batch, 4), as k_xent's */
};

/* A filter whose copy is that of a convolution over pixels put together (device/fold.h). */
struct k_fold {
    int r, s;           /* of the filter in the arena; 0: it is as the copy */
    int columns;        /* of the copy's */
    int skip_r, skip_s; /* places of the copy before the filter begins */
};

/* One tensor of a table: fp32 in an arena, (K, C, R, S) or flat, and its copy for the convolutions. */
struct k_tensor {
    float *arena;
    void *copy;
    int k, c, rs;    /* flat: k elements, c = rs = 1; rs: of the copy */
    int padded_c;    /* of the copy: zeros beyond c */
    bool krsc;       /* the copy is (K, R, S, C) */
    enum dtype type; /* of the copy */
    struct k_fold fold;
};

/* Floats of a row (C, R, S) that a block has room for: 512 channels of 3 x 3, and more. Tensors of longer rows whose
 * copy has another order have less than 2^31 elements. */
enum { PACK_ROW_MAX = 6144 };

/* KERNEL_PACK: copy = arena. KERNEL_UNPACK: arena (+)= copy. One launch for all. */
struct k_pack {
    const struct k_tensor *table; /* device memory, n entries */
    int n;
    size_t elements; /* of all, padding excluded */
    bool accumulate;
};

struct k_convert { /* out = in * mul, n elements; from may be DT_F64 */
    size_t n;
    enum dtype from, to;
    const void *in;
    void *out;
    float mul; /* 0: 1 */
};

struct k_round { /* every element becomes the nearest value of a half */
    size_t n;
    float *x;
    enum dtype to;
};

struct k_store { /* *to = value [* *times] */
    float *to;
    float value;
    const float *times;
};

/* struct loss_scale on the device, and what it says of the step that was last judged. */
struct k_scaler_state {
    float scale;     /* of the step at hand until it is judged, then of the next */
    float inv_scale; /* 1 / scale of the step that was last judged */
    int32_t clean, skipped, dynamic;
    int32_t skip;     /* that step must change nothing */
    int32_t hopeless; /* nor any step after it */
    int32_t torn;     /* it changes nothing, as its sums may not be whole: it is as if it had not been done */
};

/* KERNEL_SCALER: worker/precision/loss_scale.h's rule on sums over all ranks. */
struct k_scaler {
    struct k_scaler_state *state;
    const float *loss, *norm; /* norm: NULL: not looked at */
    const int32_t *torn;      /* page-locked memory of the host: not 0: the sums may not be whole */
    int window;
    float min, max;
};

/* What an update goes through: slices of the arenas, cut into chunks, a block's work each. Device memory. A slice's
 * chunks are neighbours. */
struct k_slice {
    size_t first, n, skipped, params_skipped; /* the last two: as struct update's */
    double weight_decay, trust;
    int32_t chunk, nchunks;
};
struct k_chunk {
    size_t first;
    int32_t n, slice;
};
#define KERNEL_CHUNK 8192 /* elements at most */

/* struct update on the device, of all slices: theirs are weight_decay and trust. scaler, here and below: NULL: none;
 * nothing is done where it says skip. */
struct k_update {
    struct update u;
    float lr;
    int32_t step; /* scaler's skipped steps are taken off */
    const struct k_slice *slices;
    const struct k_chunk *chunks;
    int nchunks;
    float *params, *momentum, *second;
    const float *grads, *count;
    const struct k_scaler_state *scaler; /* gradients are divided by its scale, too */
    const float *norms;                  /* LARS, LAMB: k_lars_norms' */
};

/* Norms (of weights, of gradients; LAMB: of weights, of directions) of nslices slices from `slice` on, whose chunks are
 * nchunks from `chunk` on. */
struct k_lars_norms {
    struct k_update u; /* its slices and chunks: of the whole table */
    int slice, nslices, chunk, nchunks;
    double *partial; /* (chunks of the table, 2) */
    float *norms;    /* (slices of the table, 2) */
};

struct k_norm { /* *out = L2 norm of x[0..n) * mul / *count (count NULL: 1; count 0: 0) */
    size_t n;
    const float *x, *count;
    const struct k_scaler_state *scaler; /* the norm is divided by its scale, too */
    float mul;
    float *out;
    double *partial;
};

struct k_blend { /* to = (1 - weight) * to + weight * from [/ *count]; nothing where *count is 0 */
    size_t n;
    float *to;
    const float *from, *count;
    const struct k_scaler_state *scaler;
    float weight;
};

/* --- what proves an engine (prove.c), and what looks for the first value that is no number (check.c) */

enum noise_kind {
    NOISE_UNIT,    /* [-1, 1), all bits of the mantissa */
    NOISE_GRID,    /* multiples of 1/32 in [-1, 1) */
    NOISE_ODD,     /* odd multiples of 1/256 in (-1/2, 1/2) */
    NOISE_POSITIVE /* 1/2 or 1 */
};
struct k_noise {
    size_t n;
    enum dtype type;
    enum noise_kind kind;
    uint32_t seed;
    void *out;
};

enum product_direction { PRODUCT_FORWARD, PRODUCT_DATA, PRODUCT_WEIGHT };

/* A convolution, its factors and what lies on either side of it, as a graph has them (dnn.h). */
struct k_product {
    enum product_direction direction;
    int n, c, h, w, k, r, s, oh, ow;
    int groups;            /* of channels; 1: they are one */
    int stride[2], pad[2]; /* of h, of w */
    enum dtype type;
    bool nhwc, tf32;
    const void *x, *filter, *y; /* two of them */
    const void *scale, *shift;  /* (c), of the type: x is read as relu(x * scale + shift); NULL: as it is */
    const void *before;         /* DATA: the result is 0 where batch norm of this, in (n, c, h, w), */
    const float *mean, *invstd, *gamma, *beta; /* is not above 0; NULL: it is kept */
    enum dtype out;                            /* of the result: the same type, or fp32 */
    float onto;                                /* what lies there, and is added to */
};

/* `samples` elements of the result, chosen by the seed: exact, and as steps of their own would have stored it. */
struct k_expect {
    struct k_product product;
    int samples;
    uint32_t seed;
    double *exact, *stored; /* (samples) */
};

/* Sums of squares over the same elements: of result - exact, stored - exact, exact. */
struct k_distance {
    struct k_product product;
    int samples;
    uint32_t seed;
    const double *exact, *stored;
    const void *result;
    double *out; /* (3) */
};

/* out[0] = the sum of squares of a - b, out[1] of b. */
struct k_gap {
    size_t n;
    enum dtype type; /* of a */
    const void *a;
    const float *b;
    double *out; /* (2) */
};

struct k_count { /* elements that are NaN, infinite: a pair a block */
    size_t n;
    enum dtype type;
    const void *x;
    double *out; /* (kernel_bad_blocks(n), 2) */
};
#define KERNEL_BAD_BLOCKS 264 /* at most */

/* 64 bits of n words: a sum, over all of them, of a number made from the word and from which one it is, so that the
 * order in which they are looked at is no matter. out: one a block, to be added up. */
struct k_checksum {
    size_t n;
    enum dtype type; /* whose size a word has */
    const void *x;
    uint64_t *out; /* (kernel_bad_blocks(n)) */
};

#define KERNELS(X)                                                                                                     \
    X(KERNEL_INPUT, struct k_input)                                                                                    \
    X(KERNEL_BN_STATS, struct k_bn_stats)                                                                              \
    X(KERNEL_BN_GATHER, struct k_bn_gather)                                                                            \
    X(KERNEL_BN_FINALISE, struct k_bn_finalise)                                                                        \
    X(KERNEL_BN_FIXED, struct k_bn_fixed)                                                                              \
    X(KERNEL_BN_APPLY, struct k_bn_apply)                                                                              \
    X(KERNEL_BN_POOL, struct k_bn_pool)                                                                                \
    X(KERNEL_BN_MEAN, struct k_bn_mean)                                                                                \
    X(KERNEL_BN_BWD_SUMS, struct k_bn_bwd_sums)                                                                        \
    X(KERNEL_BN_BWD_APPLY, struct k_bn_bwd_apply)                                                                      \
    X(KERNEL_ADD, struct k_eltwise)                                                                                    \
    X(KERNEL_RELU_BWD, struct k_eltwise)                                                                               \
    X(KERNEL_MAXPOOL, struct k_pool)                                                                                   \
    X(KERNEL_MAXPOOL_BWD, struct k_pool)                                                                               \
    X(KERNEL_AVGPOOL, struct k_pool)                                                                                   \
    X(KERNEL_AVGPOOL_BWD, struct k_pool)                                                                               \
    X(KERNEL_ROW_NORM, struct k_row_norm)                                                                              \
    X(KERNEL_ROW_NORM_BWD, struct k_row_norm)                                                                          \
    X(KERNEL_CHAIN, struct k_chain)                                                                                    \
    X(KERNEL_SCALE_BWD, struct k_scale_bwd)                                                                            \
    X(KERNEL_SEQUENCE, struct k_sequence)                                                                              \
    X(KERNEL_TABLE_GRADIENT, struct k_table_gradient)                                                                  \
    X(KERNEL_GROUP_CONV, struct k_group_conv)                                                                          \
    X(KERNEL_GROUP_CONV_DATA, struct k_group_conv)                                                                     \
    X(KERNEL_GROUP_CONV_WEIGHT, struct k_group_conv)                                                                   \
    X(KERNEL_ATTENTION, struct k_attention)                                                                            \
    X(KERNEL_ATTENTION_BWD_QUERIES, struct k_attention)                                                                \
    X(KERNEL_ATTENTION_BWD_KEYS, struct k_attention)                                                                   \
    X(KERNEL_TOKENS, struct k_tokens)                                                                                  \
    X(KERNEL_EMBED, struct k_embed)                                                                                    \
    X(KERNEL_EMBED_BWD, struct k_embed_bwd)                                                                            \
    X(KERNEL_ROPE, struct k_rope)                                                                                      \
    X(KERNEL_XENT, struct k_xent)                                                                                      \
    X(KERNEL_METRICS, struct k_metrics)                                                                                \
    X(KERNEL_SLICE, struct k_columns)                                                                                  \
    X(KERNEL_PAD, struct k_columns)                                                                                    \
    X(KERNEL_LABELS, struct k_labels)                                                                                  \
    X(KERNEL_NUMBERS, struct k_numbers)                                                                                \
    X(KERNEL_ROWS, struct k_rows)                                                                                      \
    X(KERNEL_XENT_TOP, struct k_xent_part)                                                                             \
    X(KERNEL_XENT_SUMS, struct k_xent_part)                                                                            \
    X(KERNEL_XENT_PARTS, struct k_xent_part)                                                                           \
    X(KERNEL_XENT_PARTS_BWD, struct k_xent_part)                                                                       \
    X(KERNEL_PACK, struct k_pack)                                                                                      \
    X(KERNEL_UNPACK, struct k_pack)                                                                                    \
    X(KERNEL_STORE, struct k_store)                                                                                    \
    X(KERNEL_CONVERT, struct k_convert)                                                                                \
    X(KERNEL_ROUND, struct k_round)                                                                                    \
    X(KERNEL_LARS_NORMS, struct k_lars_norms)                                                                          \
    X(KERNEL_UPDATE, struct k_update)                                                                                  \
    X(KERNEL_NORM, struct k_norm)                                                                                      \
    X(KERNEL_BLEND, struct k_blend)                                                                                    \
    X(KERNEL_SCALER, struct k_scaler)                                                                                  \
    X(KERNEL_NOISE, struct k_noise)                                                                                    \
    X(KERNEL_EXPECT, struct k_expect)                                                                                  \
    X(KERNEL_DISTANCE, struct k_distance)                                                                              \
    X(KERNEL_GAP, struct k_gap)                                                                                        \
    X(KERNEL_COUNT_BAD, struct k_count)                                                                                \
    X(KERNEL_CHECKSUM, struct k_checksum)

enum kernel {
#define X(id, args) id,
    KERNELS(X)
#undef X
        KERNEL_COUNT
};

/* Elements of struct k_partial that KERNEL_BN_STATS and KERNEL_BN_BWD_SUMS of this view need (KERNEL_NORM:
 * KERNEL_NORM_PARTIAL). Host, pure. */
size_t kernel_partial(const struct view4 *v);
size_t kernel_counters(const struct view4 *v);
#define KERNEL_NORM_PARTIAL 1024
/* The same of KERNEL_ROW_NORM_BWD, whose partial is not looked at. Host, pure. */
size_t kernel_norm_partial(const struct k_row_norm *a);
size_t kernel_norm_counters(const struct k_row_norm *a);
size_t kernel_group_partial(const struct k_group_conv *a); /* of KERNEL_GROUP_CONV_WEIGHT */
size_t kernel_group_counters(const struct k_group_conv *a);
/* Blocks of KERNEL_COUNT_BAD and KERNEL_CHECKSUM over n elements. Host, pure. */
int kernel_bad_blocks(size_t n);
/* Bytes of a mask of this view: one for each vector that a thread loads at once. Host, pure. */
size_t kernel_mask(const struct view4 *v);
/* KERNEL_BN_POOL does this pooling of x. Host, pure. */
bool kernel_pools(const struct view4 *x, int kernel, int stride, int pad);
/* KERNEL_BN_MEAN takes this view, and KERNEL_BN_BWD_SUMS the gradient of its means. Host, pure. */
bool kernel_means(const struct view4 *x);

/* stream: cudaStream_t. Returns a cudaError_t as int: 0 or the launch's error. */
int kernel_launch(enum kernel k, const void *args, void *stream);

#ifdef __cplusplus
}
#endif

#endif
