/* Attention by its definition, in fp32: what fp32 and TF32 run, and what cuDNN's graphs are proven against.
 *
 *   attention               y(i) = sum over j of softmax(q(i) . k(j) / sqrt(D)) v(j), and the logarithm of its sum
 *   attention_bwd_queries   delta(i) = sum over j of p(i,j) dy(i) . v(j), then dq(i)
 *   attention_bwd_keys      dk(j), dv(j), over the queries of all heads that share this key
 * Scores are never whole: a block has a tile of ROWS queries (or keys) and goes over the keys (or queries) tile by
 * tile; forward, with a running maximum (Milakov and Gimelshein; Dao et al., FlashAttention); backward, from the
 * logarithms. Sums run in a fixed order and nothing is added in place, so equal inputs give equal bits.
 *
 * Eight threads share a row. Each has every eighth row of the other tile for the scores, and four of every 32 channels
 * for what is summed, so that neither reads a bank of shared memory twice at once. Bound by shared memory: a load of 16
 * bytes for three to four multiply-adds of four channels each. */
#include "worker/device/cuda/kern/kern.cuh"

enum { SHARE = 8 }; /* threads of a row */

/* A tile's rows; head sizes up to 64 leave room for 32 of them. */
template <int D> struct rows_of_tile {
    enum { ROWS = D > 64 ? 16 : 32 };
};

template <int D> struct alignas(16) tile_of {
    float at[rows_of_tile<D>::ROWS][D + 4];
};

/* Rows [first, first + ROWS) of (t, d), a row every `stride` elements; zeros around them. */
template <typename T, int D>
__device__ __forceinline__ void take(tile_of<D> &to, const T *from, size_t stride, int first, int t, int d)
{
    constexpr int ROWS = rows_of_tile<D>::ROWS;
    for (int i = (int)threadIdx.x; i < ROWS * D; i += ROWS * SHARE) {
        const int r = i / D, c = i % D;
        to.at[r][c] = first + r < t && c < d ? to_float(from[(size_t)(first + r) * stride + c]) : 0;
    }
}

/* Products of a row with every eighth row of a tile. */
template <int D, int N>
__device__ __forceinline__ void dots(const float *row, const tile_of<D> &of, int lane, float (&to)[N])
{
    ROLLED
    for (int c = 0; c < D; c += 4) {
        const pack<float, 4> a = fetch<float, 4>(row + c);
        UNROLL
        for (int u = 0; u < N; u++) {
            const pack<float, 4> b = fetch<float, 4>(&of.at[lane + u * SHARE][c]);
            UNROLL
            for (int i = 0; i < 4; i++)
                to[u] += a.at[i] * b.at[i];
        }
    }
}

/* to += the rows of a tile, each times a weight: of this thread's channels. */
template <int D, int N>
__device__ __forceinline__ void add_rows_of(const float *weights, const tile_of<D> &of, int lane, float (&to)[N])
{
    ROLLED
    for (int r = 0; r < rows_of_tile<D>::ROWS; r++) {
        const float w = weights[r];
        UNROLL
        for (int v = 0; v < N / 4; v++) {
            const pack<float, 4> x = fetch<float, 4>(&of.at[r][(lane + v * SHARE) * 4]);
            UNROLL
            for (int i = 0; i < 4; i++)
                to[v * 4 + i] += w * x.at[i];
        }
    }
}

/* This thread's channels of a row of d, which begins at element `row` of the result. */
template <typename T, int N>
__device__ __forceinline__ void put(const k_attention &a, size_t row, int lane, const float (&from)[N], float times)
{
    UNROLL
    for (int i = 0; i < N; i++) {
        const int c = (lane + i / 4 * SHARE) * 4 + i % 4;
        if (c < a.d && a.wide)
            static_cast<float *>(a.out)[row + c] = from[i] * times;
        else if (c < a.d)
            from_float(static_cast<T *>(a.out)[row + c], from[i] * times);
    }
}

