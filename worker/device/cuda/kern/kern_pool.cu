/* Input, sums, ReLU's gradient, pooling. Pooling's backward passes gather: each gradient is written once, by one
 * thread. */
#include "worker/device/cuda/kern/kern.cuh"
#include "worker/device/fold.h"

/* v[c] without an address: an array of the arguments that is indexed is copied into local memory. */
__device__ __forceinline__ float of_channel(const float (&v)[4], int c)
{
    return c == 0 ? v[0] : c == 1 ? v[1] : c == 2 ? v[2] : v[3];
}

template <typename T> __global__ void input(k_input a, size_t n)
{
    T *y = static_cast<T *>(a.out);
    const int c_all = a.y.c, hw = a.y.h * a.y.w;
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < n; i += (size_t)gridDim.x * BLOCK) {
        const int c = a.y.nhwc ? (int)(i % c_all) : (int)(i / hw % c_all);
        const size_t image = i / ((size_t)c_all * hw), at = a.y.nhwc ? i / c_all % hw : i % hw;
        float v = 0;
        if (c < a.channels)
            v = (a.images[(image * hw + at) * a.channels + c] / 255.0f - of_channel(a.mean, c)) / of_channel(a.std, c);
        from_float(y[i], v);
    }
}

/* The usual case without a division: a thread a pixel, C channels with padding. */
template <typename T, int C> __global__ void input_nhwc(k_input a, size_t pixels)
{
    T *y = static_cast<T *>(a.out);
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < pixels; i += (size_t)gridDim.x * BLOCK) {
        float v[C];
        UNROLL
        for (int c = 0; c < C; c++)
            v[c] = c < 4 && c < a.channels ? (a.images[i * a.channels + c] / 255.0f - a.mean[c % 4]) / a.std[c % 4] : 0;
        store<T, C>(y + i * C, v);
    }
}

/* Pixels put together, and zeros around them (device/fold.h): a thread two pixels of a row, V channels, 16 bytes of
 * halves, so that a warp writes 512 in a run. Each byte of the images is read once, each of the result written. */
template <typename T, int V> __global__ void input_folded(k_input a, divider rows, divider columns, unsigned pairs)
{
    T *y = static_cast<T *>(a.out);
    for (unsigned i = blockIdx.x * BLOCK + threadIdx.x; i < pairs; i += gridDim.x * BLOCK) {
        const unsigned pixel = i / 2, row = divide(pixel, columns), image = divide(row, rows);
        const int h = 2 * ((int)(row - image * a.y.h) - a.fold.top) + (int)(i % 2),
                  w = 2 * ((int)(pixel - row * a.y.w) - a.fold.left);
        const bool inside = (unsigned)h < (unsigned)a.fold.h && (unsigned)w < (unsigned)a.fold.w;
        const size_t first = inside ? ((size_t)image * a.fold.h + h) * a.fold.w + w : 0;
        const uint8_t *from = a.images + first * a.channels;
        uint8_t bytes[V]; /* all of them on their way before the first is used */
        float v[V];
        UNROLL
        for (int k = 0; k < V; k++)
            bytes[k] =
                inside && k % FOLD_CHANNELS < a.channels ? from[k / FOLD_CHANNELS * a.channels + k % FOLD_CHANNELS] : 0;
        UNROLL
        for (int k = 0; k < V; k++) {
            const int c = k % FOLD_CHANNELS;
            v[k] = inside && c < a.channels ? (bytes[k] / 255.0f - a.mean[c]) / a.std[c] : 0;
        }
        store<T, V>(y + (size_t)i * V, v);
    }
}

__device__ __forceinline__ bool within(const batch_box &b, int x, int y)
{
    return x >= b.x0 && x < b.x1 && y >= b.y0 && y < b.y1;
}

/* Byte `at` of a picture as a number. */
__device__ __forceinline__ float number(const k_input &a, const uint8_t *at, int c)
{
    return (*at / 255.0f - of_channel(a.mean, c)) / of_channel(a.std, c);
}

