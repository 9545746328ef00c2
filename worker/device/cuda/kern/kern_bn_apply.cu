/* Batch norm's elementwise passes, forward and backward, and the coefficients they take from sums.
 *
 * Of a view of B bytes (H200, 4.3 TB/s measured):
 *   bn_apply        reads B or 2 B (+add), writes B [+ a mask: B/16 in halves]   layer1's block end: 1.28 GB, 0.33 ms
 *   bn_bwd_apply    reads 2 B (x, dz), writes B                                  there: 1.23 GB, 0.32 ms
 *                   of two batch norms that share dz: reads 3 B, writes 2 B
 * Grid: columns of LANES * V channels x blocks of 256 threads, at most 1056 in all (eight a multiprocessor of
 * 132), each thread at least eight rows. A thread keeps its V channels' coefficients in registers: one thread of
 * the block makes each from the sums, and hands it over in shared memory. Two rows of 16-byte loads are on their
 * way at once, with 768 threads a multiprocessor 48 KB of them where there are two tensors to read, and as much with
 * 512 threads where there are three. On an H200, 48 KB gave 3.9 to 4.05 TB/s, as fast as a copy; 32 KB 2.9 TB/s.
 * Nothing but loads, multiply-adds and stores is in the loop.
 */
#include "worker/device/cuda/kern/kern_sums.cuh"

enum { APPLY_BLOCKS = 1056, ROWS_EACH = 8, DEEP = 2 };

static dim3 rows_grid(const view4 &v)
{
    const unsigned columns = columns_of(v, channels_of(v)), rows = BLOCK / lanes_of(v);
    return dim3(columns, shares_of((rows_of(v) + rows - 1) / rows, ROWS_EACH, columns, APPLY_BLOCKS));
}

__global__ void finalise(k_bn_finalise a)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    const double samples = samples_of(a.weights, a.n);
    if (i < a.c)
        finalise_at(a, i, samples, true);
}

void launch_KERNEL_BN_FINALISE(const k_bn_finalise *a, cudaStream_t s)
{
    LAUNCH((finalise), blocks_for(a->c), BLOCK, s, *a);
}

__global__ void fixed(k_bn_fixed a)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.c)
        return;
    a.scale[i] = a.gamma[i] / sqrtf(a.var[i] + a.eps);
    a.shift[i] = a.beta[i] - a.mean[i] * a.scale[i];
}

void launch_KERNEL_BN_FIXED(const k_bn_fixed *a, cudaStream_t s)
{
    LAUNCH((fixed), blocks_for(a->c), BLOCK, s, *a);
}

/* How channel c of the sum is scaled. */
struct blend_of {
    affine x, add;
};
__device__ static blend_of blend_at(const k_bn_apply &a, int c, double own, double other, bool keep)
{
    affine x = {1, 0}, add = {1, 0};
    if (a.own.c)
        x = finalise_at(a.own, c, own, keep);
    else
        x = {a.scale ? a.scale[c] : 1, a.shift[c]};
    if (a.other.c)
        add = finalise_at(a.other, c, other, keep);
    else if (a.add_scale)
        add = {a.add_scale[c], a.add_shift[c]};
    return {x, add};
}

template <int V> struct blends { /* of V elements: y = (x * scale + shift) + (add * add_scale + add_shift) */
    float scale[V], shift[V], add_scale[V], add_shift[V];
};

template <typename T, int V, bool ADD>
__device__ __forceinline__ void apply_at(const k_bn_apply &a, size_t at, const pack<T, V> &x, const pack<T, V> &add,
                                         const blends<V> &b)
{
    pack<T, V> y;
    unsigned mask = 0;
    UNROLL
    for (int i = 0; i < V; i++) {
        float v = to_float(x.at[i]) * b.scale[i] + b.shift[i];
        if (ADD)
            v += to_float(add.at[i]) * b.add_scale[i] + b.add_shift[i];
        if (a.relu)
            v = v < 0 ? 0 : v; /* NaN stays */
        from_float(y.at[i], v);
        mask |= to_float(y.at[i]) > 0 ? 1u << i : 0;
    }
    *reinterpret_cast<pack<T, V> *>(static_cast<T *>(a.y) + at) = y;
    if (a.mask)
        a.mask[at / V] = (uint8_t)mask;
}