/* Over the threads of a row. */
__device__ __forceinline__ float row_total(float x)
{
    for (int d = SHARE / 2; d > 0; d /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}
__device__ __forceinline__ float row_most(float x)
{
    for (int d = SHARE / 2; d > 0; d /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

/* Where a head of a sample is: elements from the first of x, of y, of (n, heads, t). */
struct head_at {
    size_t q, k, v, y, row;
};

__device__ __forceinline__ size_t x_stride(const k_attention &a)
{
    return (size_t)(a.heads + 2 * a.kv_heads) * a.d;
}
__device__ __forceinline__ size_t y_stride(const k_attention &a)
{
    return (size_t)a.heads * a.d;
}

__device__ __forceinline__ head_at head_of(const k_attention &a, int sample, int head)
{
    const int kv = head / (a.heads / a.kv_heads);
    const size_t first = (size_t)sample * a.t * x_stride(a);
    return {first + (size_t)head * a.d, first + (size_t)(a.heads + kv) * a.d,
            first + (size_t)(a.heads + a.kv_heads + kv) * a.d, (size_t)sample * a.t * y_stride(a) + (size_t)head * a.d,
            ((size_t)sample * a.heads + head) * a.t};
}

template <typename T, int D>
__global__ void __launch_bounds__(rows_of_tile<D>::ROWS *SHARE, 2) attention(k_attention a, unsigned tiles)
{
    constexpr int ROWS = rows_of_tile<D>::ROWS, KEYS = ROWS / SHARE;
    __shared__ tile_of<D> q, kv;
    __shared__ float p[ROWS][ROWS + 4];
    const int row = (int)threadIdx.x / SHARE, lane = (int)threadIdx.x % SHARE, job = (int)(blockIdx.x / tiles),
              first = (int)(blockIdx.x % tiles) * ROWS, mine = first + row;
    const head_at h = head_of(a, job / a.heads, job % a.heads);
    const T *x = static_cast<const T *>(a.x);
    const int end = a.causal && first + ROWS < a.t ? first + ROWS : a.t;
    float most = -INFINITY, sum = 0, y[D / SHARE] = {};
    take<T, D>(q, x + h.q, x_stride(a), first, a.t, a.d);
    for (int k0 = 0; k0 < end; k0 += ROWS) {
        float s[KEYS] = {}, high = -INFINITY, part = 0;
        __syncthreads(); /* the tile before has been read */
        take<T, D>(kv, x + h.k, x_stride(a), k0, a.t, a.d);
        __syncthreads();
        dots<D, KEYS>(q.at[row], kv, lane, s);
        UNROLL
        for (int u = 0; u < KEYS; u++) {
            const int j = k0 + lane + u * SHARE;
            s[u] = j < a.t && (!a.causal || j <= mine) ? s[u] * a.scale : -INFINITY;
            high = fmaxf(high, s[u]);
        }
        const float top = fmaxf(most, row_most(high)), shrink = expf(most - top); /* key 0 is seen by all */
        UNROLL
        for (int u = 0; u < KEYS; u++) {
            const float w = expf(s[u] - top);
            p[row][lane + u * SHARE] = w;
            part += w;
        }
        sum = sum * shrink + row_total(part);
        most = top;
        UNROLL
        for (int i = 0; i < D / SHARE; i++)
            y[i] *= shrink;
        __syncthreads();
        take<T, D>(kv, x + h.v, x_stride(a), k0, a.t, a.d);
        __syncthreads();
        add_rows_of<D, D / SHARE>(p[row], kv, lane, y);
    }
    if (mine >= a.t)
        return;
    put<T, D / SHARE>(a, h.y + (size_t)mine * y_stride(a), lane, y, 1 / sum);
    if (a.lse && lane == 0)
        a.lse[h.row + mine] = most + logf(sum);
}

/* What a query's row of scores is made of: one row of each of its tiles, and of those of the keys that it is at. */
template <int D> struct query_tiles {
    tile_of<D> q, g, k, v;
};

/* Weights of this thread's keys from k0 on, and dy . v of them. All threads of the block call it. */
template <typename T, int D, int KEYS>
__device__ __forceinline__ void weigh(const k_attention &a, const head_at &h, query_tiles<D> &tiles, int mine, int k0,
                                      float lse, float (&p)[KEYS], float (&dp)[KEYS])
{
    const int row = (int)threadIdx.x / SHARE, lane = (int)threadIdx.x % SHARE;
    const T *x = static_cast<const T *>(a.x);
    float s[KEYS] = {};
    __syncthreads();
    take<T, D>(tiles.k, x + h.k, x_stride(a), k0, a.t, a.d);
    take<T, D>(tiles.v, x + h.v, x_stride(a), k0, a.t, a.d);
    __syncthreads();
    dots<D, KEYS>(tiles.q.at[row], tiles.k, lane, s);
    dots<D, KEYS>(tiles.g.at[row], tiles.v, lane, dp);
    UNROLL
    for (int u = 0; u < KEYS; u++) {
        const int j = k0 + lane + u * SHARE;
        p[u] = j < a.t && (!a.causal || j <= mine) ? expf(s[u] * a.scale - lse) : 0;
    }
}

/* delta is the sum of p * dy . v, which is dy . y: of floats that is what is read, of halves y has been rounded, and
 * the sum is made. */
template <typename T, int D>
__global__ void __launch_bounds__(rows_of_tile<D>::ROWS *SHARE, 2) attention_bwd_queries(k_attention a, unsigned tiles)
{
    constexpr int ROWS = rows_of_tile<D>::ROWS, KEYS = ROWS / SHARE;
    __shared__ query_tiles<D> of;
    __shared__ float ds[ROWS][ROWS + 4];
    const int row = (int)threadIdx.x / SHARE, lane = (int)threadIdx.x % SHARE, job = (int)(blockIdx.x / tiles),
              first = (int)(blockIdx.x % tiles) * ROWS, mine = first + row;
    const head_at h = head_of(a, job / a.heads, job % a.heads);
    const T *y = static_cast<const T *>(a.y) + h.y, *dy = static_cast<const T *>(a.dy) + h.y;
    const int end = a.causal && first + ROWS < a.t ? first + ROWS : a.t;
    const float lse = mine < a.t ? a.lse[h.row + mine] : 0;
    float delta = 0, dq[D / SHARE] = {};
    take<T, D>(of.q, static_cast<const T *>(a.x) + h.q, x_stride(a), first, a.t, a.d);
    take<T, D>(of.g, dy, y_stride(a), first, a.t, a.d);
    if constexpr (sizeof(T) == sizeof(float)) {
        for (int c = lane; c < a.d && mine < a.t; c += SHARE)
            delta += to_float(y[mine * y_stride(a) + c]) * to_float(dy[mine * y_stride(a) + c]);
    } else {
        for (int k0 = 0; k0 < end; k0 += ROWS) {
            float p[KEYS], dp[KEYS] = {};
            weigh<T, D, KEYS>(a, h, of, mine, k0, lse, p, dp);
            UNROLL
            for (int u = 0; u < KEYS; u++)
                delta += p[u] * dp[u];
        }
    }
    delta = row_total(delta);
    for (int k0 = 0; k0 < end; k0 += ROWS) {
        float p[KEYS], dp[KEYS] = {};
        weigh<T, D, KEYS>(a, h, of, mine, k0, lse, p, dp);
        UNROLL
        for (int u = 0; u < KEYS; u++)
            ds[row][lane + u * SHARE] = p[u] * (dp[u] - delta) * a.scale;
        __syncthreads();
        add_rows_of<D, D / SHARE>(ds[row], of.k, lane, dq);
    }
    if (mine >= a.t)
        return;
    put<T, D / SHARE>(a, h.q + (size_t)mine * x_stride(a), lane, dq, 1);
    if (lane == 0)
        a.delta[h.row + mine] = delta;
}

template <typename T, int D>
__global__ void __launch_bounds__(rows_of_tile<D>::ROWS *SHARE, 2) attention_bwd_keys(k_attention a, unsigned tiles)
{
    constexpr int ROWS = rows_of_tile<D>::ROWS, QUERIES = ROWS / SHARE;
    __shared__ tile_of<D> k, v, q, g;
    __shared__ float p[ROWS][ROWS + 4], ds[ROWS][ROWS + 4];
    const int row = (int)threadIdx.x / SHARE, lane = (int)threadIdx.x % SHARE, job = (int)(blockIdx.x / tiles),
              first = (int)(blockIdx.x % tiles) * ROWS, mine = first + row, per = a.heads / a.kv_heads,
              sample = job / a.kv_heads, head0 = job % a.kv_heads * per;
    const head_at own = head_of(a, sample, head0);
    const T *x = static_cast<const T *>(a.x), *dy = static_cast<const T *>(a.dy);
    float dk[D / SHARE] = {}, dv[D / SHARE] = {};
    take<T, D>(k, x + own.k, x_stride(a), first, a.t, a.d);
    take<T, D>(v, x + own.v, x_stride(a), first, a.t, a.d);
    for (int head = head0; head < head0 + per; head++) {
        const head_at h = head_of(a, sample, head);
        for (int q0 = a.causal ? first : 0; q0 < a.t; q0 += ROWS) {
            float s[QUERIES] = {}, dp[QUERIES] = {};
            __syncthreads();
            take<T, D>(q, x + h.q, x_stride(a), q0, a.t, a.d);
            take<T, D>(g, dy + h.y, y_stride(a), q0, a.t, a.d);
            __syncthreads();
            dots<D, QUERIES>(k.at[row], q, lane, s);
            dots<D, QUERIES>(v.at[row], g, lane, dp);
            UNROLL
            for (int u = 0; u < QUERIES; u++) {
                const int i = q0 + lane + u * SHARE;
                const bool seen = i < a.t && mine < a.t && (!a.causal || mine <= i);
                const float w = seen ? expf(s[u] * a.scale - a.lse[h.row + i]) : 0;
                p[row][lane + u * SHARE] = w;
                ds[row][lane + u * SHARE] = seen ? w * (dp[u] - a.delta[h.row + i]) * a.scale : 0;
            }
            __syncthreads();
            add_rows_of<D, D / SHARE>(p[row], g, lane, dv);
            add_rows_of<D, D / SHARE>(ds[row], q, lane, dk);
        }
    }
    if (mine >= a.t)
        return;
    put<T, D / SHARE>(a, own.k + (size_t)mine * x_stride(a), lane, dk, 1);
    put<T, D / SHARE>(a, own.v + (size_t)mine * x_stride(a), lane, dv, 1);
}

/* Call f with D, the head size that tiles have room for. */
#define DISPATCH_HEADS(d, ...)                                                                                         \
    do {                                                                                                               \
        if ((d) <= 32) {                                                                                               \
            constexpr int D = 32;                                                                                      \
            __VA_ARGS__                                                                                                \
        } else if ((d) <= 64) {                                                                                        \
            constexpr int D = 64;                                                                                      \
            __VA_ARGS__                                                                                                \
        } else {                                                                                                       \
            constexpr int D = 128;                                                                                     \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    } while (0)

static unsigned tiles_of(const k_attention &a, int rows)
{
    return (unsigned)((a.t + rows - 1) / rows);
}

void launch_KERNEL_ATTENTION(const k_attention *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, DISPATCH_HEADS(a->d, {
                      constexpr int ROWS = rows_of_tile<D>::ROWS;
                      const unsigned tiles = tiles_of(*a, ROWS);
                      LAUNCH((attention<T, D>), tiles * a->n * a->heads, ROWS * SHARE, s, *a, tiles);
                  }););
}

void launch_KERNEL_ATTENTION_BWD_QUERIES(const k_attention *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, DISPATCH_HEADS(a->d, {
                      constexpr int ROWS = rows_of_tile<D>::ROWS;
                      const unsigned tiles = tiles_of(*a, ROWS);
                      LAUNCH((attention_bwd_queries<T, D>), tiles * a->n * a->heads, ROWS * SHARE, s, *a, tiles);
                  }););
}

void launch_KERNEL_ATTENTION_BWD_KEYS(const k_attention *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, DISPATCH_HEADS(a->d, {
                      constexpr int ROWS = rows_of_tile<D>::ROWS;
                      const unsigned tiles = tiles_of(*a, ROWS);
                      LAUNCH((attention_bwd_keys<T, D>), tiles * a->n * a->kv_heads, ROWS * SHARE, s, *a, tiles);
                  }););
}