/* Channel c of pixel (x, y) of picture `image`, of h x w pixels, erased and mixed. */
__device__ __forceinline__ float mixed(const k_input &a, size_t image, int h, int w, int x, int y, int c)
{
    const batch_mix m = a.mix[image];
    const size_t row = (size_t)h * w * a.channels;
    const uint8_t *own = a.images + image * row + ((size_t)y * w + x) * a.channels + c;
    const float v = within(m.erase, x, y) ? 0 : number(a, own, c);
    if (m.partner == 0)
        return v;
    const uint8_t *other = own + (int64_t)m.partner * (int64_t)row;
    const float u = within(a.mix[(int64_t)image + m.partner].erase, x, y) ? 0 : number(a, other, c);
    return within(m.box, x, y) ? u : m.keep * v + (1 - m.keep) * u;
}

/* Pictures that are erased and mixed, in all three layouts: a thread an element, of a tensor that is read from two
 * pictures and written once a step. */
template <typename T> __global__ void input_mixed(k_input a, size_t n)
{
    T *out = static_cast<T *>(a.out);
    const int c_all = a.y.c, hw = a.y.h * a.y.w, folded = a.fold.h ? 1 : 0;
    const int h = folded ? a.fold.h : a.y.h, w = folded ? a.fold.w : a.y.w;
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < n; i += (size_t)gridDim.x * BLOCK) {
        const size_t image = i / ((size_t)c_all * hw);
        int c = a.y.nhwc ? (int)(i % c_all) : (int)(i / hw % c_all), at = (int)(a.y.nhwc ? i / c_all % hw : i % hw);
        int y = at / a.y.w, x = at % a.y.w;
        if (folded) {
            y = 2 * (y - a.fold.top) + c / (2 * FOLD_CHANNELS);
            x = 2 * (x - a.fold.left) + c / FOLD_CHANNELS % 2;
            c %= FOLD_CHANNELS;
        }
        const bool inside = (unsigned)y < (unsigned)h && (unsigned)x < (unsigned)w && c < a.channels;
        from_float(out[i], inside ? mixed(a, image, h, w, x, y, c) : 0);
    }
}

static void launch_folded(const k_input *a, cudaStream_t s)
{
    constexpr int V = 2 * FOLD_CHANNELS;
    const unsigned pairs = (unsigned)(elements(a->y) / V);
    const divider rows = divider_of((uint32_t)a->y.h), columns = divider_of((uint32_t)a->y.w);
    DISPATCH_TYPE(a->y.type, { LAUNCH((input_folded<T, V>), blocks_for(pairs), BLOCK, s, *a, rows, columns, pairs); });
}

void launch_KERNEL_INPUT(const k_input *a, cudaStream_t s)
{
    const size_t n = elements(a->y), pixels = n / a->y.c;
    if (a->mix) {
        DISPATCH_TYPE(a->y.type, { LAUNCH((input_mixed<T>), blocks_for(n), BLOCK, s, *a, n); });
        return;
    }
    if (a->fold.h) {
        launch_folded(a, s);
        return;
    }
    DISPATCH_TYPE(a->y.type, {
        if (a->y.nhwc && a->y.c == 4)
            LAUNCH((input_nhwc<T, 4>), blocks_for(pixels), BLOCK, s, *a, pixels);
        else if (a->y.nhwc && a->y.c == 8)
            LAUNCH((input_nhwc<T, 8>), blocks_for(pixels), BLOCK, s, *a, pixels);
        else
            LAUNCH((input<T>), blocks_for(n), BLOCK, s, *a, n);
    });
}

template <typename T, int V, bool BACKWARD> __global__ void eltwise(k_eltwise e, size_t vectors)
{
    const T *a = static_cast<const T *>(e.a), *b = static_cast<const T *>(e.b);
    T *y = static_cast<T *>(e.y);
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < vectors; i += (size_t)gridDim.x * BLOCK) {
        float u[V], v[V] = {};
        load<T, V>(a + i * V, u);
        if (b)
            load<T, V>(b + i * V, v);
        UNROLL
        for (int k = 0; k < V; k++) {
            if (BACKWARD) {
                u[k] = u[k] > 0 ? v[k] : 0;
                continue;
            }
            u[k] += b ? v[k] : 0;
            u[k] = e.relu && u[k] < 0 ? 0 : u[k];
        }
        store<T, V>(y + i * V, u);
    }
}