template <typename T, int V, bool ADD>
__global__ void __launch_bounds__(BLOCK, 3) apply_nhwc(k_bn_apply a, int lanes, unsigned rows)
{
    __shared__ float of[4][LANES_MAX * V];
    const tile t = tile_of(lanes);
    const int c = (blockIdx.x * lanes + t.lane) * V;
    const double own = a.own.c ? samples_of(a.own.weights, a.own.n) : 0,
                 other = a.other.c ? samples_of(a.other.weights, a.other.n) : 0;
    for (int k = threadIdx.x; k < lanes * V; k += BLOCK) {
        const int channel = blockIdx.x * lanes * V + k;
        if (channel >= a.v.c)
            break;
        const blend_of b = blend_at(a, channel, own, other, blockIdx.y == 0);
        of[0][k] = b.x.scale;
        of[1][k] = b.x.shift;
        of[2][k] = b.add.scale;
        of[3][k] = b.add.shift;
    }
    __syncthreads();
    if (c >= a.v.c)
        return;
    blends<V> by;
    spread<V, true>(of[0] + t.lane * V, by.scale);
    spread<V, true>(of[1] + t.lane * V, by.shift);
    spread<V, true>(of[2] + t.lane * V, by.add_scale);
    spread<V, true>(of[3] + t.lane * V, by.add_shift);
    const T *x = static_cast<const T *>(a.x), *add = static_cast<const T *>(a.add);
    for (unsigned r = blockIdx.y * t.rows * DEEP + t.row; r < rows; r += gridDim.y * t.rows * DEEP) {
        pack<T, V> in[DEEP], more[DEEP] = {};
        UNROLL
        for (int u = 0; u < DEEP; u++) {
            if (r + u * t.rows >= rows)
                break;
            const size_t at = (size_t)(r + u * t.rows) * a.v.c + c;
            in[u] = fetch<T, V>(x + at);
            if (ADD)
                more[u] = fetch<T, V>(add + at);
        }
        UNROLL
        for (int u = 0; u < DEEP; u++)
            if (r + u * t.rows < rows)
                apply_at<T, V, ADD>(a, (size_t)(r + u * t.rows) * a.v.c + c, in[u], more[u], by);
    }
}

/* A block takes one sample of its channels; each thread every so-many-th pixel. Reads B or 2 B, writes a mask and (n,
 * c): ResNet-50's last sum, fp16, batch 256: 0.11 GB, 28 us (as two kernels: 0.21 GB). */
template <typename T, int V, bool ADD>
__global__ void __launch_bounds__(BLOCK, 3) bn_mean(k_bn_mean m, int lanes, unsigned hw)
{
    __shared__ float of[4][LANES_MAX * V], part[BLOCK * V];
    const k_bn_apply &a = m.a;
    const tile t = tile_of(lanes);
    const int c = (blockIdx.x * lanes + t.lane) * V;
    const double own = a.own.c ? samples_of(a.own.weights, a.own.n) : 0,
                 other = a.other.c ? samples_of(a.other.weights, a.other.n) : 0;
    for (int k = threadIdx.x; k < lanes * V; k += BLOCK) {
        const int channel = blockIdx.x * lanes * V + k;
        if (channel >= a.v.c)
            break;
        const blend_of b = blend_at(a, channel, own, other, blockIdx.y == 0);
        of[0][k] = b.x.scale;
        of[1][k] = b.x.shift;
        of[2][k] = b.add.scale;
        of[3][k] = b.add.shift;
    }
    __syncthreads();
    float sum[V] = {};
    for (unsigned r = t.row; r < hw && c < a.v.c; r += t.rows) {
        const size_t at = ((size_t)blockIdx.y * hw + r) * a.v.c + c;
        const pack<T, V> x = fetch<T, V>(static_cast<const T *>(a.x) + at);
        pack<T, V> add = {};
        unsigned mask = 0;
        if (ADD)
            add = fetch<T, V>(static_cast<const T *>(a.add) + at);
        UNROLL
        for (int i = 0; i < V; i++) {
            const int k = t.lane * V + i;
            T y;
            float v = to_float(x.at[i]) * of[0][k] + of[1][k];
            if (ADD)
                v += to_float(add.at[i]) * of[2][k] + of[3][k];
            if (a.relu)
                v = v < 0 ? 0 : v; /* NaN stays */
            from_float(y, v);
            v = to_float(y);
            mask |= v > 0 ? 1u << i : 0;
            sum[i] += v;
        }
        if (a.mask)
            a.mask[at / V] = (uint8_t)mask;
    }
    UNROLL
    for (int i = 0; i < V; i++)
        part[(t.row * lanes + t.lane) * V + i] = sum[i];
    __syncthreads();
    for (int k = threadIdx.x; k < lanes * V; k += BLOCK) {
        const int channel = blockIdx.x * lanes * V + k;
        float all = 0;
        for (unsigned r = 0; r < t.rows; r++)
            all += part[r * lanes * V + k];
        if (channel < a.v.c)
            from_float(static_cast<T *>(m.out)[(size_t)blockIdx.y * a.v.c + channel], all / hw);
    }
}

