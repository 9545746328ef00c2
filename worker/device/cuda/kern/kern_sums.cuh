/* Sums per channel over all blocks of a launch. Blocks that share channels leave partial sums; the last of each sixteen
 * adds those up, the last of all what these left: in a fixed order, so that equal inputs give equal bits, and without a
 * launch of its own. */
#ifndef CRUN_WORKER_DEVICE_CUDA_KERN_SUMS_CUH
#define CRUN_WORKER_DEVICE_CUDA_KERN_SUMS_CUH

#include "worker/device/cuda/kern/kern_bn.cuh"

/* SUM_UNITS: multiprocessors of an H200, each with SUM_BLOCKS_MOST blocks at most. */
enum { SUM_UNITS = 132, SUM_BLOCKS_MOST = 3, SUMS_MAX = 3, GROUP = 16, ROWS_LEAST = 64 };

/* Where sums end. */
struct sink {
    k_partial partial;
    double *sums, *sums2;
    const float *weights;
    int n, c;
    double hw;
};

/* Is this block the last of `of` to come here? All threads of the block call it. */
__device__ inline bool last_of(unsigned *counter, unsigned of)
{
    __shared__ bool last;
    __threadfence(); /* what this block wrote is there before it is counted */
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicInc(counter, of - 1) == of - 1;
    __syncthreads();
    __threadfence();
    return last;
}

/* Rows [first, end) of the partial sums, column by column. */
__device__ inline double add_rows(const double *values, size_t row, unsigned first, unsigned end, size_t at)
{
    double sum = 0;
    for (unsigned b = first; b < end; b++)
        sum += __ldcg(values + b * row + at);
    return sum;
}

/* `mine`: N values of `channels` channels from c0 on, which this block summed. */
template <int N> __device__ void finish(const sink &to, const double *mine, int channels, int c0)
{
    const size_t row = (size_t)N * to.c;
    const unsigned blocks = gridDim.y, groups = (blocks + GROUP - 1) / GROUP, group = blockIdx.y / GROUP,
                   first = group * GROUP, end = first + GROUP < blocks ? first + GROUP : blocks;
    unsigned *counters = to.partial.counters + blockIdx.x * (groups + 1);
    __syncthreads();
    for (int k = threadIdx.x; k < N * channels; k += BLOCK)
        if (c0 + k % channels < to.c)
            to.partial.values[blockIdx.y * row + (size_t)(k / channels) * to.c + c0 + k % channels] = mine[k];
    if (!last_of(counters + group, end - first))
        return;
    for (int k = threadIdx.x; k < N * channels; k += BLOCK) {
        const size_t at = (size_t)(k / channels) * to.c + c0 + k % channels;
        if (c0 + k % channels < to.c)
            to.partial.values[(blocks + group) * row + at] = add_rows(to.partial.values, row, first, end, at);
    }
    if (!last_of(counters + groups, groups))
        return;
    for (int k = threadIdx.x; k < N * channels; k += BLOCK) {
        const int which = k / channels, c = c0 + k % channels;
        if (c >= to.c)
            continue;
        const double sum = add_rows(to.partial.values, row, blocks, blocks + groups, (size_t)which * to.c + c);
        if (which < 2)
            to.sums[which * to.c + c] = sum;
        if (N == 3 && which != 1)
            to.sums2[(which ? to.c : 0) + c] = sum;
    }
    if (blockIdx.x > 0)
        return;
    const double count = samples_of(to.weights, to.n) * to.hw;
    if (threadIdx.x == 0) {
        to.sums[2 * to.c] = count;
        if (N == 3)
            to.sums2[2 * to.c] = count;
    }
}

/* What a block's threads summed, N values of V channels each, row by row in a fixed order: into `mine`. */
template <int N, int V> __device__ void add_threads(const tile &t, const float (&s)[N][V], float *part, double *mine)
{
    const int values = N * t.lanes * V; /* part: t.rows of them */
    UNROLL
    for (int k = 0; k < N; k++)
        UNROLL
    for (int i = 0; i < V; i++)
        part[t.row * values + (k * t.lanes + t.lane) * V + i] = s[k][i];
    __syncthreads();
    for (int k = threadIdx.x; k < values; k += BLOCK) {
        double sum = 0;
        for (unsigned r = 0; r < t.rows; r++)
            sum += part[r * values + k];
        mine[k] = sum;
    }
}

static inline bool wide(const view4 &v)
{
    return (v.nhwc ? v.c : v.h * v.w) % (int)(16 / dtype_size(v.type)) == 0;
}

static inline int width_of(const view4 &v)
{
    return wide(v) ? (int)(16 / dtype_size(v.type)) : 1;
}

static inline int lanes_of(const view4 &v)
{
    const int V = width_of(v), vectors = v.c / V;
    return V > 1 && vectors <= 8 ? 8 : V > 1 && vectors <= 16 ? 16 : LANES_MAX;
}

/* Channels of a block. */
static inline int channels_of(const view4 &v)
{
    return v.nhwc ? lanes_of(v) * width_of(v) : 1;
}

/* Of the rows, or samples: at most `blocks` in all. */
static inline unsigned shares(const view4 &v, unsigned blocks)
{
    const size_t units = v.nhwc ? rows_of(v) : (size_t)v.n;
    return shares_of(units, v.nhwc ? ROWS_LEAST : 1, columns_of(v, channels_of(v)), blocks);
}

static inline unsigned most_shares(const view4 &v)
{
    return shares(v, SUM_BLOCKS_MOST * SUM_UNITS);
}

static inline unsigned groups_of(unsigned blocks)
{
    return (blocks + GROUP - 1) / GROUP;
}

/* KERNEL_BN_BWD_SUMS and KERNEL_BN_BWD_APPLY behind max pooling (kern_bn_pool.cu). */
void launch_bn_pool_sums(const k_bn_bwd_sums *a, cudaStream_t s);
void launch_bn_pool_apply(const k_bn_bwd_apply *a, cudaStream_t s);

#endif
