/* Compiled once per instruction set (meson.build) with KERN_TABLE the name of the table it defines. */
#include "worker/device/cpu/kern/kern.h"

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

#include "worker/device/cpu/kern/kern_exp.h"
#include "worker/precision/dtype.h"
#include "worker/program/program.h"

#define REAL float
#include "worker/device/rules.h"

#define INLINE inline __attribute__((always_inline))

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

static struct pieces cut(const struct view *v, int threads)
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
static int parts_of(const struct view *v, int threads)
{
    const int runs = (v->hw + RUN - 1) / RUN, shares = (threads + v->n - 1) / v->n,
              most = runs > shares ? runs : shares;
    if (!view_is_nhwc(v))
        return v->groups;
    return most < v->hw ? most : v->hw;
}

static int share(int n, int part, int parts)
{
    return (int)((int64_t)n * part / parts);
}

static void combine(const double *partial, int splits, int channels, double *a, double *b)
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
static struct row row_of(const struct view *v, int g, int end)
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

#define T_BF16 0
#define ROUND 0
#define T float
#define L 16
#define NAME(x) x##_f32_16
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#define L 8
#define NAME(x) x##_f32_8
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#undef ROUND
#define ROUND 1
#define L 16
#define NAME(x) x##_rounded_16
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#define L 8
#define NAME(x) x##_rounded_8
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#undef ROUND
#define ROUND 2
#define L 16
#define NAME(x) x##_half_16
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#define L 8
#define NAME(x) x##_half_8
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#undef ROUND
#undef T
#undef T_BF16
#define T_BF16 1
#define ROUND 0
#define T uint16_t
#define L 16
#define NAME(x) x##_bf16_16
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#define L 8
#define NAME(x) x##_bf16_8
#include "worker/device/cpu/kern/kern_body.h"
#undef L
#undef NAME
#undef T
#undef T_BF16
#undef ROUND

/* Blocks of 8 go to the narrow kernels; so does what may have any width where registers are narrow; the rest to the
 * wide ones. */
#ifdef __AVX512F__
enum { ANY_WIDTH = 16 };
#else
enum { ANY_WIDTH = 8 };
#endif

static int width_of(const struct view *v)
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

static void bn_stats(const struct bn_stats_job *j, enum store t, int threads)
{
    DISPATCH(bn_stats, width_of(&j->v), j, threads);
}

static void bn_apply(const struct bn_apply_job *j, enum store t, int threads)
{
    DISPATCH(bn_apply, width_of(&j->v), j, threads);
}

static void bn_bwd_sums(const struct bn_bwd_sums_job *j, enum store t, int threads)
{
    DISPATCH(bn_bwd_sums, width_of(&j->v), j, threads);
}

static void bn_bwd_apply(const struct bn_bwd_apply_job *j, enum store t, int threads)
{
    DISPATCH(bn_bwd_apply, width_of(&j->v), j, threads);
}

static void maxpool(const struct pool_job *j, enum store t, int threads)
{
    DISPATCH(maxpool, width_of(&j->vx), j, threads);
}

static void maxpool_bwd(const struct pool_job *j, enum store t, int threads)
{
    DISPATCH(maxpool_bwd, width_of(&j->vx), j, threads);
}

static void avgpool(const struct pool_job *j, enum store t, int threads)
{
    DISPATCH(avgpool, width_of(&j->vx), j, threads);
}

static void avgpool_bwd(const struct pool_job *j, enum store t, int threads)
{
    DISPATCH(avgpool_bwd, width_of(&j->vx), j, threads);
}

static void add(const void *a, const void *b, void *y, bool relu, size_t n, enum store t, int threads)
{
    DISPATCH(add, ANY_WIDTH, a, b, y, relu, n, threads);
}

static void relu_bwd(const void *y, const void *dy, void *dx, size_t n, enum store t, int threads)
{
    DISPATCH(relu_bwd, ANY_WIDTH, y, dy, dx, n, threads);
}

/* What each byte becomes in channel c, rounded once. */
static void input_values(const struct input_job *j, int c, enum store t, float value[256])
{
    for (int byte = 0; byte < 256; byte++)
        value[byte] = c < j->l.c ? store_value(t, (float)((byte / 255.0 - (double)j->mean[c]) / (double)j->std[c])) : 0;
}

static void input(const struct input_job *j, enum store t, int threads)
{
    const struct layout *l = &j->l;
    int hw = l->h * l->w, channels = layout_blocks(l) * l->b;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int n = 0; n < l->n; n++) {
        for (int c = 0; c < channels; c++) {
            float value[256];
            const uint8_t *image = j->images + (size_t)n * hw * l->c + (c < l->c ? c : 0);
            size_t at = layout_offset(l, n, c, 0);
            input_values(j, c, t, value);
            for (int p = 0; p < hw; p++) {
                float v = value[image[(size_t)p * l->c]];
                if (t == STORE_BF16)
                    ((uint16_t *)j->y)[at + (size_t)p * l->b] = bf16_from_f32(v);
                else
                    ((float *)j->y)[at + (size_t)p * l->b] = v;
            }
        }
    }
}

static void round_all(float *x, size_t n, enum store t, int threads)
{
    add(x, NULL, x, false, n, t, threads);
}

static void accumulate(float *sum, const float *x, size_t n, int threads)
{
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (size_t i = 0; i < n; i++)
        sum[i] += x[i];
}

static double squares(const float *x, size_t n, int threads)
{
    return rule_squares(x, n, threads);
}

static void blend(float *stats, const float *sums, size_t n, float keep, float mul, int threads)
{
#pragma omp parallel for simd schedule(static) num_threads(threads)
    for (size_t i = 0; i < n; i++)
        stats[i] = keep * stats[i] + mul * sums[i];
}

static float largest(const float *x, int n)
{
    float most = x[0];
#pragma omp simd reduction(max : most)
    for (int i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* How many beat the label's, which is z[label] if it is there (xent_beats()). */
static int better_of_run(const float *z, int n, float target, int label)
{
    int better = 0;
#pragma omp simd reduction(+ : better)
    for (int j = 0; j < n; j++)
        better += z[j] < target || (z[j] == target && j >= label) ? 0 : 1;
    return better - (label >= 0 && label < n && !(z[label] <= target));
}

#define X float
#define EXP exp_of_float
#define NAME(x) x##_in_floats
#include "worker/device/cpu/kern/kern_xent.h"

#define X double
#define EXP exp_of_double
#define NAME(x) x##_in_doubles
#include "worker/device/cpu/kern/kern_xent.h"

#define STRING_(x) #x
#define STRING(x) STRING_(x)

extern const struct kern KERN_TABLE;
const struct kern KERN_TABLE = {
    .name = STRING(KERN_TABLE),
    .bn_stats = bn_stats,
    .bn_apply = bn_apply,
    .bn_bwd_sums = bn_bwd_sums,
    .bn_bwd_apply = bn_bwd_apply,
    .maxpool = maxpool,
    .maxpool_bwd = maxpool_bwd,
    .avgpool = avgpool,
    .avgpool_bwd = avgpool_bwd,
    .input = input,
    .add = add,
    .relu_bwd = relu_bwd,
    .round = round_all,
    .accumulate = accumulate,
    .update = rule_update,
    .squares = squares,
    .blend = blend,
    .largest = largest,
    .xent_sums = xent_sums_in_doubles,
    .xent_gradient = xent_gradient_in_doubles,
    .xent_sums_of_part = xent_sums_in_floats,
    .xent_gradient_of_part = xent_gradient_in_floats,
};