/* A block takes vectors of one channel, over all samples. */
template <typename T, int V, bool ADD>
__global__ void __launch_bounds__(BLOCK) apply_nchw(k_bn_apply a, unsigned vectors, divider plane, unsigned hw)
{
    const double own = a.own.c ? samples_of(a.own.weights, a.own.n) : 0,
                 other = a.other.c ? samples_of(a.other.weights, a.other.n) : 0;
    const blend_of b = blend_at(a, blockIdx.x, own, other, blockIdx.y == 0 && threadIdx.x == 0);
    blends<V> by;
    spread<V, false>(&b.x.scale, by.scale);
    spread<V, false>(&b.x.shift, by.shift);
    spread<V, false>(&b.add.scale, by.add_scale);
    spread<V, false>(&b.add.shift, by.add_shift);
    const T *x = static_cast<const T *>(a.x), *add = static_cast<const T *>(a.add);
    for (unsigned i = blockIdx.y * BLOCK + threadIdx.x; i < vectors; i += gridDim.y * BLOCK) {
        const unsigned n = divide(i, plane);
        const size_t at = ((size_t)n * a.v.c + blockIdx.x) * hw + (size_t)(i - n * (hw / V)) * V;
        pack<T, V> in = fetch<T, V>(x + at), more = {};
        if (ADD)
            more = fetch<T, V>(add + at);
        apply_at<T, V, ADD>(a, at, in, more, by);
    }
}

/* Vectors of a channel, and blocks that share them. */
static unsigned vectors_of(const view4 &v, int V)
{
    return (unsigned)((size_t)v.n * v.h * v.w / V);
}
static dim3 planes_grid(const view4 &v, int V)
{
    return dim3(v.c, shares_of((vectors_of(v, V) + BLOCK - 1) / BLOCK, 1, v.c, APPLY_BLOCKS));
}

template <typename T, int V, bool NHWC, bool ADD> static void apply(const k_bn_apply *a, cudaStream_t s)
{
    if constexpr (NHWC) {
        LAUNCH((apply_nhwc<T, V, ADD>), rows_grid(a->v), BLOCK, s, *a, lanes_of(a->v), rows_of(a->v));
    } else {
        const unsigned hw = (unsigned)(a->v.h * a->v.w);
        LAUNCH((apply_nchw<T, V, ADD>), planes_grid(a->v, V), BLOCK, s, *a, vectors_of(a->v, V), divider_of(hw / V),
               hw);
    }
}

void launch_KERNEL_BN_APPLY(const k_bn_apply *a, cudaStream_t s)
{
    DISPATCH(a->v, {
        if (a->add)
            apply<T, V, NHWC, true>(a, s);
        else
            apply<T, V, NHWC, false>(a, s);
    });
}

extern "C" bool kernel_means(const view4 *x)
{
    return x->nhwc && wide(*x) && x->n <= 65535 && elements(*x) < (size_t)1 << 31;
}

void launch_KERNEL_BN_MEAN(const k_bn_mean *m, cudaStream_t s)
{
    const view4 &v = m->a.v;
    const dim3 grid(columns_of(v, channels_of(v)), v.n);
    DISPATCH_TYPE(v.type, {
        constexpr int V = 16 / (int)sizeof(T);
        if (m->a.add)
            LAUNCH((bn_mean<T, V, true>), grid, BLOCK, s, *m, lanes_of(v), (unsigned)(v.h * v.w));
        else
            LAUNCH((bn_mean<T, V, false>), grid, BLOCK, s, *m, lanes_of(v), (unsigned)(v.h * v.w));
    });
}

/* --- backward */

template <typename T, int V>
__device__ __forceinline__ void store_dx(void *dx, size_t at, const float (&dz)[V], const pack<T, V> &x,
                                         const float (&a)[V], const float (&b)[V], const float (&k)[V], bool counts)
{
    pack<T, V> out;
    UNROLL
    for (int i = 0; i < V; i++)
        from_float(out.at[i], counts ? a[i] * dz[i] + (b[i] * to_float(x.at[i]) + k[i]) : 0);
    *reinterpret_cast<pack<T, V> *>(static_cast<T *>(dx) + at) = out;
}

/* One channel's coefficients where others of the block find them. */
__device__ static void hand_over(const bwd_factors &f, float *a, float *b, float *k)
{
    *a = f.a;
    *b = f.b;
    *k = f.k;
}

