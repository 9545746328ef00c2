/* The stem's batch norm, ReLU and max pooling (3x3, stride 2, padding 1) in one pass each way: the activation between
 * them and its gradient are never stored. NHWC.
 *
 * x of B bytes, pooled P = B/4, index I = P/2 in halves (ResNet-50 fp16, batch 256: B = 0.41 GB; H200):
 *   bn_pool        reads B, writes P + I                     0.57 GB, 146 us (as two kernels: 1.39 GB)
 *   bn_pool_sums   reads B + P + I [+ P]                     0.57 GB, 146 us
 *   bn_pool_apply  reads B + P + I [+ P], writes B           0.98 GB, 253 us (as three kernels with the sums: 3.4 GB)
 * Grid as in kern_bn_apply.cu, by pooled pixels. Arithmetic bounds these rather than memory (forward 0.50 ms on an H200
 * while each of nine values was clamped and rounded). Forward a thread has nine vectors on their way; windows overlap,
 * but within a block's neighbours, whose cache lines are still there. Backward a thread takes 2x2 pixels and the four
 * windows that they lie in: eight to twelve loads of 16 bytes on their way.
 */
#include "worker/device/cuda/kern/kern_sums.cuh"

enum { POOL_BLOCKS = 1056, NOBODY = 255 };

extern "C" bool kernel_pools(const view4 *x, int kernel, int stride, int pad)
{
    return x->nhwc && wide(*x) && kernel == 3 && stride == 2 && pad == 1;
}

struct pixel { /* of a view */
    unsigned n, h, w;
};
struct pixels {
    divider w, h;
    unsigned width, height;
};
static pixels pixels_of(const view4 &v)
{
    return {divider_of((uint32_t)v.w), divider_of((uint32_t)v.h), (unsigned)v.w, (unsigned)v.h};
}
__device__ __forceinline__ pixel pixel_at(const pixels &p, unsigned i)
{
    const unsigned line = divide(i, p.w), n = divide(line, p.h);
    return {n, line - n * p.height, i - line * p.width};
}

template <typename T, int V> __global__ void __launch_bounds__(BLOCK, 2) bn_pool(k_bn_pool a, int lanes, pixels by)
{
    __shared__ float of[2][LANES_MAX * V];
    const tile t = tile_of(lanes);
    const int c = (blockIdx.x * lanes + t.lane) * V;
    const double samples = a.own.c ? samples_of(a.own.weights, a.own.n) : 0;
    for (int k = threadIdx.x; k < lanes * V; k += BLOCK) {
        const int channel = blockIdx.x * lanes * V + k;
        if (channel >= a.x.c)
            break;
        affine f = {0, 0};
        if (a.own.c)
            f = finalise_at(a.own, channel, samples, blockIdx.y == 0);
        else
            f = {a.scale[channel], a.shift[channel]};
        of[0][k] = f.scale;
        of[1][k] = f.shift;
    }
    __syncthreads();
    if (c >= a.x.c)
        return;
    const int m = t.lane * V; /* coefficients stay in shared memory: pixels need the registers */
    const unsigned rows = a.y.n * by.height * by.width;
    for (unsigned r = blockIdx.y * t.rows + t.row; r < rows; r += gridDim.y * t.rows) {
        const pixel p = pixel_at(by, r);
        pack<T, V> x[9];
        bool in[9];
        UNROLL
        for (int k = 0; k < 9; k++) {
            const int h = (int)p.h * 2 - 1 + k / 3, w = (int)p.w * 2 - 1 + k % 3;
            in[k] = h >= 0 && h < a.x.h && w >= 0 && w < a.x.w;
            if (in[k])
                x[k] = fetch<T, V>(static_cast<const T *>(a.in) + (((size_t)p.n * a.x.h + h) * a.x.w + w) * a.x.c + c);
        }
        pack<T, V> best;
        pack<uint8_t, V> won;
        UNROLL
        for (int i = 0; i < V; i++) {
            float most = -INFINITY;
            int which = NOBODY;
            bool nan = false;
            UNROLL
            for (int k = 0; k < 9; k++) { /* ReLU and rounding come after: they keep the order, and are done once */
                const float v = in[k] ? to_float(x[k].at[i]) * of[0][m + i] + of[1][m + i] : -INFINITY;
                nan |= v != v;
                if (v > most) { /* the first of equals */
                    most = v;
                    which = k;
                }
            }
            from_float(best.at[i], nan ? NAN : most < 0 ? 0 : most);
            won.at[i] = (uint8_t)(to_float(best.at[i]) > 0 ? which : NOBODY);
        }
        const size_t at = (size_t)r * a.y.c + c;
        *reinterpret_cast<pack<T, V> *>(static_cast<T *>(a.out) + at) = best;
        if (a.index)
            *reinterpret_cast<pack<uint8_t, V> *>(a.index + at) = won;
    }
}

