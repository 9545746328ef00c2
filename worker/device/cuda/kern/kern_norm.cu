/* Norms of the channels of each position, forward and backward.
 *
 * Of rows (rows, c) of B bytes:
 *   row_norm       reads B, writes B            ViT-B/16 fp16, batch 256: 77 MB each way, 40 us at 4.3 TB/s
 *   row_norm_bwd   reads 2 B, writes B, and the gradients of gamma and beta on the way
 * A row is held in the registers of the threads that share it, 8 to 256 of them, up to WHOLE vectors of 16 bytes each;
 * mean, then squares around it, are sums over these threads. Backward, a thread sums its channels' gradients over all
 * its rows in registers; blocks leave partial sums, which the last ones add up in a fixed order (kern_sums.cuh). Where
 * rows are short a thread has several rows on their way, so that bytes enough are (kern_bn_apply.cu).
 *
 * Rows of odd sizes, or longer than 256 threads hold, are read again for each sum (row_norm_any, row_norm_bwd_any). */
#include "worker/device/cuda/kern/kern_sums.cuh"

enum { WHOLE = 3, NORM_BLOCKS = 264, ANY_BLOCKS = 132, FORWARD_BLOCKS = 1056 };

struct row_layout {
    int lanes, vectors; /* threads of a row; vectors of each. lanes 0: of any size */
};

static row_layout layout_of(const k_row_norm &a)
{
    const int wide = 16 / (int)dtype_size(a.type), vectors = a.c / wide;
    if (a.c % wide || vectors > WHOLE * BLOCK)
        return {0, 0};
    int lanes = 8;
    while (lanes * WHOLE < vectors)
        lanes *= 2;
    return {lanes, (vectors + lanes - 1) / lanes};
}

static unsigned blocks_of(const k_row_norm &a, unsigned most, unsigned rows_each)
{
    const row_layout l = layout_of(a);
    const unsigned rows = l.lanes ? BLOCK / l.lanes * rows_each : 1, blocks = (a.rows + rows - 1) / rows;
    return blocks < 1 ? 1 : blocks > most ? most : blocks;
}

static unsigned bwd_blocks(const k_row_norm &a)
{
    return blocks_of(a, layout_of(a).lanes ? NORM_BLOCKS : ANY_BLOCKS, 4);
}

extern "C" size_t kernel_norm_partial(const k_row_norm *a)
{
    return (size_t)(bwd_blocks(*a) + groups_of(bwd_blocks(*a))) * 2 * a->c;
}

extern "C" size_t kernel_norm_counters(const k_row_norm *a)
{
    return groups_of(bwd_blocks(*a)) + 1;
}

/* --- sums over the threads of a row */

/* N sums at once over `lanes` threads side by side, a power of 2 from 8 on; all threads of the block call it. */
template <int N> __device__ __forceinline__ void row_sums(float (&x)[N], int lanes)
{
    __shared__ float warps[N][BLOCK / WARP];
    for (int d = lanes < WARP ? lanes / 2 : WARP / 2; d > 0; d /= 2)
        UNROLL
    for (int k = 0; k < N; k++)
        x[k] += __shfl_xor_sync(0xffffffffu, x[k], d);
    if (lanes <= WARP)
        return;
    const int many = lanes / WARP, first = (int)(threadIdx.x / lanes) * many;
    __syncthreads(); /* readers of the sums before are done */
    if (threadIdx.x % WARP == 0)
        UNROLL
    for (int k = 0; k < N; k++)
        warps[k][threadIdx.x / WARP] = x[k];
    __syncthreads();
    UNROLL
    for (int k = 0; k < N; k++) {
        x[k] = 0;
        for (int w = 0; w < many; w++)
            x[k] += warps[k][first + w];
    }
}

struct moments {
    float mean, inv;
};