template <typename T, int V, bool TWIN, bool MORE>
__global__ void __launch_bounds__(BLOCK, TWIN || MORE ? 2 : 3)
    bwd_apply_nhwc(k_bn_bwd_apply a, int lanes, unsigned rows, divider hw)
{
    __shared__ float of[TWIN ? 6 : 3][LANES_MAX * V];
    const tile t = tile_of(lanes);
    const int c = (blockIdx.x * lanes + t.lane) * V;
    for (int k = threadIdx.x; k < lanes * V; k += BLOCK) {
        const int channel = blockIdx.x * lanes * V + k;
        if (channel >= a.v.c)
            break;
        hand_over(bwd_at(a.own, a.v.c, channel, blockIdx.y == 0), &of[0][k], &of[1][k], &of[2][k]);
        if constexpr (TWIN)
            hand_over(bwd_at(a.twin, a.v.c, channel, blockIdx.y == 0), &of[3][k], &of[4][k], &of[5][k]);
    }
    __syncthreads();
    if (c >= a.v.c || !a.own.dx)
        return;
    float f[TWIN ? 6 : 3][V];
    UNROLL
    for (int i = 0; i < (TWIN ? 6 : 3); i++)
        spread<V, true>(of[i] + t.lane * V, f[i]);
    for (unsigned r = blockIdx.y * t.rows * DEEP + t.row; r < rows; r += gridDim.y * t.rows * DEEP) {
        incoming<T, V, MORE> in[DEEP];
        pack<T, V> x[DEEP], x2[DEEP];
        float w[DEEP] = {};
        UNROLL
        for (int u = 0; u < DEEP; u++) {
            if (r + u * t.rows >= rows)
                break;
            const size_t at = (size_t)(r + u * t.rows) * a.v.c + c;
            x[u] = fetch<T, V>(static_cast<const T *>(a.own.x) + at);
            in[u] = fetch_gradient<T, V, MORE>(a.g, at);
            if constexpr (TWIN)
                x2[u] = fetch<T, V>(static_cast<const T *>(a.twin.x) + at);
            w[u] = a.weights[divide(r + u * t.rows, hw)];
        }
        UNROLL
        for (int u = 0; u < DEEP; u++) {
            if (r + u * t.rows >= rows)
                break;
            const size_t at = (size_t)(r + u * t.rows) * a.v.c + c;
            float dz[V];
            form_gradient<T, V, MORE>(a.g, in[u], dz);
            store_dx<T, V>(a.own.dx, at, dz, x[u], f[0], f[1], f[2], w[u] > 0);
            if constexpr (TWIN)
                store_dx<T, V>(a.twin.dx, at, dz, x2[u], f[3], f[4], f[5], w[u] > 0);
        }
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(BLOCK) bwd_apply_nchw(k_bn_bwd_apply g, unsigned vectors, divider plane, unsigned hw)
{
    const bool keep = blockIdx.y == 0 && threadIdx.x == 0;
    const k_bn_bwd both[] = {g.own, g.twin};
    UNROLL
    for (int which = 0; which < 2 && both[which].x; which++) {
        const bwd_factors f = bwd_at(both[which], g.v.c, blockIdx.x, keep);
        float a[V], b[V], k[V], dz[V];
        spread<V, false>(&f.a, a);
        spread<V, false>(&f.b, b);
        spread<V, false>(&f.k, k);
        for (unsigned i = blockIdx.y * BLOCK + threadIdx.x; i < vectors && both[which].dx; i += gridDim.y * BLOCK) {
            const unsigned n = divide(i, plane);
            const size_t at = ((size_t)n * g.v.c + blockIdx.x) * hw + (size_t)(i - n * (hw / V)) * V;
            const pack<T, V> x = fetch<T, V>(static_cast<const T *>(both[which].x) + at);
            form_gradient<T, V, true>(g.g, fetch_gradient<T, V, true>(g.g, at), dz);
            store_dx<T, V>(both[which].dx, at, dz, x, a, b, k, g.weights[n] > 0);
        }
    }
}

template <typename T, int V, bool NHWC, bool TWIN> static void bwd_apply(const k_bn_bwd_apply *a, cudaStream_t s)
{
    const unsigned hw = (unsigned)(a->v.h * a->v.w);
    if constexpr (NHWC) {
        if (V == 1 || needs_more(a->g))
            LAUNCH((bwd_apply_nhwc<T, V, TWIN, true>), rows_grid(a->v), BLOCK, s, *a, lanes_of(a->v), rows_of(a->v),
                   divider_of(hw));
        else
            LAUNCH((bwd_apply_nhwc<T, V, TWIN, V == 1>), rows_grid(a->v), BLOCK, s, *a, lanes_of(a->v), rows_of(a->v),
                   divider_of(hw)); /* where V is 1, the one above once more */
    } else {
        LAUNCH((bwd_apply_nchw<T, V>), planes_grid(a->v, V), BLOCK, s, *a, vectors_of(a->v, V), divider_of(hw / V), hw);
    }
}

void launch_KERNEL_BN_BWD_APPLY(const k_bn_bwd_apply *a, cudaStream_t s)
{
    if (a->g.index) {
        launch_bn_pool_apply(a, s);
        return;
    }
    DISPATCH(a->v, {
        if (a->twin.x)
            bwd_apply<T, V, NHWC, true>(a, s);
        else
            bwd_apply<T, V, NHWC, false>(a, s);
    });
}
