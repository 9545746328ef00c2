/* Sums of batch norm, and of a scale's gradient: one pass over the activation, fp32 in a thread, doubles between
 * blocks.
 *
 * Of a view of B bytes (H200, 4.3 TB/s measured):
 *   bn_stats       reads B                               stem of ResNet-50 fp16, batch 256: 0.41 GB, 106 us
 *   bn_bwd_sums    reads 2 B to 3 B + a mask, writes 0 or B (dz)     a block end of its layer1: 1.67 GB, 0.43 ms
 * Grid: columns of LANES * V channels x blocks of 256 threads, two or three a multiprocessor (132), which are all
 * resident. What keeps memory busy is bytes on their way: 48 KB a multiprocessor (kern_bn_apply.cu). 768 threads with 2
 * rows of 2 loads of 16 bytes have those, 512 with 2 rows of 3 to 4 loads 48 to 65 KB (stats alone: 768 with 4 rows).
 * No index is divided: a row's sample is a multiplication away.
 */
#include "worker/device/cuda/kern/kern_sums.cuh"

enum { COLUMNS = 8, SHARES = BLOCK / COLUMNS };

extern "C" size_t kernel_partial(const view4 *v)
{
    return (size_t)(most_shares(*v) + groups_of(most_shares(*v))) * SUMS_MAX * v->c;
}

extern "C" size_t kernel_counters(const view4 *v)
{
    return (size_t)columns_of(*v, channels_of(*v)) * (groups_of(most_shares(*v)) + 1);
}

extern "C" size_t kernel_mask(const view4 *v)
{
    return elements(*v) / width_of(*v);
}

/* What is summed for an element: N values. BLOCKS: of a multiprocessor. */
template <typename T> struct stats_of {
    enum { N = 2, DEEP = 4, BLOCKS = 3 };
    const T *x;
    template <int V> struct raw {
        pack<T, V> x;
    };
    template <int V> struct held {
    };
    template <int V, bool NHWC> __device__ void begin(int, held<V> &) const
    {
    }
    template <int V> __device__ raw<V> get(size_t at) const
    {
        return {fetch<T, V>(x + at)};
    }
    template <int V> __device__ void sum(size_t, const held<V> &, const raw<V> &r, bool counts, float (&s)[N][V]) const
    {
        UNROLL
        for (int i = 0; i < V; i++) {
            const float a = to_float(r.x.at[i]);
            s[0][i] += counts ? a : 0;
            s[1][i] += counts ? a * a : 0;
        }
    }
};

template <typename T, bool TWO, bool MORE> struct bwd_sums_of {
    enum { N = TWO ? 3 : 2, DEEP = 2, BLOCKS = TWO || MORE ? 2 : 3 };
    k_bn_gradient g;
    const T *x, *x2;
    const float *mean, *mean2;
    T *dz;
    template <int V> struct raw {
        pack<T, V> x;
        pack<T, TWO ? V : 1> x2;
        incoming<T, V, MORE> in;
    };
    template <int V> struct held {
        float mean[V], mean2[TWO ? V : 1];
    };
    template <int V, bool NHWC> __device__ void begin(int c, held<V> &h) const
    {
        spread<V, NHWC>(mean + c, h.mean);
        if constexpr (TWO)
            spread<V, NHWC>(mean2 + c, h.mean2);
    }
    template <int V> __device__ raw<V> get(size_t at) const
    {
        raw<V> r = {};
        r.x = fetch<T, V>(x + at);
        if constexpr (TWO)
            r.x2 = fetch<T, V>(x2 + at);
        r.in = fetch_gradient<T, V, MORE>(g, at);
        return r;
    }
    template <int V>
    __device__ void sum(size_t at, const held<V> &h, const raw<V> &r, bool counts, float (&s)[N][V]) const
    {
        float d[V];
        form_gradient<T, V, MORE>(g, r.in, d);
        if (dz) { /* also where it counts nothing; what others will read is what is summed */
            pack<T, V> out;
            UNROLL
            for (int i = 0; i < V; i++) {
                from_float(out.at[i], d[i]);
                d[i] = to_float(out.at[i]);
            }
            *reinterpret_cast<pack<T, V> *>(dz + at) = out;
        }
        UNROLL
        for (int i = 0; i < V; i++) {
            s[0][i] += counts ? d[i] : 0;
            s[1][i] += counts ? d[i] * (to_float(r.x.at[i]) - h.mean[i]) : 0;
            if constexpr (TWO)
                s[2][i] += counts ? d[i] * (to_float(r.x2.at[i]) - h.mean2[i]) : 0;
        }
    }
};