/* Of a row whose vector k of this thread is there where c0 + k * step < c. */
template <typename T, int V, int K>
__device__ __forceinline__ moments moments_of(const k_row_norm &a, const pack<T, V> (&x)[K], int c0, int lanes)
{
    float sum[1] = {0}, squares[1] = {0};
    UNROLL
    for (int k = 0; k < K; k++)
        UNROLL
    for (int i = 0; i < V; i++)
        sum[0] += a.rms || c0 + k * lanes * V >= a.c ? 0 : to_float(x[k].at[i]);
    if (!a.rms)
        row_sums(sum, lanes);
    const float mean = sum[0] / (float)a.c;
    UNROLL
    for (int k = 0; k < K; k++)
        UNROLL
    for (int i = 0; i < V; i++) {
        const float d = c0 + k * lanes * V < a.c ? to_float(x[k].at[i]) - mean : 0;
        squares[0] += d * d;
    }
    row_sums(squares, lanes);
    return {mean, 1 / sqrtf(squares[0] / (float)a.c + a.eps)};
}

/* V factors from channel c on; NULL: zeros. */
template <int V> __device__ __forceinline__ void factors(const float *from, int c, float (&to)[V])
{
    UNROLL
    for (int i = 0; i < V; i++)
        to[i] = from ? from[c + i] : 0;
}

/* --- forward */

/* U rows of a group of threads are on their way at once. */
template <typename T, int V, int K, int U> __global__ void __launch_bounds__(BLOCK, 3) row_norm(k_row_norm a, int lanes)
{
    const unsigned groups = BLOCK / lanes, group = threadIdx.x / lanes;
    const int c0 = (int)(threadIdx.x & (lanes - 1)) * V;
    const T *x = static_cast<const T *>(a.x);
    T *y = static_cast<T *>(a.y);
    for (size_t first = (size_t)blockIdx.x * groups * U; first < a.rows; first += (size_t)gridDim.x * groups * U) {
        pack<T, V> in[U][K] = {};
        UNROLL
        for (int u = 0; u < U; u++)
            UNROLL
        for (int k = 0; k < K; k++) {
            const size_t r = first + u * groups + group;
            if (r < a.rows && c0 + k * lanes * V < a.c)
                in[u][k] = fetch<T, V>(x + r * a.c + c0 + k * lanes * V);
        }
        UNROLL
        for (int u = 0; u < U; u++) {
            const size_t r = first + u * groups + group;
            const moments m = moments_of<T, V, K>(a, in[u], c0, lanes);
            UNROLL
            for (int k = 0; k < K; k++) {
                const int c = c0 + k * lanes * V;
                float gamma[V], beta[V], out[V];
                if (r >= a.rows || c >= a.c)
                    continue;
                factors(a.gamma, c, gamma);
                factors(a.beta, c, beta);
                UNROLL
                for (int i = 0; i < V; i++)
                    out[i] = (to_float(in[u][k].at[i]) - m.mean) * m.inv * gamma[i] + beta[i];
                store<T, V>(y + r * a.c + c, out);
            }
        }
    }
}

/* A block takes a row, one element a thread at a time. */
template <typename T> __device__ static moments moments_of_any(const k_row_norm &a, const T *x)
{
    float sum = 0, squares = 0;
    for (int c = (int)threadIdx.x; c < a.c && !a.rms; c += BLOCK)
        sum += to_float(x[c]);
    const float mean = block_sum(sum) / (float)a.c;
    for (int c = (int)threadIdx.x; c < a.c; c += BLOCK)
        squares += (to_float(x[c]) - mean) * (to_float(x[c]) - mean);
    return {mean, 1 / sqrtf(block_sum(squares) / (float)a.c + a.eps)};
}

template <typename T> __global__ void row_norm_any(k_row_norm a)
{
    for (size_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const T *x = static_cast<const T *>(a.x) + r * a.c;
        T *y = static_cast<T *>(a.y) + r * a.c;
        const moments m = moments_of_any(a, x);
        for (int c = (int)threadIdx.x; c < a.c; c += BLOCK)
            from_float(y[c], (to_float(x[c]) - m.mean) * m.inv * a.gamma[c] + (a.beta ? a.beta[c] : 0));
    }
}

