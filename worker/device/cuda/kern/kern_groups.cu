/* Convolutions in groups, channels last. Depthwise ones of square windows that move pixel by pixel have kernels of
 * their own; what cuDNN takes is its (emit_groups.c); these definitions, written out, do the rest.
 *
 *   depthwise          7x7 multiplies 49 times for each value that it reads, so multiply-adds in fp32 bound it, not
 *                      memory: ConvNeXt-T's first stage in halves, batch 256, 77 M values: 3.8 G multiply-adds, 0.11 ms
 *                      at 33 T/s, where memory would take 0.07 ms
 *   depthwise_weight   the same number
 * depthwise: a thread has two channels and computes HIGH x LONG outputs: a row of LONG + K - 1 inputs is loaded and
 * widened once for HIGH * LONG * K products of each channel. Its weights lie in shared memory, as floats. 16 threads
 * side by side take 32 channels. The gradient of the data is the same over the window turned around.
 *
 * depthwise_weight: a thread has one channel and the sums of all K * K taps, and of dy for the bias, over its strips;
 * blocks leave partial sums, which the last one of each 32 channels adds up in a fixed order. */
#include "worker/device/cuda/kern/kern_sums.cuh"

enum {
    CHANNELS = 32, /* of a block */
    PAIRS = CHANNELS / 2,
    HIGH = 2,
    LONG = 7,
    GROUP_BLOCKS = 1056,
    WEIGHT_BLOCKS = 264
};

/* A depthwise convolution by window, of any direction. */
struct window_job {
    const void *in, *filter;
    const float *bias; /* NULL: zeros */
    void *out;
    int n, c, in_h, in_w, out_h, out_w, pad_h, pad_w;
    bool turned;                      /* the window is */
    unsigned strips;                  /* of HIGH x LONG outputs */
    divider strips_image, strips_row; /* strips of an image, of a row */
};

__host__ __device__ static inline unsigned share(int size, int part)
{
    return (unsigned)((size + part - 1) / part);
}

template <typename T, int K>
__device__ __forceinline__ void take_row(const window_job &j, const T *row, int left, int c,
                                         float (&x)[LONG + K - 1][2])
{
    UNROLL
    for (int i = 0; i < LONG + K - 1; i++) {
        const int at = left + i;
        pack<T, 2> v = {};
        if (at >= 0 && at < j.in_w)
            v = fetch<T, 2>(row + (size_t)at * j.c + c);
        x[i][0] = to_float(v.at[0]);
        x[i][1] = to_float(v.at[1]);
    }
}

template <typename T, int K> __global__ void __launch_bounds__(BLOCK, 2) depthwise(window_job j)
{
    __shared__ pack<float, 2> weights[K * K][PAIRS];
    const int first = (int)blockIdx.x * CHANNELS, pair = (int)threadIdx.x % PAIRS, c = first + 2 * pair;
    for (int i = (int)threadIdx.x; i < K * K * CHANNELS; i += BLOCK) {
        const int tap = i / CHANNELS, channel = first + i % CHANNELS, from = j.turned ? K * K - 1 - tap : tap;
        weights[tap][i % CHANNELS / 2].at[i % 2] =
            channel < j.c ? to_float(static_cast<const T *>(j.filter)[(size_t)channel * K * K + from]) : 0;
    }
    __syncthreads();
    if (c >= j.c)
        return;
    const unsigned of_image = share(j.out_h, HIGH) * share(j.out_w, LONG), of_row = share(j.out_w, LONG);
    for (unsigned s = blockIdx.y * (BLOCK / PAIRS) + threadIdx.x / PAIRS; s < j.strips;
         s += gridDim.y * (BLOCK / PAIRS)) {
        const unsigned n = divide(s, j.strips_image), strip = s - n * of_image, line = divide(strip, j.strips_row);
        const int oh = (int)line * HIGH, ow = (int)(strip - line * of_row) * LONG;
        const T *in = static_cast<const T *>(j.in) + (size_t)n * j.in_h * j.in_w * j.c;
        float sum[HIGH][LONG][2];
        UNROLL
        for (int i = 0; i < HIGH * LONG * 2; i++)
            sum[i / 2 / LONG][i / 2 % LONG][i % 2] = j.bias ? j.bias[c + i % 2] : 0;
        ROLLED
        for (int r = 0; r < K + HIGH - 1; r++) {
            const int h = oh + r - j.pad_h;
            float x[LONG + K - 1][2];
            if (h < 0 || h >= j.in_h)
                continue;
            take_row<T, K>(j, in + (size_t)h * j.in_w * j.c, ow - j.pad_w, c, x);
            UNROLL
            for (int u = 0; u < HIGH; u++) {
                if (r - u < 0 || r - u >= K)
                    continue;
                UNROLL
                for (int t = 0; t < K; t++) {
                    const pack<float, 2> w = weights[(r - u) * K + t][pair];
                    UNROLL
                    for (int q = 0; q < LONG; q++) {
                        sum[u][q][0] += x[q + t][0] * w.at[0];
                        sum[u][q][1] += x[q + t][1] * w.at[1];
                    }
                }
            }
        }
        T *out = static_cast<T *>(j.out) + (size_t)n * j.out_h * j.out_w * j.c + c;
        UNROLL
        for (int u = 0; u < HIGH; u++)
            UNROLL
        for (int q = 0; q < LONG; q++)
            if (oh + u < j.out_h && ow + q < j.out_w)
                store<T, 2>(out + ((size_t)(oh + u) * j.out_w + ow + q) * j.c, sum[u][q]);
    }
}