/* bwd_sums_of where dy is that of the planes' means: a pixel's share, rounded as if it were stored. */
template <typename T> struct mean_sums_of {
    enum { N = 2, DEEP = 2, BLOCKS = 2 };
    bwd_sums_of<T, false, false> of;
    divider sample, row; /* of n * h * w * c elements; of c */
    unsigned channels;
    float share;
    template <int V> using raw = typename bwd_sums_of<T, false, false>::template raw<V>;
    template <int V> using held = typename bwd_sums_of<T, false, false>::template held<V>;
    template <int V, bool NHWC> __device__ void begin(int c, held<V> &h) const
    {
        of.template begin<V, NHWC>(c, h);
    }
    template <int V> __device__ raw<V> get(size_t at) const
    {
        const unsigned i = (unsigned)at, c = i - divide(i, row) * channels;
        raw<V> r = {};
        r.x = fetch<T, V>(of.x + at);
        r.in.dy = fetch<T, V>(static_cast<const T *>(of.g.dy) + divide(i, sample) * channels + c);
        if (of.g.mask)
            r.in.mask = of.g.mask[at / V];
        return r;
    }
    template <int V>
    __device__ void sum(size_t at, const held<V> &h, const raw<V> &r, bool counts, float (&s)[N][V]) const
    {
        raw<V> mine = r;
        UNROLL
        for (int i = 0; i < V; i++)
            from_float(mine.in.dy.at[i], to_float(r.in.dy.at[i]) * share);
        of.template sum<V>(at, h, mine, counts, s);
    }
};

template <typename T, int V, typename F>
__global__ void __launch_bounds__(BLOCK, F::BLOCKS) sums_nhwc(F f, sink to, int lanes, unsigned rows, divider hw)
{
    constexpr int N = F::N, DEEP = F::DEEP;
    __shared__ float part[BLOCK * N * V];
    __shared__ double mine[N * LANES_MAX * V];
    const tile t = tile_of(lanes);
    const int c = (blockIdx.x * lanes + t.lane) * V;
    float s[N][V] = {};
    if (c < to.c) {
        typename F::template held<V> h;
        f.template begin<V, true>(c, h);
        for (unsigned r = blockIdx.y * t.rows * DEEP + t.row; r < rows; r += gridDim.y * t.rows * DEEP) {
            typename F::template raw<V> raw[DEEP];
            float w[DEEP] = {};
            UNROLL
            for (int u = 0; u < DEEP; u++) {
                if (r + u * t.rows >= rows)
                    break;
                raw[u] = f.template get<V>((size_t)(r + u * t.rows) * to.c + c);
                w[u] = to.weights ? to.weights[divide(r + u * t.rows, hw)] : 1;
            }
            UNROLL
            for (int u = 0; u < DEEP; u++) {
                if (r + u * t.rows >= rows)
                    break;
                f.template sum<V>((size_t)(r + u * t.rows) * to.c + c, h, raw[u], w[u] > 0, s);
            }
        }
    }
    add_threads<N, V>(t, s, part, mine);
    finish<N>(to, mine, lanes * V, blockIdx.x * lanes * V);
}