static dim3 pool_grid(const view4 &pooled)
{
    const unsigned columns = columns_of(pooled, channels_of(pooled)), rows = BLOCK / lanes_of(pooled);
    return dim3(columns, shares_of((rows_of(pooled) + rows - 1) / rows, 4, columns, POOL_BLOCKS));
}

/* For vectors of 16 bytes alone: kernel_pools(). */
#define DISPATCH_WIDE(v, ...)                                                                                          \
    DISPATCH_TYPE((v).type, {                                                                                          \
        constexpr int V = 16 / (int)sizeof(T);                                                                         \
        __VA_ARGS__                                                                                                    \
    })

void launch_KERNEL_BN_POOL(const k_bn_pool *a, cudaStream_t s)
{
    DISPATCH_WIDE(a->x, { LAUNCH((bn_pool<T, V>), pool_grid(a->y), BLOCK, s, *a, lanes_of(a->y), pixels_of(a->y)); });
}

/* 2x2 pixels of x and the gradients of the four windows [i, i + 1] x [j, j + 1] that they lie in. */
template <typename T, int V, bool MORE> struct quad { /* MORE: dy2, too */
    pack<T, V> x[4];
    pack<T, V> dy[4], dy2[MORE ? 4 : 1];
    pack<uint8_t, V> won[4];
    size_t at; /* of the first pixel */
    bool in[4];
};

/* From the first pixel of a quad to its k-th. */
__device__ __forceinline__ size_t beside(const view4 &v, int k)
{
    return (size_t)((k / 2) * v.w + k % 2) * v.c;
}

template <typename T, int V, bool MORE>
__device__ __forceinline__ void fetch_quad(const k_bn_gradient &g, const view4 &v, const T *x, const pixel &p, int c,
                                           quad<T, V, MORE> &q)
{
    q.at = (((size_t)p.n * v.h + 2 * p.h) * v.w + 2 * p.w) * v.c + c;
    UNROLL
    for (int k = 0; k < 4; k++) {
        const unsigned h = 2 * p.h + k / 2, w = 2 * p.w + k % 2, oh = p.h + k / 2, ow = p.w + k % 2;
        q.in[k] = (int)h < v.h && (int)w < v.w;
        if (q.in[k])
            q.x[k] = fetch<T, V>(x + q.at + beside(v, k));
        q.dy[k] = {};
        if constexpr (MORE)
            q.dy2[k] = {};
        UNROLL
        for (int i = 0; i < V; i++)
            q.won[k].at[i] = NOBODY;
        if ((int)oh >= g.pooled.h || (int)ow >= g.pooled.w)
            continue;
        const size_t from = (((size_t)p.n * g.pooled.h + oh) * g.pooled.w + ow) * v.c + c;
        q.dy[k] = fetch<T, V>(static_cast<const T *>(g.dy) + from);
        q.won[k] = fetch<uint8_t, V>(g.index + from);
        if constexpr (MORE)
            q.dy2[k] = fetch<T, V>(static_cast<const T *>(g.dy2) + from);
    }
}

/* dz of pixel k: windows give it what they got where it won; which number it has in each depends on k alone. */
template <typename T, int V, bool MORE>
__device__ __forceinline__ void quad_gradient(const quad<T, V, MORE> &q, int k, float (&dz)[V])
{
    constexpr int NUMBER[4][4] = {{4, -1, -1, -1}, {5, 3, -1, -1}, {7, -1, 1, -1}, {8, 6, 2, 0}};
    UNROLL
    for (int i = 0; i < V; i++) {
        dz[i] = 0;
        UNROLL
        for (int w = 0; w < 4; w++)
            if (NUMBER[k][w] >= 0 && q.won[w].at[i] == NUMBER[k][w])
                dz[i] += to_float(q.dy[w].at[i]) + (MORE ? to_float(q.dy2[MORE ? w : 0].at[i]) : 0);
    }
}