/* Is it one of those, of K x K? */
static bool is_depthwise(const k_group_conv &a, int K)
{
    return a.groups == a.c && a.k == a.c && a.c % 2 == 0 && a.r == K && a.s == K && a.stride[0] == 1 &&
           a.stride[1] == 1 && a.pad[0] < K && a.pad[1] < K;
}

template <int K> static void run_depthwise(const k_group_conv &a, bool data, cudaStream_t s)
{
    window_job j = {.in = data ? a.y : a.x,
                    .filter = a.filter,
                    .bias = data ? nullptr : a.bias,
                    .out = a.out,
                    .n = a.n,
                    .c = a.c,
                    .in_h = data ? a.oh : a.h,
                    .in_w = data ? a.ow : a.w,
                    .out_h = data ? a.h : a.oh,
                    .out_w = data ? a.w : a.ow,
                    .pad_h = data ? K - 1 - a.pad[0] : a.pad[0],
                    .pad_w = data ? K - 1 - a.pad[1] : a.pad[1],
                    .turned = data,
                    .strips = 0,
                    .strips_image = {},
                    .strips_row = {}};
    const unsigned of_row = share(j.out_w, LONG), of_image = share(j.out_h, HIGH) * of_row,
                   columns = share(a.c, CHANNELS), at_once = BLOCK / PAIRS;
    j.strips = (unsigned)a.n * of_image;
    j.strips_image = divider_of(of_image);
    j.strips_row = divider_of(of_row);
    const unsigned blocks = shares_of((j.strips + at_once - 1) / at_once, 1, columns, GROUP_BLOCKS);
    DISPATCH_TYPE(a.type, { LAUNCH((depthwise<T, K>), dim3(columns, blocks), BLOCK, s, j); });
}

/* --- gradients of depthwise weights */

static unsigned weight_blocks(const k_group_conv &a)
{
    const unsigned strips = (unsigned)a.n * a.oh * share(a.ow, LONG), at_once = BLOCK / CHANNELS;
    return shares_of((strips + at_once - 1) / at_once, 4, share(a.c, CHANNELS), WEIGHT_BLOCKS);
}

static bool sums_by_strips(const k_group_conv &a)
{
    return is_depthwise(a, 3) || is_depthwise(a, 5) || is_depthwise(a, 7);
}

extern "C" size_t kernel_group_partial(const k_group_conv *a)
{
    return sums_by_strips(*a) ? (size_t)weight_blocks(*a) * (a->r * a->s + 1) * a->c : 0;
}

extern "C" size_t kernel_group_counters(const k_group_conv *a)
{
    return sums_by_strips(*a) ? share(a->c, CHANNELS) : 0;
}

/* Sums of the block's groups of threads, then of the blocks of these channels: taps, and dy's behind them. */
template <typename T, int K>
__device__ static void finish_weight(const k_group_conv &a, const float (&sum)[K][K], float bias, int first)
{
    constexpr int VALUES = K * K + 1;
    __shared__ double mine[VALUES][CHANNELS];
    const int lane = (int)threadIdx.x % CHANNELS, group = (int)threadIdx.x / CHANNELS;
    for (int g = 0; g < BLOCK / CHANNELS; g++) {
        if (g == group) {
            UNROLL
            for (int i = 0; i < VALUES; i++) {
                const float v = i == K * K ? bias : sum[i / K % K][i % K];
                mine[i][lane] = g == 0 ? v : mine[i][lane] + v;
            }
        }
        __syncthreads();
    }
    double *values = a.partial.values;
    const size_t row = (size_t)VALUES * a.c;
    for (int i = (int)threadIdx.x; i < VALUES * CHANNELS; i += BLOCK)
        if (first + i % CHANNELS < a.c)
            values[blockIdx.y * row + (size_t)(i / CHANNELS) * a.c + first + i % CHANNELS] =
                mine[i / CHANNELS][i % CHANNELS];
    if (!last_of(a.partial.counters + blockIdx.x, gridDim.y))
        return;
    for (int i = (int)threadIdx.x; i < VALUES * CHANNELS; i += BLOCK) {
        const int tap = i / CHANNELS, c = first + i % CHANNELS;
        if (c >= a.c)
            continue;
        const float all = (float)add_rows(values, row, 0, gridDim.y, (size_t)tap * a.c + c);
        if (tap < K * K)
            from_float(static_cast<T *>(a.out)[(size_t)c * K * K + tap], all);
        else if (a.dbias)
            a.dbias[c] = all;
    }
}