/* A block takes planes of one channel, of every gridDim.y-th sample. */
template <typename T, int V, typename F>
__global__ void __launch_bounds__(BLOCK) sums_nchw(F f, sink to, unsigned plane)
{
    constexpr int N = F::N;
    __shared__ double mine[N];
    const int c = blockIdx.x;
    typename F::template held<V> h;
    double sum[N] = {};
    f.template begin<V, false>(c, h);
    for (int n = blockIdx.y; n < to.n; n += gridDim.y) {
        const bool counts = !to.weights || to.weights[n] > 0;
        float s[N][V] = {};
        for (unsigned i = threadIdx.x; i < plane / V; i += BLOCK) {
            const size_t at = ((size_t)n * to.c + c) * plane + i * V;
            f.template sum<V>(at, h, f.template get<V>(at), counts, s);
        }
        UNROLL
        for (int k = 0; k < N; k++)
            UNROLL
        for (int i = 0; i < V; i++)
            sum[k] += s[k][i];
    }
    for (int k = 0; k < N; k++) {
        const double all = block_sum(sum[k]);
        if (threadIdx.x == 0)
            mine[k] = all;
    }
    finish<N>(to, mine, 1, c);
}

template <typename T, int V, bool NHWC, typename F>
static void sums(const view4 &v, F f, const sink &to, cudaStream_t s)
{
    const unsigned y = shares(v, F::BLOCKS * SUM_UNITS);
    if constexpr (!NHWC) {
        LAUNCH((sums_nchw<T, V>), dim3(v.c, y), BLOCK, s, f, to, (unsigned)(v.h * v.w));
    } else {
        LAUNCH((sums_nhwc<T, V>), dim3(columns_of(v, channels_of(v)), y), BLOCK, s, f, to, lanes_of(v), rows_of(v),
               divider_of((uint32_t)(v.h * v.w)));
    }
}

void launch_KERNEL_BN_STATS(const k_bn_stats *a, cudaStream_t s)
{
    const sink to = {a->partial, a->sums, nullptr, a->weights, a->v.n, a->v.c, (double)a->v.h * a->v.w};
    DISPATCH(a->v, {
        stats_of<T> f{static_cast<const T *>(a->x)};
        sums<T, V, NHWC>(a->v, f, to, s);
    });
}

/* For vectors of 16 bytes alone: kernel_means(). */
static void mean_sums(const k_bn_bwd_sums *a, const sink &to, cudaStream_t s)
{
    const uint32_t hw = (uint32_t)(a->v.h * a->v.w), c = (uint32_t)a->v.c;
    DISPATCH_TYPE(a->v.type, {
        constexpr int V = 16 / (int)sizeof(T);
        mean_sums_of<T> f{{a->g, static_cast<const T *>(a->x), nullptr, a->mean, nullptr, static_cast<T *>(a->dz)},
                          divider_of(hw * c),
                          divider_of(c),
                          c,
                          1.0f / hw};
        sums<T, V, true>(a->v, f, to, s);
    });
}

void launch_KERNEL_BN_BWD_SUMS(const k_bn_bwd_sums *a, cudaStream_t s)
{
    const sink to = {a->partial, a->sums, a->sums2, a->weights, a->v.n, a->v.c, (double)a->v.h * a->v.w};
    if (a->g.index) {
        launch_bn_pool_sums(a, s);
        return;
    }
    if (a->g.mean) {
        mean_sums(a, to, s);
        return;
    }
    DISPATCH(a->v, {
        const T *x = static_cast<const T *>(a->x), *x2 = static_cast<const T *>(a->x2);
        T *dz = static_cast<T *>(a->dz);
        constexpr bool ONE_FORM = V == 1 || !NHWC; /* of odd shapes */
        if (x2 && (ONE_FORM || needs_more(a->g))) {
            bwd_sums_of<T, true, true> f{a->g, x, x2, a->mean, a->mean2, dz};
            sums<T, V, NHWC>(a->v, f, to, s);
        } else if (x2) {
            bwd_sums_of<T, true, ONE_FORM> f{a->g, x, x2, a->mean, a->mean2, dz};
            sums<T, V, NHWC>(a->v, f, to, s);
        } else if (ONE_FORM || needs_more(a->g)) {
            bwd_sums_of<T, false, true> f{a->g, x, nullptr, a->mean, nullptr, dz};
            sums<T, V, NHWC>(a->v, f, to, s);
        } else {
            bwd_sums_of<T, false, ONE_FORM> f{a->g, x, nullptr, a->mean, nullptr, dz};
            sums<T, V, NHWC>(a->v, f, to, s);
        }
    });
}

