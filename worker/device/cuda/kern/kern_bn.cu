/* Batch normalisation. Passes over activations are memory-bound: 16 bytes a load, every byte once. */
#include "worker/device/cuda/kern/kern.cuh"

enum { ROW_BLOCKS_MAX = 1024, ROWS_LEAST = 64, COLUMNS = 8, SHARES = BLOCK / COLUMNS };

/* Blocks that share a channel: enough to fill the card, each with enough rows to be worth its partial sums. */
static int row_blocks(const view4 &v)
{
    const size_t rows = v.nhwc ? (size_t)v.n * v.h * v.w : (size_t)v.n;
    const size_t least = v.nhwc ? ROWS_LEAST : 1;
    size_t b = (rows + least - 1) / least;
    return (int)(b < 1 ? 1 : b > ROW_BLOCKS_MAX ? (size_t)ROW_BLOCKS_MAX : b);
}

size_t kernel_partial(const view4 *v)
{
    return (size_t)row_blocks(*v) * 2 * v->c;
}

/* What a pass sums for an element: two values. */
template <typename T> struct stats_of {
    const T *x;
    template <int V> __device__ void operator()(size_t at, int, float (&a)[V], float (&b)[V]) const
    {
        load<T, V>(x + at, a);
        UNROLL
        for (int i = 0; i < V; i++)
            b[i] = a[i] * a[i];
    }
};

/* dz at V elements: the gradient through the ReLU, whose output is y, or x * scale + shift. c_step: 1 if they lie in V
 * channels, 0 if in one. */
template <typename T> struct gradient {
    const T *x, *dy, *dy2, *y;
    const float *scale, *shift;
    template <int V>
    __device__ void operator()(size_t at, int c, int c_step, const float (&xs)[V], float (&dz)[V]) const
    {
        float other[V];
        load<T, V>(dy + at, dz);
        if (dy2) {
            load<T, V>(dy2 + at, other);
            UNROLL
            for (int i = 0; i < V; i++)
                dz[i] += other[i];
        }
        if (y)
            load<T, V>(y + at, other);
        if (y || scale) {
            UNROLL
            for (int i = 0; i < V; i++) {
                const float z = y ? other[i] : xs[i] * scale[c + i * c_step] + shift[c + i * c_step];
                dz[i] = z > 0 ? dz[i] : 0;
            }
        }
    }
};

template <typename T, bool NHWC> struct bwd_sums_of {
    gradient<T> g;
    const float *mean;
    T *dz;
    template <int V> __device__ void operator()(size_t at, int c, float (&a)[V], float (&b)[V]) const
    {
        load<T, V>(g.x + at, b);
        g.template operator()<V>(at, c, NHWC, b, a);
        if (dz)
            store<T, V>(dz + at, a);
        UNROLL
        for (int i = 0; i < V; i++) {
            if (dz) { /* what others will read */
                T rounded;
                from_float(rounded, a[i]);
                a[i] = to_float(rounded);
            }
            b[i] = a[i] * (b[i] - mean[c + (NHWC ? i : 0)]);
        }
    }
};

/* NHWC: LANES neighbouring threads take neighbouring vectors of channels, one row; where channels are few, a warp takes
 * several rows, so that no lane is idle. partial[block][0..c) and [c..2c). */
template <typename T, int V, int LANES, typename F>
__global__ void sums_nhwc(view4 v, F f, const float *weights, double *partial)
{
    constexpr int ROWS = BLOCK / LANES;
    __shared__ float part[ROWS][LANES][2 * V];
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES, c = (blockIdx.x * LANES + lane) * V;
    const size_t hw = (size_t)v.h * v.w, rows = v.n * hw;
    float a[V], b[V], sa[V] = {}, sb[V] = {};
    if (c < v.c) {
        for (size_t r = blockIdx.y * ROWS + row; r < rows; r += (size_t)gridDim.y * ROWS) {
            f.template operator()<V>(r * v.c + c, c, a, b); /* also where it counts nothing: dz is stored */
            const float w = weights ? weights[r / hw] : 1;
            UNROLL
            for (int i = 0; i < V; i++) {
                sa[i] += w > 0 ? a[i] : 0;
                sb[i] += w > 0 ? b[i] : 0;
            }
        }
    }
    UNROLL
    for (int i = 0; i < V; i++) {
        part[row][lane][i] = sa[i];
        part[row][lane][V + i] = sb[i];
    }
    __syncthreads();
    for (int k = threadIdx.x; k < LANES * 2 * V; k += BLOCK) {
        const int l = k / (2 * V), i = k % (2 * V), channel = (blockIdx.x * LANES + l) * V + i % V;
        double sum = 0;
        for (int r = 0; r < ROWS; r++)
            sum += part[r][l][i];
        if (channel < v.c)
            partial[(size_t)blockIdx.y * 2 * v.c + (i < V ? 0 : v.c) + channel] = sum;
    }
}