template <bool BACKWARD> static void run_eltwise(const k_eltwise *a, cudaStream_t s)
{
    DISPATCH_TYPE(a->type, {
        constexpr int WIDE = 16 / (int)sizeof(T);
        if (a->n % WIDE == 0)
            LAUNCH((eltwise<T, WIDE, BACKWARD>), blocks_for(a->n / WIDE), BLOCK, s, *a, a->n / WIDE);
        else
            LAUNCH((eltwise<T, 1, BACKWARD>), blocks_for(a->n), BLOCK, s, *a, a->n);
    });
}

void launch_KERNEL_ADD(const k_eltwise *a, cudaStream_t s)
{
    run_eltwise<false>(a, s);
}

void launch_KERNEL_RELU_BWD(const k_eltwise *a, cudaStream_t s)
{
    run_eltwise<true>(a, s);
}

/* An element of a view by its number, and back. */
struct where {
    int n, c, h, w;
};
template <bool NHWC> __device__ __forceinline__ where where_of(const view4 &v, size_t i)
{
    where p;
    if (NHWC) {
        p.c = (int)(i % v.c), i /= v.c;
        p.w = (int)(i % v.w), i /= v.w;
        p.h = (int)(i % v.h);
        p.n = (int)(i / v.h);
    } else {
        p.w = (int)(i % v.w), i /= v.w;
        p.h = (int)(i % v.h), i /= v.h;
        p.c = (int)(i % v.c);
        p.n = (int)(i / v.c);
    }
    return p;
}
template <bool NHWC> __device__ __forceinline__ size_t index_of(const view4 &v, int n, int c, int h, int w)
{
    return NHWC ? (((size_t)n * v.h + h) * v.w + w) * v.c + c : (((size_t)n * v.c + c) * v.h + h) * v.w + w;
}

/* V neighbouring channels (NHWC) or one element (NCHW). A NaN wins, as does the first of equals. */
template <typename T, int V, bool NHWC> __global__ void maxpool(k_pool a, size_t vectors)
{
    const T *x = static_cast<const T *>(a.in);
    T *y = static_cast<T *>(a.out);
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < vectors; i += (size_t)gridDim.x * BLOCK) {
        const where p = where_of<NHWC>(a.y, i * V);
        float best[V] = {}, v[V];
        pack<uint8_t, V> won = {};
        bool any = false;
        for (int r = 0; r < a.kh; r++) {
            for (int q = 0; q < a.kw; q++) {
                const int h = p.h * a.sh - a.ph + r, w = p.w * a.sw - a.pw + q;
                if (h < 0 || h >= a.x.h || w < 0 || w >= a.x.w)
                    continue;
                load<T, V>(x + index_of<NHWC>(a.x, p.n, p.c, h, w), v);
                UNROLL
                for (int k = 0; k < V; k++) {
                    if (!any || v[k] > best[k] || (v[k] != v[k] && best[k] == best[k])) {
                        best[k] = v[k];
                        won.at[k] = (uint8_t)(r * a.kw + q);
                    }
                }
                any = true;
            }
        }
        store<T, V>(y + i * V, best);
        if (a.index)
            *reinterpret_cast<pack<uint8_t, V> *>(a.index + i * V) = won;
    }
}

/* The windows that an element lies in: of one dimension, [first, end). */
struct windows {
    int first, end;
};
__device__ __forceinline__ windows windows_of(int at, int kernel, int stride, int pad, int count, divider by)
{
    const int from = at + pad - kernel + 1, last = (int)divide((uint32_t)(at + pad), by);
    return {from <= 0 ? 0 : (int)divide((uint32_t)(from + stride - 1), by), last < count ? last + 1 : count};
}

