/* Tokens: their rows of a table, forward and backward, and rotary positions.
 *
 *   embed       reads rows of the table, writes B
 *   embed_bwd   reads B, and what of the table's gradient it adds to, which it writes
 *   rope        reads B, writes B; angles come from a table that stays in the cache
 *
 * embed_bwd adds many rows to some places, in a fixed order and without atomics on floats. A block has the tokens of
 * one bucket (token mod BUCKETS), and 32 vectors of channels: nobody else writes there. It goes through all tokens,
 * keeps (token, row) of its own, and sorts them. Then a warp adds the rows of a token; where these are many, as of
 * "the", the block's warps share them. */
#include "worker/device/cuda/kern/kern.cuh"

enum { MOST_BLOCKS = 1056, BUCKETS = 264, KEYS = 2048, TURN = 4 * BLOCK, FEW = 16, WARPS = BLOCK / WARP };

__global__ void tokens(k_tokens a)
{
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < a.n; i += (size_t)gridDim.x * BLOCK)
        a.out[i] = (float)a.in[i];
}

void launch_KERNEL_TOKENS(const k_tokens *a, cudaStream_t s)
{
    LAUNCH((tokens), blocks_for(a->n), BLOCK, s, *a);
}

static unsigned blocks_of(size_t vectors)
{
    const size_t blocks = (vectors + BLOCK - 1) / BLOCK;
    return (unsigned)(blocks > MOST_BLOCKS ? (size_t)MOST_BLOCKS : blocks);
}

/* --- embedding */

template <typename T, int V> __global__ void __launch_bounds__(BLOCK) embed(k_embed a, size_t vectors, divider of_row)
{
    enum { DEEP = 4 };
    const uint32_t row_vectors = (uint32_t)(a.c / V);
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t first = blockIdx.x * (size_t)BLOCK + threadIdx.x; first < vectors; first += stride * DEEP) {
        float in[DEEP][V] = {};
        UNROLL
        for (int u = 0; u < DEEP; u++) {
            const size_t i = first + u * stride;
            if (i >= vectors)
                break;
            const uint32_t row = divide((uint32_t)i, of_row), c = ((uint32_t)i - row * row_vectors) * V,
                           at = (uint32_t)((int)a.tokens[row] - a.first);
            if (at < (uint32_t)a.v)
                load<float, V>(a.table + (size_t)at * a.c + c, in[u]);
        }
        UNROLL
        for (int u = 0; u < DEEP; u++)
            if (first + u * stride < vectors)
                store<T, V>(static_cast<T *>(a.out) + (first + u * stride) * V, in[u]);
    }
}

template <typename T, int V> static void run_embed(const k_embed *a, cudaStream_t s)
{
    const size_t vectors = a->rows * a->c / V;
    LAUNCH((embed<T, V>), blocks_of(vectors), BLOCK, s, *a, vectors, divider_of((uint32_t)(a->c / V)));
}

void launch_KERNEL_EMBED(const k_embed *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, {
        constexpr int WIDE = 16 / (int)sizeof(T);
        if (a->c % WIDE == 0)
            run_embed<T, WIDE>(a, s);
        else
            run_embed<T, 1>(a, s);
    });
}

/* A token and a row that has it: in their order, the rows of a token side by side. */
__device__ __forceinline__ uint64_t key_of(uint32_t token, uint32_t row)
{
    return (uint64_t)token << 32 | row;
}
__device__ __forceinline__ uint32_t token_of(uint64_t key)
{
    return (uint32_t)(key >> 32);
}

/* Bitonic: in pairs that lie `apart`, within runs of `run` that go up or down. */
__device__ static void sort_keys(uint64_t *keys, unsigned n)
{
    unsigned all = 1;
    while (all < n)
        all *= 2;
    for (unsigned i = n + threadIdx.x; i < all; i += BLOCK)
        keys[i] = ~(uint64_t)0;
    for (unsigned run = 2; run <= all; run *= 2)
        for (unsigned apart = run / 2; apart > 0; apart /= 2) {
            __syncthreads();
            for (unsigned i = threadIdx.x; i < all; i += BLOCK) {
                const unsigned other = i ^ apart;
                const uint64_t a = keys[i], b = keys[other];
                if (other > i && (a > b) == ((i & run) == 0)) {
                    keys[i] = b;
                    keys[other] = a;
                }
            }
        }
    __syncthreads();
}