/* The gradient of a scale of channels, with that of the data on the way: reads 2 B, writes B. NHWC. */
template <typename T> struct scale_sums_of {
    enum { N = 2, DEEP = 2, BLOCKS = 3 };
    const T *x, *dy;
    const float *by;
    T *dx;
    template <int V> struct raw {
        pack<T, V> x, dy;
    };
    template <int V> struct held {
        float by[V];
    };
    template <int V, bool NHWC> __device__ void begin(int c, held<V> &h) const
    {
        spread<V, NHWC>(by + c, h.by);
    }
    template <int V> __device__ raw<V> get(size_t at) const
    {
        return {fetch<T, V>(x + at), fetch<T, V>(dy + at)};
    }
    template <int V> __device__ void sum(size_t at, const held<V> &h, const raw<V> &r, bool, float (&s)[N][V]) const
    {
        pack<T, V> out;
        UNROLL
        for (int i = 0; i < V; i++) {
            const float d = to_float(r.dy.at[i]);
            s[0][i] += d * to_float(r.x.at[i]);
            from_float(out.at[i], d * h.by[i]);
        }
        if (dx)
            *reinterpret_cast<pack<T, V> *>(dx + at) = out;
    }
};

void launch_KERNEL_SCALE_BWD(const k_scale_bwd *a, cudaStream_t s)
{
    const sink to = {a->partial, a->sums, nullptr, nullptr, a->v.n, a->v.c, (double)a->v.h * a->v.w};
    DISPATCH_TYPE(a->v.type, {
        constexpr int WIDE = 16 / (int)sizeof(T);
        scale_sums_of<T> f{static_cast<const T *>(a->x), static_cast<const T *>(a->dy), a->by, static_cast<T *>(a->dx)};
        if (wide(a->v))
            sums<T, WIDE, true>(a->v, f, to, s);
        else
            sums<T, 1, true>(a->v, f, to, s);
    });
}

/* What samples of weight 0 added to a forward convolution's sums of channel c, this share of their pixels. */
template <typename T>
__device__ static void take_out(const k_bn_gather &a, int c, int share, double *first, double *second)
{
    const T *x = static_cast<const T *>(a.x);
    const size_t hw = (size_t)a.v.h * a.v.w;
    for (int n = 0; n < a.v.n; n++) {
        for (size_t i = share; i < hw && !(a.weights[n] > 0); i += SHARES) {
            const double v = to_float(x[(n * hw + i) * a.v.c + c]);
            *first -= v;
            *second -= v * v;
        }
    }
}

/* A block takes COLUMNS channels, SHARES threads each. The weights are nearly always all 1, and then nothing is read
 * but them. NHWC: no other layout has these patterns. */
template <typename T> __global__ void gather(k_bn_gather a)
{
    __shared__ double part[2][SHARES][COLUMNS];
    const int column = threadIdx.x % COLUMNS, share = threadIdx.x / COLUMNS, c = blockIdx.x * COLUMNS + column;
    const double samples = samples_of(a.weights, a.v.n);
    double first = 0, second = 0;
    if (c < a.v.c && samples < a.v.n && !a.invstd)
        take_out<T>(a, c, share, &first, &second);
    part[0][share][column] = first;
    part[1][share][column] = second;
    __syncthreads();
    if (share > 0 || c >= a.v.c)
        return;
    first = a.first[c];
    second = a.second[c];
    for (int k = 0; k < SHARES; k++) {
        first += part[0][k][column];
        second += part[1][k][column];
    }
    if (a.invstd)
        second = a.invstd[c] > 0 ? second / a.invstd[c] : 0;
    a.sums[c] = first;
    a.sums[a.v.c + c] = second;
    if (c == 0)
        a.sums[2 * a.v.c] = samples * a.v.h * a.v.w;
}

void launch_KERNEL_BN_GATHER(const k_bn_gather *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->v.type, { LAUNCH((gather<T>), columns_of(a->v, COLUMNS), BLOCK, s, *a); });
}
