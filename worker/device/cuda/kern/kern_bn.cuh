/* What the batch-norm kernels share: how an activation is laid over threads, and coefficients from sums.
 *
 * NHWC: a thread owns V neighbouring channels (16 bytes) of every so-many-th row (pixel), so that coefficients stay in
 * registers and no index is divided; LANES threads side by side take one row's neighbouring vectors, and where channels
 * are few, a warp takes several rows, so that no lane is idle. blockIdx.x: channels, blockIdx.y: rows. NCHW: a block
 * takes planes of one channel. */
#ifndef CRUN_WORKER_DEVICE_CUDA_KERN_BN_CUH
#define CRUN_WORKER_DEVICE_CUDA_KERN_BN_CUH

#include "worker/device/cuda/kern/kern.cuh"

/* The place of a thread in such a launch; lanes is a power of 2. */
struct tile {
    unsigned row, rows; /* of the block's rows, how many it takes at once */
    int lane, lanes;
};
__device__ __forceinline__ tile tile_of(int lanes)
{
    const unsigned shift = lanes == 8 ? 3 : lanes == 16 ? 4 : 5;
    return {threadIdx.x >> shift, (unsigned)BLOCK >> shift, (int)(threadIdx.x & (lanes - 1)), lanes};
}
enum { LANES_MAX = 32 };

static inline unsigned rows_of(const view4 &v)
{
    return (unsigned)((size_t)v.n * v.h * v.w);
}

static inline unsigned columns_of(const view4 &v, int channels)
{
    return (unsigned)((v.c + channels - 1) / channels);
}

/* At most so many blocks in all, each thread with at least `least` of the `units` that a block takes at once. */
static inline unsigned shares_of(size_t units, size_t least, unsigned columns, unsigned blocks)
{
    size_t y = (units + least - 1) / least;
    const size_t most = blocks / columns > 0 ? blocks / columns : 1;
    return (unsigned)(y < 1 ? 1 : y > most ? most : y);
}

/* How many samples count. All threads of the block call it; weights NULL: all of n. */
__device__ inline double samples_of(const float *weights, int n)
{
    double count = 0;
    if (!weights)
        return n;
    for (int k = threadIdx.x; k < n; k += BLOCK)
        count += weights[k] > 0 ? 1 : 0;
    return block_sum(count);
}

struct two_sums {
    double first, second, count;
};
__device__ inline two_sums sums_at(const k_bn_from &f, int channels, int c)
{
    if (f.sums)
        return {f.sums[c], f.sums[channels + c], f.sums[2 * channels]};
    two_sums s = {f.first[c], f.second[c], f.count};
    if (f.invstd)
        s.second = f.invstd[c] > 0 ? s.second / f.invstd[c] : 0;
    return s;
}

struct affine { /* y = x * scale + shift */
    float scale, shift;
};

/* Of channel c; stored where `keep`: by one thread of the launch. samples: this rank's that count. */
__device__ inline affine finalise_at(const k_bn_finalise &a, int c, double samples, bool keep)
{
    const two_sums s = sums_at(a.from, a.c, c);
    const double count = s.count > 0 ? s.count : 1, mean = s.first / count;
    double var = s.second / count - mean * mean;
    var = var < 0 ? 0 : var; /* rounding only: NaN stays */
    /* no sample counts: the output is beta */
    const float invstd = s.count > 0 ? (float)(1 / sqrt(var + (double)a.eps)) : 0, scale = a.gamma[c] * invstd,
                shift = (float)(a.beta[c] - mean * scale);
    if (!keep)
        return {scale, shift};
    a.mean[c] = (float)mean;
    a.invstd[c] = invstd;
    a.scale[c] = scale;
    a.shift[c] = shift;
    if (a.half_scale) {
        from_float(static_cast<__half *>(a.half_scale)[c], scale);
        from_float(static_cast<__half *>(a.half_shift)[c], shift);
    }
    const float m = (float)(mean * samples), u = (float)((count > 1 ? var * count / (count - 1) : var) * samples);
    if (a.again)
        return {scale, shift};
    a.stat_mean[c] = a.accumulate ? a.stat_mean[c] + m : m;
    a.stat_var[c] = a.accumulate ? a.stat_var[c] + u : u;
    return {scale, shift};
}

struct bwd_factors { /* dx = a * dz + b * x + k */
    float a, b, k;
};
/* Of channel c; gamma's and beta's gradients are stored where `keep`: by one thread of the launch. */
__device__ inline bwd_factors bwd_at(const k_bn_bwd &w, int channels, int c, bool keep)
{
    const two_sums all = sums_at(w.from, channels, c);
    const double count = all.count > 0 ? all.count : 1, invstd = w.invstd[c], slope = w.gamma[c] * invstd,
                 bend = -slope * invstd * invstd * all.second / count;
    if (keep) {
        const two_sums own = sums_at(w.local, channels, c);
        w.dgamma[c] = (float)(own.second * invstd);
        w.dbeta[c] = (float)own.first;
    }
    return {(float)slope, (float)bend, (float)(-slope * all.first / count - bend * w.mean[c])};
}

/* V values of a channel each, or all of one. */
template <int V, bool NHWC> __device__ __forceinline__ void spread(const float *from, float (&to)[V])
{
    UNROLL
    for (int i = 0; i < V; i++)
        to[i] = from[NHWC ? i : 0];
}

/* What dz of V elements is formed of, while it is on its way. The vector that begins at element `at` has byte at / V of
 * the mask. MORE: dy2 or y, which the others do not hold registers for. */
template <typename T, int V, bool MORE> struct incoming {
    pack<T, V> dy, dy2, y;
    uint8_t mask;
};
template <typename T, int V> struct incoming<T, V, false> {
    pack<T, V> dy;
    uint8_t mask;
};
static inline bool needs_more(const k_bn_gradient &g)
{
    return g.dy2 || (g.y && !g.mask);
}
template <typename T, int V, bool MORE>
__device__ __forceinline__ incoming<T, V, MORE> fetch_gradient(const k_bn_gradient &g, size_t at)
{
    incoming<T, V, MORE> in = {};
    in.dy = fetch<T, V>(static_cast<const T *>(g.dy) + at);
    if (g.mask)
        in.mask = g.mask[at / V];
    if constexpr (MORE) {
        if (g.dy2)
            in.dy2 = fetch<T, V>(static_cast<const T *>(g.dy2) + at);
        if (g.y && !g.mask)
            in.y = fetch<T, V>(static_cast<const T *>(g.y) + at);
    }
    return in;
}
template <typename T, int V, bool MORE>
__device__ __forceinline__ void form_gradient(const k_bn_gradient &g, const incoming<T, V, MORE> &in, float (&dz)[V])
{
    UNROLL
    for (int i = 0; i < V; i++) {
        float d = to_float(in.dy.at[i]);
        if constexpr (MORE)
            d += g.dy2 ? to_float(in.dy2.at[i]) : 0;
        if (g.mask)
            d = in.mask >> i & 1 ? d : 0;
        if constexpr (MORE)
            d = g.mask || !g.y || to_float(in.y.at[i]) > 0 ? d : 0;
        dz[i] = d;
    }
}

#endif