template <typename T, int K>
__global__ void __launch_bounds__(BLOCK, 2)
    depthwise_weight(k_group_conv a, unsigned strips, divider strips_row, divider rows)
{
    const int first = (int)blockIdx.x * CHANNELS, c = first + (int)threadIdx.x % CHANNELS;
    const unsigned of_row = share(a.ow, LONG), at_once = BLOCK / CHANNELS;
    float sum[K][K] = {}, bias = 0;
    for (unsigned s = blockIdx.y * at_once + threadIdx.x / CHANNELS; s < strips && c < a.c; s += gridDim.y * at_once) {
        const unsigned line = divide(s, strips_row), n = divide(line, rows);
        const int ow = (int)(s - line * of_row) * LONG, oh = (int)(line - n * (unsigned)a.oh);
        const T *y = static_cast<const T *>(a.y) + ((size_t)line * a.ow + ow) * a.c + c;
        float dy[LONG];
        UNROLL
        for (int q = 0; q < LONG; q++) {
            dy[q] = ow + q < a.ow ? to_float(y[(size_t)q * a.c]) : 0;
            bias += dy[q];
        }
        UNROLL
        for (int r = 0; r < K; r++) {
            const int h = oh + r - a.pad[0];
            if (h < 0 || h >= a.h)
                continue;
            const T *row = static_cast<const T *>(a.x) + ((size_t)n * a.h + h) * a.w * a.c + c;
            float x[LONG + K - 1];
            UNROLL
            for (int i = 0; i < LONG + K - 1; i++) {
                const int at = ow - a.pad[1] + i;
                x[i] = at >= 0 && at < a.w ? to_float(row[(size_t)at * a.c]) : 0;
            }
            UNROLL
            for (int t = 0; t < K; t++)
                UNROLL
            for (int q = 0; q < LONG; q++)
                sum[r][t] += x[q + t] * dy[q];
        }
    }
    finish_weight<T, K>(a, sum, bias, first);
}

template <int K> static void run_weight(const k_group_conv &a, cudaStream_t s)
{
    const unsigned of_row = share(a.ow, LONG), strips = (unsigned)a.n * a.oh * of_row;
    DISPATCH_TYPE(a.type, {
        LAUNCH((depthwise_weight<T, K>), dim3(share(a.c, CHANNELS), weight_blocks(a)), BLOCK, s, a, strips,
               divider_of(of_row), divider_of((uint32_t)a.oh));
    });
}

/* --- any shape, by definition */

template <typename T> __global__ void group_forward(k_group_conv a)
{
    const T *x = static_cast<const T *>(a.x), *filter = static_cast<const T *>(a.filter);
    const size_t n = (size_t)a.n * a.oh * a.ow * a.k;
    const int cg = a.c / a.groups, kg = a.k / a.groups;
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < n; i += (size_t)gridDim.x * BLOCK) {
        const int k = (int)(i % a.k), ow = (int)(i / a.k % a.ow), oh = (int)(i / a.k / a.ow % a.oh);
        const size_t image = i / a.k / a.ow / a.oh;
        float sum = a.bias ? a.bias[k] : 0;
        for (int r = 0; r < a.r; r++)
            for (int s = 0; s < a.s; s++) {
                const int h = oh * a.stride[0] - a.pad[0] + r, w = ow * a.stride[1] - a.pad[1] + s;
                if (h < 0 || h >= a.h || w < 0 || w >= a.w)
                    continue;
                const T *from = x + ((image * a.h + h) * a.w + w) * a.c + k / kg * cg,
                        *by = filter + (((size_t)k * a.r + r) * a.s + s) * cg;
                for (int c = 0; c < cg; c++)
                    sum += to_float(from[c]) * to_float(by[c]);
            }
        from_float(static_cast<T *>(a.out)[i], sum);
    }
}

