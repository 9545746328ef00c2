/* Operations that work element by element, one after another in one pass over memory, and what makes sequences of
 * positions.
 *
 *   chain            reads B for x and for each operand more, writes B
 *   sequence         reads and writes what it moves
 *   table_gradient   reads what it sums
 * A thread of a chain has four vectors of 16 bytes of every operand on their way. They lie 16 elements apart within a
 * run of 64, as the words of what is dropped do (device/drop.h): one call of Philox serves an element of each. The kind
 * of a link is the same for all threads, so branches are cheap; arithmetic hides behind memory, but for dropout of
 * elements, which is bound by Philox (about 25 instructions an element). */
#include "worker/device/cuda/kern/kern.cuh"
#include "worker/device/drop.h"
#include "worker/program/program.h"

enum { CHAIN_BLOCKS = 1056, SEQUENCE_BLOCKS = 1056, SUMMERS = 8 };

/* --- what is dropped: device/drop.c, word by word */

struct words {
    uint32_t v[4];
};

__device__ __forceinline__ words philox(words c, uint32_t key0, uint32_t key1)
{
    UNROLL
    for (int round = 0; round < 10; round++) {
        const uint32_t high0 = __umulhi(0xD2511F53u, c.v[0]), low0 = 0xD2511F53u * c.v[0],
                       high1 = __umulhi(0xCD9E8D57u, c.v[2]), low1 = 0xCD9E8D57u * c.v[2];
        c = {{high1 ^ c.v[1] ^ key0, low1, high0 ^ c.v[3] ^ key1, low0}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}

struct key_of {
    uint32_t a, b;
};

/* Of a layer, in this step. */
__device__ __forceinline__ key_of key_at(const k_draw &d, uint64_t layer)
{
    const words r = philox({{(uint32_t)d.step, (uint32_t)(d.step >> 32), (uint32_t)layer, (uint32_t)(layer >> 32)}},
                           (uint32_t)d.seed, (uint32_t)(d.seed >> 32));
    return {r.v[0], r.v[1]};
}

/* Elements of a sample are fewer than 2^31. */
__device__ __forceinline__ words words_at(key_of key, uint32_t sample, uint32_t element)
{
    return philox({{element / DROP_RUN * DROP_LANES + element % DROP_LANES, 0, sample, 0}}, key.a, key.b);
}

__device__ __forceinline__ uint32_t word_at(key_of key, uint32_t sample, uint32_t element)
{
    const words w = words_at(key, sample, element);
    const uint32_t i = element / DROP_LANES % 4;
    return i == 0 ? w.v[0] : i == 1 ? w.v[1] : i == 2 ? w.v[2] : w.v[3];
}

/* --- activations */

struct odds { /* sigmoid(x), and 1 - sigmoid(x) without a difference */
    float yes, no;
};
__device__ __forceinline__ odds odds_of(float x)
{
    const float t = expf(-fabsf(x)), r = 1 / (1 + t);
    return x < 0 ? odds{t * r, r} : odds{r, t * r};
}

/* x * sigmoid(2 u) is x / 2 * (1 + tanh u). */
__device__ __forceinline__ float twice_tanh_argument(float x)
{
    return 1.5957691216057308f * (x + 0.044715f * x * x * x);
}

__device__ __forceinline__ float act_of(enum op_act kind, float x)
{
    if (kind == ACT_GELU)
        return 0.5f * x * (1 + erff(x * 0.7071067811865475f));
    return x * odds_of(kind == ACT_SILU ? x : twice_tanh_argument(x)).yes;
}

__device__ __forceinline__ float slope_of(enum op_act kind, float x)
{
    if (kind == ACT_GELU)
        return 0.5f * (1 + erff(x * 0.7071067811865475f)) + x * 0.3989422804014327f * expf(-0.5f * x * x);
    const odds o = odds_of(kind == ACT_SILU ? x : twice_tanh_argument(x));
    const float inner = kind == ACT_SILU ? 1 : 1.5957691216057308f * (1 + 3 * 0.044715f * x * x);
    return o.yes + x * o.yes * o.no * inner;
}

/* --- chains */

/* A thread's vectors: DEEP of V elements, LANES threads share a run. */
template <int V> struct run_of {
    enum {
        DEEP = V == 1 ? 1 : DROP_RUN / DROP_LANES,
        LANES = V == 1 ? 1 : DROP_LANES / V,
        SIZE = V == 1 ? 1 : (int)DROP_RUN
    };
};

struct chain_dividers {
    divider row, sample; /* of vectors */
};

/* Of V elements from channel c on. */
template <int V> __device__ __forceinline__ void scale_by(const float *by, unsigned c, float (&v)[V])
{
    UNROLL
    for (int i = 0; i < V; i++)
        v[i] *= by[c + i];
}

template <typename T, int V>
__device__ __forceinline__ void take_with(const k_link &l, const pack<T, V> &with, float (&v)[V])
{
    UNROLL
    for (int i = 0; i < V; i++) {
        const float w = to_float(with.at[i]);
        if (l.kind == LINK_ADD)
            v[i] += w;
        else if (l.kind == LINK_MUL)
            v[i] *= w;
        else if (l.kind == LINK_RELU_BWD)
            v[i] = w > 0 ? v[i] : 0;
        else
            v[i] *= slope_of(l.act, w);
    }
}

/* Of sample s of those that are here. */
__device__ __forceinline__ uint32_t number_of(const k_chain &a, const k_link &l, uint32_t s)
{
    return l.rows ? (uint32_t)l.rows[s * SAMPLE_N + SAMPLE_HIGH] << 16 | (uint32_t)l.rows[s * SAMPLE_N + SAMPLE_LOW]
                  : a.samples[s];
}

/* Vector u of the thread begins at element at + u * DROP_LANES; all are of one sample where elements are dropped, and
 * of one row where a row is a part. */
template <int V, int DEEP>
__device__ __forceinline__ void drop(const k_chain &a, const k_link &l, key_of key, size_t at, const chain_dividers &d,
                                     float (&v)[DEEP][V])
{
    if (l.samples) {
        UNROLL
        for (int u = 0; u < DEEP; u++) {
            const size_t i = at + u * DROP_LANES;
            if (i >= a.n)
                break;
            const uint32_t n = number_of(a, l, divide((uint32_t)(i / V), d.sample));
            const float factor = words_at(key, n, 0).v[0] >= l.bound ? l.kept : 0;
            UNROLL
            for (int k = 0; k < V; k++)
                v[u][k] = factor == 0 ? 0 : v[u][k] * factor;
        }
        return;
    }
    const uint32_t s = divide((uint32_t)(at / V), d.sample), sample = number_of(a, l, s);
    unsigned element = (unsigned)(at - s * a.sample);
    if (l.whole)
        element += divide(element / V, d.row) * (l.whole - a.c) + l.first;
    if constexpr (V == 1) {
        v[0][0] = word_at(key, sample, element) >= l.bound ? v[0][0] * l.kept : 0;
    } else {
        UNROLL
        for (int k = 0; k < V; k++) {
            const words w = words_at(key, sample, element + k);
            UNROLL
            for (int u = 0; u < DEEP; u++)
                v[u][k] = w.v[u] >= l.bound ? v[u][k] * l.kept : 0;
        }
    }
}

template <typename T, int V, int DEEP> __device__ __forceinline__ void round_all_of(enum dtype t, float (&v)[DEEP][V])
{
    UNROLL
    for (int u = 0; u < DEEP; u++)
        UNROLL
    for (int i = 0; i < V; i++) {
        T x;
        from_float(x, v[u][i]);
        v[u][i] = to_float(x);
        if (sizeof(T) == sizeof(float) && t != DT_F32) {
            __half half;
            __nv_bfloat16 brain;
            from_float(half, v[u][i]);
            from_float(brain, v[u][i]);
            v[u][i] = t == DT_F16 ? to_float(half) : to_float(brain);
        }
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(BLOCK, 2) chain(const __grid_constant__ k_chain a, size_t runs, chain_dividers d)
{
    constexpr int DEEP = run_of<V>::DEEP, LANES = run_of<V>::LANES, SIZE = run_of<V>::SIZE;
    __shared__ key_of keys[K_LINKS_MAX];
    if ((int)threadIdx.x < a.nlinks && a.links[threadIdx.x].kind == LINK_DROP)
        keys[threadIdx.x] = key_at(*a.draw, a.links[threadIdx.x].layer);
    __syncthreads();
    const T *x = static_cast<const T *>(a.x);
    T *y = static_cast<T *>(a.y);
    for (size_t t = blockIdx.x * (size_t)BLOCK + threadIdx.x; t < runs * LANES; t += (size_t)gridDim.x * BLOCK) {
        const size_t at = t / LANES * SIZE + t % LANES * V;
        if (at >= a.n)
            continue;
        float v[DEEP][V] = {};
        pack<T, V> with[DEEP] = {};
        UNROLL
        for (int u = 0; u < DEEP; u++)
            if (at + u * DROP_LANES < a.n)
                load<T, V>(x + at + u * DROP_LANES, v[u]);
        for (int k = 0; k < a.nlinks; k++) {
            const k_link &l = a.links[k];
            UNROLL
            for (int u = 0; u < DEEP && l.with; u++)
                if (at + u * DROP_LANES < a.n)
                    with[u] = fetch<T, V>(static_cast<const T *>(l.with) + at + u * DROP_LANES);
            if (l.kind == LINK_DROP)
                drop<V, DEEP>(a, l, keys[k], at, d, v);
            UNROLL
            for (int u = 0; u < DEEP; u++) {
                if (l.with)
                    take_with<T, V>(l, with[u], v[u]);
                if (l.kind == LINK_SCALE && at + u * DROP_LANES < a.n) {
                    const uint32_t vector = (uint32_t)((at + u * DROP_LANES) / V), vectors = (uint32_t)(a.c / V);
                    scale_by<V>(l.by, (vector - divide(vector, d.row) * vectors) * V, v[u]);
                }
                UNROLL
                for (int i = 0; i < V; i++) {
                    if (l.kind == LINK_RELU)
                        v[u][i] = v[u][i] < 0 ? 0 : v[u][i]; /* NaN stays */
                    if (l.kind == LINK_ACT)
                        v[u][i] = act_of(l.act, v[u][i]);
                }
            }
            round_all_of<T, V, DEEP>(a.rounded, v);
        }
        UNROLL
        for (int u = 0; u < DEEP; u++)
            if (at + u * DROP_LANES < a.n)
                store<T, V>(y + at + u * DROP_LANES, v[u]);
    }
}

/* Are this part's rows, and what is before them and behind them, whole runs? */
static bool is_of_runs(const k_chain &a, const k_link &l)
{
    return !l.whole || (a.c % DROP_RUN == 0 && l.first % DROP_RUN == 0 && l.whole % DROP_RUN == 0);
}

/* Do vectors of V elements lie within a row, and runs within a sample, where links ask for these? */
static bool fits(const k_chain &a, int V)
{
    bool rows = false, runs = false, parts = true;
    for (int k = 0; k < a.nlinks; k++) {
        rows = rows || a.links[k].kind == LINK_SCALE || a.links[k].kind == LINK_DROP;
        runs = runs || (a.links[k].kind == LINK_DROP && !a.links[k].samples);
        parts = parts && is_of_runs(a, a.links[k]);
    }
    return a.n % V == 0 && (!rows || (a.c % V == 0 && a.sample % V == 0)) && (!runs || a.sample % DROP_RUN == 0) &&
           parts;
}

template <typename T, int V> static void run_chain(const k_chain *a, cudaStream_t s)
{
    constexpr int SIZE = run_of<V>::SIZE;
    const size_t runs = (a->n + SIZE - 1) / SIZE, threads = runs * run_of<V>::LANES,
                 blocks = (threads + BLOCK - 1) / BLOCK;
    const uint32_t row = (uint32_t)(a->c / V), sample = (uint32_t)(a->sample / V);
    const chain_dividers d = {divider_of(row ? row : 1), divider_of(sample ? sample : 1)};
    LAUNCH((chain<T, V>), (unsigned)(blocks > CHAIN_BLOCKS ? (size_t)CHAIN_BLOCKS : blocks), BLOCK, s, *a, runs, d);
}

void launch_KERNEL_CHAIN(const k_chain *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, {
        constexpr int WIDE = 16 / (int)sizeof(T);
        if (fits(*a, WIDE))
            run_chain<T, WIDE>(a, s);
        else
            run_chain<T, 1>(a, s);
    });
}

/* --- sequences */

struct sequence_dividers {
    divider row, sample; /* vectors of a row, rows of a sample of the result */
};

template <typename T, int V>
__global__ void __launch_bounds__(BLOCK) sequence(k_sequence a, size_t vectors, sequence_dividers d)
{
    enum { DEEP = 4 };
    const uint32_t of_row = (uint32_t)(a.c / V);
    const size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t first = blockIdx.x * (size_t)BLOCK + threadIdx.x; first < vectors; first += stride * DEEP) {
        pack<T, V> in[DEEP] = {};
        int position[DEEP] = {}, c[DEEP] = {};
        bool there[DEEP] = {};
        UNROLL
        for (int u = 0; u < DEEP; u++) {
            const size_t i = first + u * stride;
            if (i >= vectors)
                break;
            const uint32_t row = divide((uint32_t)i, d.row), sample = divide(row, d.sample);
            c[u] = (int)((uint32_t)i - row * of_row) * V;
            position[u] = (int)(row - sample * (uint32_t)a.to);
            const int from = position[u] - a.shift;
            there[u] = from >= 0 && from < a.from;
            if (there[u])
                in[u] = fetch<T, V>(static_cast<const T *>(a.in) + ((size_t)sample * a.from + from) * a.c + c[u]);
        }
        UNROLL
        for (int u = 0; u < DEEP; u++) {
            const size_t i = first + u * stride;
            float out[V];
            if (i >= vectors)
                break;
            UNROLL
            for (int k = 0; k < V; k++) {
                out[k] = there[u] ? to_float(in[u].at[k]) : a.outside ? a.outside[c[u] + k] : 0;
                out[k] += a.table ? a.table[(size_t)position[u] * a.c + c[u] + k] : 0;
            }
            store<T, V>(static_cast<T *>(a.out) + i * V, out);
        }
    }
}

template <typename T, int V> static void run_sequence(const k_sequence *a, cudaStream_t s)
{
    const size_t vectors = (size_t)a->n * a->to * a->c / V, blocks = (vectors + BLOCK - 1) / BLOCK;
    const sequence_dividers d = {divider_of((uint32_t)(a->c / V)), divider_of((uint32_t)a->to)};
    LAUNCH((sequence<T, V>), (unsigned)(blocks > SEQUENCE_BLOCKS ? (size_t)SEQUENCE_BLOCKS : blocks), BLOCK, s, *a,
           vectors, d);
}

void launch_KERNEL_SEQUENCE(const k_sequence *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, {
        constexpr int WIDE = 16 / (int)sizeof(T);
        if (a->c % WIDE == 0)
            run_sequence<T, WIDE>(a, s);
        else
            run_sequence<T, 1>(a, s);
    });
}

/* A block takes 32 vectors, SUMMERS threads each, which share the samples. */
template <typename T, int V> __global__ void __launch_bounds__(BLOCK) table_gradient(k_table_gradient a, size_t vectors)
{
    __shared__ float part[SUMMERS][WARP * V];
    const int lane = (int)threadIdx.x % WARP, summer = (int)threadIdx.x / WARP;
    const size_t i = blockIdx.x * (size_t)WARP + lane, sample = (size_t)a.t * a.c;
    float sum[V] = {};
    for (int n = summer; n < a.n && i < vectors && i * V < sample; n += SUMMERS) {
        float dy[V];
        load<T, V>(static_cast<const T *>(a.dy) + n * sample + i * V, dy);
        UNROLL
        for (int k = 0; k < V; k++)
            sum[k] += dy[k];
    }
    UNROLL
    for (int k = 0; k < V; k++)
        part[summer][lane * V + k] = sum[k];
    __syncthreads();
    for (int j = (int)threadIdx.x; j < WARP * V && blockIdx.x * (size_t)WARP * V + j < vectors * V; j += BLOCK) {
        double all = 0;
        for (int k = 0; k < SUMMERS; k++)
            all += part[k][j];
        a.out[blockIdx.x * (size_t)WARP * V + j] = (float)all;
    }
}

void launch_KERNEL_TABLE_GRADIENT(const k_table_gradient *a, cudaStream_t s)
{
    const size_t n = (size_t)a->rows * a->c;
    DISPATCH_TYPE(a->type, {
        constexpr int WIDE = 16 / (int)sizeof(T);
        if (a->c % WIDE == 0)
            LAUNCH((table_gradient<T, WIDE>), (unsigned)((n / WIDE + WARP - 1) / WARP), BLOCK, s, *a, n / WIDE);
        else
            LAUNCH((table_gradient<T, 1>), (unsigned)((n + WARP - 1) / WARP), BLOCK, s, *a, n);
    });
}