template <typename T, int V, bool NHWC> __global__ void maxpool_bwd(k_pool a, size_t vectors, divider sh, divider sw)
{
    const T *dy = static_cast<const T *>(a.in);
    T *dx = static_cast<T *>(a.out);
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < vectors; i += (size_t)gridDim.x * BLOCK) {
        const where p = where_of<NHWC>(a.x, i * V);
        const windows by_h = windows_of(p.h, a.kh, a.sh, a.ph, a.y.h, sh),
                      by_w = windows_of(p.w, a.kw, a.sw, a.pw, a.y.w, sw);
        float sum[V] = {}, g[V];
        for (int h = by_h.end - 1; h >= by_h.first; h--) {
            for (int w = by_w.end - 1; w >= by_w.first; w--) { /* in each, this element's number */
                const int number = (p.h + a.ph - h * a.sh) * a.kw + p.w + a.pw - w * a.sw;
                const size_t at = index_of<NHWC>(a.y, p.n, p.c, h, w);
                const pack<uint8_t, V> won = *reinterpret_cast<const pack<uint8_t, V> *>(a.index + at);
                load<T, V>(dy + at, g);
                UNROLL
                for (int k = 0; k < V; k++)
                    sum[k] += won.at[k] == number ? g[k] : 0;
            }
        }
        store<T, V>(dx + i * V, sum);
    }
}

/* NCHW rows are taken one element at a time: neighbours of a window are not V apart. */
#define DISPATCH_POOL(v, ...)                                                                                          \
    DISPATCH_TYPE((v).type, {                                                                                          \
        constexpr int WIDE = 16 / (int)sizeof(T);                                                                      \
        if ((v).nhwc && (v).c % WIDE == 0) {                                                                           \
            constexpr bool NHWC = true;                                                                                \
            constexpr int V = WIDE;                                                                                    \
            __VA_ARGS__                                                                                                \
        } else if ((v).nhwc) {                                                                                         \
            constexpr bool NHWC = true;                                                                                \
            constexpr int V = 1;                                                                                       \
            __VA_ARGS__                                                                                                \
        } else {                                                                                                       \
            constexpr bool NHWC = false;                                                                               \
            constexpr int V = 1;                                                                                       \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    })

void launch_KERNEL_MAXPOOL(const k_pool *a, cudaStream_t s)
{
    DISPATCH_POOL(a->y, {
        const size_t vectors = elements(a->y) / V;
        LAUNCH((maxpool<T, V, NHWC>), blocks_for(vectors), BLOCK, s, *a, vectors);
    });
}

void launch_KERNEL_MAXPOOL_BWD(const k_pool *a, cudaStream_t s)
{
    DISPATCH_POOL(a->x, {
        const size_t vectors = elements(a->x) / V;
        LAUNCH((maxpool_bwd<T, V, NHWC>), blocks_for(vectors), BLOCK, s, *a, vectors, divider_of((uint32_t)a->sh),
               divider_of((uint32_t)a->sw));
    });
}

/* NHWC: a thread a channel; NCHW: a warp a plane. */
template <typename T> __global__ void avgpool_nhwc(k_pool a)
{
    const size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x, hw = (size_t)a.x.h * a.x.w;
    if (i >= (size_t)a.x.n * a.x.c)
        return;
    const T *x = static_cast<const T *>(a.in) + i / a.x.c * hw * a.x.c + i % a.x.c;
    float sum = 0;
    for (size_t k = 0; k < hw; k++)
        sum += to_float(x[k * a.x.c]);
    from_float(static_cast<T *>(a.out)[i], sum / hw);
}

template <typename T> __global__ void avgpool_nchw(k_pool a)
{
    const size_t plane = (blockIdx.x * (size_t)BLOCK + threadIdx.x) / WARP, hw = (size_t)a.x.h * a.x.w;
    if (plane >= (size_t)a.x.n * a.x.c)
        return;
    const T *x = static_cast<const T *>(a.in) + plane * hw;
    float sum = 0;
    for (size_t k = threadIdx.x % WARP; k < hw; k += WARP)
        sum += to_float(x[k]);
    for (int d = WARP / 2; d > 0; d /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x % WARP == 0)
        from_float(static_cast<T *>(a.out)[plane], sum / hw);
}

static unsigned exact_blocks(size_t threads)
{
    return (unsigned)((threads + BLOCK - 1) / BLOCK);
}

void launch_KERNEL_AVGPOOL(const k_pool *a, cudaStream_t s)
{
    const size_t planes = (size_t)a->x.n * a->x.c;
    DISPATCH_TYPE(a->x.type, {
        if (a->x.nhwc)
            LAUNCH((avgpool_nhwc<T>), exact_blocks(planes), BLOCK, s, *a);
        else
            LAUNCH((avgpool_nchw<T>), exact_blocks(planes * WARP), BLOCK, s, *a);
    });
}

/* in is dy (n, c), out is dx. */
template <typename T> __global__ void avgpool_bwd(k_pool a, size_t n)
{
    const size_t hw = (size_t)a.x.h * a.x.w;
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < n; i += (size_t)gridDim.x * BLOCK) {
        const size_t from = a.x.nhwc ? i / (hw * a.x.c) * a.x.c + i % a.x.c : i / hw;
        from_float(static_cast<T *>(a.out)[i], to_float(static_cast<const T *>(a.in)[from]) / hw);
    }
}

