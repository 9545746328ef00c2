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

#include "worker/device/device.h"
#include "worker/precision/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

struct view4 { /* an activation */
    int n, c, h, w;
    bool nhwc;
    enum dtype type;
};

/* images u8 (n, h, w, channels) -> y = (x / 255 - mean) / std, channels padded with zeros up to y.c */
struct k_input {
    struct view4 y;
    int channels;
    const uint8_t *images;
    void *out;
    float mean[4], std[4];
};

/* Sums over samples of weight 1 per channel: sums[0..c) of x, [c..2c) of x * x, [2c] the elements a channel. */
struct k_bn_stats {
    struct view4 v;
    const void *x;
    const float *weights; /* (n) */
    double *sums;         /* (2c + 1) */
    double *partial;      /* kernel_partial() elements */
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

/* From sums (over all ranks, if those were summed): mean, 1/std, and y = x * scale + shift; this step's statistics
 * times their samples into the reduce arena. */
struct k_bn_finalise {
    int c;
    double *sums;
    const float *gamma, *beta;
    float *mean, *invstd, *scale, *shift; /* (c) each, kept for backward */
    void *half_scale, *half_shift;        /* (c) fp16, what prologues read; NULL: nobody wants them */
    float *stat_mean, *stat_var;          /* reduce arena, unbiased variance, both times weight_sum */
    const float *weights;                 /* (n): this rank's samples */
    int n;
    float eps;
    bool accumulate; /* add to stat_* */
};

/* Evaluation: scale and shift from running statistics. */
struct k_bn_fixed {
    int c;
    const float *gamma, *beta, *mean, *var;
    float *scale, *shift;
    float eps;
};

/* y = x * scale + shift [+ add, or add * add_scale + add_shift] [then ReLU]; scale NULL: 1, so that it adds a bias. y
 * may be x. */
struct k_bn_apply {
    struct view4 v;
    const void *x, *add;
    const float *scale, *shift, *add_scale, *add_shift; /* add_*: NULL: as it is */
    void *y;
    bool relu;
};

/* dz = (dy [+ dy2]) where y > 0 (everywhere if y is NULL); sums[0..c) of dz, [c..2c) of dz * (x - mean), over samples
 * of weight 1. dz stored if not NULL. y NULL with scale given: y recomputed as x * scale + shift. */
struct k_bn_bwd_sums {
    struct view4 v;
    const void *x, *dy, *dy2, *y;
    const float *mean, *scale, *shift, *weights; /* weights NULL: all count */
    void *dz;
    double *sums; /* (2c + 1): the last is the count */
    double *partial;
};

/* Gradients of gamma and beta into the reduce arena (this rank's sums, local) and the coefficients of dx (all ranks'
 * sums). */
struct k_bn_bwd_finalise {
    int c;
    const double *local, *sums;
    const float *gamma, *mean, *invstd;
    float *dgamma, *dbeta, *a, *b, *k; /* dx = a * dz + b * x + k */
    bool accumulate;
};

/* dx = a * dz + b * x + k, with dz formed as in k_bn_bwd_sums; 0 in samples of weight 0 */
struct k_bn_bwd_apply {
    struct view4 v;
    const void *x, *dy, *dy2, *y;
    const float *a, *b, *k, *scale, *shift, *weights;
    void *dx;
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

/* Metrics of a batch (sums over samples of weight 1, in sample order) and, if dlogits is not NULL, its gradient times
 * scale. */
struct k_xent {
    int n, classes, stride;     /* elements from one sample's logits to the next's */
    enum dtype type, grad_type; /* of logits, of dlogits */
    const void *logits;
    const int32_t *labels;
    const float *weights;
    float smoothing;
    const float *scale; /* loss scale; NULL: 1 */
    void *dlogits;
    float *metrics; /* METRIC_LOSS, TOP1, TOP5, COUNT of the reduce arena, or NULL */
    float *samples; /* (n, 4) scratch: what each sample adds */
    bool accumulate;
};

/* One tensor of a table: fp32 in an arena, (K, C, R, S) or flat, and its copy for the convolutions. */
struct k_tensor {
    float *arena;
    void *copy;
    int k, c, rs;    /* flat: k elements, c = rs = 1 */
    int padded_c;    /* of the copy: zeros beyond c */
    bool krsc;       /* the copy is (K, R, S, C) */
    enum dtype type; /* of the copy */
};

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
};

/* KERNEL_SCALER: worker/precision/loss_scale.h's rule on sums over all ranks. */
struct k_scaler {
    struct k_scaler_state *state;
    const float *loss, *norm; /* norm: NULL: not looked at */
    int window;
    float min, max;
};

/* What an update goes through: slices of the arenas, cut into chunks, a block's work each. Device memory. A slice's
 * chunks are neighbours. */
struct k_slice {
    size_t first, n, skipped; /* skipped: as struct update's */
    double weight_decay, trust;
    int32_t chunk, nchunks;
};
struct k_chunk {
    size_t first;
    int32_t n, slice;
};
#define KERNEL_CHUNK 8192 /* elements at most */

/* L2 norms of weights and of gradients, as they lie in the arenas, of each slice with trust: norms[2 * slice], [2 *
 * slice + 1]. */
struct k_lars_norms {
    const struct k_slice *slices;
    const struct k_chunk *chunks;
    int nslices, nchunks;
    const float *params, *grads;
    double *partial; /* (nchunks, 2) */
    float *norms;    /* (nslices, 2) */
};

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
    const float *norms;                  /* LARS: as above */
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

#define KERNELS(X)                                                                                                     \
    X(KERNEL_INPUT, struct k_input)                                                                                    \
    X(KERNEL_BN_STATS, struct k_bn_stats)                                                                              \
    X(KERNEL_BN_GATHER, struct k_bn_gather)                                                                            \
    X(KERNEL_BN_FINALISE, struct k_bn_finalise)                                                                        \
    X(KERNEL_BN_FIXED, struct k_bn_fixed)                                                                              \
    X(KERNEL_BN_APPLY, struct k_bn_apply)                                                                              \
    X(KERNEL_BN_BWD_SUMS, struct k_bn_bwd_sums)                                                                        \
    X(KERNEL_BN_BWD_FINALISE, struct k_bn_bwd_finalise)                                                                \
    X(KERNEL_BN_BWD_APPLY, struct k_bn_bwd_apply)                                                                      \
    X(KERNEL_ADD, struct k_eltwise)                                                                                    \
    X(KERNEL_RELU_BWD, struct k_eltwise)                                                                               \
    X(KERNEL_MAXPOOL, struct k_pool)                                                                                   \
    X(KERNEL_MAXPOOL_BWD, struct k_pool)                                                                               \
    X(KERNEL_AVGPOOL, struct k_pool)                                                                                   \
    X(KERNEL_AVGPOOL_BWD, struct k_pool)                                                                               \
    X(KERNEL_XENT, struct k_xent)                                                                                      \
    X(KERNEL_PACK, struct k_pack)                                                                                      \
    X(KERNEL_UNPACK, struct k_pack)                                                                                    \
    X(KERNEL_STORE, struct k_store)                                                                                    \
    X(KERNEL_CONVERT, struct k_convert)                                                                                \
    X(KERNEL_ROUND, struct k_round)                                                                                    \
    X(KERNEL_LARS_NORMS, struct k_lars_norms)                                                                          \
    X(KERNEL_UPDATE, struct k_update)                                                                                  \
    X(KERNEL_NORM, struct k_norm)                                                                                      \
    X(KERNEL_BLEND, struct k_blend)                                                                                    \
    X(KERNEL_SCALER, struct k_scaler)

enum kernel {
#define X(id, args) id,
    KERNELS(X)
#undef X
        KERNEL_COUNT
};

/* Elements of `partial` that KERNEL_BN_STATS and KERNEL_BN_BWD_SUMS of this view need (KERNEL_NORM:
 * KERNEL_NORM_PARTIAL). Host, pure. */
size_t kernel_partial(const struct view4 *v);
#define KERNEL_NORM_PARTIAL 1024

/* stream: cudaStream_t. Returns a cudaError_t as int: 0 or what the launch said. */
int kernel_launch(enum kernel k, const void *args, void *stream);

#ifdef __cplusplus
}
#endif

#endif