template <typename T> __global__ void group_data(k_group_conv a)
{
    const T *y = static_cast<const T *>(a.y), *filter = static_cast<const T *>(a.filter);
    const size_t n = (size_t)a.n * a.h * a.w * a.c;
    const int cg = a.c / a.groups, kg = a.k / a.groups;
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < n; i += (size_t)gridDim.x * BLOCK) {
        const int c = (int)(i % a.c), w = (int)(i / a.c % a.w), h = (int)(i / a.c / a.w % a.h);
        const size_t image = i / a.c / a.w / a.h;
        float sum = 0;
        for (int r = 0; r < a.r; r++)
            for (int s = 0; s < a.s; s++) {
                const int down = h + a.pad[0] - r, right = w + a.pad[1] - s;
                if (down < 0 || down % a.stride[0] || down / a.stride[0] >= a.oh || right < 0 || right % a.stride[1] ||
                    right / a.stride[1] >= a.ow)
                    continue;
                const size_t at = ((image * a.oh + down / a.stride[0]) * a.ow + right / a.stride[1]) * a.k;
                for (int k = c / cg * kg; k < (c / cg + 1) * kg; k++)
                    sum += to_float(y[at + k]) * to_float(filter[(((size_t)k * a.r + r) * a.s + s) * cg + c % cg]);
            }
        from_float(static_cast<T *>(a.out)[i], sum);
    }
}

/* A block makes one weight's gradient, or, behind them, one bias'. */
template <typename T> __global__ void group_weight(k_group_conv a, unsigned weights)
{
    const T *x = static_cast<const T *>(a.x), *y = static_cast<const T *>(a.y);
    const int cg = a.c / a.groups, kg = a.k / a.groups;
    const bool of_bias = blockIdx.x >= weights;
    const unsigned place = blockIdx.x / cg;
    const int k = (int)(of_bias ? blockIdx.x - weights : place / a.s / a.r), s = (int)(place % a.s),
              r = (int)(place / a.s % a.r), c = k / kg * cg + (int)(blockIdx.x % cg);
    float sum = 0;
    for (unsigned i = threadIdx.x; i < (unsigned)(a.n * a.oh * a.ow); i += BLOCK) {
        const int ow = (int)(i % a.ow), oh = (int)(i / a.ow % a.oh), image = (int)(i / a.ow / a.oh);
        const int h = oh * a.stride[0] - a.pad[0] + r, w = ow * a.stride[1] - a.pad[1] + s;
        const float dy = to_float(y[(size_t)i * a.k + k]);
        if (of_bias)
            sum += dy;
        else if (h >= 0 && h < a.h && w >= 0 && w < a.w)
            sum += dy * to_float(x[(((size_t)image * a.h + h) * a.w + w) * a.c + c]);
    }
    const double all = block_sum((double)sum);
    if (threadIdx.x > 0)
        return;
    if (of_bias)
        a.dbias[k] = (float)all;
    else
        from_float(static_cast<T *>(a.out)[blockIdx.x], (float)all);
}

/* --- launchers */

void launch_KERNEL_GROUP_CONV(const k_group_conv *a, cudaStream_t s)
{
    if (is_depthwise(*a, 7))
        run_depthwise<7>(*a, false, s);
    else if (is_depthwise(*a, 5))
        run_depthwise<5>(*a, false, s);
    else if (is_depthwise(*a, 3))
        run_depthwise<3>(*a, false, s);
    else
        DISPATCH_TYPE(a->type,
                      { LAUNCH((group_forward<T>), blocks_for((size_t)a->n * a->oh * a->ow * a->k), BLOCK, s, *a); });
}

void launch_KERNEL_GROUP_CONV_DATA(const k_group_conv *a, cudaStream_t s)
{
    if (is_depthwise(*a, 7))
        run_depthwise<7>(*a, true, s);
    else if (is_depthwise(*a, 5))
        run_depthwise<5>(*a, true, s);
    else if (is_depthwise(*a, 3))
        run_depthwise<3>(*a, true, s);
    else
        DISPATCH_TYPE(a->type,
                      { LAUNCH((group_data<T>), blocks_for((size_t)a->n * a->h * a->w * a->c), BLOCK, s, *a); });
}

void launch_KERNEL_GROUP_CONV_WEIGHT(const k_group_conv *a, cudaStream_t s)
{
    const unsigned weights = (unsigned)a->k * a->r * a->s * (a->c / a->groups);
    if (is_depthwise(*a, 7))
        run_weight<7>(*a, s);
    else if (is_depthwise(*a, 5))
        run_weight<5>(*a, s);
    else if (is_depthwise(*a, 3))
        run_weight<3>(*a, s);
    else
        DISPATCH_TYPE(a->type,
                      { LAUNCH((group_weight<T>), weights + (a->dbias ? (unsigned)a->k : 0), BLOCK, s, *a, weights); });
}