/* NCHW: a block takes planes of one channel, of every gridDim.y-th sample. */
template <typename T, int V, typename F> __global__ void sums_nchw(view4 v, F f, const float *weights, double *partial)
{
    const int c = blockIdx.x;
    const size_t hw = (size_t)v.h * v.w;
    double sa = 0, sb = 0;
    for (int n = blockIdx.y; n < v.n; n += gridDim.y) {
        float ra = 0, rb = 0, a[V], b[V];
        for (size_t i = threadIdx.x; i < hw / V; i += BLOCK) {
            f.template operator()<V>(((size_t)n * v.c + c) * hw + i * V, c, a, b);
            UNROLL
            for (int k = 0; k < V; k++) {
                ra += a[k];
                rb += b[k];
            }
        }
        if (!weights || weights[n] > 0) {
            sa += ra;
            sb += rb;
        }
    }
    sa = block_sum(sa);
    sb = block_sum(sb);
    if (threadIdx.x == 0) {
        partial[(size_t)blockIdx.y * 2 * v.c + c] = sa;
        partial[(size_t)blockIdx.y * 2 * v.c + v.c + c] = sb;
    }
}

/* How many samples count. All threads of the block call it. */
__device__ static double samples_of(const float *weights, int n)
{
    double count = 0;
    for (int k = threadIdx.x; k < n; k += BLOCK)
        count += !weights || weights[k] > 0 ? 1 : 0;
    return block_sum(count);
}

/* The blocks' sums, SHARES of them side by side, each in its order; and the elements that count. */
__global__ void combine(int c, int blocks, const double *partial, const float *weights, int n, size_t hw, double *sums)
{
    __shared__ double part[SHARES][COLUMNS];
    const int column = threadIdx.x % COLUMNS, share = threadIdx.x / COLUMNS, i = blockIdx.x * COLUMNS + column;
    double sum = 0;
    for (int b = share; b < blocks && i < 2 * c; b += SHARES)
        sum += partial[(size_t)b * 2 * c + i];
    part[share][column] = sum;
    __syncthreads();
    if (share == 0 && i < 2 * c) {
        sum = 0;
        for (int k = 0; k < SHARES; k++)
            sum += part[k][column];
        sums[i] = sum;
    }
    if (blockIdx.x == 0) {
        const double count = samples_of(weights, n);
        if (threadIdx.x == 0)
            sums[2 * c] = count * hw;
    }
}

template <typename T, int V, int LANES, typename F>
static void sum_rows(const view4 &v, F f, const float *weights, double *partial, cudaStream_t s)
{
    LAUNCH((sums_nhwc<T, V, LANES>), dim3((v.c / V + LANES - 1) / LANES, row_blocks(v)), BLOCK, s, v, f, weights,
           partial);
}

template <typename T, int V, bool NHWC, typename F>
static void sums(const view4 &v, F f, const float *weights, double *partial, double *out, cudaStream_t s)
{
    const int blocks = row_blocks(v);
    if constexpr (!NHWC) {
        LAUNCH((sums_nchw<T, V>), dim3(v.c, blocks), BLOCK, s, v, f, weights, partial);
    } else {
        constexpr int FEW = V > 1 ? 8 : 32, SOME = V > 1 ? 16 : 32;
        if (v.c / V <= FEW)
            sum_rows<T, V, FEW>(v, f, weights, partial, s);
        else if (v.c / V <= SOME)
            sum_rows<T, V, SOME>(v, f, weights, partial, s);
        else
            sum_rows<T, V, 32>(v, f, weights, partial, s);
    }
    LAUNCH((combine), (2 * v.c + COLUMNS - 1) / COLUMNS, BLOCK, s, v.c, blocks, partial, weights, v.n,
           (size_t)v.h * v.w, out);
}