/* sum += channels [c, c + V) of the rows of each `step`-th key. */
template <typename T, int V>
__device__ __forceinline__ void add_rows_of(const k_embed_bwd &a, const uint64_t *keys, unsigned first, unsigned end,
                                            unsigned step, int c, float (&sum)[V])
{
    enum { DEEP = 4 };
    for (unsigned k = first; k < end && c < a.c; k += step * DEEP) {
        pack<T, V> in[DEEP] = {};
        UNROLL
        for (unsigned u = 0; u < DEEP; u++)
            if (k + u * step < end)
                in[u] = fetch<T, V>(static_cast<const T *>(a.dy) + (size_t)(uint32_t)keys[k + u * step] * a.c + c);
        UNROLL
        for (int u = 0; u < DEEP; u++)
            UNROLL
        for (int i = 0; i < V; i++)
            sum[i] += to_float(in[u].at[i]);
    }
}

template <int V> __device__ __forceinline__ void add_to(const k_embed_bwd &a, uint32_t token, int c, float (&sum)[V])
{
    float *to = a.out + (size_t)token * a.c + c, was[V];
    if (c >= a.c)
        return;
    load<float, V>(to, was);
    UNROLL
    for (int i = 0; i < V; i++)
        sum[i] += was[i];
    store<float, V>(to, sum);
}

/* What this block has found. */
template <typename T, int V>
__device__ static void add_found(const k_embed_bwd &a, uint64_t *keys, unsigned n, float (*part)[WARP * V])
{
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int c = (int)(blockIdx.x * WARP + lane) * V;
    sort_keys(keys, n);
    for (unsigned i = warp; i < n; i += WARPS) {
        const uint32_t token = token_of(keys[i]);
        unsigned end = i + 1;
        float sum[V] = {};
        if (i > 0 && token_of(keys[i - 1]) == token)
            continue;
        while (end < n && end <= i + FEW && token_of(keys[end]) == token)
            end++;
        if (end > i + FEW)
            continue;
        add_rows_of<T, V>(a, keys, i, end, 1, c, sum);
        add_to<V>(a, token, c, sum);
    }
    for (unsigned i = 0; i + FEW < n; i++) {
        const uint32_t token = token_of(keys[i]);
        unsigned end = i + FEW;
        float sum[V] = {};
        if ((i > 0 && token_of(keys[i - 1]) == token) || token_of(keys[end]) != token)
            continue;
        while (end < n && token_of(keys[end]) == token)
            end++;
        add_rows_of<T, V>(a, keys, i + warp, end, WARPS, c, sum);
        UNROLL
        for (int k = 0; k < V; k++)
            part[warp][lane * V + k] = sum[k];
        __syncthreads();
        if (warp == 0) {
            for (int w = 1; w < WARPS; w++)
                UNROLL
            for (int k = 0; k < V; k++)
                sum[k] += part[w][lane * V + k];
            add_to<V>(a, token, c, sum);
        }
        __syncthreads();
    }
}

template <typename T, int V> __global__ void __launch_bounds__(BLOCK, 4) embed_bwd(k_embed_bwd a)
{
    __shared__ uint64_t keys[KEYS];
    __shared__ float part[WARPS][WARP * V];
    __shared__ unsigned found;
    if (threadIdx.x == 0)
        found = 0;
    __syncthreads();
    for (unsigned first = 0; first < a.rows; first += TURN) {
        UNROLL
        for (unsigned row = first + threadIdx.x; row < first + TURN; row += BLOCK) {
            const uint32_t token = row < a.rows ? (uint32_t)((int)a.tokens[row] - a.first) : 0; /* of those here */
            if (row < a.rows && token < (uint32_t)a.v && token % BUCKETS == blockIdx.y)
                keys[atomicAdd(&found, 1u)] = key_of(token, row); /* in any order: they will be sorted */
        }
        __syncthreads();
        const unsigned n = found;
        __syncthreads();
        if (n <= KEYS - TURN && first + TURN < a.rows)
            continue;
        add_found<T, V>(a, keys, n, part);
        if (threadIdx.x == 0)
            found = 0;
        __syncthreads();
    }
}

