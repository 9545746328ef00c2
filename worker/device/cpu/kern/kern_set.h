/* What the files share that are compiled once for each instruction set (meson.build). KERN_TABLE is the name of the
 * set's table, and begins the names of its functions; one file a family of kernels, kern_isa.c has the table. */
#ifndef CRUN_WORKER_KERN_SET_H
#define CRUN_WORKER_KERN_SET_H

#include <math.h>
#include <omp.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif
#ifdef __AVX512BF16__
#define HARDWARE_BF16 1 /* takes numbers below 2^-126 for 0, as the convolutions do that use it */
#else
#define HARDWARE_BF16 0
#endif

#include "worker/device/cpu/kern/kern.h"
#include "worker/precision/dtype.h"

#define INLINE inline __attribute__((always_inline))

#define KERN_JOINED_(a, b) a##_##b
#define KERN_JOINED(a, b) KERN_JOINED_(a, b)
#define KERN_OF_SET(f) KERN_JOINED(KERN_TABLE, f)

/* The table's kernels that are made for each storage type and width (kern_each.h), as struct kern has them. */
void KERN_OF_SET(bn_stats)(const struct bn_stats_job *j, enum store t, int threads);
void KERN_OF_SET(bn_apply)(const struct bn_apply_job *j, enum store t, int threads);
void KERN_OF_SET(bn_bwd_sums)(const struct bn_bwd_sums_job *j, enum store t, int threads);
void KERN_OF_SET(bn_bwd_apply)(const struct bn_bwd_apply_job *j, enum store t, int threads);
void KERN_OF_SET(maxpool)(const struct pool_job *j, enum store t, int threads);
void KERN_OF_SET(maxpool_bwd)(const struct pool_job *j, enum store t, int threads);
void KERN_OF_SET(avgpool)(const struct pool_job *j, enum store t, int threads);
void KERN_OF_SET(avgpool_bwd)(const struct pool_job *j, enum store t, int threads);
void KERN_OF_SET(add)(const void *a, const void *b, void *y, bool relu, size_t n, enum store t, int threads);
void KERN_OF_SET(groups)(const struct groups_job *j, enum store t, int threads);
void KERN_OF_SET(groups_param)(const struct groups_param_job *j, enum store t, int threads);
void KERN_OF_SET(norm)(const struct norm_job *j, enum store t, int threads);
void KERN_OF_SET(norm_bwd)(const struct norm_bwd_job *j, enum store t, int threads);
void KERN_OF_SET(chain)(const struct chain_job *j, enum store t, int threads);
void KERN_OF_SET(softmax)(const struct softmax_job *j, enum store t);
void KERN_OF_SET(softmax_bwd)(const struct softmax_job *j, enum store t);
void KERN_OF_SET(give_rows)(const float *from, void *to, size_t rows, int n, size_t stride, enum store t);
void KERN_OF_SET(columns)(const struct columns_job *j, enum store t, int threads);
void KERN_OF_SET(give)(const float *from, void *to, size_t n, bool past, enum store t, int threads);
void KERN_OF_SET(relu_bwd)(const void *y, const void *dy, void *dx, size_t n, enum store t, int threads);

enum {
    RUN = 128, /* pixels, or classes, summed in fp32 before the sum goes on in double */
    ROW = 64   /* groups of a pixel of NHWC whose sums are taken side by side */
};

/* How a pass that takes sums is cut into items for the threads: each has some samples and some channel groups. Samples
 * are walked over from the last to the first: what the operation before wrote last may still lie in the caches; and
 * what is read last here is what the next pass, which goes forwards, reads first. */
struct pieces {
    int by_samples, by_groups;
};

static inline struct pieces cut(const struct view *v, int threads)
{
    const bool nhwc = view_is_nhwc(v); /* a thread's groups stay together */
    if (v->n % threads == 0 || v->n >= 8 * threads)
        return (struct pieces){threads, 1};
    if (v->groups % threads == 0 || v->groups >= 8 * threads)
        return (struct pieces){1, nhwc ? threads : v->groups};
    const int by_samples = v->n < threads ? v->n : threads, rest = (threads + by_samples - 1) / by_samples;
    return (struct pieces){by_samples, nhwc && rest < v->groups ? rest : v->groups};
}