/* Call f with K, vectors a thread has of a row, and U, rows at once: three or four loads in all. */
#define DISPATCH_ROWS(vectors, ...)                                                                                    \
    do {                                                                                                               \
        if ((vectors) == 1) {                                                                                          \
            constexpr int K = 1, U = 3;                                                                                \
            __VA_ARGS__                                                                                                \
        } else if ((vectors) == 2) {                                                                                   \
            constexpr int K = 2, U = 2;                                                                                \
            __VA_ARGS__                                                                                                \
        } else {                                                                                                       \
            constexpr int K = 3, U = 1;                                                                                \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    } while (0)

void launch_KERNEL_ROW_NORM(const k_row_norm *a, cudaStream_t s)
{
    const row_layout l = layout_of(*a);
    DISPATCH_TYPE(a->type, {
        constexpr int V = 16 / (int)sizeof(T);
        if (l.lanes)
            DISPATCH_ROWS(l.vectors, {
                LAUNCH((row_norm<T, V, K, U>), blocks_of(*a, FORWARD_BLOCKS, 2 * U), BLOCK, s, *a, l.lanes);
            });
        else
            LAUNCH((row_norm_any<T>), blocks_of(*a, FORWARD_BLOCKS, 1), BLOCK, s, *a);
    });
}

/* --- backward */

/* What blocks left in `values` (blocks, 2 c), block by block: the last of each sixteen adds those up, the last of all
 * what these left. */
__device__ static void finish_norm(const k_row_norm &a)
{
    const size_t row = 2 * (size_t)a.c;
    const unsigned blocks = gridDim.x, groups = (blocks + GROUP - 1) / GROUP, group = blockIdx.x / GROUP,
                   first = group * GROUP, end = first + GROUP < blocks ? first + GROUP : blocks;
    double *values = a.partial.values;
    if (!last_of(a.partial.counters + group, end - first))
        return;
    for (size_t k = threadIdx.x; k < row; k += BLOCK)
        values[(blocks + group) * row + k] = add_rows(values, row, first, end, k);
    if (!last_of(a.partial.counters + groups, groups))
        return;
    for (size_t k = threadIdx.x; k < row; k += BLOCK) {
        const double sum = add_rows(values, row, blocks, blocks + groups, k);
        if (k < (size_t)a.c)
            a.dgamma[k] = (float)sum;
        else if (a.dbeta)
            a.dbeta[k - a.c] = (float)sum;
    }
}

/* What the groups of a block summed, group by group, into the block's part of the values: those of gamma, or of beta
 * behind them. */
template <int V, int K>
__device__ static void leave(const k_row_norm &a, const float (&sums)[K][V], float *part, int lanes, bool beta)
{
    double *to = a.partial.values + (size_t)blockIdx.x * 2 * a.c + (beta ? a.c : 0);
    const int width = lanes * V;
    UNROLL
    for (int k = 0; k < K; k++) {
        __syncthreads();
        UNROLL
        for (int i = 0; i < V; i++)
            part[threadIdx.x * V + i] = sums[k][i];
        __syncthreads();
        for (int j = (int)threadIdx.x; j < width && k * width + j < a.c; j += BLOCK) {
            double sum = 0;
            for (int g = 0; g < BLOCK / lanes; g++)
                sum += part[g * width + j];
            to[k * width + j] = sum;
        }
    }
}

template <typename T, int V, int K> __global__ void __launch_bounds__(BLOCK, 2) row_norm_bwd(k_row_norm a, int lanes)
{
    __shared__ float part[BLOCK * V];
    const unsigned groups = BLOCK / lanes, group = threadIdx.x / lanes;
    const int c0 = (int)(threadIdx.x & (lanes - 1)) * V;
    const T *from = static_cast<const T *>(a.x), *gradient = static_cast<const T *>(a.dy);
    float dgamma[K][V] = {}, dbeta[K][V] = {};
    for (size_t first = (size_t)blockIdx.x * groups; first < a.rows; first += (size_t)gridDim.x * groups) {
        const size_t r = first + group;
        pack<T, V> x[K] = {}, dy[K] = {};
        UNROLL
        for (int k = 0; k < K; k++)
            if (r < a.rows && c0 + k * lanes * V < a.c) {
                x[k] = fetch<T, V>(from + r * a.c + c0 + k * lanes * V);
                dy[k] = fetch<T, V>(gradient + r * a.c + c0 + k * lanes * V);
            }
        const moments m = moments_of<T, V, K>(a, x, c0, lanes);
        float means[2] = {0, 0}; /* of g, of g * xhat */
        UNROLL
        for (int k = 0; k < K; k++) {
            const int c = c0 + k * lanes * V;
            if (r >= a.rows || c >= a.c)
                continue;
            float gamma[V];
            factors(a.gamma, c, gamma);
            UNROLL
            for (int i = 0; i < V; i++) {
                const float d = to_float(dy[k].at[i]), hat = (to_float(x[k].at[i]) - m.mean) * m.inv, g = d * gamma[i];
                means[0] += a.rms ? 0 : g;
                means[1] += g * hat;
                dgamma[k][i] += d * hat;
                dbeta[k][i] += d;
            }
        }
        row_sums(means, lanes);
        UNROLL
        for (int k = 0; k < K; k++) {
            const int c = c0 + k * lanes * V;
            if (r >= a.rows || c >= a.c || !a.y)
                continue;
            float gamma[V], dx[V];
            factors(a.gamma, c, gamma);
            UNROLL
            for (int i = 0; i < V; i++) {
                const float hat = (to_float(x[k].at[i]) - m.mean) * m.inv;
                dx[i] =
                    m.inv * (to_float(dy[k].at[i]) * gamma[i] - means[0] / (float)a.c - hat * (means[1] / (float)a.c));
            }
            store<T, V>(static_cast<T *>(a.y) + r * a.c + c, dx);
        }
    }
    leave<V, K>(a, dgamma, part, lanes, false);
    leave<V, K>(a, dbeta, part, lanes, true);
    finish_norm(a);
}

template <typename T> __global__ void row_norm_bwd_any(k_row_norm a)
{
    double *sums = a.partial.values + (size_t)blockIdx.x * 2 * a.c;
    for (int c = (int)threadIdx.x; c < a.c; c += BLOCK)
        sums[c] = sums[a.c + c] = 0;
    for (size_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
        const T *x = static_cast<const T *>(a.x) + r * a.c, *dy = static_cast<const T *>(a.dy) + r * a.c;
        const moments m = moments_of_any(a, x);
        float plain = 0, projected = 0;
        for (int c = (int)threadIdx.x; c < a.c; c += BLOCK) {
            const float d = to_float(dy[c]), hat = (to_float(x[c]) - m.mean) * m.inv;
            plain += a.rms ? 0 : d * a.gamma[c];
            projected += d * a.gamma[c] * hat;
            sums[c] += (double)(d * hat);
            sums[a.c + c] += (double)d;
        }
        plain = block_sum(plain) / (float)a.c;
        projected = block_sum(projected) / (float)a.c;
        for (int c = (int)threadIdx.x; c < a.c && a.y; c += BLOCK) {
            const float hat = (to_float(x[c]) - m.mean) * m.inv;
            from_float(static_cast<T *>(a.y)[r * a.c + c],
                       m.inv * (to_float(dy[c]) * a.gamma[c] - plain - hat * projected));
        }
    }
    finish_norm(a);
}

void launch_KERNEL_ROW_NORM_BWD(const k_row_norm *a, cudaStream_t s)
{
    const row_layout l = layout_of(*a);
    DISPATCH_TYPE(a->type, {
        constexpr int V = 16 / (int)sizeof(T);
        if (l.lanes)
            DISPATCH_ROWS(l.vectors, {
                (void)U;
                LAUNCH((row_norm_bwd<T, V, K>), bwd_blocks(*a), BLOCK, s, *a, l.lanes);
            });
        else
            LAUNCH((row_norm_bwd_any<T>), bwd_blocks(*a), BLOCK, s, *a);
    });
}