template <typename T, int V> static void run_embed_bwd(const k_embed_bwd *a, cudaStream_t s)
{
    LAUNCH((embed_bwd<T, V>), dim3((unsigned)((a->c / V + WARP - 1) / WARP), BUCKETS), BLOCK, s, *a);
}

void launch_KERNEL_EMBED_BWD(const k_embed_bwd *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, {
        constexpr int WIDE = 16 / (int)sizeof(T);
        if (a->c % WIDE == 0)
            run_embed_bwd<T, WIDE>(a, s);
        else
            run_embed_bwd<T, 1>(a, s);
    });
}

/* --- rotary positions */

struct rope_dividers {
    divider half, heads, t; /* vectors of half a head, heads of a row, rows of a sample */
};

/* A thread has vectors of both halves of a head. */
template <typename T, int V> __global__ void __launch_bounds__(BLOCK) rope(k_rope a, size_t pairs, rope_dividers d)
{
    enum { DEEP = 2 };
    const uint32_t half = (uint32_t)(a.d / 2);
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t first = blockIdx.x * (size_t)BLOCK + threadIdx.x; first < pairs; first += stride * DEEP) {
        pack<T, V> low[DEEP] = {}, high[DEEP] = {};
        size_t at[DEEP] = {};
        const float *cosines[DEEP] = {};
        UNROLL
        for (int u = 0; u < DEEP; u++) {
            const size_t i = first + u * stride;
            if (i >= pairs)
                break;
            const uint32_t head = divide((uint32_t)i, d.half), row = divide(head, d.heads),
                           j = ((uint32_t)i - head * (half / V)) * V, position = row - divide(row, d.t) * a.t;
            at[u] = (size_t)head * a.d + j;
            low[u] = fetch<T, V>(static_cast<const T *>(a.in) + at[u]);
            high[u] = fetch<T, V>(static_cast<const T *>(a.in) + at[u] + half);
            if (head - row * a.heads < (uint32_t)a.turned)
                cosines[u] = a.table + (size_t)position * a.d + j;
        }
        UNROLL
        for (int u = 0; u < DEEP; u++) {
            T *out = static_cast<T *>(a.out) + at[u];
            if (first + u * stride >= pairs)
                break;
            if (cosines[u]) {
                float cosine[V], sine[V];
                load<float, V>(cosines[u], cosine);
                load<float, V>(cosines[u] + half, sine);
                UNROLL
                for (int k = 0; k < V; k++) {
                    const float x = to_float(low[u].at[k]), y = to_float(high[u].at[k]),
                                s = a.back ? -sine[k] : sine[k];
                    from_float(low[u].at[k], x * cosine[k] - y * s);
                    from_float(high[u].at[k], y * cosine[k] + x * s);
                }
            }
            *reinterpret_cast<pack<T, V> *>(out) = low[u];
            *reinterpret_cast<pack<T, V> *>(out + half) = high[u];
        }
    }
}

template <typename T, int V> static void run_rope(const k_rope *a, cudaStream_t s)
{
    const size_t pairs = a->rows * a->heads * (a->d / 2 / V);
    const rope_dividers d = {divider_of((uint32_t)(a->d / 2 / V)), divider_of((uint32_t)a->heads),
                             divider_of((uint32_t)a->t)};
    LAUNCH((rope<T, V>), blocks_of(pairs), BLOCK, s, *a, pairs, d);
}

void launch_KERNEL_ROPE(const k_rope *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, {
        constexpr int WIDE = 16 / (int)sizeof(T);
        if (a->d / 2 % WIDE == 0)
            run_rope<T, WIDE>(a, s);
        else
            run_rope<T, 1>(a, s);
    });
}