void launch_KERNEL_AVGPOOL_BWD(const k_pool *a, cudaStream_t s)
{
    const size_t n = elements(a->x);
    DISPATCH_TYPE(a->x.type, { LAUNCH((avgpool_bwd<T>), blocks_for(n), BLOCK, s, *a, n); });
}

/* --- rows that go from one part of a model to another */

enum { TILE = 32, TILE_ROWS = BLOCK / TILE };

/* Matrices (rows, cols), of which there are gridDim.y, are transposed, a tile a block; both sides are touched in runs
 * of TILE elements. */
template <typename F, typename T> __global__ void transpose(const F *in, T *out, int rows, int cols)
{
    __shared__ float tile[TILE][TILE + 1];
    const unsigned across = (unsigned)(cols + TILE - 1) / TILE;
    const size_t matrix = (size_t)rows * cols * blockIdx.y;
    const int x = (int)(threadIdx.x % TILE), y = (int)(threadIdx.x / TILE);
    const int row = (int)(blockIdx.x / across) * TILE, col = (int)(blockIdx.x % across) * TILE;
    UNROLL
    for (int k = 0; k < TILE; k += TILE_ROWS)
        if (row + y + k < rows && col + x < cols)
            tile[y + k][x] = to_float(in[matrix + (size_t)(row + y + k) * cols + col + x]);
    __syncthreads();
    UNROLL
    for (int k = 0; k < TILE; k += TILE_ROWS)
        if (col + y + k < cols && row + x < rows)
            from_float(out[matrix + (size_t)(col + y + k) * rows + row + x], tile[x][y + k]);
}

void launch_KERNEL_ROWS(const k_rows *a, cudaStream_t s)
{
    const view4 &v = a->v;
    const int pixels = v.h * v.w, rows = a->back ? pixels : v.c, cols = a->back ? v.c : pixels;
    const dim3 grid((unsigned)((rows + TILE - 1) / TILE) * (unsigned)((cols + TILE - 1) / TILE), (unsigned)v.n);
    if (!v.nhwc || pixels == 1 || v.c == 1) { /* both sides alike */
        const k_convert flat = {elements(v), a->back ? v.type : a->rows, a->back ? a->rows : v.type, a->in, a->out, 0};
        launch_KERNEL_CONVERT(&flat, s);
        return;
    }
    DISPATCH_TYPE(a->back ? v.type : a->rows, {
        using F = T;
        DISPATCH_TYPE(a->back ? a->rows : v.type, {
            LAUNCH((transpose<F, T>), grid, BLOCK, s, static_cast<const F *>(a->in), static_cast<T *>(a->out), rows,
                   cols);
        });
    });
}