template <typename T, int V, bool MORE>
__global__ void __launch_bounds__(BLOCK, 2) bn_pool_sums(k_bn_bwd_sums a, sink to, int lanes, pixels by)
{
    constexpr int N = 2;
    __shared__ float part[BLOCK * N * V];
    __shared__ double mine[N * LANES_MAX * V];
    __shared__ float mean[LANES_MAX * V];
    const tile t = tile_of(lanes);
    const int c = (blockIdx.x * lanes + t.lane) * V, m = t.lane * V;
    float s[N][V] = {};
    const unsigned rows = c < to.c ? a.g.pooled.n * by.height * by.width : 0;
    for (int k = threadIdx.x; k < lanes * V; k += BLOCK)
        if (blockIdx.x * lanes * V + k < (unsigned)to.c)
            mean[k] = a.mean[blockIdx.x * lanes * V + k];
    __syncthreads();
    for (unsigned r = blockIdx.y * t.rows + t.row; r < rows; r += gridDim.y * t.rows) {
        const pixel p = pixel_at(by, r);
        quad<T, V, MORE> q;
        fetch_quad<T, V, MORE>(a.g, a.v, static_cast<const T *>(a.x), p, c, q);
        const bool counts = !a.weights || a.weights[p.n] > 0;
        UNROLL
        for (int k = 0; k < 4; k++) {
            float dz[V];
            quad_gradient<T, V, MORE>(q, k, dz);
            UNROLL
            for (int i = 0; i < V; i++) {
                const bool in = counts && q.in[k];
                s[0][i] += in ? dz[i] : 0;
                s[1][i] += in ? dz[i] * (to_float(q.x[k].at[i]) - mean[m + i]) : 0;
            }
        }
    }
    add_threads<N, V>(t, s, part, mine);
    finish<N>(to, mine, lanes * V, blockIdx.x * lanes * V);
}

void launch_bn_pool_sums(const k_bn_bwd_sums *a, cudaStream_t s)
{
    const sink to = {a->partial, a->sums, nullptr, a->weights, a->v.n, a->v.c, (double)a->v.h * a->v.w};
    const dim3 grid(columns_of(a->v, channels_of(a->v)), shares(a->v, 2 * SUM_UNITS));
    DISPATCH_WIDE(a->v, {
        if (a->g.dy2)
            LAUNCH((bn_pool_sums<T, V, true>), grid, BLOCK, s, *a, to, lanes_of(a->v), pixels_of(a->g.pooled));
        else
            LAUNCH((bn_pool_sums<T, V, false>), grid, BLOCK, s, *a, to, lanes_of(a->v), pixels_of(a->g.pooled));
    });
}

template <typename T, int V, bool MORE>
__global__ void __launch_bounds__(BLOCK, 2) bn_pool_apply(k_bn_bwd_apply a, int lanes, pixels by)
{
    __shared__ float of[3][LANES_MAX * V];
    const tile t = tile_of(lanes);
    const int c = (blockIdx.x * lanes + t.lane) * V;
    for (int k = threadIdx.x; k < lanes * V; k += BLOCK) {
        const int channel = blockIdx.x * lanes * V + k;
        if (channel >= a.v.c)
            break;
        const bwd_factors f = bwd_at(a.own, a.v.c, channel, blockIdx.y == 0);
        of[0][k] = f.a;
        of[1][k] = f.b;
        of[2][k] = f.k;
    }
    __syncthreads();
    if (c >= a.v.c || !a.own.dx)
        return;
    const int m = t.lane * V; /* coefficients stay in shared memory: pixels need the registers */
    const unsigned rows = a.g.pooled.n * by.height * by.width;
    for (unsigned r = blockIdx.y * t.rows + t.row; r < rows; r += gridDim.y * t.rows) {
        const pixel p = pixel_at(by, r);
        quad<T, V, MORE> q;
        fetch_quad<T, V, MORE>(a.g, a.v, static_cast<const T *>(a.own.x), p, c, q);
        const bool counts = a.weights[p.n] > 0;
        UNROLL
        for (int k = 0; k < 4; k++) {
            float dz[V];
            pack<T, V> out;
            quad_gradient<T, V, MORE>(q, k, dz);
            UNROLL
            for (int i = 0; i < V; i++)
                from_float(out.at[i],
                           counts ? of[0][m + i] * dz[i] + (of[1][m + i] * to_float(q.x[k].at[i]) + of[2][m + i]) : 0);
            if (q.in[k])
                *reinterpret_cast<pack<T, V> *>(static_cast<T *>(a.own.dx) + q.at + beside(a.v, k)) = out;
        }
    }
}

void launch_bn_pool_apply(const k_bn_bwd_apply *a, cudaStream_t s)
{
    const dim3 grid = pool_grid(a->g.pooled);
    DISPATCH_WIDE(a->v, {
        if (a->g.dy2)
            LAUNCH((bn_pool_apply<T, V, true>), grid, BLOCK, s, *a, lanes_of(a->v), pixels_of(a->g.pooled));
        else
            LAUNCH((bn_pool_apply<T, V, false>), grid, BLOCK, s, *a, lanes_of(a->v), pixels_of(a->g.pooled));
    });
}