void launch_KERNEL_BN_STATS(const k_bn_stats *a, cudaStream_t s)
{
    DISPATCH(a->v, {
        stats_of<T> f{static_cast<const T *>(a->x)};
        sums<T, V, NHWC>(a->v, f, a->weights, a->partial, a->sums, s);
    });
}

template <typename T>
static gradient<T> gradient_from(const void *x, const void *dy, const void *dy2, const void *y, const float *scale,
                                 const float *shift)
{
    return {static_cast<const T *>(x),
            static_cast<const T *>(dy),
            static_cast<const T *>(dy2),
            static_cast<const T *>(y),
            scale,
            shift};
}

void launch_KERNEL_BN_BWD_SUMS(const k_bn_bwd_sums *a, cudaStream_t s)
{
    DISPATCH(a->v, {
        bwd_sums_of<T, NHWC> f{gradient_from<T>(a->x, a->dy, a->dy2, a->y, a->scale, a->shift), a->mean,
                               static_cast<T *>(a->dz)};
        sums<T, V, NHWC>(a->v, f, a->weights, a->partial, a->sums, s);
    });
}

/* What samples of weight 0 added to a forward convolution's sums of channel c. NHWC: no other layout has these
 * patterns. */
template <typename T> __device__ static void take_out(const k_bn_gather &a, int c, double *first, double *second)
{
    const T *x = static_cast<const T *>(a.x);
    const size_t hw = (size_t)a.v.h * a.v.w;
    for (int n = 0; n < a.v.n; n++) {
        for (size_t i = 0; i < hw && !(a.weights[n] > 0); i++) {
            const double v = to_float(x[(n * hw + i) * a.v.c + c]);
            *first -= v;
            *second -= v * v;
        }
    }
}

/* A thread a channel; the weights are nearly always all 1, and then nothing is read but them. */
template <typename T> __global__ void gather(k_bn_gather a)
{
    const int c = blockIdx.x * BLOCK + threadIdx.x;
    const double samples = samples_of(a.weights, a.v.n);
    double first = 0, second = 0;
    if (c >= a.v.c)
        return;
    if (samples < a.v.n && !a.invstd)
        take_out<T>(a, c, &first, &second);
    first += a.first[c];
    second += a.second[c];
    if (a.invstd)
        second = a.invstd[c] > 0 ? second / a.invstd[c] : 0;
    a.sums[c] = first;
    a.sums[a.v.c + c] = second;
    if (c == 0)
        a.sums[2 * a.v.c] = samples * a.v.h * a.v.w;
}

void launch_KERNEL_BN_GATHER(const k_bn_gather *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->v.type, { LAUNCH((gather<T>), blocks_for(a->v.c), BLOCK, s, *a); });
}

__global__ void finalise(k_bn_finalise a)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    const double samples = samples_of(a.weights, a.n);
    if (i >= a.c)
        return;
    const double n = a.sums[2 * a.c], count = n > 0 ? n : 1, mean = a.sums[i] / count;
    double var = a.sums[a.c + i] / count - mean * mean;
    var = var < 0 ? 0 : var; /* rounding only: NaN stays */
    /* no sample counts: the output is beta */
    const float invstd = n > 0 ? (float)(1 / sqrt(var + (double)a.eps)) : 0, scale = a.gamma[i] * invstd;
    a.mean[i] = (float)mean;
    a.invstd[i] = invstd;
    a.scale[i] = scale;
    a.shift[i] = (float)(a.beta[i] - mean * scale);
    if (a.half_scale) {
        from_float(static_cast<__half *>(a.half_scale)[i], scale);
        from_float(static_cast<__half *>(a.half_shift)[i], a.shift[i]);
    }
    const float m = (float)(mean * samples), u = (float)((count > 1 ? var * count / (count - 1) : var) * samples);
    a.stat_mean[i] = a.accumulate ? a.stat_mean[i] + m : m;
    a.stat_var[i] = a.accumulate ? a.stat_var[i] + u : u;
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
    a.scale[i] = a.gamma[i] * (1 / sqrtf(a.var[i] + a.eps));
    a.shift[i] = a.beta[i] - a.mean[i] * a.scale[i];
}