/* What a pass without sums takes of a sample at a time: a group, or of NHWC a run of pixels. */
static inline int parts_of(const struct view *v, int threads)
{
    const int runs = (v->hw + RUN - 1) / RUN, shares = (threads + v->n - 1) / v->n,
              most = runs > shares ? runs : shares;
    if (!view_is_nhwc(v))
        return v->groups;
    return most < v->hw ? most : v->hw;
}

static inline int share(int n, int part, int parts)
{
    return (int)((int64_t)n * part / parts);
}

static inline void combine(const double *partial, int splits, int channels, double *a, double *b)
{
    for (int c = 0; c < channels; c++) {
        double sa = 0, sb = 0;
        for (int s = 0; s < splits; s++) {
            sa += partial[(size_t)s * 2 * channels + c];
            sb += partial[(size_t)s * 2 * channels + channels + c];
        }
        a[c] = sa;
        b[c] = sb;
    }
}

/* The part of a pooling window that lies inside the image. */
struct span {
    int first, end; /* of the image */
    int skipped;    /* window positions before it */
};

static INLINE struct span window(int out, int stride, int pad, int kernel, int size)
{
    int start = out * stride - pad, first = start < 0 ? 0 : start;
    int end = start + kernel < size ? start + kernel : size;
    return (struct span){first, end, first - start};
}

/* Store a vector without fetching its cache lines; where there is no such instruction, as ever. */
static INLINE void stream_bytes(void *to, const void *vector, size_t bytes)
{
#ifdef __AVX512F__
    if (bytes == 64) {
        _mm512_stream_si512(to, _mm512_loadu_si512(vector));
        return;
    }
#endif
#ifdef __AVX__
    if (bytes == 32) {
        _mm256_stream_si256(to, _mm256_loadu_si256(vector));
        return;
    }
#endif
    memcpy(to, vector, bytes);
}

#ifdef __AVX2__
static INLINE __m256i first_of_8(int lanes) /* a mask */
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#endif

/* Vectors of one pixel of NHWC: `whole` ones, and one of `rest` lanes where that is not 0. */
struct row {
    int whole, rest;
};

/* Those of groups [g, end). */
static inline struct row row_of(const struct view *v, int g, int end)
{
    const bool last = end == v->groups && v->last_lanes < v->lanes;
    return (struct row){end - g - last, last ? v->last_lanes : 0};
}

/* Vectors of one group: the first at this element, `n` of them, `step` elements apart. */
struct walk {
    size_t at;
    int n;
    size_t step;
};

/* Blocks of 8 go to the narrow kernels; so does what may have any width where registers are narrow; the rest to the
 * wide ones. */
#ifdef __AVX512F__
enum { ANY_WIDTH = 16 };
#else
enum { ANY_WIDTH = 8 };
#endif

static inline int width_of(const struct view *v)
{
    return view_is_plain(v) ? ANY_WIDTH : v->lanes;
}

#define DISPATCH(f, lanes, ...)                                                                                        \
    do {                                                                                                               \
        if ((lanes) == 8) {                                                                                            \
            if (t == STORE_F32)                                                                                        \
                f##_f32_8(__VA_ARGS__);                                                                                \
            else if (t == STORE_BF16)                                                                                  \
                f##_bf16_8(__VA_ARGS__);                                                                               \
            else if (t == STORE_ROUNDED_F16)                                                                           \
                f##_half_8(__VA_ARGS__);                                                                               \
            else                                                                                                       \
                f##_rounded_8(__VA_ARGS__);                                                                            \
        } else {                                                                                                       \
            if (t == STORE_F32)                                                                                        \
                f##_f32_16(__VA_ARGS__);                                                                               \
            else if (t == STORE_BF16)                                                                                  \
                f##_bf16_16(__VA_ARGS__);                                                                              \
            else if (t == STORE_ROUNDED_F16)                                                                           \
                f##_half_16(__VA_ARGS__);                                                                              \
            else                                                                                                       \
                f##_rounded_16(__VA_ARGS__);                                                                           \
        }                                                                                                              \
    } while (0)

#endif