void launch_KERNEL_BN_FIXED(const k_bn_fixed *a, cudaStream_t s)
{
    LAUNCH((fixed), blocks_for(a->c), BLOCK, s, *a);
}

template <typename T, int V, bool NHWC> __global__ void apply(k_bn_apply a, size_t vectors)
{
    const T *x = static_cast<const T *>(a.x), *add = static_cast<const T *>(a.add);
    T *y = static_cast<T *>(a.y);
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < vectors; i += (size_t)gridDim.x * BLOCK) {
        const int c = place_of<NHWC, V>(a.v, i).c;
        float v[V], o[V] = {};
        load<T, V>(x + i * V, v);
        if (add)
            load<T, V>(add + i * V, o);
        UNROLL
        for (int k = 0; k < V; k++) {
            const int at = c + (NHWC ? k : 0);
            v[k] = v[k] * (a.scale ? a.scale[at] : 1) + a.shift[at];
            if (add)
                v[k] += a.add_scale ? o[k] * a.add_scale[at] + a.add_shift[at] : o[k];
            if (a.relu)
                v[k] = v[k] < 0 ? 0 : v[k]; /* NaN stays */
        }
        store<T, V>(y + i * V, v);
    }
}

void launch_KERNEL_BN_APPLY(const k_bn_apply *a, cudaStream_t s)
{
    DISPATCH(a->v, {
        const size_t vectors = elements(a->v) / V;
        LAUNCH((apply<T, V, NHWC>), blocks_for(vectors), BLOCK, s, *a, vectors);
    });
}

__global__ void bwd_finalise(k_bn_bwd_finalise a)
{
    const int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i >= a.c)
        return;
    const double n = a.sums[2 * a.c], count = n > 0 ? n : 1, invstd = a.invstd[i];
    const double slope = a.gamma[i] * invstd, bend = -slope * invstd * invstd * a.sums[a.c + i] / count;
    const float dgamma = (float)(a.local[a.c + i] * invstd), dbeta = (float)a.local[i];
    a.dgamma[i] = a.accumulate ? a.dgamma[i] + dgamma : dgamma;
    a.dbeta[i] = a.accumulate ? a.dbeta[i] + dbeta : dbeta;
    a.a[i] = (float)slope;
    a.b[i] = (float)bend;
    a.k[i] = (float)(-slope * a.sums[i] / count - bend * a.mean[i]);
}

void launch_KERNEL_BN_BWD_FINALISE(const k_bn_bwd_finalise *a, cudaStream_t s)
{
    LAUNCH((bwd_finalise), blocks_for(a->c), BLOCK, s, *a);
}

template <typename T, int V, bool NHWC> __global__ void bwd_apply(k_bn_bwd_apply a, gradient<T> g, size_t vectors)
{
    T *dx = static_cast<T *>(a.dx);
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < vectors; i += (size_t)gridDim.x * BLOCK) {
        const place p = place_of<NHWC, V>(a.v, i);
        const bool counts = a.weights[p.n] > 0;
        float x[V], dz[V];
        load<T, V>(g.x + i * V, x);
        g.template operator()<V>(i * V, p.c, NHWC, x, dz);
        UNROLL
        for (int k = 0; k < V; k++) {
            const int at = p.c + (NHWC ? k : 0);
            dz[k] = counts ? a.a[at] * dz[k] + (a.b[at] * x[k] + a.k[at]) : 0;
        }
        store<T, V>(dx + i * V, dz);
    }
}

void launch_KERNEL_BN_BWD_APPLY(const k_bn_bwd_apply *a, cudaStream_t s)
{
    DISPATCH(a->v, {
        const size_t vectors = elements(a->v) / V;
        LAUNCH((bwd_apply<T, V, NHWC>), blocks_for(vectors), BLOCK, s, *a,
               gradient_from<T>(a->x, a->dy, a->dy2, a->y, a->scale, a->shift), vectors);
    });
}
